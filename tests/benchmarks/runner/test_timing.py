"""The clock's arithmetic, without a model."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.runner.memory import is_out_of_memory  # noqa: E402
from benchmarks.runner.timing import (  # noqa: E402
    Clock,
    check_linear,
    implausibility,
    is_still_settling,
    run_step,
    steps_to_fill,
    time_parts,
    time_steps,
)


class _VirtualClock(Clock):
    """Time passes only where the engine below says so; marks are points in that time."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now = 0.0

    def mark(self) -> float:
        return self.now


class _Engine:
    """Forward 1 s, backward 2 s, clipping 0.25 s, update 0.5 s."""

    def __init__(self, clock: _VirtualClock) -> None:
        self.clock = clock
        self.calls: list[str] = []

    def micro_step(self, batch: Any, *, is_last: bool, mark: Any) -> None:
        self.clock.now += 1.0
        mark()
        self.clock.now += 2.0
        self.calls.append("last" if is_last else "micro")

    def optimizer_step(self, mark: Any) -> None:
        self.clock.now += 0.25
        mark()
        self.clock.now += 0.5
        self.calls.append("update")


def test_samples_are_whole_optimizer_steps() -> None:
    clock = _VirtualClock()
    engine = _Engine(clock)
    window = time_steps(lambda: run_step(engine, dict, 4), 3, clock)
    assert window.step_seconds == (12.75, 12.75, 12.75)
    assert engine.calls == ["micro", "micro", "micro", "last", "update"] * 3


def test_parts_add_up_to_the_step() -> None:
    clock = _VirtualClock()
    parts = time_parts(_Engine(clock), dict, 4, 2, clock)
    assert parts.micro_step_seconds == [3.0] * 6
    assert parts.last_micro_step_seconds == [3.0] * 2
    assert parts.forward_seconds == [1.0] * 8
    assert parts.backward_seconds == [2.0] * 8
    assert parts.clipping_seconds == [0.25] * 2
    assert parts.optimizer_step_seconds == [0.75] * 2


def test_clocks_that_disagree_are_noticed() -> None:
    clock = _VirtualClock()
    # Hardly any real time passes while the virtual device claims 12.75 s a step.
    assert time_steps(lambda: run_step(_Engine(clock), dict, 4), 3, clock).clocks_disagree


@pytest.mark.parametrize(
    ("doubled", "status"),
    [(22.0, "ok"), (22.9, "ok"), (21.1, "ok"), (23.2, "not_linear"), (20.8, "not_linear"), (12.0, "not_linear")],
)
def test_linear_check(doubled: float, status: str) -> None:
    # T(4) = 12 with 4 micro steps of 2.5: T(8) should be 22, give or take 1.
    checked = check_linear(
        step_seconds=12.0, doubled_step_seconds=doubled, micro_step_seconds=2.5, gradient_accumulation_steps=4
    )
    assert checked["status"] == status


def test_timer_that_misses_queued_work_is_not_linear() -> None:
    # The study's method times one micro step on the host (0.5 s), while the device needs 2.5 s: four of them and the
    # update look like 4 x 0.5 + 10 s of work that spilled into it; twice as many spill twice as much.
    checked = check_linear(
        step_seconds=12.0, doubled_step_seconds=22.0, micro_step_seconds=0.5, gradient_accumulation_steps=4
    )
    assert checked["status"] == "not_linear"


def test_faster_than_the_peak_is_implausible() -> None:
    assert implausibility(1.0, model_flops_per_step=9e14, peak_flop_per_second=1e15) is None
    reason = implausibility(1.0, model_flops_per_step=1.1e15, peak_flop_per_second=1e15)
    assert reason is not None
    assert "1100.0 TFLOP/s" in reason
    assert implausibility(1.0, model_flops_per_step=None, peak_flop_per_second=1e15) is None


def test_steps_fill_the_time_within_bounds() -> None:
    assert steps_to_fill(1.0, 0.1, at_least=5, at_most=300) == 10
    assert steps_to_fill(1.0, 10.0, at_least=5, at_most=300) == 5
    assert steps_to_fill(1.0, 0.0001, at_least=5, at_most=300) == 300


@pytest.mark.parametrize(
    ("warmup", "expected"),
    [
        ([2.0], False), ([2.0, 0.1], True), ([2.0, 0.1, 0.1], False), ([1.26, 1.92], True), ([1.26, 1.92, 0.35], True),
        ([1.26, 1.92, 0.35, 0.37], False), ([20.0, 17.0], False),
    ],
)
def test_warm_up_goes_on_until_steps_agree(warmup: list[float], expected: bool) -> None:
    assert is_still_settling(warmup) is expected


def test_out_of_memory_is_told_from_other_errors() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert is_out_of_memory(RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"))
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried ..."))
    assert is_out_of_memory(MemoryError())
    wrapped = RuntimeError("backend='inductor' raised")
    wrapped.__cause__ = torch.OutOfMemoryError("CUDA out of memory")
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory is only a word here"))
