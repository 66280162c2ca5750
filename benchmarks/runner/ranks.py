"""The processes of one job: what each is, how they agree, and what happens when one of them fails."""

import datetime
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

_COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=10)
_POLL_SECONDS = 0.5
_GRACE_SECONDS = 2.0
"""Between a failure that is seen and the end of the process: for all ranks to see it."""
_ACKNOWLEDGE_SECONDS = 60.0


class Ranks:
    """This process among the ranks of the job; a single process without a group is rank 0 of 1."""

    def __init__(self, device: str) -> None:
        self.rank = int(os.environ.get("RANK", 0))
        self.world_size = int(os.environ.get("WORLD_SIZE", 1))
        self.local_rank = int(os.environ.get("LOCAL_RANK", 0))
        self.device = torch.device("cuda", self.local_rank) if device == "cuda" else torch.device("cpu")
        self._gloo: dist.ProcessGroup | None = None
        self._failures: _FailureWatch | None = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        if self.world_size > 1:
            self._start_group()
            self._failures = _FailureWatch(self)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def ensure_group(self) -> None:
        """A process group also for a single process: FSDP and DeepSpeed insist on one."""
        if dist.is_initialized():
            return
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        defaults = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
        for name, value in defaults.items():
            os.environ[name] = str(value)
        os.environ["MASTER_ADDR"] = "127.0.0.1"
        self._start_group()

    def _start_group(self) -> None:
        # gloo as well as NCCL: offloaded shards are reduced on the host.
        backend = "cuda:nccl,cpu:gloo" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend=backend, timeout=_COLLECTIVE_TIMEOUT)
        self._gloo = dist.new_group(backend="gloo")

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, by rank."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self._gloo)
        return values

    def barrier(self) -> None:
        """Wait for all ranks (host side)."""
        if self.world_size > 1:
            dist.barrier(group=self._gloo)

    def watch_failures(self, job_id: str, report: Callable[[dict[str, Any]], None]) -> None:
        """From now on a failure of any rank in this job ends all of them; rank 0 reports it."""
        if self._failures is not None:
            self._failures.watch(job_id, report)

    def stop_watching(self) -> None:
        """The job is over."""
        if self._failures is not None:
            self._failures.watch(None, None)

    def announce_failure(self, job_id: str, failure: dict[str, Any]) -> None:
        """Tell the other ranks; ends this process, by its own watch, as soon as all had time to look."""
        if self._failures is not None:
            self._failures.announce(job_id, {**failure, "rank": self.rank})

    def close(self) -> None:
        """Take the group down in order."""
        if dist.is_initialized():
            dist.destroy_process_group()


class _FailureWatch:
    """Failures travel through the store that the ranks met in, beside any collective.

    The others may hang inside a collective that the failed rank never joins, where no exception reaches them. So a
    thread in each looks at the store, and where it finds a failure, rank 0's thread writes the result and all leave.
    It asks the store twice a second, through a connection of its own.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._store = dist.TCPStore(
            os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False,
            timeout=datetime.timedelta(seconds=_ACKNOWLEDGE_SECONDS),
        )
        self._lock = threading.Lock()
        self._job_id: str | None = None
        self._report: Callable[[dict[str, Any]], None] | None = None
        threading.Thread(target=self._run, name="failure-watch", daemon=True).start()

    def watch(self, job_id: str | None, report: Callable[[dict[str, Any]], None] | None) -> None:
        with self._lock:
            self._job_id, self._report = job_id, report

    def announce(self, job_id: str, failure: dict[str, Any]) -> None:
        # The first failure stands: later ones are mostly its consequences.
        key = self._key(job_id)
        if not self._store.check([key]):
            self._store.set(key, json.dumps(failure, default=str))
        time.sleep(_ACKNOWLEDGE_SECONDS)

    @staticmethod
    def _key(job_id: str) -> str:
        return f"traincast/failure/{job_id}"

    def _run(self) -> None:
        while True:
            time.sleep(_POLL_SECONDS)
            with self._lock:
                job_id, report = self._job_id, self._report
            if job_id is None or report is None:
                continue
            try:
                has_failed = self._store.check([self._key(job_id)])
            except RuntimeError:
                # The store went with the process that held it.
                os._exit(1)
            if has_failed:
                self._leave(job_id, report)

    def _leave(self, job_id: str, report: Callable[[dict[str, Any]], None]) -> None:
        time.sleep(_GRACE_SECONDS)
        with self._lock:
            if self._job_id != job_id:
                return
            if self._ranks.is_main:
                report(json.loads(self._store.get(self._key(job_id))))
                # Rank 0 may hold the store: the others look first.
                time.sleep(4 * _POLL_SECONDS)
            # The main thread may be stuck in a collective for good; there is nothing left to tidy up.
            os._exit(0)
