"""The errors of the coefficients in use on public and on our own measurements, as rows."""

from dataclasses import dataclass

import polars as pl

from calibration.assess import assess, median_over_groups
from calibration.public_rows import select_rows

from .calibrations import coefficients_in_use
from .own_measurements import own_accuracy, own_rows

THROUGHPUT_ERRORS = ("rate_error", "constant_error", "peak_error")
MEMORY_ERRORS = ("memory_error",)
_HELD_OUT = {"all": None, "held_out": True, "development": False}
"""Development groups were looked at while formulas and defaults were written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """Median absolute errors by (source, model) group, and their medians over groups."""

    basis: str
    throughput: list[dict[str, object]]
    throughput_medians: dict[str, dict[str, object]]
    memory: list[dict[str, object]]
    memory_medians: dict[str, dict[str, object]]
    left_out: dict[str, int]
    """Measured rows that cannot be compared, by reason."""
    own: list[dict[str, object]]
    """Errors on rows of our own harness, by GPU and settings."""


def accuracy(calibration: str | None) -> AccuracyReport:
    """Compare every usable public row with the estimate and with the simplest estimates."""
    coefficients = coefficients_in_use(calibration)
    selection = select_rows()
    found = assess(selection.rows, coefficients)
    return AccuracyReport(
        basis=coefficients.basis,
        throughput=found.throughput.to_dicts(),
        throughput_medians=_medians(found.throughput, THROUGHPUT_ERRORS),
        memory=found.memory.to_dicts(),
        memory_medians=_medians(found.memory, MEMORY_ERRORS),
        left_out=dict(selection.left_out),
        own=own_accuracy(own_rows(), coefficients),
    )


def _medians(groups: pl.DataFrame, errors: tuple[str, ...]) -> dict[str, dict[str, object]]:
    medians: dict[str, dict[str, object]] = {}
    for name, held_out in _HELD_OUT.items():
        chosen = groups if held_out is None else groups.filter(pl.col("held_out") == held_out)
        if len(chosen):
            values = {error: median_over_groups(groups, error, held_out=held_out) for error in errors}
            medians[name] = {"groups": len(chosen), "rows": int(chosen["rows"].sum()), **values}
    return medians
