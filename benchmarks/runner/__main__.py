"""The runner: ``python -P -m benchmarks.runner JOBS.json``, alone or as every rank of a torchrun.

Started as a process, never imported. Does the jobs one after the other and writes events; stops after the first job
that leaves the process unfit for another (DeepSpeed, FSDP, an out-of-memory, a device error, memory not given back),
so that the parent starts a fresh one for the rest.
"""

import os
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .protocol import EventWriter, Job, JobFile, read_job_file

_REASON_CHARACTERS = 2000


def main(arguments: list[str]) -> int:
    """Run the job file named by the only argument."""
    if len(arguments) != 1:
        print("usage: python -P -m benchmarks.runner JOBS.json", file=sys.stderr)  # noqa: T201
        return 2
    job_file = read_job_file(Path(arguments[0]))
    if job_file.device == "cpu":
        # Before torch and DeepSpeed look for devices.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["DS_ACCELERATOR"] = "cpu"
    return Runner(job_file).run()


class Runner:
    """All jobs of this process; torch is imported from here on."""

    def __init__(self, job_file: JobFile) -> None:
        from transformers.utils import logging

        from .environment import software_stack
        from .memory import DeviceMemory, HostMemory
        from .ranks import Ranks

        logging.set_verbosity_error()
        self._job_file = job_file
        self._ranks = Ranks(job_file.device)
        self._events = EventWriter(job_file.events, is_enabled=self._ranks.is_main)
        self._memory = DeviceMemory(self._ranks.device)
        self._host = HostMemory()
        self._stack = software_stack(self._ranks.device)

    def run(self) -> int:
        """Do the jobs; 0 also where some are left for a fresh process."""
        for index, job in enumerate(self._job_file.jobs):
            self._memory.note_baseline()
            self._events.started(job.id)
            stop_reason = self._run_job(job)
            if stop_reason is None:
                left = self._memory.clean_up()
                stop_reason = f"{left} bytes were not given back" if left else None
            is_last = index == len(self._job_file.jobs) - 1
            if stop_reason is not None and not is_last:
                self._events.finished(job.id, stopped=stop_reason)
                return 0
            self._events.finished(job.id)
        self._events.finished(None)
        return 0

    def _run_job(self, job: Job) -> str | None:
        """Do one job; returns why no other may follow in this process, or None."""
        from .workload_run import WorkloadRun

        measured: dict[str, Any]
        if job.kind == "microbenchmark":
            from .microbenchmarks import run_microbenchmarks

            measure: Any = lambda: run_microbenchmarks(job, self._ranks, self._events)  # noqa: E731
            run = None
        else:
            run = WorkloadRun(job, self._ranks, self._events, self._memory, self._host)
            measure = run.measure
        self._ranks.watch_failures(job.id, lambda failure: self._report_failure(job, run, failure))
        try:
            measured = measure()
        except Exception as error:
            failure = self._failure(error)
            if self._ranks.world_size > 1:
                # Ends this process: the other ranks may never come out of their collective.
                self._ranks.announce_failure(job.id, failure)
            self._report_failure(job, run, failure)
            return failure["stop_reason"]
        self._ranks.stop_watching()
        self._report(job, measured)
        if job.kind == "workload" and job.strategy != "none":
            return f"{job.strategy} leaves memory behind"
        if run is not None and run.has_failed_late:
            return "memory ran out during the linear check"
        return None

    def _failure(self, error: Exception) -> dict[str, Any]:
        """An exception as a result: OOM is a finding, anything else an error with the library's own words."""
        import torch

        from .memory import is_out_of_memory

        traceback.print_exception(error)
        status = "oom" if is_out_of_memory(error) else "error"
        is_device_error = isinstance(error, getattr(torch, "AcceleratorError", ())) or "CUDA error" in str(error)
        details: dict[str, Any] = {"exception": type(error).__name__, "traceback": _last_frames(error)}
        if self._ranks.device.type == "cuda" and not is_device_error:
            details["allocated_at_failure_bytes"] = torch.cuda.max_memory_allocated(self._ranks.device)
            details["reserved_at_failure_bytes"] = torch.cuda.max_memory_reserved(self._ranks.device)
        stops = status == "oom" or is_device_error
        return {
            "status": status,
            "reason": f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS],
            "details": details,
            "stop_reason": "memory ran out" if status == "oom" else ("device error" if stops else None),
        }

    def _report_failure(self, job: Job, run: Any, failure: dict[str, Any]) -> None:
        """Write a failure, or what had been measured before it."""
        provisional = None if run is None else run.provisional
        if provisional is not None:
            provisional["details"]["linear_check"] = {"status": failure["status"], "reason": failure["reason"]}
            self._report(job, provisional)
            return
        details = failure["details"] | ({"failed_rank": failure["rank"]} if "rank" in failure else {})
        self._report(job, {"status": failure["status"], "reason": failure["reason"], "details": details})

    def _report(self, job: Job, measured: dict[str, Any]) -> None:
        self._events.result(
            job.id,
            {
                "schema": 1,
                "workload": dict(job.workload),
                "stack": self._stack,
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                **measured,
            },
        )


def _last_frames(error: Exception) -> list[str]:
    """Where it happened, innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames]


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries leave threads and process groups that hang or complain while the interpreter goes down; every event
    # is on disk by now.
    os._exit(code)
