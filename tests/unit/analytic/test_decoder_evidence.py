"""Closed forms of decoders against transformers itself: parameters, FLOPs, what autograd keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.architectures.decoder import parameter_tensors
from estimator.analytic.flops import model_flops, total_flops
from estimator.analytic.operations import operation_list
from estimator.catalog.huggingface import model_from_config
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.operations import AttentionPath, OperationContext, OperationList, ParameterKind

CONFIGS = Path(__file__).parents[2] / "data" / "configs"
_LAYERS = {"gpt2": "n_layer", "gptj": "n_layer", "bloom": "n_layer"}
DENSE = (
    "gpt2", "gpt2-xl", "pythia-160m", "pythia-1b", "pythia-12b", "opt-125m", "opt-350m", "llama-2-7b", "llama-3.1-8b",
    "llama-3.2-1b", "mistral-7b-v0.1", "mistral-nemo", "qwen2.5-0.5b", "qwen2.5-7b", "qwen3-0.6b", "qwen3-4b",
    "gemma-2b", "gemma-7b", "gemma-2-2b", "gemma-2-9b", "gemma-3-1b", "gemma-3-270m", "phi-1_5", "phi-2",
    "phi-3-mini-4k", "phi-4", "gpt-j-6b", "gptj-small", "bloom-560m", "bloom-7b1", "olmo-1b", "olmo-7b", "olmo-2-1b",
    "olmo-2-7b", "smollm3-3b", "smollm3-small", "stablelm-3b", "stablelm-2-1_6b", "starcoder2-3b", "starcoder2-small",
)  # fmt: skip
MIXTURES = ("mixtral-8x7b", "mixtral-small", "qwen1.5-moe-a2.7b", "qwen2-moe-small", "qwen3-30b-a3b", "qwen3-moe-small")
MICRO_BATCH, LENGTH = 2, 256


def config_of(name: str, **overrides: object) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}


def shallow(name: str, num_layers: int = 2) -> dict[str, Any]:
    """Real widths, few layers: the trace costs time per layer."""
    config = config_of(name)
    config[_LAYERS.get(config["model_type"], "num_hidden_layers")] = num_layers
    if config.get("layer_types"):
        config["layer_types"] = config["layer_types"][-num_layers:]
    return config


def model_class(config: dict[str, Any]) -> type:
    import transformers

    found: type = getattr(transformers, config["architectures"][0])
    return found


def spec_of(config: dict[str, Any]) -> DecoderSpec:
    spec, _ = model_from_config(config, name="test", source="test")
    assert isinstance(spec, DecoderSpec)
    return spec


def operations_of(config: dict[str, Any], numerics: str, attention: AttentionPath) -> OperationList:
    return operation_list(spec_of(config), OperationContext(numerics=numerics, attention=attention))


def saved_bytes(operations: OperationList, *, checkpointing: bool) -> float:
    """What the list says autograd keeps; with checkpointing block inputs and what lies outside blocks."""
    at = MICRO_BATCH, LENGTH
    kept = [operation for operation in operations.operations if not checkpointing or operation.block is None]
    inputs = sum(group.num_blocks * group.input_bytes.at(*at) for group in operations.blocks) if checkpointing else 0.0
    return inputs + sum(operation.repeats * operation.saved_bytes.at(*at) for operation in kept)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", DENSE + MIXTURES)
def test_parameter_count_equals_transformers(name: str) -> None:
    from tests.support.fake_models import num_parameters

    config = config_of(name)
    counted = sum(tensor.num_elements * tensor.repeats for tensor in parameter_tensors(spec_of(config)))
    assert counted == num_parameters(model_class(config), config)


FLOPS_CASES = (
    "gpt2", "pythia-1b", "opt-125m", "opt-350m", "llama-3.2-1b", "mistral-7b-v0.1", "qwen2.5-0.5b", "qwen3-0.6b",
    "gemma-2b", "gemma-2-2b", "gemma-3-270m", "phi-2", "phi-3-mini-4k", "gpt-j-6b", "bloom-560m", "olmo-7b",
    "olmo-2-1b", "smollm3-small", "stablelm-3b", "starcoder2-small",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FLOPS_CASES)
def test_flops_equal_a_flop_counter(name: str) -> None:
    """Eager attention computes every (query, key) pair, and so does the counter. ``model_flops`` must differ: it
    counts the causal half only, so that kernels which skip the rest are not credited with work they avoid."""
    from tests.support.fake_models import token_batch
    from tests.support.flop_counting import counted_flops

    config = shallow(name)
    counted = counted_flops(
        model_class(config), config, lambda: token_batch(MICRO_BATCH, LENGTH), attention="eager"
    )
    operations = operations_of(config, "fp32", AttentionPath.MATH)
    assert total_flops(operations, MICRO_BATCH, LENGTH) == pytest.approx(counted, rel=0.005)
    assert model_flops(operations, MICRO_BATCH, LENGTH) < counted


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mixtral-small", "qwen2-moe-small", "qwen3-moe-small"])
def test_flops_of_experts_equal_a_flop_counter(name: str) -> None:
    """The counter knows no grouped product; ``batched_mm`` multiplies the same rows by the same weights."""
    from tests.support.fake_models import token_batch
    from tests.support.flop_counting import counted_flops

    config = {**shallow(name, 4), "experts_implementation": "batched_mm"}
    counted = counted_flops(
        model_class(config), config, lambda: token_batch(MICRO_BATCH, LENGTH), attention="eager"
    )
    operations = operations_of(config, "fp32", AttentionPath.MATH)
    assert total_flops(operations, MICRO_BATCH, LENGTH) == pytest.approx(counted, rel=0.005)


SAVED_VARIANTS = (
    ("fp32", AttentionPath.MATH, "eager", None),
    ("autocast", AttentionPath.FLASH, "sdpa", "flash"),
    ("low_precision", AttentionPath.FLASH, "sdpa", "flash"),
)
SAVED_CASES = (
    "gpt2", "pythia-1b", "opt-125m", "opt-350m", "llama-3.2-1b", "mistral-7b-v0.1", "qwen3-0.6b", "gemma-2-2b",
    "gemma-3-270m", "phi-2", "phi-3-mini-4k", "gpt-j-6b", "bloom-560m", "olmo-7b", "olmo-2-1b", "smollm3-small",
    "starcoder2-small",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize(
    ("numerics", "path", "attention", "kernel"), SAVED_VARIANTS, ids=[variant[0] for variant in SAVED_VARIANTS]
)
@pytest.mark.parametrize("name", SAVED_CASES)
def test_saved_activations_equal_a_memory_trace(
    name: str, numerics: str, path: AttentionPath, attention: str, kernel: str | None, checkpointing: bool
) -> None:
    from tests.support.fake_models import token_batch
    from tests.support.saved_activations import saved_activations

    config = shallow(name)
    spec = spec_of(config)
    if spec.attention_softcap is not None or spec.position == "alibi":
        path, attention, kernel = AttentionPath.MATH, "eager", None
    traced = saved_activations(
        model_class(config), config, lambda: token_batch(MICRO_BATCH, LENGTH),
        numerics=numerics, attention=attention, kernel=kernel, checkpointing=checkpointing,
    )  # fmt: skip
    operations = operations_of(config, numerics, path)
    assert saved_bytes(operations, checkpointing=checkpointing) == pytest.approx(traced.activation_bytes, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["llama-3.2-1b", "pythia-1b", "qwen3-0.6b"])
@pytest.mark.parametrize(("path", "kernel"), [(AttentionPath.EFFICIENT, "efficient"), (AttentionPath.SDPA_MATH, None)])
def test_saved_activations_of_other_attention_kernels(name: str, path: AttentionPath, kernel: str | None) -> None:
    from tests.support.fake_models import token_batch
    from tests.support.saved_activations import saved_activations

    config = shallow(name)
    traced = saved_activations(
        model_class(config), config, lambda: token_batch(MICRO_BATCH, LENGTH),
        numerics="fp32", attention="sdpa", kernel=kernel,
    )  # fmt: skip
    operations = operations_of(config, "fp32", path)
    assert saved_bytes(operations, checkpointing=False) == pytest.approx(traced.activation_bytes, rel=0.01)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("numerics", ["autocast", "low_precision"])
@pytest.mark.parametrize("name", ["mixtral-small", "qwen2-moe-small", "qwen3-moe-small"])
def test_saved_activations_of_experts(name: str, numerics: str) -> None:
    """Autocast casts expert weights through a view, which its cache does not know: their copies are counted here as
    weight copies, in the trace as activations, so both sides are compared with all copies."""
    from tests.support.fake_models import token_batch
    from tests.support.saved_activations import saved_activations

    config = shallow(name, 4)
    traced = saved_activations(
        model_class(config), config, lambda: token_batch(MICRO_BATCH, LENGTH),
        numerics=numerics, attention="sdpa", kernel="flash",
    )  # fmt: skip
    operations = operations_of(config, numerics, AttentionPath.FLASH)
    expected = saved_bytes(operations, checkpointing=False)
    if numerics == "autocast":
        matrices = [tensor for tensor in operations.parameters if tensor.kind is ParameterKind.MATRIX]
        expected += 2 * sum(tensor.num_elements * tensor.repeats for tensor in matrices)
    assert expected == pytest.approx(traced.activation_bytes + traced.weight_copy_bytes, rel=0.01)
