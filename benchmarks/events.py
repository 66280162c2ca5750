"""What a runner process reports while it works: JSON lines in a file, read here as typed events."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from estimator.specs.measurement import Measurement

_MEASURED_FIELDS = frozenset(entry.name for entry in fields(Measurement))


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The runner began with a job."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A sign of life within a job."""

    id: str
    phase: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A job came to its end, an out-of-memory included."""

    id: str
    measured: dict[str, object] = field(default_factory=dict)
    """Fields of ``Measurement``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The runner is done with a job (``id``), or with all of them (None)."""

    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A line that is no event: something else wrote into the file."""

    line: str


Event = Started | Progress | Result | Finished | Unreadable


def parse_event(line: str) -> Event:
    """The event in one line."""
    try:
        content = json.loads(line)
    except ValueError:
        return Unreadable(line=line)
    if not isinstance(content, Mapping):
        return Unreadable(line=line)
    job_id = content.get("id")
    match content.get("event"), job_id:
        case "started", str():
            return Started(id=job_id)
        case "progress", str():
            return Progress(id=job_id, phase=str(content.get("phase", "")))
        case "result", str():
            measured = {name: value for name, value in content.items() if name in _MEASURED_FIELDS}
            return Result(id=job_id, measured=measured)
        case "finished", str() | None:
            return Finished(id=job_id)
    return Unreadable(line=line)


class EventReader:
    """Reads the events that were appended to a file since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[Event]:
        """Events of complete lines; a line still being written, or torn by a kill, stays unread."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [parse_event(line) for line in complete.decode(errors="replace").splitlines() if line.strip()]
