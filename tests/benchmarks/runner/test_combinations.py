"""Every one of the 22 combinations trains a tiny model for real on the CPU, alone and on two ranks."""

import math
from pathlib import Path

import pytest

from estimator.specs.strategy import ALL_STRATEGIES, Strategy

from .running import job, results, run

pytestmark = pytest.mark.slow

_UNIFORM_LOSS = math.log(256)
"""A model with random weights knows nothing about 256 tokens."""


def _name(strategy: Strategy) -> str:
    words = [strategy.kind.value, "offload" if strategy.offload else "", "checkpointing"
             if strategy.activation_checkpointing else ""]
    return "-".join(word for word in words if word)


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("strategy", ALL_STRATEGIES, ids=_name)
def test_combination_trains(strategy: Strategy, num_ranks: int, tmp_path: Path) -> None:
    asked = job(
        strategy=strategy.kind.value, offload=strategy.offload,
        activation_checkpointing=strategy.activation_checkpointing,
    )
    measured = results(run([asked], tmp_path, num_ranks=num_ranks))["tiny"]
    assert measured["status"] == "ok", measured["reason"]
    details = measured["details"]
    assert len(measured["step_times_seconds"]) == 2
    assert all(seconds > 0 for seconds in measured["step_times_seconds"])
    assert measured["micro_step_seconds"] > 0
    assert measured["optimizer_step_seconds"] > 0
    assert details["world_size"] == num_ranks
    assert details["last_loss"] == pytest.approx(_UNIFORM_LOSS, abs=0.3)
    expected_engine = "deepspeed" if strategy.kind.is_zero else "accelerate"
    assert details["engine"].startswith(expected_engine)
    if strategy.kind.is_fsdp:
        # Two blocks and the root at least.
        assert details["num_sharded_modules"] >= 3
    if strategy.kind.is_zero:
        zero = details["deepspeed_config"]["zero_optimization"]
        assert zero["stage"] == int(strategy.kind.value[-1])
        assert ("offload_optimizer" in zero) == strategy.offload
        assert ("offload_param" in zero) == (strategy.offload and zero["stage"] == 3)


@pytest.mark.parametrize("strategy", ["zero_1", "zero_2", "zero_3", "fsdp_full_shard"])
def test_fp32_trains_sharded(strategy: str, tmp_path: Path) -> None:
    measured = results(run([job(strategy=strategy, precision="fp32")], tmp_path))["tiny"]
    assert measured["status"] == "ok", measured["reason"]


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ("none", "accelerate applies no fp16 autocast on the CPU"),
        ("fsdp_full_shard", "accelerate applies no fp16 autocast on the CPU"),
        ("zero_1", "Type fp16 is not supported"),
        ("zero_2", "Type fp16 is not supported"),
        ("zero_3", "Type fp16 is not supported"),
    ],
)
def test_fp16_on_the_cpu_is_refused_by_name(strategy: str, message: str, tmp_path: Path) -> None:
    measured = results(run([job(strategy=strategy, precision="fp16")], tmp_path))["tiny"]
    assert measured["status"] == "error"
    assert message in measured["reason"]
