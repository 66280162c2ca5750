"""Many workloads from JSON lines: decoded, resolved once per distinct input, estimated in chunks, answered in order."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any

import msgspec

from estimator.analytic.estimate import estimate_many
from estimator.specs.errors import ProjectError, SpecError

from .batch_documents import documents
from .calibrations import coefficients_in_use
from .config import unknown_option
from .inputs import NUM_INPUT_FIELDS, Inputs, PreparedWorkload
from .options import OPTION_BY_KEY, OPTIONS, OptionKind, WorkloadOptions, parse_value
from .problems import error_document, refusal
from .service import Session

CHUNK_LINES = 16384
"""Workloads evaluated together: arrays long enough to be fast, small enough for memory."""
_MOST_REMEMBERED = 50_000
_JSON_TYPES: dict[OptionKind, Any] = {
    OptionKind.COUNT: int | float | str | None,
    OptionKind.POSITIVE: int | float | str | None,
    OptionKind.FRACTION: int | float | str | None,
    OptionKind.SWITCH: bool | None,
    OptionKind.SETTINGS: dict[str, Any] | None,
}
_Line: Any = msgspec.defstruct(
    "_Line",
    [(option.key, _JSON_TYPES.get(option.kind, str | None), None) for option in OPTIONS],
    forbid_unknown_fields=True,
)
"""A line whose values have the usual types; others take the slow way, which says what is wrong."""
_SEGMENTS = tuple(
    (min(indices), max(indices) + 1)
    for _, group in groupby(enumerate(OPTIONS), key=lambda entry: entry[1].group)
    if (indices := [index for index, _ in group])
)
"""Options of one group lie together, and lines repeat groups (a machine, a recipe) more than whole lines."""
_SETTINGS_INDEX = WorkloadOptions.__struct_fields__.index("set")
_TOKENS_INDEX = WorkloadOptions.__struct_fields__.index("num_training_tokens")


class BatchEstimator:
    """Answers JSON lines; keeps what it resolved from line to line."""

    def __init__(self, session: Session, defaults: WorkloadOptions) -> None:
        self._session = session
        self._defaults = msgspec.structs.astuple(defaults)
        self._decoder = msgspec.json.Decoder(_Line)
        self._encoder = msgspec.json.Encoder()
        self._parsed: dict[tuple[object, ...], tuple[Any, ...]] = {}
        self._inputs: dict[tuple[object, ...], tuple[tuple[Any, ...], Inputs]] = {}
        self.num_bad = 0

    def answers(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        """One JSON line per line, joined by chunks."""
        source = iter(lines)
        while chunk := list(islice(source, CHUNK_LINES)):
            yield self._answer_chunk(chunk)

    def _answer_chunk(self, lines: list[bytes]) -> bytes:
        answers: list[Any] = []
        places: dict[str | None, list[int]] = {}
        for place, line in enumerate(lines):
            try:
                prepared = self._prepared(line)
            except ProjectError as error:
                # Its problems only: a kept error keeps the frames that raised it.
                answers.append(error.problems)
            else:
                answers.append(prepared)
                places.setdefault(prepared.echo.calibration, []).append(place)
        for calibration, rows in places.items():
            # Lines of one model side by side: its operations are evaluated together.
            rows.sort(key=lambda row: id(answers[row].workload.model))
            estimated = self._estimated([answers[row] for row in rows], calibration)
            for row, answer in zip(rows, estimated, strict=True):
                answers[row] = answer
        for place, answer in enumerate(answers):
            if isinstance(answer, tuple):
                self.num_bad += 1
                answers[place] = error_document(answer)
        return self._encoder.encode_lines(answers)

    def _estimated(self, prepared: list[PreparedWorkload], calibration: str | None) -> list[Any]:
        """Documents or problems. All at once; where one cannot be estimated, in halves: the others still are."""
        try:
            table = estimate_many([entry.workload for entry in prepared], coefficients_in_use(calibration))
        except ProjectError as error:
            if len(prepared) == 1:
                return [error.problems]
            middle = len(prepared) // 2
            return self._estimated(prepared[:middle], calibration) + self._estimated(prepared[middle:], calibration)
        return documents(table, prepared)

    def _prepared(self, line: bytes) -> PreparedWorkload:
        """The workload of a line over the defaults."""
        try:
            raw = msgspec.structs.astuple(self._decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._session.reader.prepare(self._slowly_parsed(line))
        if raw[_SETTINGS_INDEX] is not None:
            return self._session.reader.prepare(self._parsed_options(raw))
        head, tail = raw[:NUM_INPUT_FIELDS], raw[NUM_INPUT_FIELDS:]
        known = self._inputs.get((head, raw[_TOKENS_INDEX] is None))
        if known is None:
            options = WorkloadOptions(*self._by_segments(raw))
            inputs = self._session.reader.inputs(options)
            if len(self._inputs) >= _MOST_REMEMBERED:
                self._inputs.clear()
            parsed_head = msgspec.structs.astuple(options)[:NUM_INPUT_FIELDS]
            self._inputs[(head, raw[_TOKENS_INDEX] is None)] = (parsed_head, inputs)
            return self._session.reader.prepare(options, inputs)
        parsed_head, inputs = known
        tail_key = (NUM_INPUT_FIELDS, *tail)
        parsed_tail = self._parsed.get(tail_key)
        if parsed_tail is None:
            parsed_tail = self._remembered(tail_key, NUM_INPUT_FIELDS, tail)
        return self._session.reader.prepare(WorkloadOptions(*parsed_head, *parsed_tail), inputs)

    def _by_segments(self, raw: tuple[Any, ...]) -> tuple[Any, ...]:
        values: tuple[Any, ...] = ()
        for start, stop in _SEGMENTS:
            segment = raw[start:stop]
            key = (start, *segment)
            values += self._parsed.get(key) or self._remembered(key, start, segment)
        return values

    def _remembered(self, key: tuple[Any, ...], start: int, segment: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(self._parsed) >= _MOST_REMEMBERED:
            self._parsed.clear()
        found = self._parsed[key] = self._parsed_segment(segment, start)
        return found

    def _parsed_options(self, raw: tuple[Any, ...]) -> WorkloadOptions:
        return WorkloadOptions(*self._parsed_segment(raw, 0))

    def _parsed_segment(self, raw: tuple[Any, ...], start: int) -> tuple[Any, ...]:
        return tuple(
            self._defaults[index] if value is None else parse_value(OPTIONS[index], value)
            for index, value in enumerate(raw, start)
        )

    def _slowly_parsed(self, line: bytes) -> WorkloadOptions:
        """A line of other types than usual: perhaps still options, else every problem in words."""
        try:
            content = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            shown = line[:60].decode(errors="replace").strip()
            message = f"Not JSON ({error}): {shown!r}; a line is one object of options."
            raise refusal("bad_line", None, message) from None
        if not isinstance(content, dict):
            kind = type(content).__name__
            raise refusal("bad_line", None, f"A line must be one object of options, not {kind}.")
        unknown = [unknown_option(str(key), where="batch line") for key in content if key not in OPTION_BY_KEY]
        if unknown:
            raise SpecError(*unknown)
        return self._parsed_options(tuple(content.get(option.key) for option in OPTIONS))
