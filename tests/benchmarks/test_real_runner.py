"""The campaign around the real runner, on the CPU: shared and fresh processes, two ranks, refusals, micro-benchmarks.

That each of the 22 combinations trains is tested at the runner itself.
"""

from pathlib import Path

import pytest

from benchmarks.campaign import Campaign
from benchmarks.jobs import Job, JobKind
from benchmarks.launch import SilenceLimits
from benchmarks.machine import detect_machine
from benchmarks.store import MeasurementStore
from estimator.specs.measurement import Measurement
from estimator.specs.strategy import Strategy, StrategyKind

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


def _job(strategy: Strategy, num_ranks: int = 1, **options: object) -> Job:
    workload: dict[str, object] = {
        "model": "tiny",
        "gpu": "cpu",
        "num_gpus": num_ranks,
        "precision": "bf16",
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


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Run a campaign with the real runner; two cores must not be fought over by every rank."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def call(jobs: list[Job]) -> list[Measurement]:
        campaign = Campaign(MeasurementStore(tmp_path), detect_machine("cpu", lambda name: None), limits=_PATIENT)
        return campaign.run(jobs).measurements

    return call


def assert_trained(row: Measurement) -> None:
    """Steps were run and the loss is one; a busy machine may spoil the clock, which refuses the row and no more."""
    assert row.status in ("ok", "refused"), row.reason
    assert len(row.step_times_seconds) >= 2
    assert min(row.step_times_seconds) > 0
    loss = row.details["last_loss"]
    assert isinstance(loss, float)
    assert 0 < loss < 20
    assert {"torch", "transformers", "accelerate", "deepspeed", "harness", "cpu", "gpu"} <= row.stack.keys()


def test_plain_rows_an_error_among_them_and_compiled_ones(measure) -> None:
    jobs = [
        _job(Strategy()),
        _job(Strategy(activation_checkpointing=True), attention="eager"),
        _job(Strategy(), precision="fp16"),
        _job(Strategy(), precision="fp32"),
        _job(Strategy(), compile=True),
    ]
    rows = measure(jobs)
    assert [row.workload_key for row in rows] == [job.key for job in jobs]
    refused = rows.pop(2)
    assert refused.status == "error"
    assert "accelerate applies no fp16 autocast on the CPU" in str(refused.reason)
    for row in rows:
        assert_trained(row)
    compiled = rows[-1]
    assert compiled.warmup_seconds is not None
    assert compiled.step_time_seconds is not None
    assert compiled.warmup_seconds > compiled.step_time_seconds


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(kind=StrategyKind.ZERO_2, offload=True),
        Strategy(kind=StrategyKind.FSDP_FULL_SHARD, activation_checkpointing=True),
    ],
    ids=["zero_2+offload", "fsdp_full_shard+checkpointing"],
)
def test_sharded_rows_on_two_ranks(measure, strategy: Strategy) -> None:
    (row,) = measure([_job(strategy, num_ranks=2)])
    assert_trained(row)
    assert row.details["world_size"] == 2


def test_microbenchmarks_of_the_cpu(measure) -> None:
    workload = {"benchmark": "machine", "gpu": "cpu", "num_gpus": 1}
    (row,) = measure([Job(kind=JobKind.MICROBENCHMARK, workload=workload)])
    assert (row.status, row.reason) == ("ok", None)
    results = row.details["microbenchmarks"]
    assert isinstance(results, list)
    assert results
