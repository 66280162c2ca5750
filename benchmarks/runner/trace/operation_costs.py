"""What one ATen operation costs: its kind, its shape as a matrix product, the bytes it moves, its kernels.

Bytes of a memory-bound kernel = every distinct input read once + every output written once; caches, reductions that
read twice and padding are neglected. Views and allocations cost nothing.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from estimator.specs.operations import OperationKind

MATRIX_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "_grouped_mm"})
CONVOLUTIONS = frozenset({"convolution"})
ATTENTIONS = frozenset({
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
})  # fmt: skip
PRODUCT_GRADIENTS = frozenset({
    *MATRIX_PRODUCTS, "convolution_backward", "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention_backward", "_scaled_dot_product_cudnn_attention_backward",
})  # fmt: skip
"""Operations of a backward pass whose cost follows from the shape of the forward operation."""

_MASKLESS = frozenset({"_scaled_dot_product_flash_attention"})
_FREE = frozenset({
    "_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted",
    "lift_fresh", "lift", "_local_scalar_dense", "set_", "resize_", "detach_", "is_same_size", "_reshape_alias",
    "sym_size", "sym_stride", "sym_numel", "sym_storage_offset", "_assert_async", "_assert_scalar", "t_", "squeeze_",
    "unsqueeze_", "transpose_",
})  # fmt: skip
_WRITE_ONLY = frozenset({
    "zeros", "ones", "full", "arange", "rand", "randn", "randint", "fill_", "zero_", "zeros_like", "ones_like",
    "full_like", "rand_like", "randn_like", "new_zeros", "new_ones", "new_full", "nll_loss_backward",
    "nll_loss2d_backward", "scalar_tensor", "eye", "tril_indices", "bernoulli_", "uniform_", "normal_",
})  # fmt: skip
_GATHER = frozenset({
    "embedding", "index", "index_select", "gather", "take", "nll_loss_forward", "nll_loss2d_forward",
})  # fmt: skip
"""Read no more of their first input than they write."""
_KERNELS = {
    "native_layer_norm_backward": 3.0, "native_group_norm_backward": 3.0, "_fused_rms_norm_backward": 3.0,
    "embedding_dense_backward": 8.0, "slice_backward": 2.0, "select_backward": 2.0, "nll_loss_backward": 2.0,
    "_scaled_dot_product_flash_attention_backward": 3.0, "_scaled_dot_product_efficient_attention_backward": 2.0,
}  # fmt: skip
"""Launches on CUDA of operations that are more than one kernel: a fill before a scatter, weight gradients in two
passes, sorted indices (aten/native/cuda/{layer_norm_kernel,Embedding}.cu)."""


@cache
def is_free(func: torch._ops.OpOverload) -> bool:
    """Views, allocations, metadata."""
    return func.namespace == "prim" or func.is_view or base_name(func) in _FREE


@cache
def base_name(func: torch._ops.OpOverload) -> str:
    """``addmm`` of ``aten.addmm.default``."""
    return func._schema.name.split("::")[-1]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Every tensor in nested arguments."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def view_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements that a view really touches: broadcast dimensions once, never more than its storage."""
    touched = math.prod(
        size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0 or size == 0
    )
    return min(touched * tensor.element_size(), tensor.untyped_storage().nbytes())


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of several views, equal ones once and never more than a storage holds."""
    by_storage: dict[int, dict[tuple[Any, ...], int]] = {}
    capacity: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        view = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        by_storage.setdefault(storage._cdata, {})[view] = view_bytes(tensor)
        capacity[storage._cdata] = storage.nbytes()
    return sum(min(sum(views.values()), capacity[key]) for key, views in by_storage.items())


def moved_bytes(func: torch._ops.OpOverload, args: Any, kwargs: Any, outputs: Any) -> int:
    """Bytes read and written by memory-bound kernels: what a product moves follows from its shape, so only what runs
    beside it counts (bias of a convolution, mask of an attention)."""
    name = base_name(func)
    written = distinct_bytes(tensors_in(outputs))
    if name in _WRITE_ONLY:
        return written
    inputs = list(tensors_in((args, kwargs)))
    if name == "copy_":
        return written + distinct_bytes(inputs[1:])
    if name == "convolution":
        # cuDNN adds the bias in a kernel of its own.
        return 0 if args[2] is None else 2 * written
    if name == "convolution_backward":
        # The bias gradient is a sum over the output's gradient.
        return view_bytes(args[0]) if args[-1][2] else 0
    if name in ATTENTIONS:
        return 0 if name in _MASKLESS or args[3] is None else view_bytes(args[3])
    if name in MATRIX_PRODUCTS or name in PRODUCT_GRADIENTS:
        return 0
    if name in _GATHER:
        return 2 * written + distinct_bytes(inputs[1:])
    return written + distinct_bytes(inputs)


def num_kernels(func: torch._ops.OpOverload, args: Any) -> float:
    """Launches on CUDA."""
    name = base_name(func)
    if name == "convolution":
        return 1.0 if args[2] is None else 2.0
    if name == "convolution_backward":
        return float(sum(args[-1]))
    return _KERNELS.get(name, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A product in the terms of ``estimator.specs.operations.Operation``."""

    kind: OperationKind
    batch: int = 1
    m: int = 0
    k: int = 0
    n: int = 0
    is_causal: bool = False
    key_value_groups: float = 1.0
    operands: tuple[torch.Tensor, torch.Tensor] | None = None
    """What is multiplied; one of them may be a weight."""


def product_shape(func: torch._ops.OpOverload, args: Any, kwargs: Any, output: Any) -> Shape | None:
    """The product that an operation computes; None for memory-bound operations."""
    name = base_name(func)
    if name in MATRIX_PRODUCTS:
        return _matrix_product(name, args)
    if name in CONVOLUTIONS:
        return _convolution(args, output)
    if name in ATTENTIONS:
        return _attention(name, args, kwargs)
    return None


def _matrix_product(name: str, args: Any) -> Shape:
    left, right = args[1:3] if name in ("addmm", "baddbmm") else args[:2]
    kind = OperationKind.MATRIX_PRODUCT
    if name == "linear":
        n, k = right.shape
        return Shape(kind=kind, m=left.numel() // k, k=k, n=n, operands=(left, right))
    if name == "_grouped_mm":
        # Every row meets one expert: as many multiplications as one product of that many rows.
        return Shape(kind=kind, m=left.numel() // left.shape[-1], k=left.shape[-1], n=right.shape[-1],
                     operands=(left, right))  # fmt: skip
    batch = left.shape[0] if left.dim() == 3 else 1
    return Shape(
        kind=kind, batch=batch, m=left.shape[-2], k=left.shape[-1], n=right.shape[-1], operands=(left, right)
    )


def _convolution(args: Any, output: torch.Tensor) -> Shape:
    signal, weight, transposed, groups = args[0], args[1], args[6], args[8]
    # Every output pixel (of a transposed convolution: every input pixel) meets the whole window.
    pixels = (signal if transposed else output).shape[2:]
    per_group_in, per_group_out = weight.shape[1], weight.shape[0] // groups
    if transposed:
        per_group_in, per_group_out = per_group_out, per_group_in
    return Shape(
        kind=OperationKind.CONVOLUTION,
        batch=groups,
        m=signal.shape[0] * math.prod(pixels),
        k=per_group_in * math.prod(weight.shape[2:]),
        n=per_group_out,
        operands=(signal, weight),
    )


def _attention(name: str, args: Any, kwargs: Any) -> Shape:
    query, key, value = args[:3]
    position = 4 if name in _MASKLESS else 6
    is_causal = args[position] if len(args) > position else kwargs.get("is_causal", False)
    return Shape(
        kind=OperationKind.ATTENTION,
        batch=math.prod(query.shape[:-2]),
        m=query.shape[-2],
        # Scores need the width of the keys, the weighted sum that of the values (DeepSeek's differ).
        k=(query.shape[-1] + value.shape[-1]) // 2,
        n=key.shape[-2],
        is_causal=bool(is_causal),
        key_value_groups=query.shape[-3] / key.shape[-3],
    )
