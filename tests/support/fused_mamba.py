"""A stand-in for the fused Mamba kernel on fake tensors: it saves what the CUDA one saves.

Source: ``MambaInnerFn`` of state-spaces/mamba (mamba_ssm/ops/selective_scan_interface.py), checkpoint level 1:
the convolution's output and the time steps are recomputed in the backward pass.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

CHUNK = 2048
"""Positions that one thread block scans; states between chunks are kept in fp32."""


class FusedMamba(torch.autograd.Function):
    """Shapes, dtypes and saved tensors of MambaInnerFn; no arithmetic."""

    @staticmethod
    def forward(ctx: Any, low_dtype: torch.dtype | None, xz: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        conv1d_weight, x_proj, delta_proj, out_proj, a, d, delta_bias = weights
        if low_dtype is not None:
            x_proj, delta_proj, out_proj = (weight.to(low_dtype) for weight in (x_proj, delta_proj, out_proj))
        xz = xz.contiguous()
        batch, double, length = xz.shape
        inner, state = double // 2, a.shape[1]
        x_dbl = xz.new_empty((batch * length, x_proj.shape[0]))
        b, c = (xz.new_empty((batch, 1, state, length)) for _ in range(2))
        chunks = math.ceil(length / CHUNK)
        intermediates = torch.empty((batch, inner, chunks, 2 * state), dtype=torch.float32)
        out = xz.new_empty((batch, inner, length))
        ctx.save_for_backward(
            xz, conv1d_weight, x_dbl, x_proj, delta_proj, out_proj, a, b, c, d, delta_bias, intermediates, out
        )
        return xz.new_empty((batch, length, out_proj.shape[0]))

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        raise NotImplementedError


@contextmanager
def fused_mamba(monkeypatch: pytest.MonkeyPatch, low_dtype: torch.dtype | None) -> Iterator[None]:
    """Let transformers' Mamba mixer call the stand-in, as it calls the kernel on a GPU."""
    from transformers.models.mamba import modeling_mamba

    def forward(self: nn.Module, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        projected = self.in_proj(hidden_states).transpose(1, 2)
        a = -torch.exp(self.A_log.float())
        weights = (self.conv1d.weight, self.x_proj.weight, self.dt_proj.weight, self.out_proj.weight)
        result: torch.Tensor = FusedMamba.apply(
            low_dtype, projected, *weights, a, self.D.float(), self.dt_proj.bias.float()
        )
        return result

    with monkeypatch.context() as patch:
        patch.setattr(modeling_mamba.MambaMixer, "forward", forward)
        yield
