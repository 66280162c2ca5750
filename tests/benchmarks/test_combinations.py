"""Every one of the 22 combinations trains a tiny model for real, alone and on two ranks, through the real launcher.

What a library refuses is named here, one by one, with its message.
"""

import os
from pathlib import Path

import pytest

from benchmarks.campaign import Campaign
from benchmarks.jobs import Job, JobKind
from benchmarks.launch import SilenceLimits
from benchmarks.machine import detect_machine
from benchmarks.store import MeasurementStore
from estimator.specs.measurement import Measurement
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_CONFIG = {
    "model_type": "gpt_neox",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}
_PATIENT = SilenceLimits(startup_seconds=600, job_seconds=600, compiled_seconds=600, kernel_build_seconds=600)

REFUSED_FP16 = {
    "none": "accelerate applies no fp16 autocast on the CPU: the run would silently be fp32",
    "fsdp_full_shard": "accelerate applies no fp16 autocast on the CPU: the run would silently be fp32",
    "zero_2": "Type fp16 is not supported on your device.",
}
"""What is refused on the CPU, by whom in which words; nothing else is."""


def _job(strategy: Strategy, num_ranks: int, precision: str = "bf16", **options: object) -> Job:
    workload: dict[str, object] = {
        "model": "tiny",
        "gpu": "cpu",
        "num_gpus": num_ranks,
        "precision": precision,
        "tf32": True,
        "attention": "sdpa",
        "compile": False,
        "optimizer": "adamw_torch",
        "sequence_length": 16,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "global_batch_size": 4 * num_ranks,
        "strategy": str(strategy.kind),
        "offload": strategy.offload,
        "activation_checkpointing": strategy.activation_checkpointing,
        "max_grad_norm": 1.0,
        **options,
    }
    return Job(workload=workload, model_config=_CONFIG, num_warmup_steps=1, num_steps=2, min_seconds=0.0)


def _measure(folder: Path, jobs: list[Job]) -> list[Measurement]:
    machine = detect_machine("cpu", lambda name: None)
    return Campaign(MeasurementStore(folder), machine, limits=_PATIENT).run(jobs).measurements


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OMP_NUM_THREADS", "1")


@pytest.mark.parametrize("kind", list(StrategyKind))
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_every_combination_trains(tmp_path: Path, kind: StrategyKind, num_ranks: int) -> None:
    jobs = [_job(strategy, num_ranks) for strategy in ALL_STRATEGIES if strategy.kind is kind]
    rows = _measure(tmp_path, jobs)
    assert [(row.status, row.reason) for row in rows] == [("ok", None)] * len(jobs)
    for row in rows:
        assert len(row.step_times_seconds) >= 2
        assert row.step_time_seconds is not None
        assert row.step_time_seconds > 0
        assert row.details["world_size"] == num_ranks
        assert {"torch", "transformers", "accelerate", "deepspeed", "harness", "cpu"} <= row.stack.keys()


@pytest.mark.parametrize("kind", list(REFUSED_FP16))
def test_what_a_library_refuses_is_stored_in_its_words(tmp_path: Path, kind: str) -> None:
    (row,) = _measure(tmp_path, [_job(Strategy(kind=StrategyKind(kind)), 1, "fp16")])
    assert row.status == "error"
    assert REFUSED_FP16[kind] in str(row.reason)


def test_plain_rows_share_one_process_and_compiled_ones_another(tmp_path: Path) -> None:
    options: list[dict[str, object]] = [
        {},
        {"attention": "eager"},
        {"precision": "fp32"},
        {"optimizer": "adamw_torch_fused"},
        {"compile": True},
    ]
    jobs = [_job(Strategy(), 1, str(option.pop("precision", "bf16")), **option) for option in options]
    rows = _measure(tmp_path, jobs)
    assert [(row.status, row.reason) for row in rows] == [("ok", None)] * len(jobs)
    compiled = rows[-1]
    assert compiled.warmup_seconds is not None
    assert compiled.step_time_seconds is not None
    assert compiled.warmup_seconds > compiled.step_time_seconds


def test_microbenchmarks_of_the_cpu(tmp_path: Path) -> None:
    workload = {"benchmark": "machine", "gpu": "cpu", "num_gpus": 1}
    (row,) = _measure(tmp_path, [Job(kind=JobKind.MICROBENCHMARK, workload=workload)])
    assert (row.status, row.reason) == ("ok", None)
    results = row.details["microbenchmarks"]
    assert isinstance(results, list)
    assert results
