"""FLOPs of forward and backward, counted by torch on fake CPU tensors."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_backward_flop

from .fake_models import fake_model

Shape = Sequence[int]


def _convolution_backward_flops(
    grad_out: Shape,
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    out_shape: Any,
) -> int:
    """torch's own formula, but for groups: there it counts a weight gradient between all channels in and out (96
    times too much for a depthwise convolution of 96 channels). Each gradient costs what the forward pass does."""
    if groups == 1:
        return int(conv_backward_flop.__wrapped__(
            grad_out, x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, output_mask,
            out_shape=out_shape,
        ))  # fmt: skip
    forward = 2 * prod(grad_out) * prod(weight[1:])
    return forward * sum(output_mask[:2])


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
    mapping = {torch.ops.aten.convolution_backward: _convolution_backward_flops}
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with fake_model(model_class, config, attention=attention) as model, sdpa_kernel(SDPBackend.MATH), counter:
        model(**batch()).loss.backward()
    return float(counter.get_total_flops())
