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


def device_optimizer_seconds(columns: WorkloadColumns, num_parameters: Array) -> Array:
    """Device seconds of update, clipping, unscaling and copies where nothing is offloaded: P_local x bytes / W.

    P_local parameters of this rank; bytes per parameter; W achieved bandwidth. Source: torch/optim/adamw.py,
    deepspeed/runtime/zero/stage_1_and_2.py (step).
    """
    c, is_zero = columns.coefficients, columns.zero_stage > 0
    per_parameter = columns.optimizer_traffic_bytes + np.where(
        is_zero, _ZERO_BYTES, _CLIP_BYTES * columns.has_clipping + _UNSCALE_BYTES * columns.is_fp16
    )
    traffic = local_parameters(columns, num_parameters) * per_parameter
    return traffic / (c.optimizer_bandwidth_fraction * columns.cluster.memory_bandwidth)


def host_optimizer_seconds(columns: WorkloadColumns, num_tensors: Array) -> Array:
    """Host seconds of the optimizer step: launches x h + tensors x g.

    h seconds per launch; g Python seconds per tensor of the update (fewer where it is fused) and of clipping. ZeRO
    updates one flat tensor per rank, but norms, unscaling and views still visit every tensor. Source: torch/optim/
    adamw.py, torch/nn/utils/clip_grad.py, deepspeed/runtime/zero/stage_1_and_2.py. Neglected: learning rate schedules,
    the step's read-back.
    """
    c, is_zero = columns.coefficients, columns.zero_stage > 0
    launches = num_tensors * (columns.optimizer_kernels_per_tensor + 0.1 * columns.has_clipping)
    update = np.where(
        columns.is_fused_optimizer, c.host_seconds_per_fused_optimizer_tensor, c.host_seconds_per_optimizer_tensor
    )
    python = num_tensors * (update + c.host_seconds_per_clipped_tensor * columns.has_clipping)
    return np.where(is_zero, _DEEPSPEED_KERNELS, launches) * c.host_seconds_per_optimizer_kernel + np.where(
        is_zero, num_tensors * c.zero_host_seconds_per_updated_tensor, python
    )


def optimizer_seconds(columns: WorkloadColumns, device: Array, host: Array, host_lead: Array) -> Array:
    """What the optimizer adds to the step: max(device, host - lead).

    The host launches the optimizer while the device still runs backward; ``host_lead`` is how long before the end of
    the last micro batch the host was done with it. GradScaler reads its overflow flag back first: no lead in fp16.
    """
    lead = np.where(columns.is_fp16, 0.0, columns.coefficients.host_lead_fraction * host_lead)
    return np.maximum(device, host - lead)


def optimizer_temporary_bytes(columns: WorkloadColumns) -> Array:
    """Per local parameter while the step runs: the square root of the second moment of all tensors at once
    (torch/optim/adamw.py, ``_multi_tensor_adamw``); fused kernels need none."""
    return np.where(columns.is_fused_optimizer | (columns.optimizer_state_bytes < 8.0), 0.0, 4.0)
