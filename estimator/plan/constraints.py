"""Why a combination is not on offer, as a sentence for the user."""

from estimator.specs.estimate import Estimate
from estimator.specs.hardware import Cluster
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.units import format_bytes

from .result import RejectedStrategy


def has_no_effect(strategy: Strategy, cluster: Cluster) -> RejectedStrategy | None:
    """On one GPU there is nothing to shard over; only the offload of a sharded strategy does something."""
    if cluster.num_accelerators > 1 or strategy.kind is StrategyKind.NONE or strategy.offload:
        return None
    return RejectedStrategy(
        strategy=strategy, code="no_effect", reason="one GPU: sharding has no effect without offload, only overhead"
    )


def lacks_host_memory(estimate: Estimate, cluster: Cluster) -> bool:
    """True where the host memory is known and too small."""
    host = cluster.node.cpu_memory_bytes
    return host is not None and estimate.host_memory_bytes > host


def rejection(strategy: Strategy, smallest: Estimate, cluster: Cluster) -> RejectedStrategy:
    """Why even micro batch 1 does not do: the card first, since more host memory would not help there."""
    if smallest.fits == "no":
        needed, usable = smallest.peak_reserved_bytes.expected, smallest.usable_memory_bytes
        return RejectedStrategy(
            strategy=strategy,
            code="gpu_memory",
            reason=f"{format_bytes(needed - usable)} short: {format_bytes(needed)} of {format_bytes(usable)} usable "
            "at micro batch 1",
        )
    host = cluster.node.cpu_memory_bytes or 0
    return RejectedStrategy(
        strategy=strategy,
        code="host_memory",
        reason=f"needs {format_bytes(smallest.host_memory_bytes)} of host memory a node, {format_bytes(host)} given",
    )
