"""Cases about what the program understands, refuses and says."""

from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.operations import operation_list
from estimator.app.session.catalogue import gpu_rows, num_parameters
from estimator.app.session.config import gather_options
from estimator.app.session.options import OPTION_BY_KEY, parse_value
from estimator.app.session.report import plan_document
from estimator.catalog.resolve import resolve_model
from estimator.specs.errors import SpecError
from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath, OperationContext

from .runs import assert_within, estimate, expected, plan, write_config


def _refusal(**options: Any) -> str:
    """The message with which a workload is refused."""
    with pytest.raises(SpecError) as caught:
        estimate(**{key: parse_value(OPTION_BY_KEY[key], value) for key, value in options.items()})
    return str(caught.value)


def _refused_name(name: str) -> str:
    with pytest.raises(SpecError) as caught:
        gather_options({name: "true"}, environment={})
    return str(caught.value)


def _codes(result: Any) -> set[str]:
    return {note.code for note in (*result.warnings, *result.assumptions)}


def m24(directory: Path) -> None:
    """The source's own note: where QLoRA is out of scope, say so."""
    assert "not modelled" in _refused_name("qlora")


def m27(directory: Path) -> None:
    """The source's own note: say that LoRA is not modelled rather than give figures of full fine-tuning."""
    assert "LoRA" in _refused_name("lora")


def m29(directory: Path) -> None:
    """The same answer from a name, a config file and a folder."""
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32016,
        "tie_word_embeddings": False,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
    }
    path = write_config(directory, config)
    shared = {
        "gpu": "h200",
        "sequence_length": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 1,
        "precision": "bf16",
        "optimizer": "adamw_torch",
        "compile": True,
        "attention": "sdpa",
    }
    answers = [estimate(model=text, **shared) for text in ("codellama-7b", path, str(directory))]
    assert len({(a.parameters, a.step_time_seconds.expected, a.peak_memory_bytes.expected) for a in answers}) == 1


def m33(directory: Path) -> None:
    """The source's own note: say which tricks are not modelled."""
    assert "fp32 master weights" in _refusal(model="llama-3.1-8b", gpu="rtx-4090", precision="pure-bf16")


def s22(directory: Path) -> None:
    """Offload to NVMe is refused by name."""
    assert "NVMe" in _refusal(model="gpt2", gpu="a100-pcie-40gb", strategy="zero_infinity")


def s28(directory: Path) -> None:
    assert "not modelled" in _refusal(model="gpt2", gpu="TPU v3")


def e02(directory: Path) -> None:
    """Compile under DeepSpeed names the versions it is counted for."""
    result = estimate(model="pythia-410m", gpu="a100-80gb", num_gpus=4, strategy="zero_3", compile=True)
    assert ("compile_with_deepspeed" in _codes(result)) is expected("E02")["warn"]


def e04(directory: Path) -> None:
    """Micro batch x accumulation x GPUs is the global batch, on every row and any number of nodes."""
    for num_gpus, num_nodes in ((1, 1), (3, 1), (8, 1), (8, 3)):
        document = plan_document(plan(model="pythia-160m", gpu="a100-80gb", num_gpus=num_gpus, num_nodes=num_nodes))
        strategies: Any = document["strategies"]
        workload: Any = document["workload"]
        assert strategies
        for row in strategies:
            product = row["micro_batch_size"] * row["gradient_accumulation_steps"] * num_gpus * num_nodes
            assert product == workload["global_batch_size"]


def e11(directory: Path) -> None:
    """Never an end without an answer: a reason for each strategy and a change that fits."""
    found = plan(model="bloom-1b1", gpu="rtx-3070", cpu_memory_gib=8).plan
    assert not found.ranked
    assert len(found.rejected) == 22
    assert all(row.reason for row in found.rejected)
    assert found.nearest_changes


def b01(directory: Path) -> None:
    result = estimate(model="gpt-j-6b", gpu="v100", num_gpus=8, precision="bf16", strategy="zero_3")
    message = next(note.message for note in result.warnings if note.code == "bf16_unsupported")
    assert "compute 7.0" in message
    assert "no bf16 tensor cores" in message
    assert "fp16" in message


def b02(directory: Path) -> None:
    result = estimate(model="gpt2", gpu="Tesla T4", precision="bf16")
    assert ("bf16_unsupported" in _codes(result)) is not expected("B02")["native_bf16"]


def b05(directory: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 1600,
        "n_head": 48,
        "n_layer": 25,
        "vocab_size": 50257,
        "n_positions": 1024,
    }
    message = _refusal(model=write_config(directory, config), gpu="a100-80gb")
    assert "1600" in message
    assert "swapped" in message


def b06(directory: Path) -> None:
    assert_within(
        num_parameters(resolve_model("qwen1.5-72b", overrides={}).spec) / 1e9,
        expected("B06")["accept_b"],
        "B parameters",
    )


def b07(directory: Path) -> None:
    """Logits are about half of the forward products of Pythia-70M."""
    spec = resolve_model("pythia-70m", overrides={}).spec
    operations = operation_list(
        spec, OperationContext(numerics=Numerics.AUTOCAST, attention=AttentionPath.MATH)
    ).operations

    def flops(operation: Any) -> float:
        sizes = (size.at(1, 2048) for size in (operation.batch, operation.m, operation.k, operation.n))
        product = 2.0 * operation.repeats
        for size in sizes:
            product *= size
        return product * (0.5 if operation.is_causal else 1.0)

    products = [operation for operation in operations if operation.kind in ("matrix_product", "attention")]
    logits = [operation for operation in products if operation.n.at(1, 2048) > 40_000]
    assert len(logits) == 1
    assert 0.40 <= flops(logits[0]) / sum(map(flops, products)) <= 0.60


def b10(directory: Path) -> None:
    message = _refusal(model="timm/resnet50.a1_in1k", gpu="a100-80gb")
    assert "timm/resnet50.a1_in1k" in message


def b11(directory: Path) -> None:
    """Where a hub id cannot be reached, the way out is named."""
    message = _refusal(model="meta-llama/Llama-9-7B-Gated", gpu="a100-80gb")
    assert "config.json" in message
    assert "llama-" in message


def b14(directory: Path) -> None:
    """A cap on memory changes the answer, and options without effect are reported."""
    free = estimate(model="gpt2", gpu="a100-40gb")
    capped = estimate(model="gpt2", gpu="a100-40gb", gpu_memory_gib=8.0)
    assert capped.usable_memory_bytes < free.usable_memory_bytes
    assert "option_unused" in _codes(estimate(model="gpt2", gpu="a100-40gb", network_gbit=100.0))


def b15(directory: Path) -> None:
    wanted = expected("B15")
    (row,) = [row for row in gpu_rows(("h200",)) if row["name"] == "h200"]
    assert float(str(row["bf16_dense_tflop_per_second"])) == pytest.approx(wanted["peak_tflops"], abs=1)
    assert float(str(row["memory_gib"])) * 2**30 / 1e9 == pytest.approx(wanted["mem_gb"], rel=0.07)
    assert float(str(row["memory_bandwidth_gb_per_second"])) / 1e3 == wanted["hbm_tb_s"]


def b16(directory: Path) -> None:
    """The size of a data set in, days out: tokens and samples x length agree."""
    shared = {
        "model": "bert-large-uncased",
        "gpu": "v100",
        "sequence_length": 512,
        "global_batch_size": 256,
        "micro_batch_size": 1,
    }
    by_tokens = estimate(num_training_tokens=512 * 256 * 1000, **shared).training_days
    by_samples = estimate(num_training_samples=256 * 1000, **shared).training_days
    assert by_tokens is not None
    assert by_tokens == by_samples


def b19(directory: Path) -> None:
    """No flash attention on Turing, and DDP replicates: both are visible."""
    shared = {"model": "mixtral-8x7b", "gpu": "titan rtx", "num_gpus": 2, "attention": "flash_attention_2"}
    assert "flash_attention_unavailable" in _codes(estimate(**shared))
    parts = estimate(**shared).memory_components_bytes
    sharded = estimate(strategy="zero_3", **shared).memory_components_bytes
    assert parts.optimizer == pytest.approx(8 * 46_702_792_704, rel=0.01)
    assert sharded.optimizer < parts.optimizer


def b20(directory: Path) -> None:
    """Compile with checkpointing: memory may go either way, and that is said."""
    result = estimate(model="gpt2", gpu="a100-40gb", compile=True, activation_checkpointing=True)
    assert "compile_with_checkpointing" in _codes(result)


RUNS = {
    "M24": m24,
    "M27": m27,
    "M29": m29,
    "M33": m33,
    "S22": s22,
    "S28": s28,
    "E02": e02,
    "E04": e04,
    "E11": e11,
    "B01": b01,
    "B02": b02,
    "B05": b05,
    "B06": b06,
    "B07": b07,
    "B10": b10,
    "B11": b11,
    "B14": b14,
    "B15": b15,
    "B16": b16,
    "B19": b19,
    "B20": b20,
}
