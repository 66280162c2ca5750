"""FLOPs of forward and backward, counted by torch on fake CPU tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from .fake_models import fake_model


def counted_flops(
    model_class: type,
    config: dict[str, Any],
    batch: Callable[[], dict[str, torch.Tensor]],
    *,
    attention: str | None = None,
) -> float:
    """FLOPs of one forward and backward pass.

    The math backend of SDPA is forced: the counter knows no CPU attention kernel. It counts all (query, key)
    pairs, also those that a causal mask hides.
    """
    counter = FlopCounterMode(display=False)
    with fake_model(model_class, config, attention=attention) as model, sdpa_kernel(SDPBackend.MATH), counter:
        model(**batch()).loss.backward()
    return float(counter.get_total_flops())
