"""The entry point: a group whose commands are imported only when they run."""

import errno
import importlib
import importlib.util
import itertools
import os
import sys

import click

from .diagnostics import ExitCode, note, report_failure, silence_stdout

COMMANDS = {
    "plan": "Rank every strategy for a model, hardware and recipe.",
    "estimate": "Estimate one fully specified workload, or a file of them.",
    "compare": "Compare hardware choices: days, dollars, memory.",
    "measure": "Run short real training steps on this machine and store what was seen.",
    "catalog": "List the models and GPUs known by name.",
    "accuracy": "Print the errors of the estimator on public and on our own measurements, by group.",
    "trace": "Write the operation list of any torch model to a file.",
}
"""Name and one-line help; the command is ``command`` in ``commands/<name>.py``."""


class ReaderLeft(Exception):  # noqa: N818  no error
    """The pipe that takes the result was closed while a command still wrote."""


class LazyGroup(click.Group):
    """Lists all commands, imports the one that is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".commands.{cmd_name}", __package__)
        command: click.Command = module.command
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # click itself would take it for a failure and exit with 1.
            raise ReaderLeft from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            import difflib

            nearest = difflib.get_close_matches(name, COMMANDS, n=1)
            hint = f" Did you mean {nearest[0]}?" if nearest else ""
            raise click.UsageError(f"No command {name!r}; there are {', '.join(COMMANDS)}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="traincast", prog_name="traincast")
def traincast() -> None:
    """A forecast of training: time, memory and money of a training run, without a GPU.

    Example: traincast plan --model pythia-1b --gpu a100-80gb --num-gpus 4
    """


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code."""
    if sys.stdout is None:
        note("error: stdout is closed: there is no place for the result.")
        return ExitCode.INTERNAL
    shadowed = shadowing_folder()
    if shadowed is not None:
        note(shadowed)
        return ExitCode.INTERNAL
    try:
        result = traincast.main(args=arguments, prog_name="traincast", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, ReaderLeft):
        # The reader has what it wanted (head, less).
        silence_stdout()
        return ExitCode.OK
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            silence_stdout()
            note("error: cannot write: no space left on the device")
            return ExitCode.INTERNAL
        return report_failure(error, as_json=wants_json(arguments), arguments=arguments)
    return result if isinstance(result, int) else ExitCode.OK


def wants_json(arguments: list[str]) -> bool:
    """True where the command line asks for JSON, even one that cannot be parsed."""
    return "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments)


def shadowing_folder() -> str | None:
    """Another folder named like one of our three packages would be imported instead; say which."""
    homes = {}
    for name in ("estimator", "calibration", "benchmarks"):
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            homes[name] = os.path.dirname(os.path.dirname(spec.origin))
    ours = homes.get("estimator")
    strangers = [f"{name} is taken from {home}" for name, home in homes.items() if home != ours]
    if not strangers:
        return None
    shadows = " and ".join(strangers)
    return f"error: the program lies in {ours}, but {shadows}, which shadows it; start it from another folder."


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
