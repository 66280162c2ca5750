"""Job files in, events out."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.runner.protocol import EventWriter, read_job_file


def _write(path: Path, **changes: Any) -> Path:
    content = {
        "schema": 1, "device": "cpu", "events": "events.jsonl",
        "jobs": [{"id": "a", "kind": "workload", "workload": {"micro_batch_size": 2}, "from_a_later_version": 1}],
    }
    path.write_text(json.dumps(content | changes), encoding="utf-8")
    return path


def test_job_file_is_read(tmp_path: Path) -> None:
    (job,) = read_job_file(_write(tmp_path / "jobs.json")).jobs
    assert job.micro_batch_size == 2
    assert job.gradient_accumulation_steps == 1
    assert job.max_grad_norm == 1.0
    assert not job.flag("offload")


def test_no_clipping_is_told_from_nothing_said(tmp_path: Path) -> None:
    jobs = [{"id": "a", "kind": "workload", "workload": {"max_grad_norm": None}}]
    (job,) = read_job_file(_write(tmp_path / "jobs.json", jobs=jobs)).jobs
    assert job.max_grad_norm is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"schema": 2}, "schema 2"), ({"device": "tpu"}, "'tpu'"), ({"jobs": [{"id": "a", "kind": "x"}]}, "'x'")],
)
def test_foreign_job_file_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        read_job_file(_write(tmp_path / "jobs.json", **changes))


def test_a_job_has_one_result(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path, is_enabled=True)
    writer.started("a")
    assert writer.result("a", {"status": "ok"})
    assert not writer.result("a", {"status": "oom"})
    writer.finished(None)
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [event["event"] for event in events] == ["started", "result", "finished"]
    assert events[1]["status"] == "ok"


def test_progress_is_sparse_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = EventWriter(path, is_enabled=True)
    for _ in range(100):
        writer.progress("a", "timed")
    writer.progress("a", "parts", force=True)
    assert len(path.read_text(encoding="utf-8").splitlines()) == 2


def test_other_ranks_are_silent(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    EventWriter(path, is_enabled=False).started("a")
    assert not path.exists()
