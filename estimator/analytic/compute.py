"""Time of the kernels of one micro batch on the device, by what limits each kind."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..specs.hardware import Accelerator
from ..specs.model import ModelSpec
from ..specs.operations import AttentionPath
from ..specs.recipe import AttentionKernel, Precision, TrainingRecipe
from .compiled_operations import CompiledOperations, ShapedOperations

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_FLASH_CAPABILITY = (8, 0)
_FLASH_LARGEST_HEAD = 256
_TILES = ((256.0, 128.0, 1.0), (128.0, 128.0, 0.92), (64.0, 64.0, 0.60))
"""Rows, columns and relative efficiency of the tiles that a product may choose: smaller tiles fill the device and
waste less at the edges, and re-read their operands more often (cuBLAS and CUTLASS profiles)."""
_SPLIT_DEPTH = 512.0
"""A product with few tiles splits its depth k into pieces of at least this length (split-K, stream-K)."""
_NARROWEST = 7.0
"""Elements of a row up to which alignment does not matter."""
FLASH_BACKWARD_FLOPS = 2.5
"""Products of the fused backward over those of the forward: 5 against 2 (FlashAttention-2, section 3.1)."""


def attention_path(model: ModelSpec, recipe: TrainingRecipe, accelerator: Accelerator) -> AttentionPath:
    """The kernel that attention takes: torch's SDPA dispatch order, and eager where asked or needed.

    Flash needs 16-bit inputs, compute capability 8.0 and head_dim <= 256; otherwise SDPA falls back to its
    memory-efficient kernel (torch/nn/attention, sdp_utils.cpp). That one takes no grouped keys, and transformers
    repeats them only where a mask is given or head_dim > 256 (integrations/sdpa_attention.py, ``use_gqa_in_sdpa``):
    SDPA's math code runs. A soft cap on the scores exists in eager only. A compiled decoder gets its causal mask as a
    tensor, see ``takes_mask_tensor``; flash takes none.
    """
    if recipe.attention is AttentionKernel.EAGER or getattr(model, "attention_softcap", None) is not None:
        return AttentionPath.MATH
    capability = accelerator.compute_capability
    is_too_old = capability is not None and capability < _FLASH_CAPABILITY
    has_large_heads = getattr(model, "head_dim", 0) > _FLASH_LARGEST_HEAD
    has_mask = recipe.compile and takes_mask_tensor(model)
    if recipe.precision is not Precision.FP32 and not is_too_old and not has_large_heads and not (
        has_mask and recipe.attention is AttentionKernel.SDPA
    ):
        return AttentionPath.FLASH
    heads = getattr(model, "num_attention_heads", 1)
    is_grouped = getattr(model, "num_key_value_heads", heads) != heads
    if is_grouped and not has_large_heads and not recipe.compile:
        return AttentionPath.SDPA_MATH
    return AttentionPath.EFFICIENT


def takes_mask_tensor(model: ModelSpec) -> bool:
    """Whether SDPA under torch.compile is handed the causal mask as a tensor, and so computes hidden pairs too.

    transformers leaves the mask out only where it can see that no sequences are packed, which it cannot while tracing
    (masking_utils.py, ``find_packed_sequence_indices``); OPT passes no positions that could be packed.
    """
    return getattr(model, "family", "") in ("decoder", "moe") and getattr(model, "model_type", "") != "opt"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceColumns:
    """What kernel times need, [workloads, 1] so that they spread over operations."""

    peak_16bit: Array
    peak_32bit: Array
    peak_fp32: Array
    """Achievable FLOP/s of 16-bit, fp32-operand (TF32 where allowed) and vector arithmetic."""
    attention_forward_rate: Array
    attention_backward_rate: Array
    attention_32bit_rate: Array
    flash_ramp_length: Array
    matrix_ramp_seconds: Array
    unaligned_matrix_slowdown: Array
    odd_matrix_slowdown: Array
    convolution_efficiency: Array
    depthwise_forward_efficiency: Array
    depthwise_backward_efficiency: Array
    scan_efficiency: Array
    bandwidth: Array
    """Achieved bytes/s."""
    num_multiprocessors: Array
    visits_hidden_pairs: Array
    """1 where a causal mask is a tensor: fused attention skips nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSeconds:
    """Device seconds of one micro batch and the FLOPs behind them, [workloads]."""

    matrix_forward: Array
    matrix_backward: Array
    matrix_recomputed: Array
    """Forward again of the operations inside blocks."""
    attention_forward: Array
    attention_backward: Array
    attention_recomputed: Array
    scan_forward: Array
    scan_backward: Array
    scan_recomputed: Array
    model_forward_flops: Array
    """2 m k n per product; causal attention counted at half."""
    matrix_forward_flops: Array
    recomputed_flops: Array


def matrix_product_seconds(
    batch: Array, m: Array, k: Array, n: Array, *, rate: Array, operand_bytes: Array, device: DeviceColumns
) -> Array:
    """Seconds of ``batch`` products (m x k)(k x n).

    t = max(min over tiles of w (2 tm tn k / (e R / S) + r), B / W)
      w  waves: ceil(tiles / S) of batch x ceil(m/tm) x ceil(n/tn) tiles over S multiprocessors
      R  achievable FLOP/s of a large product; e  relative efficiency of the tile
      r  prologue and epilogue of a tile: a latency, so it weighs more the faster a multiprocessor multiplies
      B  bytes of operands and result, each once; W achieved bandwidth
    With fewer tiles than multiprocessors, the depth k is split over the idle ones.
    Sources: tile and wave quantisation after NVIDIA's "Matrix Multiplication Background"; roofline after Williams
    et al. 2009. Neglected: L2 misses of very wide products, clock changes with data.
    """
    processors = device.num_multiprocessors
    compute = None
    for rows, columns, efficiency in _TILES:
        tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
        splits = np.clip(
            np.floor(processors / np.maximum(tiles, 1.0)), 1.0, np.maximum(1.0, np.floor(k / _SPLIT_DEPTH))
        )
        waves = np.ceil(tiles * splits / processors)
        per_tile = (2.0 * rows * columns / efficiency) * (k / splits) / (rate / processors)
        seconds = waves * (per_tile + device.matrix_ramp_seconds)
        compute = seconds if compute is None else np.minimum(compute, seconds)
    assert compute is not None
    traffic = operand_bytes * batch * (m * k + k * n + m * n)
    return np.asarray(np.maximum(compute, traffic / device.bandwidth))


def alignment_slowdown(k: Array, n: Array, operand_bytes: Array, device: DeviceColumns) -> Array:
    """How much longer a product takes whose rows start off 16-byte (or 4-byte) boundaries.

    All operands and results of (m x k)(k x n) and of its two gradients have rows of k or n elements. Rows of one to
    seven elements are vectors, which other kernels multiply. Source: CUTLASS alignment requirements (cp.async copies
    at least 4 bytes, bulk copies 16).
    """
    def is_off(boundary: float) -> Flags:
        off = [(x > _NARROWEST) & (np.mod(x * operand_bytes, boundary) > 0) for x in (k, n)]
        return np.asarray(off[0] | off[1])

    slowdown = np.where(is_off(4.0), device.odd_matrix_slowdown, device.unaligned_matrix_slowdown)
    return np.where(is_off(16.0), slowdown, 1.0)


def attention_pairs(operations: ShapedOperations, m: Array, n: Array, visits_hidden_pairs: Array) -> Array:
    """(query, key) pairs a fused kernel visits: all, half under a causal mask, a window's band.

    All again where the mask is a tensor.

    Causal with window w: m w - w^2/2 for w < m. Neglected: partly masked tiles, done in full.
    """
    width = np.minimum(n, operations.window)
    causal = m * width - 0.5 * width * np.minimum(width, m)
    is_skipping = (operations.is_causal > 0) & (visits_hidden_pairs == 0.0)
    return np.where(is_skipping, causal, m * np.where(visits_hidden_pairs > 0.0, n, width))


def _evaluate(operations: ShapedOperations, powers: Array) -> tuple[Array, Array, Array, Array]:
    return powers @ operations.batch, powers @ operations.m, powers @ operations.k, powers @ operations.n


def kernel_seconds(
    compiled: CompiledOperations, powers: Array, device: DeviceColumns, is_16bit: Flags
) -> KernelSeconds:
    """Seconds of all shaped kernels of one micro batch.

    Backward of a product y = x W: dx = dy W^T (m, n, k) and dW = x^T dy (k, m, n); a product of two activations
    has the same two. ``powers``: monomials, [workloads, 6]; ``is_16bit``: [workloads, 1].
    """
    matrix = _matrix_seconds(compiled.matrix_products, powers, device, is_16bit)
    convolution = _convolution_seconds(compiled.convolutions, powers, device, is_16bit)
    attention = _attention_seconds(compiled.attentions, powers, device, is_16bit)
    scan = _scan_seconds(compiled.scans, powers, device)
    return KernelSeconds(
        matrix_forward=matrix[0] + convolution[0],
        matrix_backward=matrix[1] + convolution[1],
        matrix_recomputed=matrix[2] + convolution[2],
        attention_forward=attention[0],
        attention_backward=attention[1],
        attention_recomputed=attention[2],
        scan_forward=scan[0],
        scan_backward=scan[1],
        scan_recomputed=scan[2],
        model_forward_flops=matrix[3] + convolution[3] + attention[3],
        matrix_forward_flops=matrix[3] + convolution[3],
        recomputed_flops=matrix[4] + convolution[4] + attention[4],
    )


_Sums = tuple[Array, Array, Array, Array, Array]
"""Forward, backward, recomputed seconds; model FLOPs forward; FLOPs recomputed: each [workloads]."""


def _sums(operations: ShapedOperations, forward: Array, backward: Array, flops: Array) -> _Sums:
    weight, inside = operations.repeats, operations.repeats * operations.in_block
    return forward @ weight, backward @ weight, forward @ inside, flops @ weight, flops @ inside


def _none(powers: Array) -> _Sums:
    zero = np.zeros(len(powers))
    return zero, zero, zero, zero, zero


def _matrix_seconds(operations: ShapedOperations, powers: Array, device: DeviceColumns, is_16bit: Flags) -> _Sums:
    if not operations.count:
        return _none(powers)
    batch, m, k, n = _evaluate(operations, powers)
    is_narrow = is_16bit & ~operations.is_fp32
    rate = np.where(is_narrow, device.peak_16bit, device.peak_32bit)
    operand_bytes = np.where(is_narrow, 2.0, 4.0)

    rate = rate / alignment_slowdown(k, n, operand_bytes, device)

    def seconds(m: Array, k: Array, n: Array) -> Array:
        return matrix_product_seconds(batch, m, k, n, rate=rate, operand_bytes=operand_bytes, device=device)

    backward = seconds(k, m, n) + operations.has_input_gradient * seconds(m, n, k)
    # The model's own FLOPs count a causal score matrix at half, though eager attention computes all of it.
    flops = 2.0 * batch * m * k * n * (1.0 - 0.5 * operations.is_causal)
    return _sums(operations, seconds(m, k, n), backward, flops)


def _convolution_seconds(operations: ShapedOperations, powers: Array, device: DeviceColumns, is_16bit: Flags) -> _Sums:
    """Dense: an implicit matrix product at a lower efficiency. Depthwise: vector arithmetic at a small share of its
    rate, or the bytes of its maps, whichever is longer. Neglected: layout conversions."""
    if not operations.count:
        return _none(powers)
    batch, m, k, n = _evaluate(operations, powers)
    is_narrow = is_16bit & ~operations.is_fp32
    rate = np.where(is_narrow, device.peak_16bit, device.peak_32bit) * device.convolution_efficiency
    operand_bytes = np.where(is_narrow, 2.0, 4.0)
    flops = 2.0 * batch * m * k * n
    # The window overlaps in memory: bytes are those of the maps, not of the unrolled window.
    maps = operand_bytes * batch * 2.0 * m * np.minimum(n, k)

    def dense(m: Array, k: Array, n: Array) -> Array:
        return matrix_product_seconds(batch, m, k, n, rate=rate, operand_bytes=0.0 * operand_bytes, device=device)

    forward = np.where(
        operations.is_depthwise,
        np.maximum(flops / (device.peak_fp32 * device.depthwise_forward_efficiency), maps / device.bandwidth),
        dense(m, k, n),
    )
    backward = np.where(
        operations.is_depthwise,
        np.maximum(
            2.0 * flops / (device.peak_fp32 * device.depthwise_backward_efficiency), 2.0 * maps / device.bandwidth
        ),
        dense(k, m, n) + operations.has_input_gradient * dense(m, n, k),
    )
    return _sums(operations, forward, backward, flops)


def _attention_seconds(operations: ShapedOperations, powers: Array, device: DeviceColumns, is_16bit: Flags) -> _Sums:
    """Fused attention: F / (R ramp), or the bytes of q, k, v and the output.

    F = 4 x batch x pairs x head_dim forward, 2.5 times that backward; ramp = n / (n + n0) over the keys that one
    query sees. Sources: FlashAttention-2 (arXiv 2307.08691), section 3. Neglected: idle multiprocessors with few
    heads, dropout's random numbers. Model FLOPs leave hidden pairs out even where they are computed.
    """
    if not operations.count:
        return _none(powers)
    batch, m, k, n = _evaluate(operations, powers)
    is_narrow = is_16bit & ~operations.is_fp32
    flops = 4.0 * batch * attention_pairs(operations, m, n, device.visits_hidden_pairs) * k
    counted = 4.0 * batch * attention_pairs(operations, m, n, np.zeros_like(device.visits_hidden_pairs)) * k
    visible = np.minimum(n, operations.window)
    ramp = visible / (visible + device.flash_ramp_length)
    traffic = np.where(is_narrow, 2.0, 4.0) * batch * k * (2.0 * m + 2.0 * n / operations.key_value_groups)
    forward_rate = np.where(is_narrow, device.attention_forward_rate, device.attention_32bit_rate) * ramp
    backward_rate = np.where(is_narrow, device.attention_backward_rate, device.attention_32bit_rate) * ramp
    forward = np.maximum(flops / forward_rate, traffic / device.bandwidth)
    backward = np.maximum(FLASH_BACKWARD_FLOPS * flops / backward_rate, 2.5 * traffic / device.bandwidth)
    return _sums(operations, forward, backward, counted)


def _scan_seconds(operations: ShapedOperations, powers: Array, device: DeviceColumns) -> _Sums:
    """Selective scan: 9 m n k vector operations (two products, an exponential counted as 6, a sum) at a share of the
    vector rate; backward recomputes the states: 2.5 times. Source: Mamba (arXiv 2312.00752), section 3.3."""
    if not operations.count:
        return _none(powers)
    batch, m, k, n = _evaluate(operations, powers)
    forward = 9.0 * batch * m * n * k / (device.peak_fp32 * device.scan_efficiency)
    return _sums(operations, forward, 2.5 * forward, 0.0 * forward)
