"""Estimates of many workloads as documents: the JSON of an estimate straight from columns."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from estimator.analytic.estimate import FITS, TIME_PARTS, EstimateTable
from estimator.analytic.memory import MEMORY_PARTS
from estimator.analytic.optimism import OPTIMISM_PARTS

from .inputs import PreparedWorkload
from .report import ESTIMATE_FIELDS, SCHEMA


class _Interval(msgspec.Struct):
    low: float
    expected: float
    high: float


class _Part(msgspec.Struct):
    name: str
    seconds: float


class _Optimism(msgspec.Struct):
    ratio: float
    parts: list[_Part]


_Time: Any = msgspec.defstruct("_Time", [(name, float) for name in TIME_PARTS])
_Memory: Any = msgspec.defstruct("_Memory", [(name, float) for name in MEMORY_PARTS])
_Document: Any = msgspec.defstruct("_Document", [(name, Any) for name in ("schema", "workload", *ESTIMATE_FIELDS)])
"""Fields in the order of ``estimate_document``: a batch line reads like a single estimate."""
_FIGURES = ESTIMATE_FIELDS[: ESTIMATE_FIELDS.index("warnings")]
_INTERVALS = frozenset({"step_time_seconds", "peak_memory_bytes", "peak_reserved_bytes"})
_OPTIONAL_INTERVALS = frozenset({"training_days", "cost_usd", "energy_kwh"})


def documents(table: EstimateTable, prepared: Sequence[PreparedWorkload]) -> list[msgspec.Struct]:
    """One document per row of the table."""
    lists: dict[str, list[Any]] = {name: column.tolist() for name, column in table.columns.items()}
    figures = zip(*(_column(name, lists, table) for name in _FIGURES), strict=True)
    rows = []
    # Lines of one machine and model share their notes' tuples, which ``prepared`` keeps alive: identity will do.
    said_by: dict[tuple[int, int], frozenset[str]] = {}
    for (_, echo, own_warnings, own_assumptions), values, (warnings, assumptions) in zip(
        prepared, figures, _notes(table), strict=True
    ):
        key = (id(own_warnings), id(own_assumptions))
        said = said_by.get(key)
        if said is None:
            said = said_by[key] = frozenset(note.code for note in (*own_warnings, *own_assumptions))
        if said:
            warnings = [*own_warnings, *[note for note in warnings if note["code"] not in said]]
            assumptions = [*own_assumptions, *[note for note in assumptions if note["code"] not in said]]
        rows.append(_Document(SCHEMA, echo, *values, warnings, assumptions))
    return rows


def _notes(table: EstimateTable) -> Iterator[tuple[list[Any], list[Any]]]:
    for _, notes in table.notes:
        for row in range(len(notes.warning_masks)):
            yield notes.warnings_of(row), notes.assumptions_of(row)


def _column(name: str, lists: dict[str, list[Any]], table: EstimateTable) -> list[Any]:
    """The values of one field of the document, for all rows."""
    if name == "basis":
        return [table.basis] * len(table)
    if name == "optimism":
        return [
            _Optimism(ratio, list(map(_Part, OPTIMISM_PARTS, parts)))
            for ratio, parts in zip(lists["optimism_ratio"], lists["optimism_parts"], strict=True)
        ]
    values = lists[name]
    if name in _INTERVALS:
        return [_Interval(*value) for value in values]
    if name in _OPTIONAL_INTERVALS:
        return [None if value[1] != value[1] else _Interval(*value) for value in values]
    if name == "step_time_components_seconds":
        return [_Time(*value) for value in values]
    if name == "memory_components_bytes":
        return [_Memory(*value) for value in values]
    if name == "tokens_per_second":
        return [None if value != value else value for value in values]
    if name == "parameters":
        return [round(value) for value in values]
    if name == "fits":
        return [FITS[int(value)] for value in values]
    return values
