"""One workload, measured: build, warm up, time whole steps, then their parts, then the linear check."""

import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from .data import SyntheticBatches
from .memory import DeviceMemory, HostMemory, is_out_of_memory
from .models import build_config, build_model, model_facts
from .protocol import EventWriter, Job
from .ranks import Ranks
from .timing import (
    Clock,
    StepParts,
    StepWindow,
    check_linear,
    implausibility,
    is_still_settling,
    median_or_none,
    run_step,
    steps_to_fill,
    time_parts,
    time_steps,
)

_MAX_TIMED_STEPS = 300
_MAX_SETTLING_STEPS = 3
_MAX_SKIPPED_WARMUP_STEPS = 24
"""fp16 starts with a loss scale that overflows; each skipped step halves it."""
_PARTS_SECONDS = 0.3
"""What the passes for parts and the linear check fill, within 2 to 5 steps."""
_LONG_STEP_SECONDS = 3.0
"""A step this long is taken apart once only."""
_MAX_SKIPPED_FRACTION = 0.1
_COMPARISON_ROUNDS = 5
_PEAK_FIELDS = ("peak_allocated_bytes", "peak_reserved_bytes")
"""Of the device; these have fields of their own."""


class WorkloadRun:
    """Measures one job on this rank; ``result`` is the worst of all ranks."""

    def __init__(self, job: Job, ranks: Ranks, events: EventWriter, memory: DeviceMemory, host: HostMemory) -> None:
        self._job = job
        self._ranks = ranks
        self._events = events
        self._memory = memory
        self._host = host
        self._clock = Clock(ranks.device)
        self.provisional: dict[str, Any] | None = None
        """The result so far, once the steps are timed: what fails later does not take it away."""
        self.has_failed_late = False

    def measure(self) -> dict[str, Any]:
        """The fields of a ``Measurement``."""
        job = self._job
        began = time.perf_counter()
        self._host.reset()
        self._memory.reset_peaks()
        engine, batches, facts = self._build()
        try:
            facts["setup_seconds"] = time.perf_counter() - began
            facts |= {f"setup_{name}": value for name, value in self._memory.peaks().items() if "allocated" in name}
            warmup = self._warm_up(engine, batches)
            result = self._time(engine, batches, warmup, facts | engine.facts())
            if job.compare_plain_loop:
                result["details"]["plain_loop"] = self._compare_plain_loop(engine, batches, result)
            if job.linear_check:
                self.provisional = result
                self._check_linear(engine, batches, result)
            return result
        finally:
            engine.close()

    def _build(self) -> tuple[Any, SyntheticBatches, dict[str, Any]]:
        job, device = self._job, self._ranks.device
        self._phase("build")
        torch.manual_seed(0)
        sequence_length, image_size = (_optional_int(job, name) for name in ("sequence_length", "image_size"))
        config, changes = build_config(job.model_config, sequence_length=sequence_length, image_size=image_size)
        facts: dict[str, Any] = {"config_changes": changes} if changes else {}
        cap = job.workload.get("gpu_memory_gib")
        cap_gib = None if cap is None else float(cap)

        def note(model: torch.nn.Module) -> None:
            # Only what training holds is capped; how a model is built differs between launchers.
            facts.update(model_facts(model), num_parameters=_num_parameters(model))
            gc.collect()
            self._memory.set_cap(cap_gib)

        if job.strategy != "none":
            self._ranks.ensure_group()
        if job.strategy.startswith("zero_"):
            from .engine_deepspeed import DeepSpeedEngine

            engine: Any = DeepSpeedEngine(
                job, config, device, world_size=self._ranks.world_size, before_initialize=note
            )
            is_masked_lm = type(engine.model).__name__.endswith("ForMaskedLM")
        else:
            from .engine_torch import TorchEngine

            model = build_model(config, attention=str(job.workload.get("attention", "sdpa")), device=device)
            note(model)
            is_masked_lm = type(model).__name__.endswith("ForMaskedLM")
            engine = TorchEngine(job, model, device)
        batches = SyntheticBatches(
            config, micro_batch_size=job.micro_batch_size, sequence_length=sequence_length, image_size=image_size,
            is_masked_lm=is_masked_lm, device=device, seed=self._ranks.rank,
        )
        return engine, batches, facts

    def _warm_up(self, engine: Any, batches: SyntheticBatches) -> tuple[float, ...]:
        """Steps before the clock counts, each timed alone: until none is skipped for an overflow any more, and none
        is much faster or slower than another (ZeRO-3 learns its prefetch order in its second step)."""
        seconds: list[float] = []
        job = self._job
        minimum = max(1, job.num_warmup_steps)
        while True:
            self._phase(f"warm-up step {len(seconds) + 1}")
            skipped = engine.num_skipped_steps
            window = time_steps(lambda: run_step(engine, batches.take, job.gradient_accumulation_steps), 1, self._clock)
            seconds.append(window.total_seconds)
            was_skipped = engine.num_skipped_steps > skipped
            if len(seconds) < minimum:
                continue
            # All ranks must decide the same: whatever one sees holds for all.
            was_skipped, is_settling = (
                any(seen) for seen in zip(*self._ranks.gather((was_skipped, is_still_settling(seconds))), strict=True)
            )
            num_extra = len(seconds) - minimum
            if was_skipped and num_extra < _MAX_SKIPPED_WARMUP_STEPS:
                continue
            if is_settling and num_extra < _MAX_SETTLING_STEPS:
                continue
            return tuple(seconds)

    def _time(
        self, engine: Any, batches: SyntheticBatches, warmup: tuple[float, ...], facts: dict[str, Any]
    ) -> dict[str, Any]:
        job = self._job
        accumulation = job.gradient_accumulation_steps
        step_guess = max(self._ranks.gather(min(warmup)))
        num_steps = steps_to_fill(
            job.min_seconds, step_guess, at_least=max(1, job.num_steps), at_most=max(job.num_steps, _MAX_TIMED_STEPS)
        )
        warmup_peaks = self._memory.peaks()
        self._memory.reset_peaks()
        skipped = engine.num_skipped_steps
        gc.collect()
        self._ranks.barrier()
        window = time_steps(
            lambda: run_step(engine, batches.take, accumulation), num_steps, self._clock,
            self._on_step("timed", num_steps),
        )
        seen: dict[str, Any] = {
            "window": window,
            "peaks": self._memory.peaks(),
            "driver": self._memory.driver_bytes(),
            "host_memory_bytes": self._host.peak_bytes(),
            "num_skipped_steps": engine.num_skipped_steps - skipped,
        }
        at_least = 2 if window.median_seconds < _LONG_STEP_SECONDS else 1
        num_parts = steps_to_fill(_PARTS_SECONDS, window.median_seconds, at_least=at_least, at_most=5)
        num_parts = max(self._ranks.gather(num_parts))
        seen["parts"] = time_parts(
            engine, batches.take, accumulation, num_parts, self._clock, self._on_step("parts", num_parts)
        )
        loss = engine.last_loss
        facts["last_loss"] = None if loss is None else float(loss) * engine.loss_divisor
        facts["warmup_step_seconds"] = warmup
        facts["peak_warmup_allocated_bytes"] = warmup_peaks.get("peak_allocated_bytes")
        return self._summarise(seen, warmup, facts)

    def _summarise(self, seen: dict[str, Any], warmup: tuple[float, ...], facts: dict[str, Any]) -> dict[str, Any]:
        ranks = self._ranks.gather(seen)
        slowest = max(ranks, key=lambda one: one["window"].median_seconds)
        window: StepWindow = slowest["window"]
        parts: StepParts = slowest["parts"]
        micro = parts.micro_step_seconds + parts.last_micro_step_seconds
        peaks = {name: max(one["peaks"][name] for one in ranks) for name in ranks[0]["peaks"]}
        process = [one["driver"].get("process_memory_bytes") for one in ranks]
        details = facts | {
            "host_seconds": window.host_seconds,
            "window": {"num_steps": len(window.step_seconds), "total_seconds": window.total_seconds},
            "step_time_spread_fraction": _spread_fraction(window.step_seconds),
            "forward_seconds": statistics.median(parts.forward_seconds),
            "backward_seconds": statistics.median(parts.backward_seconds),
            "last_micro_step_seconds": statistics.median(parts.last_micro_step_seconds),
            "clipping_seconds": statistics.median(parts.clipping_seconds),
            "optimizer_step_times_seconds": tuple(parts.optimizer_step_seconds),
            "num_skipped_steps": slowest["num_skipped_steps"],
            "world_size": self._ranks.world_size,
            "process_memory_source": ranks[0]["driver"].get("process_memory_source"),
            **{name: value for name, value in peaks.items() if name not in _PEAK_FIELDS},
        }
        if len(ranks) > 1:
            details["per_rank"] = [
                {"step_time_seconds": one["window"].median_seconds, **one["peaks"],
                 "host_memory_bytes": one["host_memory_bytes"]}
                for one in ranks
            ]
        result = {
            "status": "ok",
            "reason": None,
            "step_times_seconds": window.step_seconds,
            "step_time_seconds": window.median_seconds,
            "micro_step_times_seconds": tuple(micro),
            "micro_step_seconds": median_or_none(micro),
            "optimizer_step_seconds": median_or_none(parts.optimizer_step_seconds),
            "warmup_seconds": sum(warmup),
            "num_warmup_steps": len(warmup),
            "peak_allocated_bytes": peaks.get("peak_allocated_bytes"),
            "peak_reserved_bytes": peaks.get("peak_reserved_bytes"),
            "process_memory_bytes": max((value for value in process if value is not None), default=None),
            "host_memory_bytes": sum(one["host_memory_bytes"] for one in ranks),
            "details": details,
        }
        self._refuse_where_wrong(result, [one["window"] for one in ranks])
        return result

    def _refuse_where_wrong(self, result: dict[str, Any], windows: list[StepWindow]) -> None:
        job, details = self._job, result["details"]
        fastest_possible = implausibility(
            result["step_time_seconds"], model_flops_per_step=job.model_flops_per_step,
            peak_flop_per_second=job.peak_flop_per_second,
        )
        num_steps, skipped = details["window"]["num_steps"], details["num_skipped_steps"]
        loss = details["last_loss"]
        if fastest_possible is not None:
            _refuse(result, fastest_possible)
        elif any(window.clocks_disagree for window in windows):
            _refuse(result, "device events and host clock disagree about the length of the timed window")
        elif skipped > _MAX_SKIPPED_FRACTION * num_steps:
            _refuse(result, f"{skipped} of {num_steps} steps were skipped for an overflow under fp16")
        elif job.precision != "fp16" and loss is not None and not math.isfinite(loss):
            _refuse(result, f"the loss became {loss}: what was timed is not training")

    def _compare_plain_loop(self, engine: Any, batches: SyntheticBatches, result: dict[str, Any]) -> dict[str, Any]:
        """Harness and hand-written loop in turn, by the host's clock; the fraction is what the harness adds."""
        num_steps = result["details"]["window"]["num_steps"]
        accumulation = self._job.gradient_accumulation_steps
        harness, plain = [], []
        for _ in range(_COMPARISON_ROUNDS):
            self._phase("plain loop")
            window = time_steps(lambda: run_step(engine, batches.take, accumulation), num_steps, self._clock)
            harness.append(window.total_seconds / num_steps)
            began = time.perf_counter()
            engine.plain_loop(batches.take, num_steps)
            self._clock.synchronize()
            plain.append((time.perf_counter() - began) / num_steps)
        added = statistics.median(harness) / statistics.median(plain) - 1.0
        return {"harness_step_seconds": harness, "plain_step_seconds": plain, "harness_adds_fraction": added}

    def _check_linear(self, engine: Any, batches: SyntheticBatches, result: dict[str, Any]) -> None:
        job = self._job
        accumulation = job.gradient_accumulation_steps
        self._phase("linear check")
        try:
            checked = self._doubled(engine, batches, accumulation, result["step_time_seconds"])
        except Exception as error:
            # Twice the accumulations can need more memory (gradients that stay, unsharded where FSDP defers the
            # reduction): that says nothing against the row. With several ranks it ends through the watch.
            if not is_out_of_memory(error) or self._ranks.world_size > 1:
                raise
            self.has_failed_late = True
            result["details"]["linear_check"] = {"status": "out_of_memory"}
            return
        result["details"]["linear_check"] = checked
        if checked["status"] != "ok" and result["status"] == "ok":
            _refuse(
                result,
                f"not linear: {accumulation} more micro steps cost {checked['extra_seconds']:.6f} s, expected "
                f"{checked['expected_extra_seconds']:.6f} s give or take {checked['tolerance_seconds']:.6f} s",
            )

    def _doubled(
        self, engine: Any, batches: SyntheticBatches, accumulation: int, step_seconds: float
    ) -> dict[str, Any]:
        num_steps = steps_to_fill(_PARTS_SECONDS, 2 * step_seconds, at_least=2, at_most=5)

        def step() -> None:
            run_step(engine, batches.take, 2 * accumulation)

        # The first holds gradients across micro steps where the row's own steps may not: let the allocator settle.
        time_steps(step, 1, self._clock)
        doubled = time_steps(step, num_steps, self._clock, self._on_step("linear check", num_steps))
        parts = time_parts(engine, batches.take, 2 * accumulation, num_steps, self._clock)
        mine = (doubled.median_seconds, statistics.median(parts.micro_step_seconds))
        doubled_seconds, micro_seconds = max(self._ranks.gather(mine))
        return check_linear(
            step_seconds=step_seconds, doubled_step_seconds=doubled_seconds, micro_step_seconds=micro_seconds,
            gradient_accumulation_steps=accumulation,
        )

    def _phase(self, name: str) -> None:
        self._events.progress(self._job.id, name, force=True)

    def _on_step(self, phase: str, num_steps: int) -> Callable[[int], None]:
        return lambda index: self._events.progress(self._job.id, phase, (index + 1) / num_steps)


def _refuse(result: dict[str, Any], reason: str) -> None:
    result["status"], result["reason"] = "refused", reason


def _spread_fraction(samples: tuple[float, ...]) -> float | None:
    """Interquartile range over median."""
    if len(samples) < 4:
        return None
    lower, _, upper = statistics.quantiles(samples, n=4)
    return (upper - lower) / statistics.median(samples)


def _optional_int(job: Job, name: str) -> int | None:
    value = job.workload.get(name)
    return None if value is None else int(value)


def _num_parameters(model: torch.nn.Module) -> int:
    """Tied weights once; under ZeRO-3 a parameter is an empty tensor that remembers its size."""
    return sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in model.parameters())
