"""Time and memory of the optimizer step on the device: clipping, update, 16-bit copies."""

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns

Array = NDArray[np.float64]

_CLIP_BYTES = 12.0
"""Per parameter in fp32: the norm reads the gradient, scaling reads and writes it (torch scales always)."""
_UNSCALE_BYTES = 8.0
"""fp16: GradScaler divides every gradient once, read and write."""
_ZERO_BYTES = 6.0 + 6.0 + 12.0
"""DeepSpeed: 16-bit gradient to fp32 (2 + 4), fp32 master back to 16 bit (4 + 2), norm and combined scaling (12)."""
_DEEPSPEED_KERNELS = 60.0


def local_parameters(columns: WorkloadColumns, num_parameters: Array) -> Array:
    """Parameters that one rank updates: all, or its shard."""
    is_sharded = (columns.zero_stage > 0) | columns.is_fsdp
    return np.where(is_sharded, num_parameters / columns.cluster.num_gpus, num_parameters)


def device_optimizer_seconds(columns: WorkloadColumns, num_parameters: Array, num_tensors: Array) -> Array:
    """Seconds of the optimizer step where nothing is offloaded.

    t = max(P_local x bytes / W, launches x h) + tensors x g
      P_local parameters of this rank; bytes of update, clipping, unscaling and copies per parameter;
      W achieved bandwidth; h host seconds per launch; g Python seconds per tensor.
    ZeRO updates one flat tensor per rank, so tensors hardly count. Source: torch/optim/adamw.py,
    deepspeed/runtime/zero/stage_1_and_2.py (step). Neglected: learning rate schedules, the step's read-back.
    """
    c, is_zero = columns.coefficients, columns.zero_stage > 0
    per_parameter = columns.optimizer_traffic_bytes + np.where(
        is_zero, _ZERO_BYTES, _CLIP_BYTES * columns.has_clipping + _UNSCALE_BYTES * columns.is_fp16
    )
    traffic = local_parameters(columns, num_parameters) * per_parameter
    device = traffic / (c.optimizer_bandwidth_fraction * columns.cluster.memory_bandwidth)
    launches = np.where(
        is_zero,
        _DEEPSPEED_KERNELS,
        num_tensors * (columns.optimizer_kernels_per_tensor + 0.1 * columns.has_clipping),
    )
    host = launches * c.host_seconds_per_optimizer_kernel
    tensors = np.where(is_zero, 0.0, num_tensors)
    return np.maximum(device, host) + tensors * c.host_seconds_per_optimizer_tensor


def optimizer_temporary_bytes(columns: WorkloadColumns) -> Array:
    """Per local parameter while the step runs: the square root of the second moment of all tensors at once
    (torch/optim/adamw.py, ``_multi_tensor_adamw``); fused kernels need none."""
    return np.where(columns.is_fused_optimizer | (columns.optimizer_state_bytes < 8.0), 0.0, 4.0)
