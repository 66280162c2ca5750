"""Times one small operation of the machine: repeated in windows, each with synchronisation at both ends."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .timing import Clock

_MAX_ITERATIONS = 20_000
_HOST_BOUND_SECONDS = 150e-6
"""Below this the host may launch more slowly than the device works: the launches are recorded once and replayed."""
_CALLS_PER_GRAPH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure each case."""

    window_seconds: float
    num_windows: int = 5

    @classmethod
    def full(cls) -> "Effort":
        """For an accelerator: about 0.15 s a case."""
        return cls(window_seconds=0.02)

    @classmethod
    def tiny(cls) -> "Effort":
        """For a CPU and for tests."""
        return cls(window_seconds=0.002, num_windows=3)


class BenchTimer:
    """Collects results; a case that runs out of memory or is not supported becomes a result with its reason."""

    def __init__(self, device: torch.device, effort: Effort, on_result: Callable[[str], None]) -> None:
        self.device = device
        self.effort = effort
        self.results: list[dict[str, Any]] = []
        self._clock = Clock(device)
        self._on_result = on_result

    def case(
        self, name: str, parameters: dict[str, Any], prepare: Callable[[], Callable[[], Any]], *,
        work: float | None = None, unit: str | None = None, is_host_time: bool = False, is_kernel: bool = False,
    ) -> None:
        """Time what ``prepare`` returns; ``work`` (FLOPs, bytes, kernels, parameters) is done by one call.

        ``is_host_time``: by the host's clock, for what the host does itself. ``is_kernel``: what the device needs is
        asked for, not what the host needs to launch it; launching has benchmarks of its own.
        """
        result: dict[str, Any] = {"name": name, "parameters": parameters}
        try:
            result |= self._measure(prepare(), is_host_time=is_host_time, is_kernel=is_kernel)
        except Exception as error:  # One case that a library or device refuses must not cost the others.
            message = f"{type(error).__name__}: {error}"[:300]
            self.results.append(result | {"status": "error", "reason": message})
            if "CUDA error" in message:
                raise
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            self._on_result(name)
            return
        if work is not None:
            result |= {"work": work, "rate": work / result["median_seconds"], "rate_unit": unit}
        self.results.append(result | {"status": "ok"})
        self._on_result(name)

    def fixed_case(
        self, name: str, parameters: dict[str, Any], call: Callable[[], Any], *, iterations: int, work: float, unit: str
    ) -> None:
        """Time ``call`` with a given number of iterations; errors are the caller's, for all ranks must share them."""
        self._repeat(call, 2, is_host_time=False)
        samples = [
            self._repeat(call, iterations, is_host_time=False) / iterations for _ in range(self.effort.num_windows)
        ]
        median = statistics.median(samples)
        self.results.append({
            "name": name, "parameters": parameters, "status": "ok", "samples_seconds": samples,
            "median_seconds": median, "iterations_per_sample": iterations,
            "work": work, "rate": work / median, "rate_unit": unit,
        })
        self._on_result(name)

    def _measure(self, call: Callable[[], Any], *, is_host_time: bool, is_kernel: bool) -> dict[str, Any]:
        self._repeat(call, 2, is_host_time=is_host_time)
        found = self._windows(call, is_host_time=is_host_time)
        if not is_kernel or self.device.type != "cuda" or found["median_seconds"] > _HOST_BOUND_SECONDS:
            return found | {"launch": "eager"}
        replay = _recorded(call)
        if replay is None:
            return found | {"launch": "eager"}
        replayed = self._windows(replay, is_host_time=False)
        return {
            "samples_seconds": [seconds / _CALLS_PER_GRAPH for seconds in replayed["samples_seconds"]],
            "median_seconds": replayed["median_seconds"] / _CALLS_PER_GRAPH,
            "iterations_per_sample": replayed["iterations_per_sample"] * _CALLS_PER_GRAPH,
            "launch": "graph",
            "eager_median_seconds": found["median_seconds"],
        }

    def _windows(self, call: Callable[[], Any], *, is_host_time: bool) -> dict[str, Any]:
        # Estimate from a window that is long enough to trust, then fill the wanted time.
        iterations, seconds = 1, self._repeat(call, 1, is_host_time=is_host_time)
        while seconds < self.effort.window_seconds / 8 and iterations < _MAX_ITERATIONS:
            iterations *= 4
            seconds = self._repeat(call, iterations, is_host_time=is_host_time)
        iterations = max(1, min(_MAX_ITERATIONS, round(iterations * self.effort.window_seconds / max(seconds, 1e-9))))
        samples = [
            self._repeat(call, iterations, is_host_time=is_host_time) / iterations
            for _ in range(self.effort.num_windows)
        ]
        return {
            "samples_seconds": samples, "median_seconds": statistics.median(samples),
            "iterations_per_sample": iterations,
        }

    def _repeat(self, call: Callable[[], Any], iterations: int, *, is_host_time: bool) -> float:
        """Total seconds of one window."""
        self._clock.synchronize()
        if is_host_time:
            began = time.perf_counter()
            for _ in range(iterations):
                call()
            ended = time.perf_counter()
            self._clock.synchronize()
            return ended - began
        first = self._clock.mark()
        for _ in range(iterations):
            call()
        last = self._clock.mark()
        self._clock.synchronize()
        return self._clock.seconds(first, last)


def _recorded(call: Callable[[], Any]) -> Callable[[], None] | None:
    """A CUDA graph of many calls, or None where they cannot be recorded."""
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    try:
        # Libraries set themselves up per stream: that must not fall into the recording.
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            for _ in range(_CALLS_PER_GRAPH):
                call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph.replay


def rotating(calls: list[Callable[[], Any]]) -> Callable[[], Any]:
    """Call one after the other in turn, so that inputs do not stay in the cache."""
    state = [0]

    def call() -> Any:
        state[0] = (state[0] + 1) % len(calls)
        return calls[state[0]]()

    return call
