"""``traincast compare``."""

from typing import Any

import click

from ...session.comparison import Comparison, compare, demands_of
from ...session.comparison_documents import comparison_document
from ...session.config import gather_options
from ...session.options import STRATEGY_KEYS
from ...session.report import echo_with_strategy, estimate_csv_row
from ...session.service import Session
from ..arguments import WorkloadCommand, format_option, typed_values, workload_options
from ..diagnostics import ExitCode
from ..explain import print_explanation
from ..output import print_csv, print_json


@click.command(cls=WorkloadCommand, name="compare")
@click.option(
    "--hardware",
    multiple=True,
    metavar="GPU:COUNT[xNODES]",
    help="A choice of hardware, repeatable; without a count, the least count that meets the demands.",
)
@click.option("--deadline-days", metavar="NUMBER", help="The run has to end within so many days.")
@click.option("--budget-usd", metavar="NUMBER", help="The run (with --buy: the purchase) may cost so much.")
@click.option("--buy", is_flag=True, help="Judge by purchase, written off over the run, instead of by rent.")
@click.option("--write-off-years", metavar="NUMBER", help="Years over which a purchase is written off. [default: 5]")
@workload_options(without={*STRATEGY_KEYS, "gpu", "num_gpus", "num_nodes"})
@format_option("table", "json", "csv")
def command(
    hardware: tuple[str, ...],
    deadline_days: str | None,
    budget_usd: str | None,
    buy: bool,
    write_off_years: str | None,
    profile: str | None,
    explain: bool,
    output_format: str,
    **parameters: Any,
) -> int:
    """Compare hardware choices, each with its best plan: days, dollars, memory.

    Exits with 3 where no choice fits or none meets the demands.

    Example: traincast compare --model pythia-1b --hardware a100-80gb:4 --hardware h100:4 --hardware rtx-4090:8
    """
    demands = demands_of(deadline_days=deadline_days, budget_usd=budget_usd, years=write_off_years, buy=buy)
    gathered = gather_options(typed_values(parameters), profile=profile, with_strategy=False)
    comparison = compare(Session(), gathered.options, hardware, demands, gathered.notes)
    if explain:
        print_explanation(gathered, comparison.rows[0].answer.prepared.echo)
    if output_format == "json":
        print_json(comparison_document(comparison))
    elif output_format == "csv":
        print_csv(comparison_csv_rows(comparison))
    else:
        from ..comparison_table import print_comparison

        print_comparison(comparison, demands)
    return ExitCode.OK if any(row.satisfies for row in comparison.rows) else ExitCode.NOTHING_FITS


def comparison_csv_rows(comparison: Comparison) -> list[dict[str, object]]:
    """One row a choice: the hardware's figures, then those of its best plan."""
    rows = []
    for index, row in enumerate(comparison.rows):
        flat: dict[str, object] = {
            "hardware": row.hardware,
            "purchase_usd": row.purchase_usd,
            "run_cost_usd": row.run_cost_usd,
            "meets_deadline": row.meets_deadline,
            "meets_budget": row.meets_budget,
            "is_pareto": index in comparison.pareto,
        }
        if row.best is not None:
            flat.update(
                estimate_csv_row(echo_with_strategy(row.answer.prepared.echo, row.best.workload), row.best.estimate)
            )
        rows.append(flat)
    return rows
