"""What a CUDA device would do with calls that the CPU answers differently, on fake CPU tensors."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn import functional

from ..cuda_autocast import CudaAutocast


class GpuKernels(CudaAutocast):
    """CUDA's autocast, dropout and attention kernels, plus what training code needs on fake tensors.

    A mask rules the flash kernel out, so SDPA then takes the memory-efficient one, as on the device.
    ``on_weight_copy`` hears of every cached 16-bit copy of a weight.
    """

    def __init__(
        self, dtype: torch.dtype | None, *, attention: str | None, on_weight_copy: Callable[[torch.Tensor], None]
    ) -> None:
        super().__init__(dtype, attention=attention)
        self._on_weight_copy = on_weight_copy

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.rand and _is_scalar_size(args, kwargs):
            # A single random number decides in Python whether a layer is dropped: it is not.
            return 1.0
        if func is functional.multi_head_attention_forward:
            return self._inside(func, args, kwargs)
        if func is functional.scaled_dot_product_attention and self.attention == "flash":
            mask = kwargs.get("attn_mask", args[3] if len(args) > 3 else None)
            if mask is not None:
                return self._with_attention("efficient", func, types, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs)

    def _with_attention(
        self, kernel: str, func: Callable[..., Any], types: Iterable[type], args: Any, kwargs: Any
    ) -> Any:
        before, self.attention = self.attention, kernel
        try:
            return super().__torch_function__(func, types, args, kwargs)
        finally:
            self.attention = before

    def _inside(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run a Python function so that this mode sees the calls within it, not the function itself once more."""
        before, copies = functional.has_torch_function, dict(self._cache)
        functional.has_torch_function = lambda tensors: False
        try:
            with self:
                return func(*args, **kwargs)
        finally:
            functional.has_torch_function = before
            # Leaving the mode ended its cache; the outer scope goes on.
            self._cache.update(copies)

    def _cast_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        known = len(self._copies)
        copy = super()._cast_tensor(tensor, dtype)
        if len(self._copies) > known:
            self._on_weight_copy(copy)
        return copy


def _is_scalar_size(args: Any, kwargs: Any) -> bool:
    size = kwargs.get("size", args[0] if len(args) == 1 else args)
    return isinstance(size, (tuple, list)) and len(size) == 0
