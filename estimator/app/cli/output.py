"""stdout: JSON, CSV and tables. rich is imported only when a table is printed."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


def print_json(document: object) -> None:
    """One document, indented for a reader, one line for a pipe."""
    encoded = msgspec.json.encode(document)
    if sys.stdout.isatty():
        encoded = msgspec.json.format(encoded, indent=2)
    sys.stdout.write(encoded.decode() + "\n")


def print_csv(rows: Sequence[Mapping[str, object]]) -> None:
    """Rows with one header; columns of all rows in order of first appearance."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _cell(value) for key, value in row.items()})
    sys.stdout.write(buffer.getvalue())


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "; ".join(str(entry) for entry in value)
    return value


_UNKNOWN_COLUMNS = 80
"""Where the terminal says 0."""


class Page:
    """A page of headings, sentences and tables, printed at once: the terminal's width, 80 columns in a pipe.

    rich honours NO_COLOR and the terminal's width and encoding; lines end without padding.
    """

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, emoji=False, markup=False)
        if self._console.width < 1:
            self._console.width = _UNKNOWN_COLUMNS
        self._console.begin_capture()

    def add(self, block: "RenderableType", *, style: str | None = None) -> None:
        self._console.print(block, style=style)

    def heading(self, text: str) -> None:
        """A bold line after an empty one."""
        self._console.print()
        self._console.print(text, style="bold")

    def space(self) -> None:
        self._console.print()

    def print(self) -> None:
        text = self._console.end_capture()
        sys.stdout.write("".join(line.rstrip() + "\n" for line in text.splitlines()))


def plain_table(*columns: tuple[str, str], padding: int = 2) -> "Table":
    """A table without lines; ``columns`` are (heading, ``left`` or ``right``)."""
    from rich.table import Table

    table = Table(box=None, padding=(0, padding, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for heading, justify in columns:
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def facts_table(facts: Sequence[tuple[str, str]]) -> "Table":
    """Name and sentence, the sentence wrapped beside its name."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False, show_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, sentence in facts:
        table.add_row(name, sentence)
    return table
