"""What the parent asks (a JSON job file) and what the runner answers (JSON lines in an events file)."""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
_PROGRESS_INTERVAL_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One thing to measure; fields as in the job file."""

    id: str
    kind: str
    """``workload`` or ``microbenchmark``."""
    workload: Mapping[str, Any] = field(default_factory=dict)
    """Option names of the command line; also read here: ``max_grad_norm`` (absent: 1.0, null: no clipping)."""
    model_config: Mapping[str, Any] = field(default_factory=dict)
    """Hugging Face config."""
    num_warmup_steps: int = 2
    num_steps: int = 5
    min_seconds: float = 0.0
    """Steps are added until they fill this time."""
    linear_check: bool = False
    compare_plain_loop: bool = False
    """Also time a hand-written loop over the same model, to see what the harness itself costs (not DeepSpeed)."""
    model_flops_per_step: float | None = None
    """Per rank."""
    peak_flop_per_second: float | None = None
    """Of one device."""
    microbenchmark_groups: tuple[str, ...] | None = None
    """None: all."""
    deepspeed_config: Mapping[str, Any] | None = None
    """Merged over the built-in DeepSpeed configuration."""

    @property
    def micro_batch_size(self) -> int:
        return int(self.workload.get("micro_batch_size", 1))

    @property
    def gradient_accumulation_steps(self) -> int:
        return int(self.workload.get("gradient_accumulation_steps", 1))

    @property
    def strategy(self) -> str:
        return str(self.workload.get("strategy", "none"))

    @property
    def precision(self) -> str:
        return str(self.workload.get("precision", "bf16"))

    @property
    def max_grad_norm(self) -> float | None:
        value = self.workload.get("max_grad_norm", 1.0)
        return None if value is None else float(value)

    def flag(self, name: str) -> bool:
        """A boolean option; absent means off."""
        return bool(self.workload.get(name, False))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """Everything one runner process has to do."""

    jobs: tuple[Job, ...]
    device: str
    events: Path


def read_job_file(path: Path) -> JobFile:
    """Parse and check a job file; keys that this version does not know are ignored."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: schema {content.get('schema')!r} is not supported, expected {SCHEMA}")
    if content.get("device") not in ("cuda", "cpu"):
        raise ValueError(f"{path}: device {content.get('device')!r} is unknown, expected 'cuda' or 'cpu'")
    return JobFile(
        jobs=tuple(_job(entry) for entry in content["jobs"]),
        device=content["device"],
        events=Path(content["events"]),
    )


def _job(entry: Mapping[str, Any]) -> Job:
    known = {name: entry[name] for name in Job.__dataclass_fields__ if entry.get(name) is not None}
    if isinstance(groups := known.get("microbenchmark_groups"), list):
        known["microbenchmark_groups"] = tuple(groups)
    job = Job(**known)
    if job.kind not in ("workload", "microbenchmark"):
        raise ValueError(f"job {job.id}: kind {job.kind!r} is unknown, expected 'workload' or 'microbenchmark'")
    return job


class EventWriter:
    """Appends events to a file, one JSON object a line, flushed at once; silent on every rank but 0.

    A job has exactly one result, whichever thread reports it first.
    """

    def __init__(self, path: Path, *, is_enabled: bool) -> None:
        self._path = path
        self._is_enabled = is_enabled
        self._lock = threading.Lock()
        self._with_result: set[str] = set()
        self._last_progress = 0.0

    def started(self, job_id: str) -> None:
        self._write({"event": "started", "id": job_id})

    def progress(self, job_id: str, phase: str, fraction: float | None = None, *, force: bool = False) -> None:
        """A sign of life; dropped where the last one is fresh, so that it costs nothing to call often."""
        now = time.monotonic()
        if force or now - self._last_progress > _PROGRESS_INTERVAL_SECONDS:
            self._last_progress = now
            self._write({"event": "progress", "id": job_id, "phase": phase, "fraction": fraction})

    def result(self, job_id: str, measured: Mapping[str, Any]) -> bool:
        """Report a result; False where this job already has one."""
        with self._lock:
            if job_id in self._with_result:
                return False
            self._with_result.add(job_id)
        self._write({"event": "result", "id": job_id, **measured})
        return True

    def finished(self, job_id: str | None, **details: Any) -> None:
        """Done with a job, or (None) with all of them."""
        self._write({"event": "finished", "id": job_id, **details})

    def _write(self, event: Mapping[str, Any]) -> None:
        if not self._is_enabled:
            return
        line = (json.dumps(event, default=str) + "\n").encode()
        with self._lock:
            # One write of a whole line to a file opened for appending: a kill leaves at most one torn line.
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
