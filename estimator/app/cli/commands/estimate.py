"""``traincast estimate``."""

from typing import Any

import click

from estimator.specs.errors import Problem, SpecError

from ...session.config import gather_options
from ...session.report import estimate_answer_document, estimate_csv_row
from ...session.service import Session
from ..arguments import WorkloadCommand, format_option, typed_values, workload_options
from ..diagnostics import ExitCode, note
from ..explain import print_explanation
from ..output import print_csv, print_json


@click.command(cls=WorkloadCommand, name="estimate")
@workload_options()
@click.option(
    "--batch",
    "batch_file",
    metavar="FILE.jsonl",
    help="Estimate one workload a line (- for stdin); other options are defaults.",
)
@format_option("table", "json", "csv")
def command(profile: str | None, explain: bool, batch_file: str | None, output_format: str, **parameters: Any) -> int:
    """Estimate one fully specified workload: time, memory, money.

    Exits with 3 where it does not fit. With --batch, prints one JSON object a line, in order; keys of a line are the
    option names in snake_case, and a bad line yields an error object in its place.

    Example: traincast estimate --model pythia-1b --gpu h100 --micro-batch-size 16
    """
    gathered = gather_options(typed_values(parameters), profile=profile)
    if batch_file is not None:
        if output_format == "csv":
            raise SpecError(
                Problem(
                    code="usage", field="format", message="--batch prints JSON lines; --format csv does not go with it."
                )
            )
        from .estimate_batch import run_batch

        num_bad = run_batch(batch_file, gathered.options)
        if num_bad:
            note(f"note: {num_bad} of the lines are in error; each has its error in its place.")
        return ExitCode.OK
    answer = Session().estimate(gathered.options, gathered.notes)
    if explain:
        print_explanation(gathered, answer.prepared.echo)
    if output_format == "json":
        print_json(estimate_answer_document(answer))
    elif output_format == "csv":
        print_csv([estimate_csv_row(answer.prepared.echo, answer.estimate)])
    else:
        from ..tables import print_estimate

        print_estimate(answer)
    return ExitCode.NOTHING_FITS if answer.estimate.fits == "no" else ExitCode.OK
