"""The table of accuracy."""

from typing import TYPE_CHECKING

from ..session.accuracy import AccuracyReport
from .output import Page, facts_table, plain_table

if TYPE_CHECKING:
    from rich.table import Table

Rows = list[dict[str, object]]
Medians = dict[str, dict[str, object]]
_TITLES = {"all": "all", "held_out": "held out", "development": "development"}
_THROUGHPUT = (
    ("error", "rate_error"), ("bias", "bias"), ("p90", "p90"), ("45 % MFU", "constant_error"), ("peak", "peak_error"),
)  # fmt: skip
_OWN = (
    ("step error", "step_time_error"), ("bias", "step_time_bias"), ("p90", "step_time_p90"),
    ("memory error", "memory_error"), ("p90", "memory_p90"),
)  # fmt: skip
_MEMORY = (("error", "memory_error"), ("bias", "bias"), ("p90", "p90"))


def print_accuracy(report: AccuracyReport) -> None:
    """Groups with their errors, medians over groups, and what could not be compared."""
    page = Page()
    page.add(f"Median absolute error by group of measurements; {report.basis} coefficients", style="bold")
    page.heading("Throughput, beside a constant utilisation and the dense peak")
    page.add(_table(report.throughput, report.throughput_medians, _THROUGHPUT))
    page.heading("Memory, in the source's own kind (allocated, reserved or nvidia-smi)")
    page.add(_table(report.memory, report.memory_medians, _MEMORY))
    page.heading("Rows left out")
    page.add(facts_table([(str(count), reason) for reason, count in sorted(report.left_out.items(), key=_most_first)]))
    page.heading("Step time and peak allocated memory of our own harness, by settings")
    page.add(_own_table(report.own))
    page.print()


def _own_table(groups: Rows) -> "Table":
    headings = [("GPU", "left"), ("settings", "left"), ("rows", "right")]
    table = plain_table(*headings, *((name, "right") for name, _ in _OWN), padding=1)
    for group in groups:
        cells = [_percent(group[key]) for _, key in _OWN]
        table.add_row(str(group["gpu"]), str(group["settings"]), str(group["rows"]), *cells)
    return table


def _most_first(entry: tuple[str, int]) -> tuple[int, str]:
    return -entry[1], entry[0]


def _table(groups: Rows, medians: Medians, columns: tuple[tuple[str, str], ...]) -> "Table":
    headings = [("source", "left"), ("model", "left"), ("use", "left"), ("rows", "right")]
    table = plain_table(*headings, *((name, "right") for name, _ in columns), padding=1)
    for group in groups:
        use = "held out" if group["held_out"] else "development"
        cells = [_percent(group.get(key)) for _, key in columns]
        table.add_row(str(group["source"]), str(group["model"]), use, str(group["rows"]), *cells)
    for name, values in medians.items():
        cells = [_percent(values.get(key)) for _, key in columns]
        table.add_row(_TITLES[name], f"median of {values['groups']}", "", str(values["rows"]), *cells, style="bold")
    return table


def _percent(value: object) -> str:
    return f"{value:.1%}" if isinstance(value, float) else ""
