"""``traincast catalog models|gpus``."""

import click

from estimator.specs.errors import Note

from ...session.catalogue import gpu_rows, model_rows
from ..arguments import WorkloadCommand, format_option
from ..output import print_csv, print_json


@click.group(name="catalog")
def command() -> None:
    """List the models and GPUs known by name, with the sources of their figures."""


@command.command(cls=WorkloadCommand, name="models")
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@format_option("table", "json", "csv")
def models(words: tuple[str, ...], output_format: str) -> int:
    """Models by name, with parameters, published recipe and source; FILTER keeps rows that hold every word.

    Example: traincast catalog models pythia
    """
    return _print(model_rows(words), output_format, "models", words)


@command.command(cls=WorkloadCommand, name="gpus")
@click.argument("words", nargs=-1, metavar="[FILTER]...")
@format_option("table", "json", "csv")
def gpus(words: tuple[str, ...], output_format: str) -> int:
    """GPUs by name, with memory, dense rates, bandwidth, link, prices and source.

    Example: traincast catalog gpus rtx
    """
    return _print(gpu_rows(words), output_format, "gpus", words)


def _print(rows: list[dict[str, object]], output_format: str, kind: str, words: tuple[str, ...]) -> int:
    if output_format == "json":
        print_json({"schema": 1, kind: rows})
    elif output_format == "csv":
        print_csv(rows)
    elif rows:
        from ..catalog_tables import print_gpus, print_models

        (print_models if kind == "models" else print_gpus)(rows)
    if not rows:
        from ..diagnostics import print_notes

        print_notes([Note(code="no_match", message=f"No {kind} match {' '.join(words)!r}.")])
    return 0
