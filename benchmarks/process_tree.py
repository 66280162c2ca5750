"""Finding and ending every process of one run, however deep it lies and whatever session it started.

torchrun gives each rank a session of its own, so a process group does not reach the ranks, and a rank whose agent
was killed is no longer a descendant of anybody known. An environment variable is inherited by all of them.
"""

import contextlib
import os
import signal
import time
from pathlib import Path

RUN_VARIABLE = "TRAINCAST_RUN"
"""Environment variable that marks the processes of one run; its value is the run's id."""

_PROC = Path("/proc")


def processes_of_run(run_id: str) -> tuple[int, ...]:
    """Ids of the living processes that carry the mark, the caller excepted."""
    mark = f"{RUN_VARIABLE}={run_id}".encode()
    found = []
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # A process may end while it is looked at, and other users' processes cannot be read.
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return tuple(found)


def end_run(run_id: str, *, grace_seconds: float = 1.0, patience_seconds: float = 15.0) -> tuple[int, ...]:
    """End all processes of a run: ask first, kill after ``grace_seconds``.

    Returns the processes that are still there after ``patience_seconds``: a process inside a hanging driver call
    cannot be killed, and waiting for it for ever would hang the harness too.
    """
    asked_until = time.monotonic() + grace_seconds
    give_up_at = time.monotonic() + patience_seconds
    while remaining := processes_of_run(run_id):
        now = time.monotonic()
        if now > give_up_at:
            return remaining
        for process_id in remaining:
            with contextlib.suppress(OSError):
                os.kill(process_id, signal.SIGTERM if now < asked_until else signal.SIGKILL)
        time.sleep(0.05)
    return ()
