"""From what a runner reports to the record that is stored, also for runs whose harness was killed."""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec

from estimator.specs.errors import Note
from estimator.specs.measurement import SCHEMA_VERSION, Measurement

from .events import EventReader, Result
from .jobs import Job
from .plausibility import judged
from .store import MeasurementStore

OUT_OF_MEMORY_SIGNS = (
    "OutOfMemoryError",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
"""What a process prints that ran out of device memory where the runner could not catch it."""

_OWNER_FILE = "owner.json"
_JOBS_FILE = "harness.json"


def current_date() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def config_key(model_config: Mapping[str, object]) -> str:
    """Stable hash of a model's config."""
    return hashlib.sha256(json.dumps(dict(model_config), sort_keys=True).encode()).hexdigest()[:16]


def record_id(run_id: str, job: Job) -> str:
    """Name of the record that this run makes of this job: the same whoever writes it, so it is written once."""
    return f"{run_id}-{job.key}"


def measurement_of(
    job: Job,
    measured: Mapping[str, object],
    stack: Mapping[str, str],
    memory_limit_bytes: float | None = None,
) -> Measurement:
    """The record of a result: what the runner saw, with our own word on what was asked and where."""
    details = measured.get("details")
    content = {
        **measured,
        "schema": SCHEMA_VERSION,
        "workload": dict(job.workload),
        "workload_key": job.key,
        "stack": _merged_stack(measured.get("stack"), stack),
        "date": measured.get("date") or current_date(),
        "details": {**(details if isinstance(details, Mapping) else {}), **_job_details(job)},
    }
    try:
        measurement = msgspec.convert(content, Measurement)
    except msgspec.ValidationError as error:
        return failed_measurement(job, f"the runner's result is no measurement: {error}", stack)
    cap_gib = job.workload.get("gpu_memory_gib")
    limits = [memory_limit_bytes, cap_gib * 2**30 if isinstance(cap_gib, int | float) else None]
    return judged(
        measurement,
        model_flops_per_step=job.model_flops_per_step,
        peak_flop_per_second=job.peak_flop_per_second,
        memory_limit_bytes=min((limit for limit in limits if limit is not None), default=None),
    )


def _merged_stack(seen_by_runner: object, seen_by_us: Mapping[str, str]) -> dict[str, object]:
    """The runner knows its builds best; what the rows of one campaign are recognised by is ours."""
    ours = {name: seen_by_us[name] for name in ("gpu", "commit") if name in seen_by_us}
    return {**seen_by_us, **(seen_by_runner if isinstance(seen_by_runner, Mapping) else {}), **ours}


def failed_measurement(job: Job, reason: str, stack: Mapping[str, str]) -> Measurement:
    """The record of a job whose process ended without a result."""
    ran_out = any(sign in reason for sign in OUT_OF_MEMORY_SIGNS)
    return Measurement(
        schema=SCHEMA_VERSION,
        workload=dict(job.workload),
        workload_key=job.key,
        status="oom" if ran_out else "error",
        reason=reason,
        stack=dict(stack),
        date=current_date(),
        details=_job_details(job),
    )


def _job_details(job: Job) -> dict[str, object]:
    details: dict[str, object] = {"kind": str(job.kind)}
    if job.model_flops_per_step is not None:
        details["model_flops_per_step"] = job.model_flops_per_step
    if job.peak_flop_per_second is not None:
        details["peak_flop_per_second"] = job.peak_flop_per_second
    if job.model_config is not None:
        details["model_config_key"] = config_key(job.model_config)
        if not job.is_bundled_model:
            details["model_config"] = dict(job.model_config)
    return details


class RunFolder:
    """Folder of one runner process inside the store; locked while its harness lives, read by the next one otherwise."""

    def __init__(self, store: MeasurementStore, run_id: str) -> None:
        self.path = store.runs_folder / run_id
        self.run_id = run_id
        self._lock: TextIO | None = None

    def create(self, jobs: list[Job], stack: Mapping[str, str]) -> None:
        """Make the folder with all that is needed to turn its events into records later."""
        self.path.mkdir(parents=True)
        self._lock = (self.path / _OWNER_FILE).open("w", encoding="utf-8")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        content = {"stack": dict(stack), "jobs": msgspec.to_builtins(jobs)}
        (self.path / _JOBS_FILE).write_text(json.dumps(content), encoding="utf-8")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.release()

    def release(self) -> None:
        """Leave the folder to whoever comes next."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def take_over(self) -> bool:
        """Whether the harness that made this folder is gone; the folder is ours then."""
        try:
            self._lock = (self.path / _OWNER_FILE).open("a", encoding="utf-8")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            return False
        return True

    def results(self) -> list[tuple[Job, Measurement]]:
        """The results that lie in the folder's events."""
        content = json.loads((self.path / _JOBS_FILE).read_text(encoding="utf-8"))
        jobs = {job.key: job for job in msgspec.convert(content["jobs"], list[Job])}
        events = EventReader(self.path / "events.jsonl").read_new()
        return [
            (jobs[event.id], measurement_of(jobs[event.id], event.measured, content["stack"]))
            for event in events
            if isinstance(event, Result) and event.id in jobs
        ]


def recover_runs(store: MeasurementStore) -> list[Note]:
    """Store what killed harnesses left behind as events; each result becomes a record once."""
    notes = []
    for path in sorted(store.runs_folder.iterdir()) if store.runs_folder.is_dir() else ():
        folder = RunFolder(store, path.name)
        if not folder.take_over():
            continue
        try:
            results = folder.results()
        except FileNotFoundError:
            # Killed before its runner was started.
            results = []
        except (ValueError, KeyError, TypeError) as error:
            folder.release()
            notes.append(Note(code="damaged_run", message=f"{path}: cannot be recovered ({error}); left alone"))
            continue
        unsaved = [(job, row) for job, row in results if not store.has_record(record_id(folder.run_id, job))]
        for job, row in unsaved:
            store.append(row, record_id(folder.run_id, job))
        folder.remove()
        if unsaved:
            message = f"{len(unsaved)} finished rows of an interrupted run were stored"
            notes.append(Note(code="recovered", message=message))
    return notes
