"""Honest clocks: whole optimizer steps, marked on the device, with synchronisation at both ends of the window.

A mark is a CUDA event (on the CPU: the clock). Steps follow each other as in training: the host may prepare the next
step while the device works, but is held one step behind, so it never runs further ahead than a real loop would. A
sample is the time between the marks at two step boundaries; the samples of a window add up to its duration, which a
host clock checks. Rates come from that total only.
"""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

_LINEAR_TOLERANCE_FRACTION = 0.10
"""Of the extra micro steps."""
_NOISE_FRACTION = 0.03
"""Of the step: what repeats of it may differ by."""
_SETTLED_RATIO = 1.4
_CLOCK_TOLERANCE_FRACTION = 0.02
_CLOCK_TOLERANCE_SECONDS = 1e-3


class Clock:
    """Marks points in the device's work and tells the time between them."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._device = device

    def mark(self) -> Any:
        if not self._is_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self, mark: Any) -> None:
        """Until the device has passed the mark."""
        if self._is_cuda:
            mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Between two marks that have been passed."""
        return start.elapsed_time(end) / 1e3 if self._is_cuda else end - start

    def synchronize(self) -> None:
        if self._is_cuda:
            torch.cuda.synchronize(self._device)


class Trainable(Protocol):
    """What an engine offers to the clock."""

    def micro_step(self, batch: dict[str, torch.Tensor], *, is_last: bool, mark: Callable[[], None]) -> None:
        """Forward, mark, backward."""

    def optimizer_step(self, mark: Callable[[], None]) -> None:
        """Clipping, mark, update; gradients are gone afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWindow:
    """Consecutive whole optimizer steps."""

    step_seconds: tuple[float, ...]
    host_seconds: tuple[float, ...]
    """Time the host spent preparing each step, waiting for the device excluded (unless its queue was full)."""
    total_seconds: float
    """By the host clock, from synchronisation to synchronisation."""

    @property
    def median_seconds(self) -> float:
        return statistics.median(self.step_seconds)

    @property
    def clocks_disagree(self) -> bool:
        """Whether the device's samples do not add up to what the host saw."""
        difference = abs(sum(self.step_seconds) - self.total_seconds)
        return difference > _CLOCK_TOLERANCE_FRACTION * self.total_seconds + _CLOCK_TOLERANCE_SECONDS


@dataclass(slots=True)
class StepParts:
    """Samples of the parts of a step, from a pass of its own."""

    micro_step_seconds: list[float] = field(default_factory=list)
    """Batch transfer, forward and backward, of every micro step but each step's last."""
    last_micro_step_seconds: list[float] = field(default_factory=list)
    """Of the last one, which also reduces the gradients where there are several ranks."""
    forward_seconds: list[float] = field(default_factory=list)
    """Batch transfer and forward."""
    backward_seconds: list[float] = field(default_factory=list)
    clipping_seconds: list[float] = field(default_factory=list)
    optimizer_step_seconds: list[float] = field(default_factory=list)
    """Clipping, update, release of the gradients."""


def _no_mark() -> None:
    return


def run_step(
    engine: Trainable, take_batch: Callable[[], dict[str, torch.Tensor]], gradient_accumulation_steps: int
) -> None:
    """One whole optimizer step."""
    for index in range(gradient_accumulation_steps):
        engine.micro_step(take_batch(), is_last=index == gradient_accumulation_steps - 1, mark=_no_mark)
    engine.optimizer_step(_no_mark)


def time_steps(
    step: Callable[[], None], num_steps: int, clock: Clock, on_step: Callable[[int], None] = lambda _: None
) -> StepWindow:
    """Time ``num_steps`` whole steps."""
    clock.synchronize()
    start = time.perf_counter()
    marks = [clock.mark()]
    host = []
    for index in range(num_steps):
        began = time.perf_counter()
        step()
        host.append(time.perf_counter() - began)
        marks.append(clock.mark())
        clock.wait(marks[index])
        on_step(index)
    clock.synchronize()
    total = time.perf_counter() - start
    samples = tuple(clock.seconds(first, second) for first, second in itertools.pairwise(marks))
    return StepWindow(step_seconds=samples, host_seconds=tuple(host), total_seconds=total)


def time_parts(
    engine: Trainable, take_batch: Callable[[], dict[str, torch.Tensor]], gradient_accumulation_steps: int,
    num_steps: int, clock: Clock, on_step: Callable[[int], None] = lambda _: None,
) -> StepParts:
    """Time the parts of ``num_steps`` steps; marks only, no synchronisation within a step."""
    parts = StepParts()
    for number in range(num_steps):
        micro_marks: list[list[Any]] = []
        clock.synchronize()
        for index in range(gradient_accumulation_steps):
            marks = [clock.mark()]
            is_last = index == gradient_accumulation_steps - 1
            engine.micro_step(take_batch(), is_last=is_last, mark=lambda marks=marks: marks.append(clock.mark()))
            marks.append(clock.mark())
            micro_marks.append(marks)
        update_marks = [clock.mark()]
        engine.optimizer_step(lambda marks=update_marks: marks.append(clock.mark()))
        update_marks.append(clock.mark())
        clock.synchronize()
        for index, (began, middle, ended) in enumerate(micro_marks):
            is_last = index == gradient_accumulation_steps - 1
            (parts.last_micro_step_seconds if is_last else parts.micro_step_seconds).append(clock.seconds(began, ended))
            parts.forward_seconds.append(clock.seconds(began, middle))
            parts.backward_seconds.append(clock.seconds(middle, ended))
        parts.clipping_seconds.append(clock.seconds(update_marks[0], update_marks[1]))
        parts.optimizer_step_seconds.append(clock.seconds(update_marks[0], update_marks[-1]))
        on_step(number)
    return parts


def steps_to_fill(min_seconds: float, step_seconds: float, *, at_least: int, at_most: int) -> int:
    """How many steps fill ``min_seconds``, within bounds."""
    wanted = math.ceil(min_seconds / step_seconds) if step_seconds > 0 else at_most
    return max(at_least, min(at_most, wanted))


def is_still_settling(warmup_seconds: Sequence[float]) -> bool:
    """Whether the last warm-up step was far from the fastest, or the fastest by far of those before it."""
    *before, last = warmup_seconds
    if not before:
        return False
    return last > _SETTLED_RATIO * min(before) or min(before) > _SETTLED_RATIO * last


def check_linear(
    *, step_seconds: float, doubled_step_seconds: float, micro_step_seconds: float, gradient_accumulation_steps: int
) -> dict[str, Any]:
    """A step with twice the accumulations must cost one more set of micro steps.

    ``T(2a) - T(a) = a m``, within 10 % of ``a m`` or 3 % of ``T(a)``, whichever is more: with T the step's time, a
    the accumulations, m a micro step that does not end the step. A timer that lets queued work escape breaks this.
    """
    extra = doubled_step_seconds - step_seconds
    expected = gradient_accumulation_steps * micro_step_seconds
    tolerance = max(_LINEAR_TOLERANCE_FRACTION * expected, _NOISE_FRACTION * step_seconds)
    return {
        "status": "ok" if abs(extra - expected) <= tolerance else "not_linear",
        "doubled_step_seconds": doubled_step_seconds,
        "extra_seconds": extra,
        "expected_extra_seconds": expected,
        "tolerance_seconds": tolerance,
    }


def implausibility(
    step_seconds: float, *, model_flops_per_step: float | None, peak_flop_per_second: float | None
) -> str | None:
    """Why a step cannot have been this fast, or None: no device beats its dense peak."""
    if not model_flops_per_step or not peak_flop_per_second:
        return None
    rate = model_flops_per_step / step_seconds
    if rate <= peak_flop_per_second:
        return None
    return (
        f"{rate / 1e12:.1f} TFLOP/s exceed the device's dense peak of {peak_flop_per_second / 1e12:.1f} TFLOP/s: "
        f"{model_flops_per_step:.3e} model FLOPs in {step_seconds:.6f} s"
    )


def median_or_none(samples: Sequence[float]) -> float | None:
    """Median, or None without samples."""
    return statistics.median(samples) if samples else None
