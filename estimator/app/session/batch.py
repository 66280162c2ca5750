"""Many workloads from JSON lines: decoded, resolved once per distinct input, estimated in chunks, answered in order."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec

from estimator.analytic.estimate import estimate_many
from estimator.specs.errors import Problem, ProjectError, SpecError
from estimator.specs.estimate import Estimate

from .calibrations import coefficients_in_use
from .config import unknown_option
from .inputs import PreparedWorkload
from .options import OPTIONS, WorkloadOptions, parse_value
from .problems import error_document
from .report import estimate_document
from .service import Session, merge_notes

CHUNK_LINES = 4096
"""Workloads evaluated together: arrays long enough to be fast, small enough for the caches and for memory."""

_RawOptions: type[msgspec.Struct] = msgspec.defstruct(
    "_RawOptions", [(name, Any, None) for name in WorkloadOptions.__struct_fields__], forbid_unknown_fields=True
)
"""A line before its values are judged: any JSON value under a known key."""


class BatchEstimator:
    """Answers JSON lines; keeps what it resolved from line to line."""

    def __init__(self, session: Session, defaults: WorkloadOptions) -> None:
        self._session = session
        self._defaults = msgspec.structs.astuple(defaults)
        self._decoder = msgspec.json.Decoder(_RawOptions)
        self._encoder = msgspec.json.Encoder()
        self._parsed: dict[tuple[int, type, object], object] = {}
        self.num_bad = 0

    def answers(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """One JSON line per line, joined by chunks."""
        source = iter(lines)
        while chunk := list(islice(source, CHUNK_LINES)):
            yield self._answer_chunk(chunk)

    def _answer_chunk(self, lines: list[bytes]) -> bytes:
        entries: list[PreparedWorkload | ProjectError] = []
        for line in lines:
            try:
                entries.append(self._session.reader.prepare(self._options(line)))
            except ProjectError as error:
                entries.append(error)
        estimates = iter(self._estimates([entry for entry in entries if isinstance(entry, PreparedWorkload)]))
        documents: list[object] = []
        for entry in entries:
            answer = entry if isinstance(entry, ProjectError) else next(estimates)
            if isinstance(answer, ProjectError):
                self.num_bad += 1
                documents.append(error_document(answer.problems))
            elif isinstance(entry, PreparedWorkload):
                merged = merge_notes(answer, entry.warnings, entry.assumptions)
                documents.append(estimate_document(entry.echo, merged))
        return self._encoder.encode_lines(documents)

    def _estimates(self, prepared: list[PreparedWorkload]) -> list[Estimate | ProjectError]:
        """All at once; where one of them cannot be estimated, one by one, so that the others still are."""
        try:
            table = estimate_many(
                [p.workload for p in prepared], coefficients_in_use(None, prepared[0].workload.cluster)
            )
            return [table.estimate(i) for i in range(len(prepared))]
        except ProjectError as error:
            if len(prepared) == 1:
                return [error]
            middle = len(prepared) // 2
            return self._estimates(prepared[:middle]) + self._estimates(prepared[middle:])

    def _options(self, line: bytes) -> WorkloadOptions:
        """The options of a line over the defaults."""
        raw = self._raw(line)
        values = []
        for index, (value, default) in enumerate(zip(msgspec.structs.astuple(raw), self._defaults, strict=True)):
            values.append(default if value is None else self._parse(index, value))
        return WorkloadOptions(*values)

    def _parse(self, index: int, value: object) -> Any:
        if isinstance(value, dict | list):
            return parse_value(OPTIONS[index], value)
        key = (index, type(value), value)
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = self._parsed[key] = parse_value(OPTIONS[index], value)
        return parsed

    def _raw(self, line: bytes) -> msgspec.Struct:
        try:
            return self._decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _line_error(line) from None


def _line_error(line: bytes) -> SpecError:
    """Why a line is no workload."""
    try:
        content = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        shown = line[:60].decode(errors="replace").strip()
        return SpecError(
            Problem(code="bad_line", message=f"Not JSON ({error}): {shown!r}; a line is one object of options.")
        )
    if not isinstance(content, dict):
        return SpecError(
            Problem(code="bad_line", message=f"A line must be one object of options, not {type(content).__name__}.")
        )
    known = WorkloadOptions.__struct_fields__
    return SpecError(*(unknown_option(str(key), where="batch line") for key in content if key not in known))
