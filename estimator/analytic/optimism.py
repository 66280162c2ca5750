"""Why a step takes longer than FLOPs / peak: a waterfall of named causes that sums to the expected step."""

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns
from .operation_totals import OperationTotals
from .step_time import StepSeconds

Array = NDArray[np.float64]

OPTIMISM_PARTS = (
    "flops_at_peak",
    "kernel_efficiency",
    "attention",
    "memory_bound_operations",
    "launch",
    "recomputation",
    "optimizer",
    "communication",
    "offload",
    "input",
)


def optimism_parts(columns: WorkloadColumns, totals: OperationTotals, step: StepSeconds) -> Array:
    """[workloads, OPTIMISM_PARTS] in seconds of one step.

    flops_at_peak      3 x forward FLOPs / dense peak, shared between products and attention
    kernel_efficiency  what matrix products and convolutions take beyond their share
    attention          the same for fused attention (its recomputing backward counts here)
    The rest are terms of ``StepSeconds`` as they are.
    """
    steps, micro, kernels = columns.accumulation_steps, step.micro, totals.kernels
    ideal_matrix = 3.0 * kernels.matrix_forward_flops / columns.peak
    ideal_attention = 3.0 * (kernels.model_forward_flops - kernels.matrix_forward_flops) / columns.peak
    return np.stack(
        [
            steps * (ideal_matrix + ideal_attention),
            steps * (micro.matrix - ideal_matrix),
            steps * (micro.attention - ideal_attention),
            steps * micro.memory_bound,
            steps * micro.launch,
            steps * micro.recomputation,
            step.optimizer,
            step.communication,
            step.offload,
            step.input,
        ],
        axis=1,
    )


def hardware_flops(columns: WorkloadColumns, totals: OperationTotals) -> Array:
    """FLOPs of one micro batch that the device executes for the model and for recomputation (HFU).

    The fused attention kernel's own recomputation is not counted, as is usual for HFU.
    """
    recomputed = np.where(columns.has_checkpointing, totals.kernels.recomputed_flops, 0.0)
    return 3.0 * totals.kernels.model_forward_flops + recomputed
