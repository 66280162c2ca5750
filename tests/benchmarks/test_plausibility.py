"""Rows that hardware cannot have produced are refused, by name of the law they break."""

from dataclasses import replace

import pytest

from benchmarks.plausibility import judged
from estimator.specs.measurement import Measurement

_ROW = Measurement(
    schema=1,
    workload={},
    workload_key="k",
    status="ok",
    step_time_seconds=0.1,
    peak_allocated_bytes=900,
    peak_reserved_bytes=1000,
)
_LIMITS = {"model_flops_per_step": 5e13, "peak_flop_per_second": 1e15, "memory_limit_bytes": 2000.0}


def test_a_row_at_half_the_peak_passes_unchanged() -> None:
    assert judged(_ROW, **_LIMITS) == _ROW


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"step_time_seconds": 0.049}, "102% of the dense peak"),
        ({"step_time_seconds": 0.0}, "no time"),
        ({"peak_allocated_bytes": 1100}, "more than the 1000 reserved"),
        ({"peak_reserved_bytes": 2100}, "more than the 2000 there are"),
        ({"details": {"fused_scan_kernels": False}}, "without the fused scan kernels"),
    ],
)
def test_the_impossible_is_refused(changes: dict[str, object], reason: str) -> None:
    refused = judged(replace(_ROW, **changes), **_LIMITS)
    assert refused.status == "refused"
    assert refused.reason is not None
    assert reason in refused.reason
    assert refused.step_time_seconds == changes.get("step_time_seconds", 0.1), "what was seen is kept"


def test_every_broken_law_is_named() -> None:
    refused = judged(replace(_ROW, step_time_seconds=0.01, peak_allocated_bytes=1100), **_LIMITS)
    assert "dense peak" in str(refused.reason)
    assert "reserved" in str(refused.reason)


def test_out_of_memory_and_unknown_hardware_are_not_judged() -> None:
    oom = replace(_ROW, status="oom", step_time_seconds=None)
    assert judged(oom, **_LIMITS) == oom
    fast = replace(_ROW, step_time_seconds=1e-9)
    assert judged(fast, model_flops_per_step=5e13, peak_flop_per_second=None, memory_limit_bytes=None) == fast
