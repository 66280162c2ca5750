"""What a runner writes is read as it comes, and only whole lines count."""

from pathlib import Path

from benchmarks.events import EventReader, Finished, Progress, Result, Started, Unreadable


def test_events_are_read_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.read_new() == []
    path.write_text(
        '{"event": "started", "id": "a"}\n{"event": "progress", "id": "a", "phase": "warm-up"}\n{"event": "re'
    )
    assert reader.read_new() == [Started(id="a"), Progress(id="a", phase="warm-up")]
    with path.open("a") as file:
        file.write('sult", "id": "a", "status": "ok", "step_time_seconds": 0.5, "unknown": 1}\n')
    assert reader.read_new() == [Result(id="a", measured={"status": "ok", "step_time_seconds": 0.5})]
    assert reader.read_new() == []


def test_lines_that_are_no_events_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(
        'noise\n[1]\n{"event": "new-kind", "id": "a"}\n{"event": "finished", "id": null}\n{"event": "result"}\n'
    )
    kinds = [type(event) for event in EventReader(path).read_new()]
    assert kinds == [Unreadable, Unreadable, Unreadable, Finished, Unreadable]
