"""Killed, hung, crashing and out-of-memory children cost one row each, and the rest is measured."""

import errno
import os
import signal
import subprocess
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import store as store_module
from benchmarks.campaign import BoundarySearch, CampaignProgress, take_process_share
from benchmarks.jobs import Job
from benchmarks.micro_batch_search import MicroBatchSearch
from benchmarks.pace import Pace
from benchmarks.process_tree import RUN_VARIABLE
from benchmarks.records import RunFolder
from benchmarks.store import MeasurementStore
from estimator.specs.errors import MeasurementError
from estimator.specs.measurement import Measurement

from .campaign_setup import STACK, make_campaign, make_job

ROOT = Path(__file__).parents[2]


def _stored(folder: Path) -> dict[str, Measurement]:
    return {str(row.workload["model"]): row for row in MeasurementStore(folder).read().measurements}


def test_rows_of_one_process_are_stored_with_provenance(tmp_path: Path) -> None:
    seen: list[CampaignProgress] = []
    campaign = make_campaign(tmp_path, on_progress=seen.append)
    jobs = [make_job(micro_batch_size=size) for size in (1, 2, 4)]
    summary = campaign.run(jobs)
    rows = MeasurementStore(tmp_path).read().measurements
    assert [row.status for row in summary.measurements] == ["ok"] * 3
    assert {row.workload_key for row in rows} == {job.key for job in jobs}
    assert len({row.details["process_id"] for row in rows}) == 1
    assert all(row.stack == {**STACK, "runner": "fake"} for row in rows)
    assert all(row.date and "model_config_key" in row.details for row in rows)
    assert [progress.num_left for progress in seen] == [2, 1, 0]
    assert not list(MeasurementStore(tmp_path).runs_folder.iterdir())


def test_a_second_run_measures_nothing_again(tmp_path: Path) -> None:
    jobs = [make_job(micro_batch_size=1), make_job("exits-after-oom", 2)]
    make_campaign(tmp_path).run(jobs)
    again = make_campaign(tmp_path, runner=("-c", "raise SystemExit('must not start')")).run(jobs)
    assert again.num_resumed == 2
    assert again.measurements == []
    assert again.has_data


@pytest.mark.parametrize(
    ("model", "status", "reason"),
    [
        ("segfault", "error", "SIGSEGV"),
        ("killed", "error", "SIGKILL (which the kernel sends when host memory runs out)"),
        ("hang", "error", "reported nothing for too long"),
        ("driver-error", "error", "unspecified launch failure"),
        ("crash-with-oom", "oom", "CUDA out of memory"),
        ("exits-after-oom", "oom", "out of memory"),
        ("garbage", "error", "no measurement"),
    ],
)
def test_a_failing_child_costs_one_row(tmp_path: Path, model: str, status: str, reason: str) -> None:
    jobs = [make_job("before"), make_job(model), make_job("after")]
    summary = make_campaign(tmp_path).run(jobs)
    rows = _stored(tmp_path)
    assert [row.status for row in summary.measurements] == ["ok", status, "ok"]
    assert rows[model].status == status
    assert rows[model].reason is not None
    assert reason in rows[model].reason
    assert rows["before"].status == rows["after"].status == "ok"


def test_a_fresh_process_follows_one_that_ran_out_of_memory(tmp_path: Path) -> None:
    make_campaign(tmp_path).run([make_job("before"), make_job("exits-after-oom"), make_job("after")])
    rows = _stored(tmp_path)
    assert rows["before"].details["process_id"] != rows["after"].details["process_id"]


def test_larger_micro_batches_than_one_that_failed_are_not_tried(tmp_path: Path) -> None:
    summary = make_campaign(tmp_path).run([make_job("fits-8", size) for size in (8, 16, 32, 64)])
    assert [row.status for row in summary.measurements] == ["ok", "oom"]
    assert summary.num_implied == 2


def test_a_hanging_child_takes_its_orphans_along(tmp_path: Path) -> None:
    make_campaign(tmp_path).run([make_job("hang-with-orphan")])
    assert _processes_with(str(tmp_path), "cmdline") == []


def test_an_impossible_row_is_refused_with_its_reason(tmp_path: Path) -> None:
    job = replace(make_job("too-fast"), model_flops_per_step=1e12, peak_flop_per_second=1e15)
    summary = make_campaign(tmp_path).run([job])
    assert summary.measurements[0].status == "refused"
    assert "of the dense peak" in str(summary.measurements[0].reason)


def test_software_that_does_not_start_is_said_once(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"\.\[measure\]") as failure:
        make_campaign(tmp_path).run([make_job("no-start")])
    assert failure.value.exit_code == 4
    assert MeasurementStore(tmp_path).read().measurements == ()


def test_a_runner_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="does not start"):
        make_campaign(tmp_path, runner=("-c", "pass")).run([make_job()])


def test_time_limit_ends_the_run_and_keeps_what_is_finished(tmp_path: Path) -> None:
    jobs = [replace(make_job("slow", size), expected_step_seconds=0.1) for size in range(1, 40)]
    pace = Pace(startup_seconds=0.1)
    summary = make_campaign(tmp_path, deadline=time.monotonic() + 4.0, pace=pace).run(jobs)
    assert 0 < len(summary.measurements) < len(jobs)
    assert len(MeasurementStore(tmp_path).read().measurements) == len(summary.measurements)


def test_what_cannot_end_in_time_is_not_started(tmp_path: Path) -> None:
    long_job = replace(make_job("long"), expected_step_seconds=1000.0)
    campaign = make_campaign(tmp_path, deadline=time.monotonic() + 60.0)
    summary = campaign.run([replace(long_job, workload={**long_job.workload, "strategy": "zero_3"}), make_job()])
    assert [row.workload["model"] for row in summary.measurements] == ["fine"]
    assert summary.num_left == 1


@pytest.mark.parametrize("strategy", ["none", "zero_3"])
def test_search_for_the_largest_micro_batch(tmp_path: Path, strategy: str) -> None:
    def item() -> BoundarySearch:
        search = MicroBatchSearch(guess=6, max_rungs=8 if strategy == "none" else 1)
        return BoundarySearch(make_job=lambda size: make_job("fits-8", size, strategy=strategy), search=search)

    summary = make_campaign(tmp_path).run([item()])
    assert [answer for _, answer in summary.largest_micro_batches] == [8]
    statuses = {row.workload["micro_batch_size"]: row.status for row in summary.measurements}
    assert statuses[8] == "ok"
    assert statuses[9] == "oom"
    again = make_campaign(tmp_path, runner=("-c", "raise SystemExit('must not start')")).run([item()])
    assert [answer for _, answer in again.largest_micro_batches] == [8]


def test_a_search_ends_at_a_crash(tmp_path: Path) -> None:
    item = BoundarySearch(make_job=lambda size: make_job("segfault", size), search=MicroBatchSearch(guess=2))
    summary = make_campaign(tmp_path).run([item])
    assert summary.largest_micro_batches == []
    assert [note.code for note in summary.notes] == ["search_failed"]


def test_a_full_disk_stops_the_run_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))
    fallocate = os.posix_fallocate

    def full_after_two(descriptor: int, offset: int, length: int) -> None:
        if next(calls) >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fallocate(descriptor, offset, length)

    monkeypatch.setattr(store_module.os, "posix_fallocate", full_after_two)
    jobs = [make_job(micro_batch_size=size) for size in (1, 2, 3)]
    with pytest.raises(MeasurementError, match="no space left"):
        make_campaign(tmp_path).run(jobs)
    monkeypatch.setattr(store_module.os, "posix_fallocate", fallocate)
    summary = make_campaign(tmp_path).run(jobs)
    assert {row.workload_key for row in MeasurementStore(tmp_path).read().measurements} == {job.key for job in jobs}
    assert summary.num_resumed >= 2


_PARENT = """
import sys
from pathlib import Path
from tests.benchmarks.campaign_setup import make_campaign, make_job
jobs = [make_job("orphan")] + [make_job("slow", size) for size in range(1, 20)]
make_campaign(Path(sys.argv[1])).run(jobs)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killing_the_harness_loses_nothing_and_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", _PARENT, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    store = MeasurementStore(tmp_path)
    _wait_until(lambda: len(store.read().measurements) >= 3)
    (run_id,) = [path.name for path in store.runs_folder.iterdir()]
    reported = (store.runs_folder / run_id / "events.jsonl").read_text().count('"result"')
    parent.send_signal(how)
    parent.wait(timeout=30)
    mark = f"{RUN_VARIABLE}={run_id}"
    _wait_until(lambda: not _processes_with(mark, "environ"))
    summary = make_campaign(tmp_path).run([make_job("slow", size) for size in range(1, 4)])
    assert len(store.read().measurements) >= max(reported, 3)
    assert len({row.workload_key for row in store.read().measurements}) == len(store.read().measurements)
    assert summary.num_resumed >= 2
    assert not list(store.runs_folder.iterdir())


def _processes_with(text: str, file: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / file).read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def _wait_until(condition, patience_seconds: float = 30.0) -> None:
    give_up = time.monotonic() + patience_seconds
    while not condition():
        assert time.monotonic() < give_up, "waited in vain"
        time.sleep(0.05)


def test_results_of_a_killed_harness_are_recovered_once(tmp_path: Path) -> None:
    """The events were written, the harness died before it read them."""
    store = MeasurementStore(tmp_path)
    jobs = [make_job(micro_batch_size=size) for size in (1, 2)]
    folder = RunFolder(store, "20261201T000000-dead")
    folder.create(jobs, STACK)
    lines = [f'{{"event": "result", "id": "{job.key}", "status": "ok", "step_time_seconds": 0.5}}\n' for job in jobs]
    (folder.path / "events.jsonl").write_text("".join(lines) + '{"event": "resu')
    while_alive = make_campaign(tmp_path).run([])
    assert while_alive.notes == []
    folder.release()
    summary = make_campaign(tmp_path).run(jobs)
    assert summary.num_resumed == 2
    assert [note.code for note in summary.notes] == ["recovered"]
    assert len(store.read().measurements) == 2


def test_processes_are_shared_where_nothing_leaks() -> None:
    plain, compiled = make_job(), make_job(compile=True)
    sharded, two_ranks = make_job(strategy="zero_1"), make_job(num_gpus=2)
    queue: deque[Job | BoundarySearch] = deque([plain, plain, compiled, compiled, sharded, sharded, two_ranks])
    shares = []
    while queue:
        shares.append(take_process_share(queue))
    assert shares == [[plain, plain], [compiled, compiled], [sharded], [sharded], [two_ranks]]
