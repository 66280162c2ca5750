"""``traincast accuracy``."""

import dataclasses

import click

from ...session.accuracy import accuracy
from ..arguments import WorkloadCommand, format_option
from ..diagnostics import ExitCode
from ..output import print_csv, print_json


@click.command(cls=WorkloadCommand, name="accuracy")
@click.option("--calibration", metavar="TEXT", help="auto, none, or a calibration file. [default: auto]")
@format_option("table", "json", "csv")
def command(calibration: str | None, output_format: str) -> int:
    """Print the errors of the estimator on public and on our own measurements, by group.

    Groups marked "development" were looked at while formulas and defaults were written; the others are held out.
    """
    report = accuracy(calibration)
    if output_format == "json":
        print_json({"schema": 1, **dataclasses.asdict(report)})
    elif output_format == "csv":
        rows = [{"quantity": "throughput", **row} for row in report.throughput]
        rows += [{"quantity": "memory", **row} for row in report.memory]
        print_csv([*rows, *({"quantity": "own measurement", **row} for row in report.own)])
    else:
        from ..accuracy_table import print_accuracy

        print_accuracy(report)
    return ExitCode.OK
