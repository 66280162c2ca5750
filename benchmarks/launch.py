"""Starts runner processes and watches over them: no torch here, and no process is left behind.

The runner writes events to a file and everything else to another; both lie in a folder of the run, so nothing that a
library prints can be taken for a result, and results outlive harness and runner alike. Time limits are limits on
silence: a runner that reports nothing for that long hangs.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from estimator.specs.errors import MeasurementError

from .events import Event, EventReader, Finished, Result, Started
from .jobs import JOB_FILE_SCHEMA, Job
from .process_tree import RUN_VARIABLE, end_run

RUNNER_COMMAND = ("-m", "benchmarks.runner")
"""What the Python interpreter (or torchrun) is told to run."""
INSTALL_ADVICE = "install what measuring needs, in a clone of traincast: pip install '.[measure]'"

_POLL_SECONDS = 0.1
_STDERR_TAIL_BYTES = 4000
_PACKAGES_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """How long a runner may report nothing."""

    startup_seconds: float = 180.0
    """Until the first job starts: importing the training software from a cold disk."""
    job_seconds: float = 120.0
    compiled_seconds: float = 420.0
    """For compiled models."""
    kernel_build_seconds: float = 300.0
    """DeepSpeed builds its Adam at first use."""
    exit_seconds: float = 30.0
    """Between the last event and the end of the process."""

    def for_job(self, job: Job) -> float:
        """Limit while ``job`` runs; a step that takes long by itself is given ten times what was expected of it."""
        limits = [self.job_seconds, 10.0 * (job.expected_step_seconds or 0.0)]
        if job.is_compiled:
            limits.append(self.compiled_seconds)
        if job.is_sharded:
            limits.append(self.kernel_build_seconds)
        return max(limits)


class Ending(StrEnum):
    """How a runner process came to its end."""

    DONE = "done"
    """By itself, without complaint."""
    CRASHED = "crashed"
    HUNG = "hung"
    STOPPED = "stopped"
    """Ended by us: time is up, or results cannot be stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What became of one runner process."""

    ending: Ending
    exit_code: int | None
    unfinished: Job | None
    """The job that had started and gave no result."""
    has_started: bool
    """Whether any job started: if not, the training software itself does not work here."""
    stderr_tail: str
    seconds: float
    startup_seconds: float | None
    """Until the first job started."""

    @property
    def failure(self) -> str:
        """For people: how it ended and what it said last."""
        if self.ending is Ending.HUNG:
            how = "reported nothing for too long and was ended"
        elif self.exit_code is not None and self.exit_code > 128:
            number = self.exit_code - 128
            name = signal.Signals(number).name if number in {int(one) for one in signal.Signals} else str(number)
            how = f"was ended by signal {name}"
            if number == signal.SIGKILL:
                how += " (which the kernel sends when host memory runs out)"
        else:
            how = f"ended with exit code {self.exit_code}"
        return f"the runner {how}; it last said: {self.stderr_tail or '(nothing)'}"


def runner_environment(run_id: str, num_ranks: int, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of a runner: marked as ours, able to import us, and with the host's cores shared out."""
    environment = dict(os.environ if base is None else base)
    environment[RUN_VARIABLE] = run_id
    # torchrun starts its ranks without -P: this says the same, and a file next to us cannot shadow a module.
    environment["PYTHONSAFEPATH"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    # Random weights only: nothing may wait for a network.
    environment.setdefault("HF_HUB_OFFLINE", "1")
    environment["PYTHONPATH"] = _python_path(environment.get("PYTHONPATH", ""))
    # torchrun would set one thread a rank, which makes Adam on the host look many times slower than it is.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environment.setdefault("OMP_NUM_THREADS", str(max(1, cores // num_ranks)))
    # DeepSpeed's kernel builder parses this as numbers and fails at the "a".
    if "9.0a" in (architectures := environment.get("TORCH_CUDA_ARCH_LIST", "")):
        environment["TORCH_CUDA_ARCH_LIST"] = architectures.replace("9.0a", "9.0")
    return environment


def _python_path(inherited: str) -> str:
    """Absolute entries, for the runner works in another folder; with our own where we are not installed."""
    entries = [str(Path(entry).resolve()) for entry in inherited.split(os.pathsep) if entry]
    if _PACKAGES_ROOT.name not in ("site-packages", "dist-packages") and str(_PACKAGES_ROOT) not in entries:
        entries.insert(0, str(_PACKAGES_ROOT))
    return os.pathsep.join(entries)


def runner_command(num_ranks: int, job_file: Path, runner: Sequence[str] = RUNNER_COMMAND) -> list[str]:
    """Command line of one process, or of torchrun for several ranks."""
    launcher = [sys.executable, "-P"]
    if num_ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    return [*launcher, *runner, str(job_file)]


def write_job_file(folder: Path, jobs: Sequence[Job], device: str) -> tuple[Path, Path]:
    """Write what the runner reads; returns the paths of the job file and of the events to come."""
    job_file, events = folder / "jobs.json", folder / "events.jsonl"
    content = {
        "schema": JOB_FILE_SCHEMA,
        "device": device,
        "events": str(events.resolve()),
        "jobs": [job.payload() for job in jobs],
    }
    job_file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    return job_file.resolve(), events


def run_jobs(
    jobs: Sequence[Job],
    *,
    folder: Path,
    run_id: str,
    device: str,
    on_event: Callable[[Event], None],
    limits: SilenceLimits,
    should_stop: Callable[[], bool] = lambda: False,
    runner: Sequence[str] = RUNNER_COMMAND,
) -> RunOutcome:
    """Run ``jobs`` in one runner process (a group of ranks where they ask for several) and report its events.

    Every event written before the end reaches ``on_event`` (which must not raise), however the runner ends, also when
    this call is interrupted.
    """
    num_ranks = jobs[0].num_ranks
    job_file, events = write_job_file(folder, jobs, device)
    command = [sys.executable, "-P", "-m", "benchmarks.guard", *runner_command(num_ranks, job_file, runner)]
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=folder,
            start_new_session=True,
            env=runner_environment(run_id, num_ranks),
        )
    watch = _Watch(jobs, EventReader(events), on_event)
    try:
        ending = watch.until_end(process, limits, should_stop)
    finally:
        end_process(process, run_id)
        watch.take_events()
    return watch.outcome(ending, process.returncode, _tail(folder / "output.txt"))


def end_process(process: "subprocess.Popen[bytes]", run_id: str) -> None:
    """End the guard and all it started; refuse to go on beside a process that cannot be killed."""
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20.0)
    if process.returncode is None:
        process.kill()
    remaining = end_run(run_id, grace_seconds=0.0)
    if remaining:
        raise MeasurementError.of(
            f"processes {', '.join(map(str, remaining))} of a measurement cannot be killed: they hang in the driver; "
            "restart the machine or reset the device before measuring again",
            code="unkillable",
        )
    process.wait()


class _Watch:
    """Follows one runner process through its events."""

    def __init__(self, jobs: Sequence[Job], reader: EventReader, on_event: Callable[[Event], None]) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._without_result = set(self._jobs)
        self._reader = reader
        self._on_event = on_event
        self._began = self._last_sign = time.monotonic()
        self._first_start: float | None = None
        self._current: Job | None = None

    def take_events(self) -> None:
        """Pass on what is new."""
        for event in self._reader.read_new():
            self._last_sign = time.monotonic()
            if isinstance(event, Started):
                self._current = self._jobs.get(event.id)
                self._first_start = self._first_start or self._last_sign
            elif isinstance(event, Result):
                self._without_result.discard(event.id)
            elif isinstance(event, Finished) and event.id is None:
                self._without_result.clear()
            self._on_event(event)

    def until_end(
        self,
        process: "subprocess.Popen[bytes]",
        limits: SilenceLimits,
        should_stop: Callable[[], bool],
    ) -> Ending:
        """Wait for the process; returns at once where it hangs or we are told to stop."""
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            self.take_events()
            if should_stop():
                return Ending.STOPPED
            if time.monotonic() - self._last_sign > self._silence_limit(limits):
                # A runner that hangs while it is torn down has given all its results.
                return Ending.HUNG if self._without_result else Ending.DONE
        return Ending.DONE if process.returncode == 0 else Ending.CRASHED

    def _silence_limit(self, limits: SilenceLimits) -> float:
        if not self._without_result:
            return limits.exit_seconds
        return limits.startup_seconds if self._current is None else limits.for_job(self._current)

    def outcome(self, ending: Ending, exit_code: int | None, stderr_tail: str) -> RunOutcome:
        current = self._current
        return RunOutcome(
            ending=ending,
            exit_code=exit_code,
            has_started=current is not None,
            stderr_tail=stderr_tail,
            unfinished=current if current is not None and current.key in self._without_result else None,
            seconds=time.monotonic() - self._began,
            startup_seconds=None if self._first_start is None else self._first_start - self._began,
        )


def _tail(path: Path) -> str:
    """The last lines of what the processes printed."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _STDERR_TAIL_BYTES))
        return file.read().decode(errors="replace").strip()
