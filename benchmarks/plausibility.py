"""Is a measured row physically possible? What is not is stored as refused, with the reason, and never fitted.

The runner checks its own clocks and that a step is linear in its accumulations. What only the caller knows is checked
here: how fast and how large the hardware is. A timer that does not wait for the device shows in a step that is shorter
than the hardware could make it.
"""

from dataclasses import replace

from estimator.specs.measurement import Measurement

_MEMORY_TOLERANCE_FRACTION = 0.01
"""Of what the driver reports: it rounds."""


def judged(
    measurement: Measurement,
    *,
    model_flops_per_step: float | None,
    peak_flop_per_second: float | None,
    memory_limit_bytes: float | None,
) -> Measurement:
    """The measurement, or the same marked ``refused`` with every reason."""
    if measurement.status != "ok":
        return measurement
    findings = (
        _too_fast(measurement, model_flops_per_step, peak_flop_per_second),
        _too_much_memory(measurement, memory_limit_bytes),
        _other_kernels(measurement),
    )
    reasons = [finding for finding in findings if finding is not None]
    return replace(measurement, status="refused", reason="; ".join(reasons)) if reasons else measurement


def _too_fast(measurement: Measurement, model_flops: float | None, peak: float | None) -> str | None:
    """step >= model FLOPs per rank / dense peak: the model FLOPs are the least that any implementation computes."""
    seconds = measurement.step_time_seconds
    if seconds is None:
        return None
    if seconds <= 0:
        return f"a step of {seconds} s is no time"
    if not model_flops or not peak:
        return None
    fraction = model_flops / peak / seconds
    if fraction <= 1.0:
        return None
    return f"a step of {seconds:.4g} s means {fraction:.0%} of the dense peak, which no hardware reaches"


def _other_kernels(measurement: Measurement) -> str | None:
    """Mamba through transformers' loop over the sequence is one to two orders slower than Mamba."""
    if measurement.details.get("fused_scan_kernels") is not False:
        return None
    return "ran without the fused scan kernels (mamba_ssm, causal_conv1d): this is not what Mamba costs"


def _too_much_memory(measurement: Measurement, limit: float | None) -> str | None:
    """allocated <= reserved <= limit."""
    allocated, reserved = measurement.peak_allocated_bytes, measurement.peak_reserved_bytes
    if allocated is not None and reserved is not None and allocated > reserved:
        return f"{allocated} bytes allocated are more than the {reserved} reserved"
    if limit is not None and reserved is not None and reserved > limit * (1.0 + _MEMORY_TOLERANCE_FRACTION):
        return f"{reserved} bytes reserved are more than the {limit:.0f} there are"
    return None
