"""Errors of the estimator on public measurements, by group, beside the simplest estimates.

``python -m calibration.assess`` prints the table for the default coefficients.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from estimator.analytic.estimate import EstimateTable, estimate_many
from estimator.coefficients import Coefficients, default_coefficients

from .public_rows import PublicRow, select_rows

Array = NDArray[np.float64]

CONSTANT_UTILISATION = 0.45
"""The bar: one utilisation for everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Errors per row and per group."""

    rows: pl.DataFrame
    """One row per measurement: group, measured, predicted, and what the simple estimates say."""
    throughput: pl.DataFrame
    """One row per (source, model): count and median errors."""
    memory: pl.DataFrame


def predicted_tokens_per_second_per_gpu(rows: Sequence[PublicRow], table: EstimateTable) -> list[float]:
    """Rate by the source's own clock: the whole step, or forward and backward only (with what gradients wait for)."""
    components = table.columns["step_time_components_seconds"]
    predictions = []
    for index, row in enumerate(rows):
        recipe, cluster = row.workload.recipe, row.workload.cluster
        seconds = table.columns["step_time_seconds"][index, 1]
        if row.times_forward_backward:
            seconds = components[index, 0] + components[index, 2]
        tokens = recipe.global_batch_size * (recipe.sequence_length or 1) / cluster.num_accelerators
        predictions.append(float(tokens / seconds))
    return predictions


def predicted_memory_bytes(rows: Sequence[PublicRow], table: EstimateTable) -> list[float]:
    """Memory in the source's own kind."""
    columns = table.columns
    reserved, context = columns["peak_reserved_bytes"][:, 1], columns["context_bytes"]
    by_kind = {"allocated": table.peak_memory_bytes, "reserved": reserved, "nvidia-smi": reserved + context}
    return [float(by_kind[row.memory_kind][index]) for index, row in enumerate(rows)]


def _by_software(rows: Sequence[PublicRow]) -> list[list[PublicRow]]:
    parts: dict[tuple[tuple[str, float], ...], list[PublicRow]] = {}
    for row in rows:
        parts.setdefault(row.coefficients, []).append(row)
    return list(parts.values())


def _predict(rows: Sequence[PublicRow], coefficients: Coefficients) -> tuple[list[float], list[float], Array]:
    """Rates, memories and seconds at peak of rows of one stack, with what its software changes."""
    adapted = replace(coefficients, **dict(rows[0].coefficients))  # type: ignore[arg-type]
    table = estimate_many([row.workload for row in rows], adapted)
    return (
        predicted_tokens_per_second_per_gpu(rows, table), predicted_memory_bytes(rows, table),
        table.columns["optimism_parts"][:, 0],
    )


def assess(rows: Sequence[PublicRow], coefficients: Coefficients) -> Assessment:
    """Compares every row with the estimate and with the simple estimates."""
    pieces = [_predict(part, coefficients) for part in _by_software(rows)]
    rows = [row for part in _by_software(rows) for row in part]
    rates, memories, ideals = (np.concatenate([piece[index] for piece in pieces]) for index in range(3))
    tokens = np.array([
        row.workload.recipe.global_batch_size * (row.workload.recipe.sequence_length or 1)
        / row.workload.cluster.num_accelerators for row in rows
    ])
    frame = pl.DataFrame({
        "id": [row.row_id for row in rows], "source": [row.source for row in rows],
        "model": [row.model_name for row in rows], "held_out": [row.is_held_out for row in rows],
        "measured_rate": [row.tokens_per_second_per_gpu for row in rows], "predicted_rate": rates,
        "constant_rate": tokens / ideals * CONSTANT_UTILISATION, "peak_rate": tokens / ideals,
        "measured_memory": [row.memory_bytes for row in rows],
        "predicted_memory": memories,
    }, strict=False)

    def error(predicted: str, measured: str) -> pl.Expr:
        return pl.col(predicted) / pl.col(measured) - 1.0

    frame = frame.with_columns(
        rate_error=error("predicted_rate", "measured_rate"), constant_error=error("constant_rate", "measured_rate"),
        peak_error=error("peak_rate", "measured_rate"), memory_error=error("predicted_memory", "measured_memory"),
    )
    return Assessment(
        rows=frame,
        throughput=_by_group(frame.filter(pl.col("measured_rate").is_not_null()), "rate_error", "constant_error", "peak_error"),
        memory=_by_group(frame.filter(pl.col("measured_memory").is_not_null()), "memory_error"),
    )


def _by_group(frame: pl.DataFrame, *errors: str) -> pl.DataFrame:
    first = errors[0]
    return frame.group_by("source", "model", "held_out").agg(
        pl.len().alias("rows"),
        *[pl.col(name).abs().median().alias(name) for name in errors],
        pl.col(first).abs().quantile(0.9, "nearest").alias("p90"), pl.col(first).median().alias("bias"),
    ).sort("source", "model")


def median_over_groups(groups: pl.DataFrame, column: str, *, held_out: bool | None = None) -> float:
    """Median over (source, model) groups of each group's median absolute error."""
    chosen = groups if held_out is None else groups.filter(pl.col("held_out") == held_out)
    value = chosen[column].median()
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]


def report_lines(assessment: Assessment, left_out: dict[str, int]) -> list[str]:
    """The printed report."""
    lines = ["Throughput, median absolute error by group (default coefficients)", _head(("estimate", "bias", "p90", "45 % MFU", "peak"))]
    for group in assessment.throughput.iter_rows(named=True):
        lines.append(_line(group, ("rate_error", "bias", "p90", "constant_error", "peak_error")))
    lines += _summary(assessment.throughput, ("rate_error", None, "p90", "constant_error", "peak_error"))
    lines += ["", "Memory in the source's own kind, median absolute error by group", _head(("estimate", "bias", "p90"))]
    for group in assessment.memory.iter_rows(named=True):
        lines.append(_line(group, ("memory_error", "bias", "p90")))
    lines += _summary(assessment.memory, ("memory_error", None, "p90"))
    lines += ["", "Rows left out"]
    lines += [f"  {count:5d}  {reason}" for reason, count in sorted(left_out.items(), key=lambda item: -item[1])]
    lines += ["  development groups were looked at while formulas and defaults were written; the others were not"]
    return lines


def _head(names: Sequence[str]) -> str:
    return f"  {'source':<10}{'model':<16}{'use':<13}{'rows':>5}" + "".join(f"{name:>10}" for name in names)


def _line(group: dict[str, object], columns: Sequence[str]) -> str:
    use = "held out" if group["held_out"] else "development"
    text = f"  {group['source']:<10}{group['model']:<16}{use:<13}{group['rows']:>5}"
    return text + "".join(f"{group[name]:>10.1%}" for name in columns)


def _summary(groups: pl.DataFrame, columns: Sequence[str | None]) -> list[str]:
    lines = []
    for title, held_out in (("median of all", None), ("of held out", True), ("of development", False)):
        chosen = groups if held_out is None else groups.filter(pl.col("held_out") == held_out)
        if not len(chosen):
            continue
        values = "".join(
            f"{'':>10}" if name is None else f"{median_over_groups(groups, name, held_out=held_out):>10.1%}"
            for name in columns
        )
        lines.append(f"  {title:<26}{len(chosen):>3} groups{chosen['rows'].sum():>8}{values}")
    return lines


def main() -> None:
    """Prints the report for the default coefficients."""
    selection = select_rows()
    assessment = assess(selection.rows, default_coefficients())
    sys.stdout.write("\n".join(report_lines(assessment, selection.left_out)) + "\n")


if __name__ == "__main__":
    main()
