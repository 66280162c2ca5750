"""Errors on our own rows, from rows planted at a known distance from the estimate."""

import pytest

from estimator.app.session.own_measurements import own_accuracy, own_rows
from estimator.coefficients import default_coefficients
from estimator.specs.measurement import Measurement

WORKLOAD = {
    "model": "pythia-160m", "gpu": "h200", "num_gpus": 1, "precision": "bf16", "tf32": True, "attention": "sdpa",
    "compile": False, "optimizer": "adamw_torch", "strategy": "none", "offload": False,
    "activation_checkpointing": False, "micro_batch_size": 4, "global_batch_size": 4, "sequence_length": 2048,
    "gradient_accumulation_steps": 1, "max_grad_norm": 1.0,
}  # fmt: skip


def _row(step_time_seconds: float, peak_allocated_bytes: int, **changes: object) -> Measurement:
    return Measurement(
        schema=1,
        workload={**WORKLOAD, **changes},
        workload_key="key",
        status="ok",
        step_time_seconds=step_time_seconds,
        peak_allocated_bytes=peak_allocated_bytes,
        stack={"gpu": "NVIDIA H200"},
    )


def test_error_and_bias_are_relative_to_what_was_measured() -> None:
    coefficients = default_coefficients()
    (exact, *_) = own_accuracy([_row(1.0, 10**9)], coefficients)
    step_seconds, memory_bytes = exact["step_time_bias"] + 1.0, (exact["memory_bias"] + 1.0) * 10**9
    rows = [_row(step_seconds * 2, round(memory_bytes)), _row(step_seconds, round(memory_bytes), compile=True)]
    groups = {group["settings"]: group for group in own_accuracy(rows, coefficients)}
    assert set(groups) == {"all", "bf16, sdpa", "bf16, sdpa, compiled"}
    assert groups["all"]["rows"] == 2
    assert groups["bf16, sdpa"]["step_time_bias"] == pytest.approx(-0.5)
    assert groups["bf16, sdpa"]["step_time_error"] == pytest.approx(0.5)
    assert groups["bf16, sdpa"]["memory_error"] == pytest.approx(0.0, abs=1e-6)


def test_shipped_rows_are_finished_steps_of_one_machine_with_its_software_named() -> None:
    rows = own_rows()
    assert len(rows) >= 180
    assert {row.status for row in rows} == {"ok"}
    assert all(row.stack[name] for row in rows for name in ("gpu", "driver", "torch", "transformers", "commit"))
    assert len({str(row.workload["model"]) for row in rows}) >= 12


def test_memory_of_plain_steps_is_within_a_percent_of_what_was_measured() -> None:
    plain = [row for row in own_rows() if row.workload["strategy"] == "none" and not row.workload["compile"]]
    everything = next(group for group in own_accuracy(plain, default_coefficients()) if group["settings"] == "all")
    assert everything["rows"] == len(plain) >= 160
    assert everything["memory_error"] < 0.01


def test_memory_of_compiled_steps_counts_the_copy_of_the_logits_that_accelerate_returns() -> None:
    compiled = [row for row in own_rows() if row.workload["compile"] and row.workload["precision"] == "bf16"]
    everything = next(group for group in own_accuracy(compiled, default_coefficients()) if group["settings"] == "all")
    assert everything["rows"] == len(compiled) >= 3
    assert everything["memory_p90"] < 0.05  # without the copy: 7 to 24 %
