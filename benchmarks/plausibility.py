"""Is a measured row physically possible? What is not is stored as refused, with the reason, and never fitted.

A timer that does not wait for the device reports steps faster than the hardware can compute them; one that multiplies
a micro step counts work twice or not at all. Both show in numbers that the row itself holds.
"""

from dataclasses import replace

from estimator.specs.measurement import Measurement

LINEAR_TOLERANCE_FRACTION = 0.15
"""How far twice the accumulations may be from one more set of micro steps."""
_MEMORY_TOLERANCE_FRACTION = 0.01


def judged(
    measurement: Measurement, *, model_flops_per_step: float | None, peak_flop_per_second: float | None,
    memory_limit_bytes: float | None,
) -> Measurement:
    """The measurement, or the same marked ``refused`` with every reason."""
    if measurement.status != "ok":
        return measurement
    reasons = [
        reason for reason in (
            _too_fast(measurement, model_flops_per_step, peak_flop_per_second), _not_linear(measurement),
            _parts_exceed_whole(measurement), _too_much_memory(measurement, memory_limit_bytes),
        ) if reason is not None
    ]
    return replace(measurement, status="refused", reason="; ".join(reasons)) if reasons else measurement


def _too_fast(measurement: Measurement, model_flops: float | None, peak: float | None) -> str | None:
    """step < model FLOPs / dense peak: model FLOPs are the least that any implementation computes."""
    seconds = measurement.step_time_seconds
    if seconds is None or seconds <= 0:
        return f"a step of {seconds} seconds is no time"
    if not model_flops or not peak:
        return None
    fraction = model_flops / peak / seconds
    if fraction <= 1.0:
        return None
    return f"a step of {seconds:.4g} s means {fraction:.0%} of the dense peak, which no hardware reaches"


def _not_linear(measurement: Measurement) -> str | None:
    """step(2 a) - step(a) = a micro steps, within the tolerance, where the runner timed both."""
    doubled = measurement.details.get("doubled_step_time_seconds")
    micro, step = measurement.micro_step_seconds, measurement.step_time_seconds
    accumulation = measurement.workload.get("gradient_accumulation_steps", 1)
    if not isinstance(doubled, int | float) or micro is None or step is None or not isinstance(accumulation, int):
        return None
    expected = step + accumulation * micro
    deviation = doubled / expected - 1.0
    if abs(deviation) <= LINEAR_TOLERANCE_FRACTION:
        return None
    return (
        f"a step with {2 * accumulation} accumulations took {doubled:.4g} s where one with {accumulation} and its "
        f"micro steps make {expected:.4g} s ({deviation:+.0%}): the clock does not see all the work"
    )


def _parts_exceed_whole(measurement: Measurement) -> str | None:
    """a micro steps + optimizer step <= step (1 + tolerance): the parts are timed inside the whole."""
    micro, step = measurement.micro_step_seconds, measurement.step_time_seconds
    accumulation = measurement.workload.get("gradient_accumulation_steps", 1)
    if micro is None or step is None or not isinstance(accumulation, int):
        return None
    parts = accumulation * micro + (measurement.optimizer_step_seconds or 0.0)
    if parts <= step * (1.0 + LINEAR_TOLERANCE_FRACTION):
        return None
    return f"its parts take {parts:.4g} s and the whole step {step:.4g} s"


def _too_much_memory(measurement: Measurement, limit: float | None) -> str | None:
    """allocated <= reserved <= limit."""
    allocated, reserved = measurement.peak_allocated_bytes, measurement.peak_reserved_bytes
    if allocated is not None and reserved is not None and allocated > reserved:
        return f"{allocated} bytes allocated are more than the {reserved} reserved"
    if limit is not None and reserved is not None and reserved > limit * (1.0 + _MEMORY_TOLERANCE_FRACTION):
        return f"{reserved} bytes reserved are more than the {limit:.0f} there are"
    return None
