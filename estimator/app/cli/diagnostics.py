"""What goes to stderr, and the exit code: one place that turns every failure into words."""

import os
import sys
import traceback
from collections.abc import Iterable
from enum import IntEnum

import click
import msgspec

from estimator.specs.errors import Note, Problem, ProjectError

from ..session.config import unknown_option
from ..session.not_modelled import not_modelled
from ..session.options import OPTION_BY_KEY, STRATEGY_KEYS
from ..session.problems import error_document


class ExitCode(IntEnum):
    """See the contract of the command line."""

    OK = 0
    INTERNAL = 1
    BAD_INPUT = 2
    NOTHING_FITS = 3
    MEASUREMENT_FAILED = 4
    INTERRUPTED = 130


def note(text: str) -> None:
    """One line for the user that is not part of the result."""
    print(text, file=sys.stderr)  # noqa: T201  stderr is this module's job


def print_notes(notes: Iterable[Note]) -> None:
    """Warnings and assumptions that have no place in the result."""
    for entry in notes:
        note(f"note: {entry.message}")


def report_failure(error: BaseException, *, as_json: bool, arguments: list[str]) -> ExitCode:
    """Print what went wrong and return the exit code."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        note("interrupted")
        return ExitCode.INTERRUPTED
    if isinstance(error, ProjectError):
        problems, code = error.problems, ExitCode(error.exit_code)
    elif isinstance(error, click.ClickException):
        problems, code = (_usage_problem(error, arguments),), ExitCode.BAD_INPUT
    else:
        problems, code = (_internal_problem(error),), ExitCode.INTERNAL
    if not (as_json and _is_written(msgspec.json.encode(error_document(problems)).decode())):
        for problem in problems:
            note(f"error: {problem.message}")
    return code


def silence_stdout() -> None:
    """Send what is still buffered nowhere: the interpreter would complain at exit that nobody takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_written(document: str) -> bool:
    """Whether stdout took the document; a full disk or a reader that left does not."""
    try:
        sys.stdout.write(document + "\n")
        sys.stdout.flush()
    except OSError:
        silence_stdout()
        return False
    return True


def _internal_problem(error: BaseException) -> Problem:
    if os.environ.get("TRAINCAST_DEBUG"):
        traceback.print_exception(error, file=sys.stderr)
    return Problem(
        code="internal",
        message=f"internal failure ({type(error).__name__}: {error}); this is a fault of the program. "
        "TRAINCAST_DEBUG=1 shows where.",
    )


def _not_here(flag: str, key: str) -> str:
    """An option of other commands."""
    if key in STRATEGY_KEYS:
        return f"{flag} is not an option here: this command chooses it. `traincast estimate` takes it."
    if key in ("gpu", "num_gpus", "num_nodes"):
        return f"{flag} is not an option here: name the choices with --hardware GPU:COUNT[xNODES]."
    return f"{flag} is not an option of this command; `traincast estimate --help` explains it."


def _usage_problem(error: click.ClickException, arguments: list[str]) -> Problem:
    """Click's own complaints, with what it cannot know: names that are refused by name or belong to other tools."""
    if isinstance(error, click.NoSuchOption):
        key = error.option_name.lstrip("-").replace("-", "_")
        if key in OPTION_BY_KEY:
            return Problem(code="unknown_option", message=_not_here(error.option_name, key), field=key)
        ours = unknown_option(key, where="command line")
        if error.possibilities and ours.code == "unknown_option" and "did you mean" in ours.message:
            near = " or ".join(sorted(error.possibilities))
            return Problem(
                code="unknown_option", message=f"Unknown option {error.option_name}: did you mean {near}?", field=key
            )
        return ours
    for argument in arguments:
        word = argument.partition("=")[2] or argument
        reason = not_modelled(word)
        if reason is not None:
            return Problem(code="not_modelled", message=f"{argument}: {reason}", field=None)
    field = None
    if isinstance(error, click.BadParameter | click.BadOptionUsage):
        name = getattr(error, "option_name", None) or getattr(getattr(error, "param", None), "name", None)
        field = name.lstrip("-").replace("-", "_") if name else None
    return Problem(code="usage", message=error.format_message(), field=field)
