"""Click commands whose options come from the one table in ``session.options``."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from estimator.specs.errors import Problem, SpecError

from ..session.options import OPTION_BY_KEY, OPTIONS, Option, OptionGroup, OptionKind

_Command = TypeVar("_Command", bound=Callable[..., Any])
_METAVARS = {
    OptionKind.COUNT: "COUNT",
    OptionKind.POSITIVE: "NUMBER",
    OptionKind.FRACTION: "NUMBER",
    OptionKind.TEXT: "TEXT",
    OptionKind.SETTINGS: "KEY=VALUE",
}


class WorkloadCommand(click.Command):
    """A command that refuses options given twice and groups its help page by headings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        seen: set[str | None] = set()
        for parameter in order:
            if isinstance(parameter, click.Option) and not parameter.multiple and not parameter.count:
                if parameter.name in seen:
                    raise SpecError(
                        Problem(
                            code="duplicate_option",
                            field=parameter.name,
                            message=f"{parameter.opts[0]} is given twice; keep one.",
                        )
                    )
                seen.add(parameter.name)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                option = OPTION_BY_KEY.get(parameter.name or "")
                sections.setdefault(option.group.value if option else "Output and more", []).append(record)
        for heading in (*(group.value for group in OptionGroup), "Output and more"):
            if heading in sections:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])


def _click_option(option: Option) -> Callable[[_Command], _Command]:
    if option.kind is OptionKind.SWITCH:
        return click.option(f"{option.flag}/--no-{option.flag[2:]}", option.key, default=None, help=option.help)
    metavar = (
        "|".join(option.choices)
        if option.kind is OptionKind.CHOICE and len(option.choices) <= 3
        else _METAVARS.get(option.kind, "NAME")
    )
    help_text = option.help
    if option.kind is OptionKind.CHOICE and len(option.choices) > 3:
        help_text += " One of " + ", ".join(option.choices) + "."
    return click.option(
        option.flag, option.key, metavar=metavar, multiple=option.kind is OptionKind.SETTINGS, help=help_text
    )


def workload_options(*, without: Iterable[str] = ()) -> Callable[[_Command], _Command]:
    """Add the options of a workload to a command, all as texts: the session parses and judges them."""
    skipped = frozenset(without)

    def add(function: _Command) -> _Command:
        function = click.option("--profile", metavar="NAME|FILE", help="Settings file below flags and environment.")(
            function
        )
        function = click.option("--explain", is_flag=True, help="Say on stderr where each value came from.")(function)
        for option in reversed(OPTIONS):
            if option.key not in skipped:
                function = _click_option(option)(function)
        return function

    return add


def format_option(*formats: str) -> Callable[[_Command], _Command]:
    """``--format``, table first."""
    return click.option(
        "--format",
        "output_format",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="Form of the result on stdout.",
    )


def typed_values(parameters: dict[str, Any]) -> dict[str, object]:
    """The workload options that were typed."""
    return {
        key: value for key, value in parameters.items() if key in OPTION_BY_KEY and value is not None and value != ()
    }
