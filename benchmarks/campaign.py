"""Carries out a list of measurements: what is known is not run again, what fails costs one row, time is kept."""

import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from estimator.specs.errors import MeasurementError, Note
from estimator.specs.measurement import Measurement

from .jobs import Job, JobKind
from .launch import INSTALL_ADVICE, RUNNER_COMMAND, Ending, RunOutcome, SilenceLimits, run_jobs
from .machine import Machine, visible_devices
from .micro_batch_search import MicroBatchSearch
from .pace import Pace
from .recorder import Recorder
from .records import failed_measurement, recover_runs
from .store import MeasurementStore, answered_keys, stack_key

_MAX_COMPILED_JOBS_PER_PROCESS = 8
"""Compiled code stays in the process that made it."""
_MAX_FAILED_STARTS = 2
_TRIES_PER_SEARCH = 5
_PROCESSES_PER_SEARCH = 1.5
"""Rough numbers of rungs and (where rungs share one) of processes, for the time left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundarySearch:
    """Look for the largest micro batch of one configuration."""

    make_job: Callable[[int], Job]
    """The job for one micro batch."""
    search: MicroBatchSearch


WorkItem = Job | BoundarySearch


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignProgress:
    """After each row."""

    num_done: int
    num_left: int
    """Work items; a search counts as one until it ends."""
    seconds_left: float
    job: Job
    measurement: Measurement


@dataclass(slots=True, kw_only=True)
class CampaignSummary:
    """What came of it."""

    measurements: list[Measurement] = field(default_factory=list)
    """Rows of this run, in order."""
    num_resumed: int = 0
    """Rows that the store already held."""
    num_implied: int = 0
    """Rows left out because a smaller micro batch of the same configuration ran out of memory."""
    num_left: int = 0
    """Work items for which there was no time."""
    largest_micro_batches: list[tuple[Job, int]] = field(default_factory=list)
    """Of each finished search: the job at its guess, and the answer (0: not even one fits)."""
    notes: list[Note] = field(default_factory=list)

    @property
    def has_data(self) -> bool:
        """Whether anything was learnt: an out-of-memory is an answer, an error is not."""
        return self.num_resumed > 0 or any(row.status in ("ok", "oom", "refused") for row in self.measurements)


def predicted_seconds(items: Iterable[WorkItem], pace: Pace) -> float:
    """How long work items should take, processes included."""
    total = 0.0
    shares_process = False
    for item in items:
        job = item if isinstance(item, Job) else item.make_job(max(1, item.search.guess))
        if isinstance(item, BoundarySearch):
            num_processes = _TRIES_PER_SEARCH if job.needs_own_process else _PROCESSES_PER_SEARCH
            total += num_processes * pace.startup_seconds + _TRIES_PER_SEARCH * pace.corrected(job.predicted_seconds)
            shares_process = False
        else:
            if job.needs_own_process or not shares_process:
                total += pace.startup_seconds
            total += pace.corrected(job.predicted_seconds)
            shares_process = not job.needs_own_process
    return total


class Campaign:
    """Runs work items one after the other on this machine's devices."""

    def __init__(
        self,
        store: MeasurementStore,
        machine: Machine,
        *,
        limits: SilenceLimits | None = None,
        deadline: float | None = None,
        runner: Sequence[str] = RUNNER_COMMAND,
        pace: Pace | None = None,
        repeats_known: bool = False,
        on_progress: Callable[[CampaignProgress], None] = lambda progress: None,
    ) -> None:
        self._store, self._machine, self._runner = store, machine, runner
        self._limits = limits or SilenceLimits()
        self._repeats_known = repeats_known
        """Measure again what the store already holds."""
        self._deadline = deadline
        """In ``time.monotonic`` seconds."""
        self._on_progress = on_progress
        self._summary = CampaignSummary()
        self._known: dict[str, Measurement] = {}
        self._answered: set[str] = set()
        self._failing_sizes: dict[tuple[tuple[str, str], ...], int] = {}
        self._num_failed_starts = 0
        self._pace = pace or Pace()
        self._later: Sequence[WorkItem] = ()

    @property
    def summary(self) -> CampaignSummary:
        """What came of it so far; also valid after ``run`` was interrupted."""
        return self._summary

    def run(self, items: Sequence[WorkItem]) -> CampaignSummary:
        """Carry out ``items`` in order until done or time is up. Raises MeasurementError where going on is pointless:
        the disk is full, the driver does not answer, or the training software does not start."""
        self._summary.notes += recover_runs(self._store)
        content = self._store.read()
        self._summary.notes += content.notes
        if not self._repeats_known:
            self._answered |= answered_keys(content.measurements, self._machine.stack)
        identity = stack_key(self._machine.stack)
        self._known |= {row.workload_key: row for row in content.measurements if stack_key(row.stack) == identity}
        remaining = deque(items)
        self._later = remaining
        while remaining and not self._time_is_up():
            if isinstance(first := remaining[0], BoundarySearch):
                remaining.popleft()
                self._search(first)
            else:
                self._measure(take_process_share(remaining))
        self._summary.num_left += len(remaining)
        return self._summary

    def _measure(self, jobs: list[Job]) -> None:
        """Answer all of ``jobs``; a process that ends early is followed by another for the rest."""
        self._summary.num_resumed += sum(job.key in self._answered for job in jobs)
        asked = self._still_open([job for job in jobs if job.key not in self._answered])
        while asked:
            if not self._has_time_for(asked[0]):
                # A shorter one further down may still find the time.
                self._summary.num_left += 1
                asked = asked[1:]
                continue
            self._run_process(asked)
            asked = self._still_open(asked)

    def _still_open(self, jobs: list[Job]) -> list[Job]:
        """Without what is answered, or implied by a smaller micro batch that ran out of memory."""
        still_open = []
        for job in jobs:
            failing = self._failing_sizes.get(job.configuration)
            if job.key in self._answered:
                continue
            if failing is not None and job.micro_batch_size is not None and job.micro_batch_size >= failing:
                self._summary.num_implied += 1
            else:
                still_open.append(job)
        return still_open

    def _search(self, item: BoundarySearch) -> None:
        """Drive one search to its end."""
        guessed = item.make_job(max(1, item.search.guess))
        while ladder := item.search.next_ladder():
            jobs = [item.make_job(size) for size in ladder]
            asked = self._unanswered_rungs(jobs)
            if asked and self._has_time_for(asked[0]):
                self._run_process(asked)
            if jobs[0].key not in self._answered:
                self._summary.num_left += 1
                return
            for size, job in zip(ladder, jobs, strict=True):
                if job.key not in self._answered:
                    break
                answer = self._known[job.key]
                if answer.status == "error":
                    message = f"the search for the largest micro batch ended at {job.title}: {answer.reason}"
                    self._summary.notes.append(Note(code="search_failed", message=message))
                    return
                item.search.record(size, fits=answer.status != "oom")
        self._summary.largest_micro_batches.append((guessed, item.search.largest_fitting))

    def _unanswered_rungs(self, jobs: list[Job]) -> list[Job]:
        """The rungs that the store cannot answer, below the first that it knows not to fit."""
        asked = []
        for job in jobs:
            if job.key not in self._answered:
                asked.append(job)
            elif self._known[job.key].status == "oom":
                break
        return asked

    def _run_process(self, jobs: list[Job]) -> None:
        """One runner process: its results are stored as they come."""
        run_id = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:8]}"
        open_keys = {job.key for job in jobs}

        def take(job: Job, measurement: Measurement, seconds: float) -> None:
            if job.kind is JobKind.WORKLOAD:
                self._pace.take(job.predicted_seconds, seconds)
            self._take(job, measurement)
            open_keys.discard(job.key)
            left: list[WorkItem] = [*(other for other in jobs if other.key in open_keys), *self._later]
            self._on_progress(
                CampaignProgress(
                    num_done=len(self._summary.measurements) + self._summary.num_resumed,
                    num_left=len(left),
                    seconds_left=self._seconds_left(left),
                    job=job,
                    measurement=measurement,
                )
            )

        with Recorder(self._store, run_id, jobs, self._machine, on_stored=take) as recorder:
            outcome = run_jobs(
                jobs,
                folder=recorder.folder,
                run_id=run_id,
                device=self._machine.device,
                on_event=recorder.take_event,
                limits=self._limits,
                should_stop=lambda: recorder.failure is not None or self._time_is_up(),
                runner=self._runner,
            )
            if outcome.unfinished is not None and outcome.ending is not Ending.STOPPED:
                failed = failed_measurement(outcome.unfinished, outcome.failure, self._machine.stack)
                recorder.store(outcome.unfinished, failed)
        if recorder.failure is not None:
            raise recorder.failure
        self._judge_process(outcome, recorder.num_stored)

    def _take(self, job: Job, measurement: Measurement) -> None:
        """Remember a row of this run; also a failed one is not tried again in the same run."""
        self._summary.measurements.append(measurement)
        self._known[job.key] = measurement
        self._answered.add(job.key)
        size = job.micro_batch_size
        if measurement.status == "oom" and size is not None:
            self._failing_sizes[job.configuration] = min(size, self._failing_sizes.get(job.configuration, size))

    def _judge_process(self, outcome: RunOutcome, num_stored: int) -> None:
        """Find out whether going on makes sense."""
        if outcome.startup_seconds is not None:
            self._pace.startup_seconds = outcome.startup_seconds
        if outcome.ending is Ending.STOPPED:
            return
        if outcome.unfinished is not None and self._machine.device == "cuda":
            visible_devices()
        if num_stored > 0:
            self._num_failed_starts = 0
            return
        self._num_failed_starts += 1
        failure = f"the training software does not start: {outcome.failure}"
        if "No module named" in outcome.stderr_tail:
            raise MeasurementError.of(f"{failure}\n{INSTALL_ADVICE}", code="no_training_software")
        if self._num_failed_starts >= _MAX_FAILED_STARTS:
            raise MeasurementError.of(failure, code="runner_does_not_start")

    def _seconds_left(self, items: Sequence[WorkItem]) -> float:
        predicted = predicted_seconds(items, self._pace)
        return predicted if self._deadline is None else min(predicted, max(0.0, self._deadline - time.monotonic()))

    def _time_is_up(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline

    def _has_time_for(self, job: Job) -> bool:
        if self._deadline is None:
            return True
        needed = self._pace.startup_seconds + self._pace.corrected(job.predicted_seconds)
        return time.monotonic() + needed <= self._deadline


def take_process_share(remaining: deque[WorkItem]) -> list[Job]:
    """Take from the front what one process can serve."""
    share: list[Job] = []
    while remaining and isinstance(job := remaining[0], Job):
        limit = _MAX_COMPILED_JOBS_PER_PROCESS if job.is_compiled else None
        if share and (
            job.needs_own_process
            or share[0].needs_own_process
            or job.is_compiled != share[0].is_compiled
            or len(share) == limit
        ):
            break
        share.append(job)
        remaining.popleft()
    return share
