"""Micro-benchmarks of the machine: what fixes most coefficients of a new GPU in under two minutes."""

import gc
import time
from collections.abc import Callable
from typing import Any

import torch

from .bench_kernels import attention, convolutions, matrix_products
from .bench_memory import (
    collectives,
    cpu_adam,
    host_transfers,
    launch_overhead,
    memory_bandwidth,
    optimizers,
)
from .bench_timer import BenchTimer, Effort
from .protocol import EventWriter, Job
from .ranks import Ranks


def run_microbenchmarks(job: Job, ranks: Ranks, events: EventWriter) -> dict[str, Any]:
    """All groups (or those the job names), as the fields of a ``Measurement``.

    On the CPU with tiny sizes: there they show that the code runs, not what the machine can do.
    """
    is_tiny = ranks.device.type == "cpu"
    began = time.perf_counter()
    groups: dict[str, Callable[..., None]] = {
        "matrix_products": matrix_products,
        "attention": attention,
        "convolutions": convolutions,
        "memory_bandwidth": memory_bandwidth,
        "launch_overhead": launch_overhead,
        "host_transfers": host_transfers,
        "optimizers": optimizers,
        "collectives": lambda timer, *, is_tiny: collectives(timer, ranks, is_tiny=is_tiny),
        "cpu_adam": cpu_adam,
    }
    unknown = set(job.microbenchmark_groups or ()) - set(groups)
    if unknown:
        raise ValueError(f"micro-benchmark groups {sorted(unknown)} are unknown; allowed: {', '.join(groups)}")
    results: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    for name, run_group in groups.items():
        if job.microbenchmark_groups is not None and name not in job.microbenchmark_groups:
            continue
        timer = BenchTimer(
            ranks.device, Effort.tiny() if is_tiny else Effort.full(),
            lambda case, name=name: events.progress(job.id, f"{name}: {case}"),
        )
        events.progress(job.id, name, force=True)
        group_began = time.perf_counter()
        run_group(timer, is_tiny=is_tiny)
        seconds[name] = time.perf_counter() - group_began
        results += timer.results
        gc.collect()
        if ranks.device.type == "cuda":
            torch.cuda.empty_cache()
    return {
        "status": "ok",
        "details": {
            "microbenchmarks": results,
            "group_seconds": seconds,
            "total_seconds": time.perf_counter() - began,
            "world_size": ranks.world_size,
        },
    }
