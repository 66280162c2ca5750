"""Measurements on disk: one file a record, written once, never changed.

Several writers, on one machine or on many that share a network file system, need no lock: every record has a name of
its own, is written under a temporary name, synced, and then renamed, which is atomic. Room for a record is taken
before its measurement starts, so a full disk is met while there is nothing to lose.
"""

import contextlib
import errno
import hashlib
import os
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from estimator.specs.errors import MeasurementError, Note
from estimator.specs.measurement import SCHEMA_VERSION, Measurement

_RECORD_SUFFIX = ".json"
_TEMPORARY_PREFIX = ".writing-"
_RESERVED_BYTES = 64 * 1024
"""More than a record takes: tens of raw samples, or the micro-benchmarks of a machine."""
_MAX_FAILURES = 2
"""A row that failed this often is not tried again."""

STACK_IDENTITY = ("gpu", "torch", "transformers", "accelerate", "deepspeed", "harness")
"""What must be equal for a stored row to answer for a new one."""


class _SchemaOnly(msgspec.Struct):
    """Enough of a record to tell whether we can read the rest."""

    schema: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreContent:
    """What lies in a store."""

    measurements: tuple[Measurement, ...]
    notes: tuple[Note, ...] = ()
    """Files that could not be read, and were left alone."""


def stack_key(stack: Mapping[str, str]) -> tuple[str, ...]:
    """The part of a stack that makes two measurements comparable; of ``2.11.0+cu130`` the release counts."""
    return tuple(stack.get(name, "").partition("+")[0] for name in STACK_IDENTITY)


class Slot:
    """A place on disk taken for one record."""

    def __init__(self, store: "MeasurementStore", path: Path) -> None:
        self._store = store
        self._path = path

    def commit(self, measurement: Measurement, record_id: str | None = None) -> Path:
        """Write the record and make it visible, whole, under its final name. Same id, same record: written once."""
        content = msgspec.json.format(msgspec.json.encode(measurement), indent=1) + b"\n"
        final = self._store.folder / f"{record_id or uuid.uuid4().hex}{_RECORD_SUFFIX}"
        try:
            with self._path.open("r+b") as file:
                file.write(content)
                file.truncate(len(content))
                file.flush()
                os.fsync(file.fileno())
            self._path.rename(final)
            _sync_folder(self._store.folder)
        except OSError as error:
            self.release()
            raise _disk_error(self._store.folder, error) from error
        return final

    def release(self) -> None:
        """Give the place back."""
        with contextlib.suppress(OSError):
            self._path.unlink()


class MeasurementStore:
    """A folder of records."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "records"
        self.runs_folder = folder / "runs"

    def reserve(self) -> Slot:
        """Take room for one record; a full or read-only disk is reported here."""
        path = self.folder / f"{_TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, _RESERVED_BYTES)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise _disk_error(self.folder, error) from error
        return Slot(self, path)

    def append(self, measurement: Measurement, record_id: str | None = None) -> Path:
        """Store one record."""
        return self.reserve().commit(measurement, record_id)

    def has_record(self, record_id: str) -> bool:
        return (self.folder / f"{record_id}{_RECORD_SUFFIX}").exists()

    def read(self) -> StoreContent:
        """Every readable record, oldest first; what is damaged, foreign or newer is named and left alone."""
        measurements: list[Measurement] = []
        notes: list[Note] = []
        for path in sorted(self.folder.iterdir()) if self.folder.is_dir() else ():
            if path.name.startswith(_TEMPORARY_PREFIX):
                continue
            answer = _read_record(path)
            if isinstance(answer, Note):
                notes.append(answer)
            else:
                measurements.append(answer)
        measurements.sort(key=lambda measurement: measurement.date)
        return StoreContent(measurements=tuple(measurements), notes=tuple(notes))

    def merge(self, rows: Iterable[Measurement]) -> int:
        """Add the rows of another store or file that are not here yet; returns how many."""
        held = {_canonical(row) for row in self.read().measurements}
        copied = 0
        for row in rows:
            content = _canonical(row)
            if content not in held:
                held.add(content)
                self.append(row, hashlib.sha256(content).hexdigest()[:32])
                copied += 1
        return copied


def answered_keys(measurements: Iterable[Measurement], stack: Mapping[str, str]) -> frozenset[str]:
    """Keys of workloads that need no new run on this stack: measured, out of memory, or twice failed or refused
    (a busy machine may spoil a clock once)."""
    identity = stack_key(stack)
    here = [measurement for measurement in measurements if stack_key(measurement.stack) == identity]
    failures = Counter(row.workload_key for row in here if row.status in ("error", "refused"))
    answered = {row.workload_key for row in here if row.status in ("ok", "oom")}
    return frozenset(answered | {key for key, count in failures.items() if count >= _MAX_FAILURES})


def read_json_lines(path: Path) -> Iterator[Measurement | Note]:
    """Measurements of a file that ``write_json_lines`` wrote."""
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        if line.strip():
            yield _decode(line, f"{path}:{number}")


def write_json_lines(measurements: Iterable[Measurement], path: Path) -> int:
    """One measurement a line, sorted, so that a committed file changes only where the data does."""
    lines = sorted(_canonical(measurement) for measurement in measurements)
    temporary = path.with_name(f"{_TEMPORARY_PREFIX}{path.name}")
    temporary.write_bytes(b"".join(line + b"\n" for line in lines))
    temporary.replace(path)
    return len(lines)


def read_rows(path: Path) -> StoreContent:
    """The rows of a store's folder, or of a file of JSON lines."""
    if not path.is_file():
        return MeasurementStore(path).read()
    entries = list(read_json_lines(path))
    return StoreContent(
        measurements=tuple(entry for entry in entries if isinstance(entry, Measurement)),
        notes=tuple(entry for entry in entries if isinstance(entry, Note)),
    )


def _canonical(row: Measurement) -> bytes:
    """The same bytes for the same row."""
    return msgspec.json.encode(row, order="sorted")


def _read_record(path: Path) -> Measurement | Note:
    try:
        content = path.read_bytes()
    except OSError as error:
        return Note(code="unreadable_record", message=f"{path}: cannot be read ({error.strerror}); left alone")
    return _decode(content, str(path))


def _decode(content: bytes, where: str) -> Measurement | Note:
    try:
        schema = msgspec.json.decode(content, type=_SchemaOnly).schema
    except msgspec.MsgspecError as error:
        return Note(code="damaged_record", message=f"{where}: no measurement ({error}); left alone")
    if schema > SCHEMA_VERSION:
        reads = f"this one reads up to {SCHEMA_VERSION}"
        message = f"{where}: schema {schema} was written by a newer version ({reads}); left alone"
        return Note(code="newer_record", message=message)
    try:
        return msgspec.json.decode(content, type=Measurement)
    except msgspec.MsgspecError as error:
        return Note(code="damaged_record", message=f"{where}: {error}; left alone")


def _sync_folder(folder: Path) -> None:
    """Make a rename durable; network file systems may not support it and do not need it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _disk_error(folder: Path, error: OSError) -> MeasurementError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some space and start again: what is finished is stored, and the run goes on from there"
        return MeasurementError.of(f"{folder}: no space left on the disk; {advice}", code="disk_full")
    message = f"{folder}: cannot be written ({error.strerror}); choose another folder with --store"
    return MeasurementError.of(message, code="store_not_writable", field="store")
