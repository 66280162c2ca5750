"""CUDA's autocast on any device: its lists of operations, applied to CPU (fake) tensors.

``torch.autocast("cpu")`` keeps other lists than ``torch.autocast("cuda")`` (layer norm stays in 16 bit, for
example), so a trace under it saves other bytes than the GPU would. This mode applies the CUDA lists
(aten/src/ATen/autocast_mode.h: AT_FORALL_LOWER_PRECISION_FP, AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE,
AT_FORALL_PROMOTE) above autograd, and caches the 16-bit copies of leaf weights as ``cached_cast`` does.

Neglected: functions that call several listed operations inside C++ are treated by their own name
(``cross_entropy``, ``interpolate``, ``norm``), which casts what CUDA would cast.
"""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

LOWER_PRECISION = frozenset({
    "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d",
    "convolution", "_convolution", "prelu", "addmm", "addmv", "addr", "matmul", "__matmul__", "__rmatmul__",
    "einsum", "mm", "mv", "vecdot", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul",
    "multi_dot", "linalg_multi_dot", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "scaled_dot_product_attention", "_grouped_mm",
})
"""Run in 16 bit."""

FLOAT32 = frozenset({
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt",
    "sinh", "tan", "pow", "__pow__", "__rpow__", "softplus", "layer_norm", "native_layer_norm", "rms_norm",
    "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss_nd",
    "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss",
    "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp",
    "interpolate", "upsample", "norm", "frobenius_norm", "nuclear_norm", "cross_entropy", "cross_entropy_loss",
})
"""Run in fp32: inputs are cast up first."""

FLOAT32_RESULT = frozenset({
    "prod", "softmax", "log_softmax", "cumprod", "cumsum", "vector_norm", "linalg_vector_norm", "matrix_norm",
    "linalg_matrix_norm", "sum",
})
"""Give an fp32 result unless the caller asks for a dtype; the kernel casts on the fly."""

PROMOTE = frozenset({
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sample", "grid_sampler", "index_put",
    "index_put_", "tensordot", "scatter_add",
})
"""Run in the widest dtype among the inputs."""

_LOW_DTYPES = (torch.bfloat16, torch.float16)
_ELIGIBLE = (torch.float32, *_LOW_DTYPES)


class CudaAutocast(TorchFunctionMode):
    """``torch.autocast("cuda", dtype)`` for tensors of any device.

    ``dtype`` None casts nothing. ``attention`` names the kernel that SDPA takes on the GPU (``flash`` or
    ``efficient``), which CPU dispatch would not choose; None leaves SDPA alone. Dropout keeps a mask of one byte
    an element, as CUDA's kernel does (the CPU's keeps noise in the input's dtype).
    """

    def __init__(self, dtype: torch.dtype | None = torch.bfloat16, *, attention: str | None = None) -> None:
        super().__init__()
        self.dtype = dtype
        self.attention = attention
        self._cache: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._copies: dict[int, torch.UntypedStorage] = {}

    @property
    def weight_copy_storages(self) -> tuple[torch.UntypedStorage, ...]:
        """Storage of every 16-bit copy of a leaf weight made so far."""
        return tuple(self._copies.values())

    def is_weight_copy(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the 16-bit copy of a weight."""
        return tensor.untyped_storage()._cdata in self._copies

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # As autocast does when its outermost scope ends.
        self._cache.clear()
        super().__exit__(kind, error, trace)

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.dtype is not None:
            args, kwargs = self._autocast(name, args, kwargs, self.dtype)
        if name == "dropout":
            return _dropout(*args, **kwargs)
        if name == "scaled_dot_product_attention" and self.attention is not None:
            return _fused_attention(self.attention, *args, **kwargs)
        return func(*args, **kwargs)

    def _autocast(self, name: str, args: Any, kwargs: Any, low_dtype: torch.dtype) -> tuple[Any, Any]:
        if name in LOWER_PRECISION:
            return self._cast(args, low_dtype), self._cast(kwargs, low_dtype)
        if name in FLOAT32:
            return self._cast(args, torch.float32), self._cast(kwargs, torch.float32)
        if name in FLOAT32_RESULT:
            tensor = args[0] if args else kwargs.get("input")
            if isinstance(tensor, torch.Tensor) and tensor.dtype in _LOW_DTYPES and kwargs.get("dtype") is None:
                return args, {**kwargs, "dtype": torch.float32}
        elif name in PROMOTE:
            found = {tensor.dtype for tensor in _tensors((args, kwargs)) if tensor.dtype in _ELIGIBLE}
            if len(found) > 1:
                return self._cast(args, torch.float32), self._cast(kwargs, torch.float32)
        return args, kwargs

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, torch.Tensor):
            return self._cast_tensor(value, dtype) if value.dtype in _ELIGIBLE and value.dtype != dtype else value
        if isinstance(value, tuple) and type(value) is tuple:
            return tuple(self._cast(item, dtype) for item in value)
        if isinstance(value, list):
            return [self._cast(item, dtype) for item in value]
        if isinstance(value, dict):
            return {key: self._cast(item, dtype) for key, item in value.items()}
        return value

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        # cached_cast: only fp32 leaves that need a gradient are remembered, that is, weights.
        is_weight = (
            dtype in _LOW_DTYPES
            and tensor.dtype == torch.float32
            and tensor.requires_grad
            and tensor.is_leaf
            and not tensor._is_view()
        )
        if not is_weight:
            return tensor.to(dtype)
        cached = self._cache.get(id(tensor))
        if cached is None:
            cached = (tensor, tensor.to(dtype))
            self._cache[id(tensor)] = cached
            storage = cached[1].untyped_storage()
            self._copies[storage._cdata] = storage
        return cached[1]


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """``torch.nn.functional.dropout`` by the kernel that CUDA takes."""
    if p == 0 or not training:
        return input
    result: torch.Tensor = torch.native_dropout(input, p, True)[0]
    return input.copy_(result) if inplace else result


def _fused_attention(
    kernel: str,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """The operator that CUDA's SDPA dispatches to; it runs on fake tensors of any device."""
    if kernel == "flash":
        if attn_mask is not None:
            raise ValueError("the flash kernel takes no mask")
        result = torch.ops.aten._scaled_dot_product_flash_attention(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
    elif kernel == "efficient":
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        result = torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
        )
    else:
        raise ValueError(f"unknown attention kernel {kernel!r}; known are flash and efficient")
    output: torch.Tensor = result[0]
    return output
