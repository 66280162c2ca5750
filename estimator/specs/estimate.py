"""The answer: time, memory and cost of one workload, every part named. Parts sum to the whole."""

from dataclasses import dataclass, field

from .errors import Note


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A stated 90 % interval around an expected value."""

    low: float
    expected: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Seconds of one optimizer step (the whole global batch); sums to the step."""

    forward_backward: float
    optimizer: float
    communication: float
    """Exposed part only: what does not hide behind the backward pass."""
    offload: float
    input: float

    @property
    def total_seconds(self) -> float:
        return self.forward_backward + self.optimizer + self.communication + self.offload + self.input


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBreakdown:
    """Bytes per GPU at the peak moment; sums to the peak."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    """Autocast weight copies, ZeRO buckets, gathers, temporaries of the optimizer step."""

    @property
    def total_bytes(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.logits + self.buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimismPart:
    """Seconds that one named cause adds on top of FLOPs / peak."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimism:
    """Expected step time over (model FLOPs / dense peak), and why; parts sum to the expected step."""

    ratio: float
    parts: tuple[OptimismPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """See CONTRACT: "JSON of an estimate"; field names are the JSON's."""

    basis: str
    parameters: int
    step_time_seconds: Interval
    step_time_components_seconds: TimeBreakdown
    micro_step_seconds: float
    peak_memory_bytes: Interval
    memory_components_bytes: MemoryBreakdown
    peak_reserved_bytes: Interval
    context_bytes: float
    usable_memory_bytes: float
    host_memory_bytes: float
    checkpoint_bytes: float
    fits: str
    """``yes``, ``tight`` or ``no``."""
    model_flops_per_step: float
    mfu_fraction: float
    hfu_fraction: float
    tokens_per_second: float | None
    samples_per_second: float
    training_days: Interval | None
    cost_usd: Interval | None
    energy_kwh: Interval | None
    optimism: Optimism
    warnings: tuple[Note, ...] = field(default=())
    assumptions: tuple[Note, ...] = field(default=())
