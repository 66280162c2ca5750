"""Turns the events of one runner process into stored records while it runs."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from estimator.specs.errors import MeasurementError
from estimator.specs.measurement import Measurement

from .events import Event, Result, Started
from .jobs import Job
from .machine import Machine
from .records import RunFolder, measurement_of, record_id
from .store import MeasurementStore, Slot


class Recorder:
    """Keeps room for the next record at all times; after a failure to store, takes nothing more and tells why.

    What could not be stored still lies in the run's folder as events, where the next run finds it.
    """

    def __init__(
        self,
        store: MeasurementStore,
        run_id: str,
        jobs: Sequence[Job],
        machine: Machine,
        *,
        on_stored: Callable[[Job, Measurement, float], None],
    ) -> None:
        self._store, self._run_id, self._machine = store, run_id, machine
        self._jobs = {job.key: job for job in jobs}
        self._run_folder = RunFolder(store, run_id)
        self._on_stored = on_stored
        self._slot: Slot | None = None
        self._began = time.monotonic()
        self.num_stored = 0
        self.failure: MeasurementError | None = None

    @property
    def folder(self) -> Path:
        return self._run_folder.path

    def __enter__(self) -> "Recorder":
        self._slot = self._store.reserve()
        self._run_folder.create(list(self._jobs.values()), self._machine.stack)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._slot is not None:
            self._slot.release()
        if self.failure is None and kind is None:
            self._run_folder.remove()
        else:
            self._run_folder.release()

    def take_event(self, event: Event) -> None:
        """Store a result; never raises."""
        if isinstance(event, Started):
            self._began = time.monotonic()
        elif isinstance(event, Result) and (job := self._jobs.get(event.id)) is not None:
            self.store(job, measurement_of(job, event.measured, self._machine.stack, self._machine.memory_bytes))

    def store(self, job: Job, measurement: Measurement) -> None:
        """Write one record and take room for the next."""
        if self.failure is not None:
            return
        try:
            slot, self._slot = self._slot or self._store.reserve(), None
            slot.commit(measurement, record_id(self._run_id, job))
            self.num_stored += 1
            self._on_stored(job, measurement, time.monotonic() - self._began)
            self._slot = self._store.reserve()
        except MeasurementError as failure:
            self.failure = failure
