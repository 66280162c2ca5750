"""In which dtype weights live and operations run: what precision and strategy together mean."""

from enum import StrEnum

from .recipe import Precision
from .strategy import StrategyKind


class Numerics(StrEnum):
    """The four ways the exported files run a model."""

    FP32 = "fp32"
    """Everything in fp32 (TF32 products where allowed)."""
    AUTOCAST = "autocast"
    """fp32 weights, ``torch.autocast``: matrix products in 16 bit with weight copies cached over the forward
    pass; norms, softmax and losses in fp32; the residual stream is fp32."""
    AUTOCAST_CAST_WEIGHTS = "autocast_cast_weights"
    """FSDP2 mixed precision as accelerate runs it: gathered weights are already 16 bit, autocast stays on."""
    LOW_PRECISION = "low_precision"
    """DeepSpeed: the module itself is 16 bit, no autocast; fp32 master copies in the optimizer."""


def numerics_of(precision: Precision, kind: StrategyKind) -> Numerics:
    """What ``none`` / ZeRO / FSDP do with ``precision`` under current transformers, accelerate and DeepSpeed."""
    if precision is Precision.FP32:
        return Numerics.FP32
    if kind.is_zero:
        return Numerics.LOW_PRECISION
    if kind.is_fsdp:
        return Numerics.AUTOCAST_CAST_WEIGHTS
    return Numerics.AUTOCAST
