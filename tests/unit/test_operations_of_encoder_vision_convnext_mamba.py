"""Closed forms against torch: FLOPs against its counter, saved bytes against a memory trace on fake tensors."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.architectures import convnext, encoder, mamba, vision
from estimator.catalog.families import convnext as convnext_config
from estimator.catalog.families import encoder as encoder_config
from estimator.catalog.families import mamba as mamba_config
from estimator.catalog.families import vision as vision_config
from estimator.specs.operations import AttentionPath, OperationContext, OperationList
from tests.support.operation_totals import product_flops, saved_bytes

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
FAMILIES = {
    "bert": (encoder_config, encoder),
    "roberta": (encoder_config, encoder),
    "vit": (vision_config, vision),
    "deit": (vision_config, vision),
    "dinov2": (vision_config, vision),
    "convnext": (convnext_config, convnext),
    "convnextv2": (convnext_config, convnext),
    "mamba": (mamba_config, mamba),
}
CLASSES = {
    "bert": "BertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "vit": "ViTForImageClassification",
    "deit": "DeiTForImageClassification",
    "dinov2": "Dinov2ForImageClassification",
    "convnext": "ConvNextForImageClassification",
    "convnextv2": "ConvNextV2ForImageClassification",
    "mamba": "MambaForCausalLM",
}
MODELS = (
    "bert-base-uncased", "bert-pretraining-small", "roberta-large", "vit-base-patch16-224", "deit-small-patch16-224",
    "dinov2-base", "dinov2-giant", "convnext-large-22k", "convnextv2-base", "mamba-130m", "mamba-2.8b",
)  # fmt: skip
KERNELS = {AttentionPath.FLASH: "flash", AttentionPath.EFFICIENT: "efficient"}


def load(name: str, **overrides: object) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}


def closed_form(config: dict[str, Any], numerics: str, path: AttentionPath) -> OperationList:
    reader, architecture = FAMILIES[config["model_type"]]
    spec, _ = reader.read(config, name="test", source="test")
    return architecture.operation_list(spec, OperationContext(numerics=numerics, attention=path))


def batch_of(config: dict[str, Any], micro_batch_size: int, length: int) -> Any:
    from tests.support.fake_models import image_batch, token_batch

    if "image_size" in config:
        return partial(image_batch, micro_batch_size, config["image_size"])
    return partial(token_batch, micro_batch_size, length)


def transformers_class(config: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, CLASSES[config["model_type"]])


@pytest.mark.parametrize("numerics", ["fp32", "autocast", "autocast_cast_weights", "low_precision"])
@pytest.mark.parametrize("name", MODELS)
def test_a_compiler_moves_and_keeps_no_more(name: str, numerics: str) -> None:
    config = load(name)
    reader, architecture = FAMILIES[config["model_type"]]
    spec, _ = reader.read(config, name="test", source="test")
    for path in AttentionPath:
        eager, compiled = (
            architecture.operation_list(
                spec, OperationContext(numerics=numerics, attention=path, is_compiled=is_compiled)
            )
            for is_compiled in (False, True)
        )
        assert product_flops(compiled, 4, 512) == product_flops(eager, 4, 512) > 0
        assert 0 < saved_bytes(compiled, 4, 512) <= 1.001 * saved_bytes(eager, 4, 512)
        for size in ("forward_bytes", "backward_bytes"):
            moved = [sum(o.repeats * getattr(o, size).at(4, 512) for o in x.operations) for x in (compiled, eager)]
            assert 0 < moved[0] < moved[1]
        for kernels in ("forward_kernels", "backward_kernels"):
            count = [sum(o.repeats * getattr(o, kernels) for o in x.operations) for x in (compiled, eager)]
            assert 0 < count[0] < count[1]


def test_flops_of_bert_by_hand() -> None:
    """6 x tokens x (layers (4 h^2 + 2 h f) + h^2 + h V) for the weights, 12 x b x layers x s^2 x h for the scores."""
    tokens, hidden, width, layers, vocabulary = 4 * 512, 768, 3072, 12, 30522
    weights = layers * (4 * hidden**2 + 2 * hidden * width) + hidden**2 + hidden * vocabulary
    expected = 6 * tokens * weights + 12 * 4 * layers * 512**2 * hidden
    assert product_flops(closed_form(load("bert-base-uncased"), "fp32", AttentionPath.MATH), 4, 512) == expected


FLOP_CASES = [
    ("bert-base-uncased", {}, 4, 512),
    ("bert-large-uncased", {"num_hidden_layers": 6}, 2, 384),
    ("roberta-base", {}, 2, 512),
    ("roberta-large", {"num_hidden_layers": 6}, 8, 128),
    ("vit-base-patch16-224", {}, 8, 0),
    ("vit-large-patch16-224-21k", {"num_hidden_layers": 4}, 4, 0),
    ("deit-small-patch16-224", {}, 4, 0),
    ("dinov2-base", {"image_size": 224}, 4, 0),
    ("dinov2-giant", {"num_hidden_layers": 4, "image_size": 518}, 1, 0),
    ("convnext-tiny-224", {}, 8, 0),
    ("convnext-large-22k", {}, 2, 0),
    ("convnextv2-base", {}, 2, 0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides", "micro_batch_size", "length"), FLOP_CASES)
def test_flops_of_forward_and_backward(
    name: str, overrides: dict[str, Any], micro_batch_size: int, length: int
) -> None:
    """Math attention on both sides: the counter knows no fused kernel of the CPU."""
    from tests.support.flop_counting import counted_flops

    config = load(name, **overrides)
    counted = counted_flops(transformers_class(config), config, batch_of(config, micro_batch_size, length))
    expected = product_flops(closed_form(config, "fp32", AttentionPath.MATH), micro_batch_size, length)
    assert expected == pytest.approx(counted, rel=0.005)


MEMORY_CASES = [
    ("bert-base-uncased", {"num_hidden_layers": 3}, 4, 256),
    ("bert-pretraining-small", {"architectures": ["BertForMaskedLM"], "hidden_dropout_prob": 0.0}, 2, 512),
    ("roberta-large", {"num_hidden_layers": 2}, 2, 512),
    ("vit-base-patch16-224", {"num_hidden_layers": 3}, 4, 0),
    ("deit-small-patch16-224", {"num_hidden_layers": 3, "hidden_dropout_prob": 0.1}, 4, 0),
    ("dinov2-base", {"num_hidden_layers": 3, "image_size": 224, "drop_path_rate": 0.2}, 4, 0),
    ("dinov2-giant", {"num_hidden_layers": 3, "image_size": 518}, 2, 0),
    ("convnext-tiny-224", {}, 4, 0),
    ("convnext-large-22k", {}, 2, 0),
    ("convnextv2-base", {}, 2, 0),
]
VARIANTS = [
    ("fp32", AttentionPath.EFFICIENT),
    ("autocast", AttentionPath.FLASH),
    ("fp32", AttentionPath.MATH),
    ("autocast", AttentionPath.MATH),
    ("autocast", AttentionPath.EFFICIENT),
    ("low_precision", AttentionPath.FLASH),
    ("low_precision", AttentionPath.MATH),
]
"""The trace of SDPA's math fallback keeps the CPU's wide dropout noise, so eager code stands for math here."""
EVERY_VARIANT = ("bert-base-uncased", "dinov2-base")
"""The other models run in the first two, which saves minutes and finds what is theirs."""


def memory_cases() -> list[Any]:
    return [
        pytest.param(*case, *variant, id=f"{case[0]}-{variant[0]}-{variant[1].value}")
        for case in MEMORY_CASES
        for variant in (VARIANTS if case[0] in EVERY_VARIANT else VARIANTS[:2])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["all", "checkpointed"])
@pytest.mark.parametrize(("name", "overrides", "micro_batch_size", "length", "numerics", "path"), memory_cases())
def test_saved_bytes(
    name: str,
    overrides: dict[str, Any],
    micro_batch_size: int,
    length: int,
    numerics: str,
    path: AttentionPath,
    checkpointing: bool,
) -> None:
    from tests.support.saved_activations import saved_activations

    config = load(name, **overrides)
    traced = saved_activations(
        transformers_class(config),
        config,
        batch_of(config, micro_batch_size, length),
        numerics=numerics,
        attention="eager" if path is AttentionPath.MATH else None,
        kernel=KERNELS.get(path),
        checkpointing=checkpointing,
    )
    operations = closed_form(config, numerics, path)
    expected = saved_bytes(operations, micro_batch_size, length, checkpointing=checkpointing)
    assert expected == pytest.approx(traced.activation_bytes, rel=0.03)


@pytest.mark.slow
def test_flops_of_mamba() -> None:
    """The counter sees transformers' step-by-step code, which also runs what the fused kernels do without matrix
    products: it reads the state out by a product of (channels x states) a step, and convolves channel by channel
    (over 3 positions more than it keeps)."""
    from tests.support.flop_counting import counted_flops

    config = load("mamba-130m", num_hidden_layers=2)
    micro_batch_size, length = 2, 48
    counted = counted_flops(transformers_class(config), config, batch_of(config, micro_batch_size, length))
    channels = 2 * micro_batch_size * config["intermediate_size"]
    read_out = 3 * 2 * channels * length * config["state_size"]
    convolved = 3 * 2 * channels * (length + config["conv_kernel"] - 1) * config["conv_kernel"]
    products = product_flops(closed_form(config, "fp32", AttentionPath.FLASH), micro_batch_size, length)
    assert products + read_out + convolved == pytest.approx(counted, rel=0.005)


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True], ids=["all", "checkpointed"])
@pytest.mark.parametrize("numerics", ["fp32", "autocast", "low_precision"])
@pytest.mark.parametrize(("name", "length"), [("mamba-2.8b", 4096), ("mamba-130m", 512)])
def test_saved_bytes_of_mamba(
    name: str, length: int, numerics: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers around a stand-in for the fused kernel, which no CPU can run."""
    import torch

    from tests.support.fused_mamba import fused_mamba
    from tests.support.saved_activations import saved_activations

    config = load(name, num_hidden_layers=3)
    with fused_mamba(monkeypatch, torch.bfloat16 if numerics == "autocast" else None):
        traced = saved_activations(
            transformers_class(config),
            config,
            batch_of(config, 2, length),
            numerics=numerics,
            checkpointing=checkpointing,
        )
    operations = closed_form(config, numerics, AttentionPath.FLASH)
    copied = [t for t in operations.parameters if t.name in ("x_proj", "dt_proj", "out_proj")]
    # The stand-in casts these itself, so the trace cannot tell the copies from activations.
    copies = sum(2 * t.num_elements * t.repeats for t in copied) if numerics == "autocast" and not checkpointing else 0
    expected = saved_bytes(operations, 2, length, checkpointing=checkpointing) + copies
    assert expected == pytest.approx(traced.activation_bytes, rel=0.03)
