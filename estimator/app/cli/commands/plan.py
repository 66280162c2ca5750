"""``traincast plan``."""

from typing import Any

import click

from ...session.config import gather_options
from ...session.options import STRATEGY_KEYS
from ...session.report import echo_with_strategy, estimate_csv_row, plan_document
from ...session.service import PlanAnswer, Session
from ..arguments import WorkloadCommand, format_option, typed_values, workload_options
from ..diagnostics import ExitCode
from ..explain import print_explanation
from ..output import print_csv, print_json


@click.command(cls=WorkloadCommand, name="plan")
@workload_options(without=STRATEGY_KEYS)
@format_option("table", "json", "csv")
def command(profile: str | None, explain: bool, output_format: str, **parameters: Any) -> int:
    """Rank every strategy for a model, hardware and recipe.

    Tries the 22 combinations of sharding, offload and activation checkpointing, each at its best micro batch,
    and says why the others were rejected. Exits with 3 where nothing fits.

    Example: traincast plan --model pythia-1b --gpu a100-80gb --num-gpus 4
    """
    gathered = gather_options(typed_values(parameters), profile=profile, with_strategy=False)
    answer = Session().plan(gathered.options, gathered.notes)
    if explain:
        print_explanation(gathered, answer.prepared.echo)
    if output_format == "json":
        print_json(plan_document(answer))
    elif output_format == "csv":
        print_csv(plan_csv_rows(answer))
    else:
        from ..tables import print_plan

        print_plan(answer)
    return ExitCode.OK if answer.plan.ranked else ExitCode.NOTHING_FITS


def plan_csv_rows(answer: PlanAnswer) -> list[dict[str, object]]:
    """One row a ranked strategy, fastest first, then the rejected ones with their reason."""
    rows: list[dict[str, object]] = []
    for planned in answer.plan.ranked:
        echo = echo_with_strategy(answer.prepared.echo, planned.workload)
        rows.append(
            {
                "rank": planned.rank,
                "gradient_accumulation_steps": planned.workload.gradient_accumulation_steps,
                **estimate_csv_row(echo, planned.estimate),
            }
        )
    for rejected in answer.plan.rejected:
        strategy = rejected.strategy
        rows.append(
            {
                "strategy": strategy.kind.value,
                "offload": strategy.offload,
                "activation_checkpointing": strategy.activation_checkpointing,
                "rejected": rejected.reason,
            }
        )
    return rows
