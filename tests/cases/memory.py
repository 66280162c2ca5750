"""Cases about memory: does it fit, how much, where."""

from pathlib import Path

import pytest

from .runs import GB, GIB, assert_within, estimate, expected, plan, write_config

FULL = {"optimizer": "adamw_torch", "compile": False}


def m01(directory: Path) -> None:
    """LLaMA-Factory's defaults: length 1024, checkpointing on."""
    shared = {
        "model": "llama-7b",
        "gpu": "v100-sxm2-32gb",
        "num_gpus": 8,
        "precision": "fp16",
        "sequence_length": 1024,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "activation_checkpointing": True,
        **FULL,
    }
    second, third = (estimate(strategy=name, **shared) for name in ("zero_2", "zero_3"))
    assert (second.fits == "no") is not expected("M01")["zero2_fits"], (
        f"{second.peak_reserved_bytes.expected / GIB:.1f} GiB"
    )
    assert (third.fits != "no") is expected("M01")["zero3_fits"]


def m04(directory: Path) -> None:
    wanted = expected("M04")
    for num_gpus in (1, 2, 3, 4):
        answer = plan(
            model="llama-2-13b",
            gpu="a800",
            num_gpus=num_gpus,
            sequence_length=512,
            global_batch_size=12,
            precision="bf16",
        )
        without_offload = [row for row in answer.plan.ranked if not row.workload.strategy.offload]
        assert bool(without_offload) is (num_gpus >= wanted["min_gpus"]), num_gpus


def m05(directory: Path) -> None:
    result = estimate(
        model="llama-7b",
        gpu="a100-40gb",
        num_gpus=4,
        strategy="fsdp_full_shard",
        activation_checkpointing=True,
        sequence_length=2048,
        micro_batch_size=1,
        global_batch_size=4,
        precision="bf16",
        **FULL,
    )
    assert (result.fits != "no") is expected("M05")["fits"]


def m06(directory: Path) -> None:
    """The source classifies; the masked-language-model head that is modelled adds its logits (0.25 GB a copy)."""
    result = estimate(
        model="bert-large-uncased",
        gpu="v100-sxm2-16gb",
        sequence_length=512,
        micro_batch_size=4,
        global_batch_size=4,
        precision="fp32",
        attention="eager",
        **FULL,
    )
    seen = result.peak_reserved_bytes.expected + result.context_bytes
    assert_within(seen / GB, expected("M06")["accept_gb"], "nvidia-smi GB")


def m09(directory: Path) -> None:
    """With states off the GPU the floor does not shrink with the number of GPUs."""
    peaks = [
        estimate(
            model="gpt-j-6b",
            gpu="a100-40gb",
            num_gpus=num_gpus,
            strategy="zero_3",
            offload=True,
            precision="fp16",
            sequence_length=1024,
            micro_batch_size=1,
            global_batch_size=num_gpus,
            **FULL,
        ).peak_memory_bytes.expected
        for num_gpus in (2, 4)
    ]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.10)


def m13(directory: Path) -> None:
    shared = {
        "model": "qwen2.5-32b",
        "gpu": "h100-sxm",
        "num_gpus": 8,
        "strategy": "zero_3",
        "offload": True,
        "precision": "bf16",
        "sequence_length": 4096,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        **FULL,
    }
    plain, checkpointed = (estimate(activation_checkpointing=on, **shared) for on in (False, True))
    wanted = expected("M13")
    assert (plain.fits != "no") is wanted["fits_without_ckpt"], f"{plain.peak_reserved_bytes.expected / GIB:.1f} GiB"
    assert (checkpointed.fits != "no") is wanted["fits_with_ckpt"]


def m14(directory: Path) -> None:
    result = estimate(
        model="llama-2-70b",
        gpu="a100-80gb",
        num_gpus=8,
        cpu_memory_gib=1024 * GB / GIB,
        strategy="zero_3",
        offload=True,
        activation_checkpointing=True,
        sequence_length=2048,
        micro_batch_size=1,
        global_batch_size=8,
        precision="bf16",
        **FULL,
    )
    wanted = expected("M14")
    assert (result.fits != "no") is wanted["fits_gpu"]
    assert result.host_memory_bytes / GB > float(wanted["cpu_gb_needed"].lstrip(">"))
    assert "cpu_memory_too_small" in {note.code for note in result.warnings}


def m15(directory: Path) -> None:
    result = estimate(
        model="llama-30b",
        gpu="a100-40gb",
        num_gpus=8,
        strategy="zero_3",
        offload=True,
        precision="bf16",
        activation_checkpointing=True,
        sequence_length=2048,
        micro_batch_size=1,
        global_batch_size=8,
        **FULL,
    )
    assert_within(result.host_memory_bytes / GB, expected("M15")["cpu_gb"], "host GB")


def m18(directory: Path) -> None:
    """nanochat d20: 20 layers of 1,280, an untied vocabulary of 65,536; its optimizer (Muon) is not modelled."""
    model = write_config(
        directory,
        {
            "model_type": "gpt_neox",
            "hidden_size": 1280,
            "num_hidden_layers": 20,
            "num_attention_heads": 10,
            "intermediate_size": 5120,
            "vocab_size": 65536,
            "max_position_embeddings": 2048,
            "hidden_act": "relu",
            "tie_word_embeddings": False,
        },
    )
    shared = {
        "model": model,
        "gpu": "h100-sxm",
        "num_gpus": 8,
        "precision": "bf16",
        "sequence_length": 2048,
        "compile": True,
    }
    wanted = expected("M18")
    half = estimate(micro_batch_size=16, global_batch_size=128, **shared)
    full = estimate(micro_batch_size=32, global_batch_size=256, **shared)
    assert (half.fits != "no") is wanted["mb16_fits"]
    copies = full.memory_components_bytes.logits / GIB / wanted["logits_buffer_gib"]
    assert copies >= 2, "at least the logits and their gradient are alive in the loss"
    usable = full.usable_memory_bytes
    assert_within(usable / GIB, [full.peak_reserved_bytes.low / GIB, full.peak_reserved_bytes.high / GIB], "usable GiB")


def m19(directory: Path) -> None:
    result = estimate(
        model="bloom-1b7",
        gpu="v100-sxm2-32gb",
        sequence_length=512,
        micro_batch_size=1,
        global_batch_size=8,
        precision="fp16",
        **FULL,
    )
    seen = result.peak_reserved_bytes.expected + result.context_bytes
    assert_within(seen / GB, expected("M19")["peak_gb"], "GB")


def m22(directory: Path) -> None:
    """One fp32 copy of the logits is 18.5 GiB, and several are alive."""
    result = estimate(
        model="qwen3-30b-a3b",
        gpu="a100-80gb",
        num_gpus=8,
        num_nodes=8,
        strategy="zero_3",
        offload=True,
        activation_checkpointing=True,
        sequence_length=32768,
        micro_batch_size=1,
        global_batch_size=64,
        precision="bf16",
        **FULL,
    )
    assert result.memory_components_bytes.logits / GIB > expected("M22")["logits_fp32_gib"]
    assert "large_logits" in {note.code for note in result.warnings}


def m23(directory: Path) -> None:
    result = estimate(
        model="qwen1.5-7b",
        gpu="a100-40gb",
        num_gpus=8,
        strategy="zero_2",
        precision="fp16",
        sequence_length=512,
        micro_batch_size=1,
        global_batch_size=8,
        activation_checkpointing=True,
        **FULL,
    )
    assert (result.fits != "no") is expected("M23")["fits"], f"{result.peak_reserved_bytes.expected / GIB:.1f} GiB"


def m32(directory: Path) -> None:
    """16 bytes a parameter over all GPUs; with accumulation, gradients are alive at the peak too."""
    num_gpus = 64
    result = estimate(
        model="llama-3.1-70b",
        gpu="h100-sxm",
        num_gpus=8,
        num_nodes=8,
        strategy="fsdp_full_shard",
        precision="bf16",
        sequence_length=2048,
        micro_batch_size=1,
        global_batch_size=2 * num_gpus,
        activation_checkpointing=True,
        **FULL,
    )
    parts = result.memory_components_bytes
    states = (parts.parameters + parts.gradients + parts.optimizer) * num_gpus
    assert_within(states / GB, expected("M32")["mixed_adam_gb"], "GB of states")


RUNS = {
    "M01": m01,
    "M04": m04,
    "M05": m05,
    "M06": m06,
    "M09": m09,
    "M13": m13,
    "M14": m14,
    "M15": m15,
    "M18": m18,
    "M19": m19,
    "M22": m22,
    "M23": m23,
    "M32": m32,
}
