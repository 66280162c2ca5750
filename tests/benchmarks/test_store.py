"""The store loses nothing that was finished and trusts nothing that was not."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from benchmarks.jobs import workload_key
from benchmarks.store import MeasurementStore, answered_keys, read_json_lines, read_rows, write_json_lines
from estimator.specs.errors import MeasurementError
from estimator.specs.measurement import SCHEMA_VERSION, Measurement

STACK = {"gpu": "NVIDIA H200", "torch": "2.11.0", "harness": "1"}


def _row(**changes: object) -> Measurement:
    row = Measurement(
        schema=SCHEMA_VERSION,
        workload={"model": "pythia-70m", "micro_batch_size": 4},
        workload_key="k1",
        status="ok",
        step_times_seconds=(0.1, 0.11),
        step_time_seconds=0.105,
        stack=STACK,
        date="2026-12-01T00:00:00+00:00",
    )
    return replace(row, **changes)  # type: ignore[arg-type]


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path)
    store.append(_row())
    content = MeasurementStore(tmp_path).read()
    assert content.measurements == (_row(),)
    assert content.notes == ()


def test_damaged_foreign_and_newer_records_are_named_and_left_alone(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path)
    good = store.append(_row())
    whole = good.read_bytes()
    strange = {
        "torn.json": whole[: len(whole) // 2],
        "empty.json": b"",
        "foreign.json": b'{"hello": 1}',
        "notes.txt": b"mine",
        "newer.json": whole.replace(b'"schema": 1', b'"schema": 2'),
        "wrong-type.json": whole.replace(b'"status": "ok"', b'"status": 7'),
        "binary.json": b"\xff\x00\xfe",
    }
    for name, content in strange.items():
        (store.folder / name).write_bytes(content)
    found = store.read()
    assert found.measurements == (_row(),)
    assert {Path(note.message.split(": ")[0]).name for note in found.notes} == set(strange)
    assert {note.code for note in found.notes} == {"damaged_record", "newer_record"}
    assert all((store.folder / name).read_bytes() == content for name, content in strange.items())


def test_a_record_half_written_by_a_killed_writer_is_invisible(tmp_path: Path) -> None:
    store = MeasurementStore(tmp_path)
    store.append(_row())
    store.reserve()
    assert len(store.read().measurements) == 1
    assert store.read().notes == ()


def test_a_full_disk_is_met_before_the_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_space(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = MeasurementStore(tmp_path)
    store.append(_row())
    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(MeasurementError, match="no space left") as failure:
        store.reserve()
    assert failure.value.exit_code == 4
    assert [path.suffix for path in store.folder.iterdir()] == [".json"]


def test_a_reserved_slot_holds_a_record_on_a_disk_that_filled_up_since(small_disk: Path) -> None:
    store = MeasurementStore(small_disk)
    slot = store.reserve()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        _fill(file)
    slot.commit(_row())
    assert store.read().measurements == (_row(),)
    with pytest.raises(MeasurementError, match="no space left"):
        store.append(_row())
    filler.unlink()
    store.append(_row())
    assert len(store.read().measurements) == 2


def _fill(file: IO[bytes]) -> None:
    while True:
        file.write(bytes(4096))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(tmp_path)]
    mount = subprocess.run(command, capture_output=True, text=True, check=False)
    if mount.returncode != 0:
        pytest.skip(f"no right to mount a small file system: {mount.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_two_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from dataclasses import replace;"
        "from tests.benchmarks.test_store import _row; from benchmarks.store import MeasurementStore\n"
        "store = MeasurementStore(Path(sys.argv[1]))\n"
        "for number in range(40): store.append(_row(workload_key=f'{sys.argv[2]}-{number}'))"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], cwd=Path(__file__).parents[2])
        for name in ("a", "b")
    ]
    seen = 0
    while any(writer.poll() is None for writer in writers):
        content = MeasurementStore(tmp_path).read()
        assert content.notes == ()
        assert len(content.measurements) >= seen
        seen = len(content.measurements)
    assert [writer.returncode for writer in writers] == [0, 0]
    keys = {row.workload_key for row in MeasurementStore(tmp_path).read().measurements}
    assert keys == {f"{name}-{number}" for name in "ab" for number in range(40)}


def test_a_row_answers_on_its_own_stack_only_and_errors_are_tried_twice() -> None:
    error = _row(workload_key="k2", status="error")
    assert answered_keys([_row(), error], STACK) == {"k1"}
    assert answered_keys([error, error, _row(workload_key="k3", status="oom")], STACK) == {"k2", "k3"}
    assert answered_keys([_row(status="refused")], STACK) == frozenset()
    assert answered_keys([_row()], {**STACK, "torch": "2.13.0"}) == frozenset()
    assert answered_keys([_row()], {**STACK, "torch": "2.11.0+cu130"}) == {"k1"}
    assert answered_keys([_row()], {**STACK, "commit": "another"}) == {"k1"}


def test_merge_copies_each_record_once(tmp_path: Path) -> None:
    first, second = MeasurementStore(tmp_path / "a"), MeasurementStore(tmp_path / "b")
    first.append(_row())
    second.append(_row(workload_key="k2"))
    write_json_lines(second.read().measurements, tmp_path / "rows.jsonl")
    assert first.merge(second.read().measurements) == 1
    assert first.merge(second.read().measurements) == 0
    assert first.merge(read_rows(tmp_path / "rows.jsonl").measurements) == 0
    assert {row.workload_key for row in first.read().measurements} == {"k1", "k2"}


def test_json_lines_round_trip_in_a_stable_order(tmp_path: Path) -> None:
    rows = [_row(workload_key=f"k{number}") for number in range(5)]
    assert write_json_lines(rows, tmp_path / "a.jsonl") == 5
    write_json_lines(reversed(rows), tmp_path / "b.jsonl")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    back = list(read_json_lines(tmp_path / "a.jsonl"))
    assert sorted(row.workload_key for row in back if isinstance(row, Measurement)) == [f"k{n}" for n in range(5)]
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[0])["schema"] == SCHEMA_VERSION


def test_the_key_ignores_order_and_absent_options() -> None:
    assert workload_key({"a": 1, "b": None}) == workload_key({"a": 1})
    assert workload_key({"a": 1, "b": 2}) == workload_key({"b": 2, "a": 1})
    assert workload_key({"a": 1}) != workload_key({"a": 2})
