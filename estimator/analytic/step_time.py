"""Time of one optimizer step as a sum of named terms."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .collectives import ring_columns
from .columns import WorkloadColumns
from .offload import offload_seconds
from .operation_totals import OperationTotals
from .optimizer_step import device_optimizer_seconds, host_optimizer_seconds, optimizer_seconds

Array = NDArray[np.float64]

_CAST_BYTES = 6.0
"""Autocast copy of one weight: read 4, write 2."""
_GRADIENT_CAST_BYTES = 6.0
"""Gradient of a copy back to fp32: read 2, write 4."""
_UNSHARD_BYTES = 4.0
"""FSDP copies gathered weights into place: read 2, write 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroStep:
    """One micro batch on the device and on the host, seconds [workloads]."""

    forward: Array
    backward: Array
    """Without recomputation."""
    recomputation: Array
    memory_bound: Array
    """Part of forward and backward: memory-bound operations, casts, scans, kernel starts."""
    attention: Array
    matrix: Array
    host_forward: Array
    host_backward: Array
    total: Array

    @property
    def device(self) -> Array:
        return self.forward + self.backward + self.recomputation

    @property
    def launch(self) -> Array:
        """What waiting for the host adds."""
        return self.total - self.device

    @property
    def host_lead(self) -> Array:
        """How long before the device the host is done with the micro batch."""
        return np.maximum(0.0, self.total - self.host_forward - self.host_backward)

    @property
    def elapsed_backward(self) -> Array:
        """From the end of the forward pass to the end of the micro batch, on the clock."""
        return self.total - np.maximum(self.host_forward, self.forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Seconds of one optimizer step; the five parts sum to it."""

    forward_backward: Array
    optimizer: Array
    communication: Array
    offload: Array
    input: Array
    micro: MicroStep

    @property
    def total(self) -> Array:
        return self.forward_backward + self.optimizer + self.communication + self.offload + self.input


def weight_traffic(columns: WorkloadColumns, totals: OperationTotals) -> tuple[Array, Array, Array]:
    """Bytes moved over weights and their gradients per micro batch: forward, backward, recomputed.

    Autocast copies every matrix once per forward pass and casts its gradient back; accumulation adds each gradient
    to the sum (read two, write one). FSDP copies gathered weights into place in forward, and in backward where they
    were resharded. Source: torch autocast cache; torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
    """
    is_autocast = columns.is_none & columns.is_16bit
    casts = np.where(is_autocast, _CAST_BYTES * totals.num_cast, 0.0)
    gradient_width = np.where((columns.zero_stage > 0) & columns.is_16bit, 2.0, 4.0)
    share = (columns.accumulation_steps - 1.0) / columns.accumulation_steps
    local = np.where((columns.zero_stage >= 2) | columns.is_fsdp, 1.0 / columns.cluster.num_gpus, 1.0)
    accumulate = 3.0 * gradient_width * share * totals.num_parameters * local
    backward = accumulate + np.where(is_autocast, _GRADIENT_CAST_BYTES * totals.num_cast, 0.0)
    unshard = np.where(columns.is_fsdp, _UNSHARD_BYTES * totals.num_parameters, 0.0)
    recomputed = np.where(is_autocast, _CAST_BYTES * totals.num_cast_in_blocks, 0.0)
    return casts + unshard, backward + np.where(columns.is_full_shard, 2.0, 1.0) * unshard, recomputed


def loss_traffic(columns: WorkloadColumns, totals: OperationTotals) -> tuple[Array, Array]:
    """Bytes moved over logits beyond each tensor once, forward and backward per micro batch.

    log_softmax of rows too wide for shared memory (a vocabulary) reads them three times (maximum, sum, result) and
    its backward reads both inputs twice; a compiler's online softmax reads once less. accelerate casts what the
    model returns to fp32 (read 2, write 4), under autocast only. L: logits in fp32, as ``logits_bytes`` has them.
    Source: aten/src/ATen/native/cuda/SoftMax.cu; accelerate/utils/operations.py, ConvertOutputsToFp32.
    """
    logits = totals.logits_bytes
    is_converted = (columns.is_none | columns.is_fsdp) & columns.is_16bit
    again = np.where(columns.is_compiled, 0.0, 2.0 * logits)
    return again + np.where(is_converted, 1.5 * logits, 0.0), again


def host_seconds(columns: WorkloadColumns, totals: OperationTotals) -> tuple[Array, Array]:
    """Host seconds of forward and backward of one micro batch: launches, and hooks of the sharding engine.

    Each kernel costs a launch, and each pass of the model some Python of its own; eager forward runs Python per
    operation, backward C++ only. ZeRO-1/2 handle each gradient, ZeRO-3 fetches and releases each tensor in both
    passes, FSDP2 unshards and reshards each block.
    Recomputation launches the blocks' forward again within backward.
    """
    c, is_autocast = columns.coefficients, columns.is_none & columns.is_16bit
    forward_rate = np.where(columns.is_compiled, c.host_seconds_per_kernel_compiled, c.host_seconds_per_kernel_forward)
    backward_rate = np.where(
        columns.is_compiled, c.host_seconds_per_kernel_compiled, c.host_seconds_per_kernel_backward
    )
    casts = np.where(is_autocast, totals.num_cast_tensors, 0.0)
    accumulates = np.where(columns.accumulation_steps > 1, totals.num_tensors, 0.0)
    again = totals.forward_kernels_in_blocks + np.where(is_autocast, totals.num_cast_tensors_in_blocks, 0.0)
    forward = (totals.forward_kernels + casts) * forward_rate + c.host_seconds_per_model_call
    backward = (totals.backward_kernels + casts + accumulates) * backward_rate
    backward = backward + np.where(columns.has_checkpointing, again * forward_rate, 0.0)
    hooks_light = np.where(
        (columns.zero_stage == 1) | (columns.zero_stage == 2), totals.num_tensors * c.zero_host_seconds_per_tensor, 0.0
    )
    hooks = np.where(columns.zero_stage == 3, totals.num_tensors * c.zero3_host_seconds_per_tensor, 0.0)
    hooks = hooks + np.where(columns.is_fsdp, totals.num_blocks * c.fsdp_host_seconds_per_block, 0.0)
    return forward + hooks, backward + hooks + hooks_light


def micro_step(columns: WorkloadColumns, totals: OperationTotals) -> MicroStep:
    """Forward and backward of one micro batch.

    t = max(max(h_f, g_f) + g_b, h_f + h_b) + start
      g device seconds, h host seconds of forward (f) and backward (b): the device can neither start backward before
      forward ended nor finish before the host launched its last kernel; each micro batch starts from an idle queue,
      for Trainer reads the loss back after every one. Source: roofline extended by launch rate. Neglected: launches
      that wait for memory of the caching allocator.
    """
    c, kernels = columns.coefficients, totals.kernels
    bandwidth = c.memory_bandwidth_fraction * columns.cluster.memory_bandwidth
    forward_weights, backward_weights, recomputed_weights = weight_traffic(columns, totals)
    forward_loss, backward_loss = loss_traffic(columns, totals)
    per_kernel = c.device_seconds_per_kernel
    memory_forward = (totals.forward_bytes + forward_weights + forward_loss) / bandwidth
    memory_forward = memory_forward + totals.forward_kernels * per_kernel
    memory_backward = (totals.backward_bytes + backward_weights + backward_loss) / bandwidth
    memory_backward = memory_backward + totals.backward_kernels * per_kernel
    memory_again = (totals.forward_bytes_in_blocks + recomputed_weights) / bandwidth
    memory_again = memory_again + totals.forward_kernels_in_blocks * per_kernel
    forward = kernels.matrix_forward + kernels.attention_forward + kernels.scan_forward + memory_forward
    backward = kernels.matrix_backward + kernels.attention_backward + kernels.scan_backward + memory_backward
    again = kernels.matrix_recomputed + kernels.attention_recomputed + kernels.scan_recomputed + memory_again
    again = np.where(columns.has_checkpointing, again, 0.0)
    host_forward, host_backward = host_seconds(columns, totals)
    total = np.maximum(np.maximum(host_forward, forward) + backward + again, host_forward + host_backward)
    return MicroStep(
        forward=forward,
        backward=backward,
        recomputation=again,
        memory_bound=memory_forward + memory_backward + kernels.scan_forward + kernels.scan_backward,
        attention=kernels.attention_forward + kernels.attention_backward,
        matrix=kernels.matrix_forward + kernels.matrix_backward,
        host_forward=host_forward,
        host_backward=host_backward,
        total=total + c.host_seconds_per_micro_step,
    )


def communication_seconds(columns: WorkloadColumns, totals: OperationTotals, micro: MicroStep) -> Array:
    """Exposed communication of one step.

    DDP           all-reduce of 4 P in buckets during the last backward only (no_sync before); the last bucket shows.
    ZeRO-1        all-reduce of 2 P once a step, after backward, nothing hidden (``overlap_comm`` is off by default),
                  then all-gather of 2 P. DeepSpeed all-reduces whole buckets (``use_multi_rank_bucket_allreduce``).
    ZeRO-2        the same all-reduce on every micro batch, inside backward on the compute stream: exposed.
    ZeRO-3        gather 2 P for forward and again for backward, reduce-scatter 2 P, on every micro batch, overlapped.
    FSDP          the same; ``shard_grad_op`` gathers once. Recomputation runs on weights already gathered for backward.
    Exposed = max(0, communication - overlap x elapsed) + what compute loses while both run; elapsed is the backward
    pass for DDP, the micro batch for what is gathered throughout.
    16-bit widths become 4 bytes under fp32. Sources: torch/nn/parallel/distributed.py, deepspeed/runtime/zero/
    {stage_1_and_2,stage3}.py, torch/distributed/fsdp. Neglected: skew between ranks.
    """
    c, ring, steps = columns.coefficients, ring_columns(columns), columns.accumulation_steps
    wide = np.where(columns.is_16bit, 2.0, 4.0)
    volume, p = wide * totals.num_parameters, totals.num_parameters
    def exposed(communication: Array, compute: Array) -> Array:
        hidden = np.minimum(communication, c.overlap_fraction * compute)
        return communication - hidden + c.communication_slowdown_fraction * hidden

    gradients = c.ddp_gradient_bytes * p
    reduce = ring.all_reduce_seconds(gradients, np.maximum(1.0, gradients / c.ddp_bucket_bytes))
    last_bucket = ring.all_reduce_seconds(np.minimum(gradients, c.ddp_bucket_bytes), 1.0)
    ddp = np.maximum(exposed(reduce, micro.elapsed_backward), last_bucket)
    zero_buckets = np.maximum(1.0, p / c.zero_bucket_elements)
    zero_reduce = ring.all_reduce_seconds(volume, zero_buckets)
    zero_gather = ring.gather_seconds(volume, zero_buckets)
    zero_1, zero_2 = zero_reduce + zero_gather, steps * zero_reduce + zero_gather
    calls = np.where(columns.zero_stage == 3, totals.num_tensors / 4.0, totals.num_blocks + 1.0)
    gather = ring.gather_seconds(volume, calls)
    first_gather = ring.gather_seconds(wide * (totals.largest_block + totals.num_outside_blocks), 1.0)
    gathers_again = ~(columns.is_fsdp & ~columns.is_full_shard)
    moved = 2.0 * gather + np.where(gathers_again, gather, 0.0)
    sharded = steps * (exposed(moved, micro.total) + first_gather)
    stage = columns.zero_stage
    return np.select(
        [columns.is_none, stage == 1, stage == 2, (stage == 3) | columns.is_fsdp], [ddp, zero_1, zero_2, sharded]
    )


def step_seconds(columns: WorkloadColumns, totals: OperationTotals) -> StepSeconds:
    """All terms of one optimizer step of the whole global batch.

    input: the batch copied over PCIe before each micro batch. The loader is assumed to keep up.
    """
    c, micro = columns.coefficients, micro_step(columns, totals)
    optimizer = optimizer_seconds(
        columns,
        device_optimizer_seconds(columns, totals.num_parameters),
        host_optimizer_seconds(columns, totals.num_tensors),
        micro.host_lead,
    )
    copy_rate = c.pcie_copy_fraction * columns.cluster.host_link_bandwidth
    return StepSeconds(
        forward_backward=columns.accumulation_steps * micro.total,
        optimizer=np.where(columns.has_offload, 0.0, optimizer),
        communication=communication_seconds(columns, totals, micro),
        offload=offload_seconds(columns, totals.num_parameters).total,
        input=columns.accumulation_steps * totals.input_bytes / copy_rate,
        micro=micro,
    )
