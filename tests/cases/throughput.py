"""Cases about speed, days and dollars."""

from pathlib import Path

from .runs import assert_within, estimate, expected, llama, mpt, nanogpt, plan, tokens_per_second_per_gpu

LLM_FOUNDRY = {
    "strategy": "fsdp_full_shard",
    "precision": "bf16",
    "attention": "flash_attention_2",
    "compile": False,
    "optimizer": "adamw_torch",
}


def _foundry(
    case_id: str,
    directory: Path,
    *,
    gpu: str,
    num_gpus: int,
    hidden: int,
    layers: int,
    length: int,
    micro: int,
    accumulation: int,
    checkpointing: bool,
    network_gbit: float | None = None,
) -> None:
    model = mpt(directory, hidden=hidden, layers=layers, positions=length)
    rate = tokens_per_second_per_gpu(
        num_gpus,
        model=model,
        gpu=gpu,
        sequence_length=length,
        micro_batch_size=micro,
        global_batch_size=micro * accumulation * num_gpus,
        activation_checkpointing=checkpointing,
        network_gbit=network_gbit,
        **LLM_FOUNDRY,
    )
    assert_within(rate, expected(case_id)["accept"], "tokens/s/GPU")


def t02(directory: Path) -> None:
    _foundry(
        "T02",
        directory,
        gpu="a100-80gb",
        num_gpus=8,
        hidden=4096,
        layers=32,
        length=4096,
        micro=16,
        accumulation=2,
        checkpointing=True,
    )


def t03(directory: Path) -> None:
    _foundry(
        "T03",
        directory,
        gpu="h100-sxm",
        num_gpus=8,
        hidden=4096,
        layers=32,
        length=2048,
        micro=6,
        accumulation=1,
        checkpointing=False,
    )


def t04(directory: Path) -> None:
    _foundry(
        "T04",
        directory,
        gpu="h100-sxm",
        num_gpus=8,
        hidden=4096,
        layers=32,
        length=65536,
        micro=1,
        accumulation=2,
        checkpointing=True,
    )


def t07(directory: Path) -> None:
    """The source trains in pure bf16; mixed precision, which is modelled, costs a little more memory and time."""
    _foundry(
        "T07",
        directory,
        gpu="a100-80gb",
        num_gpus=32,
        hidden=8192,
        layers=80,
        length=2048,
        micro=2,
        accumulation=16,
        checkpointing=True,
        network_gbit=1600,
    )


def t08(directory: Path) -> None:
    """As T07."""
    _foundry(
        "T08",
        directory,
        gpu="a100-40gb",
        num_gpus=64,
        hidden=8192,
        layers=80,
        length=2048,
        micro=2,
        accumulation=1,
        checkpointing=True,
        network_gbit=1600,
    )


def t09(directory: Path) -> None:
    _foundry(
        "T09",
        directory,
        gpu="a100-80gb",
        num_gpus=8,
        hidden=768,
        layers=12,
        length=2048,
        micro=40,
        accumulation=2,
        checkpointing=False,
    )


def t17(directory: Path) -> None:
    """nanoGPT of that month wrote attention out, as case T18 from the same repository says."""
    result = estimate(
        model=nanogpt(directory),
        gpu="a100-40gb",
        num_gpus=8,
        sequence_length=1024,
        micro_batch_size=12,
        global_batch_size=480,
        precision="bf16",
        attention="eager",
        compile=True,
        optimizer="adamw_torch_fused",
        num_training_steps=600_000,
    )
    assert result.training_days is not None
    assert_within(result.training_days.expected, expected("T17")["accept_days"], "days")


def t18(directory: Path) -> None:
    """Eager code without a fused attention kernel against the same compiled."""
    shared = {
        "model": nanogpt(directory),
        "gpu": "a100-40gb",
        "sequence_length": 1024,
        "micro_batch_size": 12,
        "global_batch_size": 12,
        "precision": "bf16",
        "attention": "eager",
    }
    eager, compiled = (estimate(compile=on, **shared).step_time_seconds.expected for on in (False, True))
    assert_within(eager / compiled, expected("T18")["speedup_compile"], "speed-up by compile")


def t20(directory: Path) -> None:
    model = llama(directory, hidden=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=32005, tied=True)
    answer = plan(
        model=model,
        gpu="a100-80gb",
        sequence_length=2048,
        global_batch_size=64,
        num_training_steps=90_000,
        precision="bf16",
        compile=True,
        usd_per_gpu_hour=1.52,
    )
    best = answer.plan.best
    assert best is not None
    assert best.estimate.cost_usd is not None
    assert_within(best.estimate.cost_usd.expected, expected("T20")["accept_usd"], "USD")


def t30(directory: Path) -> None:
    """The days of the study are impossible; any answer below the bound would repeat its mistake."""
    answer = plan(model="pythia-1b", gpu="a100-80gb", num_gpus=4)
    best = answer.plan.best
    assert best is not None
    assert best.estimate.training_days is not None
    assert best.estimate.training_days.expected > 25
    assert best.estimate.mfu_fraction < 0.65


def t31(directory: Path) -> None:
    answer = plan(model="pythia-1.4b", gpu="v100-sxm2-32gb", precision="fp16", cpu_memory_gib=256)
    best = answer.plan.best
    assert best is not None
    assert best.estimate.training_days is not None
    assert_within(best.estimate.training_days.expected, expected("T31")["days_order"], "days")


def t35(directory: Path) -> None:
    """A tuned Llama-style 1B on 8 H100: TinyLlama's shape, the best plan; the source's framework does not compile
    and calls FlashAttention-2 itself."""
    answer = plan(
        model="tinyllama-1.1b", gpu="h100-sxm", num_gpus=8, sequence_length=2048, precision="bf16", compile=False,
        attention="flash_attention_2",
    )
    best = answer.plan.best
    assert best is not None
    assert best.estimate.tokens_per_second is not None
    assert_within(best.estimate.tokens_per_second / 8, expected("T35")["accept"], "tokens/s/GPU")


def s05(directory: Path) -> None:
    """Offload ranks last where the model fits without."""
    answer = plan(
        model="qwen1.5-72b", gpu="a100-80gb", num_gpus=8, num_nodes=4, sequence_length=8192, global_batch_size=32
    )
    offloads = [row.workload.strategy.offload for row in answer.plan.ranked]
    assert not offloads[0]
    assert offloads == sorted(offloads)
    assert any(offloads)


def s12(directory: Path) -> None:
    """Two GeForce cards: accumulation amortises the all-reduce."""
    shared = {
        "model": "tinyllama-1.1b",
        "gpu": "rtx-4090",
        "sequence_length": 2048,
        "micro_batch_size": 3,
        "precision": "bf16",
        "compile": False,
        "activation_checkpointing": False,
    }
    one = estimate(global_batch_size=12, **shared)
    accumulated = estimate(num_gpus=2, global_batch_size=24, **shared)
    plain = estimate(num_gpus=2, global_batch_size=6, **shared)
    wanted = expected("S12")
    assert_within(
        accumulated.samples_per_second / one.samples_per_second, wanted["ddp2_ga4_speedup"], "speed-up, accumulation 4"
    )
    assert_within(
        plain.samples_per_second / one.samples_per_second, wanted["ddp2_ga1_speedup"], "speed-up, accumulation 1"
    )


def s26(directory: Path) -> None:
    """A plan of more than the card's peak: the estimate must stay below."""
    model = llama(directory, hidden=2048, layers=24, heads=16, kv_heads=4, ffn=5632, vocab=32000, tied=True)
    result = estimate(
        model=model,
        gpu="rtx-5090",
        sequence_length=3072,
        micro_batch_size=4,
        global_batch_size=80,
        precision="bf16",
        compile=False,
    )
    assert result.tokens_per_second is not None
    assert result.tokens_per_second <= expected("S26")["max_tok_s"]


RUNS = {
    "T02": t02,
    "T03": t03,
    "T04": t04,
    "T07": t07,
    "T08": t08,
    "T09": t09,
    "T17": t17,
    "T18": t18,
    "T20": t20,
    "T30": t30,
    "T31": t31,
    "T35": t35,
    "S05": s05,
    "S12": s12,
    "S26": s26,
}
