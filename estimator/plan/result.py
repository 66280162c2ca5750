"""What planning answers: ranked strategies, rejected ones with reasons, and the nearest changes where nothing fits."""

from dataclasses import dataclass

from estimator.specs.estimate import Estimate
from estimator.specs.strategy import Strategy
from estimator.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStrategy:
    """A combination at its best micro batch."""

    rank: int
    """1 is the fastest."""
    workload: Workload
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedStrategy:
    """A combination that is not on offer, and why."""

    strategy: Strategy
    code: str
    """``no_effect``, ``gpu_memory`` or ``host_memory``."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestChange:
    """One change of the inputs with which it fits."""

    kind: str
    """``micro_batch_size``, ``activation_checkpointing``, ``strategy``, ``offload``, ``num_gpus``, ``gpu``, ..."""
    description: str
    workload: Workload
    estimate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of a search over all combinations."""

    num_parameters: int
    basis: str
    """``analytical`` or ``calibrated``."""
    ranked: tuple[PlannedStrategy, ...]
    rejected: tuple[RejectedStrategy, ...]
    nearest_changes: tuple[NearestChange, ...] = ()
    """Only where nothing is ranked; the least loss of speed first."""

    @property
    def best(self) -> PlannedStrategy | None:
        return self.ranked[0] if self.ranked else None
