"""The tables of catalog."""

from collections.abc import Sequence

from estimator.specs.units import format_count

from .output import Page, facts_table, plain_table
from .wording import figure

Rows = Sequence[dict[str, object]]
_FEW = 3
"""With so few rows left by the filter, their sources are printed too."""


def print_models(rows: Rows) -> None:
    """Name, size, published recipe."""
    page = Page()
    table = plain_table(
        ("model", "left"),
        ("family", "left"),
        ("parameters", "right"),
        ("published batch", "right"),
        ("steps", "right"),
        ("precision", "left"),
    )
    for row in rows:
        batch = (
            "-"
            if row["global_batch_size"] is None
            else f"{row['global_batch_size']:,} x {row['sequence_length'] or row['image_size']}"
        )
        steps = "-" if row["num_training_steps"] is None else f"{row['num_training_steps']:,}"
        table.add_row(
            str(row["name"]),
            str(row["family"]),
            format_count(float(str(row["parameters"]))),
            batch,
            steps,
            str(row["precision"] or "-"),
        )
    page.add(table)
    _add_sources(page, rows)
    page.print()


def print_gpus(rows: Rows) -> None:
    """Name, memory, rates, prices."""
    page = Page()
    table = plain_table(
        ("gpu", "left"),
        ("GiB", "right"),
        ("GB/s", "right"),
        ("bf16", "right"),
        ("fp16", "right"),
        ("tf32", "right"),
        ("fp32", "right"),
        ("peers", "left"),
        ("$/h", "right"),
        ("$", "right"),
        padding=1,
    )
    for row in rows:
        rates = [_cell(row[f"{name}_dense_tflop_per_second"]) for name in ("bf16", "fp16", "tf32", "fp32")]
        table.add_row(
            str(row["name"]),
            f"{float(str(row['memory_gib'])):.1f}",
            _cell(row["memory_bandwidth_gb_per_second"]),
            *rates,
            str(row["peer_link"]),
            _dollars(row["usd_per_gpu_hour"]),
            _cell(row["purchase_usd"]),
        )
    page.add(table)
    page.add("Rates are dense TFLOP/s; prices are editable defaults, not quotations.", style="dim")
    _add_sources(page, rows)
    page.print()


def _cell(value: object) -> str:
    return "-" if value is None else figure(float(str(value)))


def _dollars(value: object) -> str:
    return "-" if value is None else f"{float(str(value)):.2f}"


def _add_sources(page: Page, rows: Rows) -> None:
    if len(rows) > _FEW:
        page.add("Sources: --format json or csv, or a filter that leaves a few rows.", style="dim")
        return
    facts = [(str(row["name"]), str(source)) for row in rows for source in _listed(row["sources"])]
    if facts:
        page.add("Sources", style="bold")
        page.add(facts_table(facts))


def _listed(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
