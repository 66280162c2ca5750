"""How model states and activations are placed: the 22 memory-saving combinations."""

from dataclasses import dataclass
from enum import StrEnum


class StrategyKind(StrEnum):
    """What is sharded over the data parallel ranks."""

    NONE = "none"
    """Nothing: one GPU, or DistributedDataParallel on several."""
    ZERO_1 = "zero_1"
    """DeepSpeed ZeRO-1: optimizer states sharded."""
    ZERO_2 = "zero_2"
    """DeepSpeed ZeRO-2: and gradients."""
    ZERO_3 = "zero_3"
    """DeepSpeed ZeRO-3: and parameters, gathered per module."""
    FSDP_SHARD_GRAD_OP = "fsdp_shard_grad_op"
    """FSDP2 with ``reshard_after_forward=False``: weights stay gathered between forward and backward."""
    FSDP_FULL_SHARD = "fsdp_full_shard"
    """FSDP2 with ``reshard_after_forward=True``."""

    @property
    def is_zero(self) -> bool:
        return self in (StrategyKind.ZERO_1, StrategyKind.ZERO_2, StrategyKind.ZERO_3)

    @property
    def is_fsdp(self) -> bool:
        return self in (StrategyKind.FSDP_SHARD_GRAD_OP, StrategyKind.FSDP_FULL_SHARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One of the 22 combinations."""

    kind: StrategyKind = StrategyKind.NONE
    offload: bool = False
    """ZeRO-1/2: optimizer on the host. ZeRO-3 and FSDP: optimizer and parameters on the host."""
    activation_checkpointing: bool = False
    """Only block inputs are kept; each block runs its forward again in the backward pass."""


ALL_STRATEGIES: tuple[Strategy, ...] = tuple(
    Strategy(kind=kind, offload=offload, activation_checkpointing=checkpointing)
    for checkpointing in (False, True)
    for kind in StrategyKind
    for offload in ((False,) if kind is StrategyKind.NONE else (False, True))
)
"""The 22 combinations: checkpointing x (none, or five shardings x offload)."""
