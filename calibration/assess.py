"""Errors of the estimator on public measurements, by group, beside the simplest estimates.

``python -m calibration.assess`` prints the table for the default coefficients.
"""

import sys
import textwrap
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Predictions:
    """What the estimator says about rows of one stack, in the rows' own units."""

    rates: list[float]
    memories: list[float]
    ideal_seconds: Array
    time_factors: Array
    """Half width of the stated time interval, as a factor."""
    memory_factors: Array


def _predict(rows: Sequence[PublicRow], coefficients: Coefficients) -> _Predictions:
    """Predictions with what the rows' software changes."""
    adapted = replace(coefficients, **dict(rows[0].coefficients))  # type: ignore[arg-type]
    table = estimate_many([row.workload for row in rows], adapted)
    time, memory = table.columns["step_time_seconds"], table.columns["peak_memory_bytes"]
    return _Predictions(
        rates=predicted_tokens_per_second_per_gpu(rows, table),
        memories=predicted_memory_bytes(rows, table),
        ideal_seconds=table.columns["optimism_parts"][:, 0],
        time_factors=time[:, 2] / time[:, 1],
        memory_factors=memory[:, 2] / memory[:, 1],
    )


def assess(rows: Sequence[PublicRow], coefficients: Coefficients) -> Assessment:
    """Compares every row with the estimate and with the simple estimates."""
    parts = _by_software(rows)
    pieces = [_predict(part, coefficients) for part in parts]
    rows = [row for part in parts for row in part]

    def joined(name: str) -> Array:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    tokens = np.array(
        [
            row.workload.recipe.global_batch_size
            * (row.workload.recipe.sequence_length or 1)
            / row.workload.cluster.num_accelerators
            for row in rows
        ]
    )
    peak_rate = tokens / joined("ideal_seconds")
    frame = pl.DataFrame(
        {
            "id": [row.row_id for row in rows],
            "source": [row.source for row in rows],
            "model": [row.model_name for row in rows],
            "held_out": [row.is_held_out for row in rows],
            "measured_rate": [row.tokens_per_second_per_gpu for row in rows],
            "predicted_rate": joined("rates"),
            "constant_rate": peak_rate * CONSTANT_UTILISATION,
            "peak_rate": peak_rate,
            "time_factor": joined("time_factors"),
            "measured_memory": [row.memory_bytes for row in rows],
            "predicted_memory": joined("memories"),
            "memory_factor": joined("memory_factors"),
        },
        strict=False,
    )

    def error(predicted: str, measured: str) -> pl.Expr:
        return pl.col(predicted) / pl.col(measured) - 1.0

    def is_covered(error: str, factor: str) -> pl.Expr:
        return ((pl.col(error) + 1.0).log().abs() <= pl.col(factor).log()).cast(pl.Float64)

    frame = frame.with_columns(
        rate_error=error("predicted_rate", "measured_rate"),
        constant_error=error("constant_rate", "measured_rate"),
        peak_error=error("peak_rate", "measured_rate"),
        memory_error=error("predicted_memory", "measured_memory"),
    ).with_columns(
        rate_covered=is_covered("rate_error", "time_factor"), memory_covered=is_covered("memory_error", "memory_factor")
    )
    rates, memories = (frame.filter(pl.col(name).is_not_null()) for name in ("measured_rate", "measured_memory"))
    return Assessment(
        rows=frame,
        throughput=_by_group(rates, "rate_error", "rate_covered", "constant_error", "peak_error"),
        memory=_by_group(memories, "memory_error", "memory_covered"),
    )


def _by_group(frame: pl.DataFrame, error: str, covered: str, *others: str) -> pl.DataFrame:
    return (
        frame.group_by("source", "model", "held_out")
        .agg(
            pl.len().alias("rows"),
            *[pl.col(name).abs().median().alias(name) for name in (error, *others)],
            pl.col(error).median().alias("bias"),
            pl.col(error).abs().quantile(0.9, "nearest").alias("p90"),
            pl.col(covered).mean().alias("covered"),
        )
        .sort("source", "model")
    )


def median_over_groups(groups: pl.DataFrame, column: str, *, held_out: bool | None = None) -> float:
    """Median over (source, model) groups of each group's median absolute error."""
    chosen = groups if held_out is None else groups.filter(pl.col("held_out") == held_out)
    value = chosen[column].median()
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]


_THROUGHPUT_COLUMNS = {
    "error": "rate_error", "bias": "bias", "p90": "p90", "inside": "covered", "45%MFU": "constant_error",
    "peak": "peak_error",
}  # fmt: skip
_MEMORY_COLUMNS = {"error": "memory_error", "bias": "bias", "p90": "p90", "inside": "covered"}
_NOT_AVERAGED = ("bias",)
_LEGEND = """error: median absolute error of a group; bias: median signed error (+: too fast, too large); p90: 90th
percentile of the absolute error; inside: share of rows inside the stated 90 % interval; 45%MFU and peak: error of a
constant utilisation and of FLOPs / peak. dev: looked at while formulas and defaults were written; all others are held
out."""


def report_lines(assessment: Assessment, left_out: dict[str, int]) -> list[str]:
    """The printed report, 80 columns wide."""
    lines = ["Throughput", *_table(assessment.throughput, _THROUGHPUT_COLUMNS)]
    lines += ["", "Memory, in the kind the source measures", *_table(assessment.memory, _MEMORY_COLUMNS)]
    lines += ["", *textwrap.wrap(_LEGEND, 80), "", "Rows left out"]
    return lines + [f"  {count:5d}  {reason}" for reason, count in sorted(left_out.items(), key=lambda item: -item[1])]


def _table(groups: pl.DataFrame, columns: dict[str, str]) -> list[str]:
    head = f"  {'source':<10}{'model':<15}{'':<4}{'rows':>5}" + "".join(f"{title:>7}" for title in columns)
    lines = [head]
    for group in groups.iter_rows(named=True):
        use = "" if group["held_out"] else "dev"
        values = "".join(f"{group[name]:>7.0%}" for name in columns.values())
        lines.append(f"  {group['source']:<10}{group['model']:<15}{use:<4}{group['rows']:>5}{values}")
    for title, held_out in (("median, held out", True), ("median, dev", False), ("median, all", None)):
        chosen = groups if held_out is None else groups.filter(pl.col("held_out") == held_out)
        if len(chosen):
            values = "".join(
                f"{'':>7}" if name in _NOT_AVERAGED else f"{median_over_groups(chosen, name):>7.1%}"
                for name in columns.values()
            )
            lines.append(f"  {title:<18}{len(chosen):>4} groups{chosen['rows'].sum():>5}{values}")
    return lines


def main() -> None:
    """Prints the report for the default coefficients."""
    selection = select_rows()
    assessment = assess(selection.rows, default_coefficients())
    sys.stdout.write("\n".join(report_lines(assessment, selection.left_out)) + "\n")


if __name__ == "__main__":
    main()
