"""One measured run: what the harness stores and the calibrator reads."""

from dataclasses import dataclass, field

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row; every time in seconds, every memory in bytes, per rank where ranks differ (the worst)."""

    schema: int
    workload: dict[str, object]
    """Inputs in the option names of the command line (model, gpu, strategy, micro_batch_size, ...)."""
    workload_key: str
    """Stable hash of ``workload``."""
    status: str
    """``ok``, ``oom``, ``refused`` (implausible or not linear), ``error``."""
    reason: str | None = None
    step_times_seconds: tuple[float, ...] = ()
    """Raw samples of whole optimizer steps, warm-up excluded."""
    step_time_seconds: float | None = None
    """Median."""
    micro_step_times_seconds: tuple[float, ...] = ()
    micro_step_seconds: float | None = None
    """Median forward + backward of one micro batch."""
    optimizer_step_seconds: float | None = None
    """Median of clipping + update (+ unscaling), separately."""
    warmup_seconds: float | None = None
    """First steps, compile included."""
    num_warmup_steps: int = 0
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    process_memory_bytes: int | None = None
    """What the driver charges to the process: reserved + context."""
    host_memory_bytes: int | None = None
    """Peak resident set of the process tree."""
    stack: dict[str, str] = field(default_factory=dict)
    """GPU, driver, torch, transformers, accelerate, deepspeed, harness and commit."""
    date: str = ""
    details: dict[str, object] = field(default_factory=dict)
