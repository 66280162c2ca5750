"""The table of compare."""

from typing import TYPE_CHECKING

from estimator.specs.units import GIB, format_usd

from ..session.comparison import ComparedHardware, Comparison, Demands
from .output import Page, facts_table, plain_table
from .wording import figure, low_high, model_line, note_lines, recipe_line, step_line, strategy_name

if TYPE_CHECKING:
    from rich.table import Table


def print_comparison(comparison: Comparison, demands: Demands) -> None:
    """What was understood, one row a choice, and which choices are worth a look."""
    page = Page()
    planned = [row for row in comparison.rows if row.best is not None]
    base = comparison.rows[0].answer.prepared.workload
    if planned and planned[0].best is not None:
        page.add(
            facts_table(
                [
                    ("model", model_line(base.model, planned[0].best.estimate.parameters)),
                    ("recipe", recipe_line(base.recipe)),
                    ("step", step_line(base.recipe)),
                ]
            )
        )
        page.space()
    page.add(_rows(comparison))
    page.space()
    page.add(facts_table(_conclusions(comparison, demands)))
    notes = [note for row in planned if row.best for note in row.best.estimate.warnings]
    notes += [note for row in comparison.rows if row.best is None for note in row.answer.warnings]
    if notes:
        page.heading("Warnings")
        page.add(facts_table([("-", line) for line in note_lines(notes)]))
    page.print()


def _rows(comparison: Comparison) -> "Table":
    table = plain_table(
        ("hardware", "left"),
        ("best strategy", "left"),
        ("micro", "right"),
        ("s/step", "right"),
        ("days (90 %)", "right"),
        ("run cost", "right"),
        ("purchase", "right"),
        ("GiB", "right"),
        padding=1,
    )
    for index, row in enumerate(comparison.rows):
        name = row.hardware + (" *" if index in comparison.pareto else "")
        purchase = "-" if row.purchase_usd is None else format_usd(row.purchase_usd)
        if row.best is None:
            table.add_row(name, "nothing fits", "-", "-", "-", "-", purchase, "-")
            continue
        estimate, workload = row.best.estimate, row.best.workload
        table.add_row(
            name,
            strategy_name(workload.strategy, workload.cluster.num_accelerators),
            str(workload.recipe.micro_batch_size),
            figure(estimate.step_time_seconds.expected),
            "-" if estimate.training_days is None else low_high(estimate.training_days),
            "-" if row.run_cost_usd is None else format_usd(row.run_cost_usd),
            purchase,
            f"{estimate.peak_reserved_bytes.expected / GIB:.1f}" + ("!" if estimate.fits == "tight" else ""),
        )
    return table


def _conclusions(comparison: Comparison, demands: Demands) -> list[tuple[str, str]]:
    facts = [
        ("*", "no other row is both faster and cheaper" + (" (share of the purchase)" if demands.buy else " (rent)"))
    ]
    if any(row.best and row.best.estimate.fits == "tight" for row in comparison.rows):
        facts.append(("!", "fits tightly: may run out of memory"))
    if demands.deadline_days is not None or demands.budget_usd is not None:
        wanted = []
        if demands.deadline_days is not None:
            wanted.append(f"{figure(demands.deadline_days)} days")
        if demands.budget_usd is not None:
            wanted.append(format_usd(demands.budget_usd))
        least = None if comparison.least is None else comparison.rows[comparison.least]
        facts.append(("least", f"for {' and '.join(wanted)}: " + ("none of these" if least is None else _least(least))))
    for row in comparison.rows:
        if row.best is None and row.answer.plan.nearest_changes:
            change = row.answer.plan.nearest_changes[0]
            facts.append((row.hardware, f"would fit with {change.description}"))
    return facts


def _least(row: ComparedHardware) -> str:
    days = "" if row.days is None else f", {figure(row.days)} days expected"
    cost = "" if row.run_cost_usd is None else f", {format_usd(row.run_cost_usd)}"
    return f"{row.hardware}{days}{cost}"
