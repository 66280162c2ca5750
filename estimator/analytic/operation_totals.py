"""What the operation lists say about each workload: kernel seconds, bytes, kernels, saved activations."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns
from .compiled_operations import TOTALS, CompiledOperations, compiled_operations, monomials
from .compute import DeviceColumns, KernelSeconds, kernel_seconds, takes_mask_tensor

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationTotals:
    """Sums over the operations of one micro batch, [workloads]; see ``CompiledOperations`` for each meaning."""

    kernels: KernelSeconds
    forward_bytes: Array
    backward_bytes: Array
    forward_bytes_in_blocks: Array
    activation_bytes: Array
    activation_bytes_outside_blocks: Array
    logits_bytes: Array
    input_bytes: Array
    block_saved_bytes: Array
    """Of the largest single block."""
    block_inputs_bytes: Array
    """Checkpointed inputs of all blocks."""
    logits_transient_bytes: Array
    transient_bytes: Array
    forward_kernels: Array
    backward_kernels: Array
    forward_kernels_in_blocks: Array
    num_parameters: Array
    num_tensors: Array
    num_cast: Array
    num_cast_tensors: Array
    num_cast_in_blocks: Array
    num_cast_tensors_in_blocks: Array
    num_outside_blocks: Array
    largest_block: Array
    largest_tensor: Array
    num_blocks: Array
    active_parameter_fraction: Array


_FROM_PARAMETERS = (
    "num_parameters",
    "num_tensors",
    "num_cast",
    "num_cast_tensors",
    "num_cast_in_blocks",
    "num_cast_tensors_in_blocks",
    "num_outside_blocks",
    "largest_block",
    "largest_tensor",
    "num_blocks",
)
_FROM_LIST = ("forward_kernels", "backward_kernels", "forward_kernels_in_blocks", "active_parameter_fraction")


def device_columns(columns: WorkloadColumns) -> DeviceColumns:
    """Achievable rates per workload: share of the peak, capped by what the board's power allows."""
    c, power = columns.coefficients, columns.cluster.power_watts
    peak_16bit, peak_fp32 = columns.peak_16bit, columns.cluster.peak_fp32
    tensor_32bit = np.minimum(
        c.matrix_efficiency_tf32 * columns.cluster.peak_tf32,
        np.maximum(c.flops_per_joule_tf32 * power, peak_fp32 * c.matrix_efficiency_fp32),
    )
    plain_32bit = c.matrix_efficiency_fp32 * peak_fp32
    values = {
        "peak_16bit": np.minimum(c.matrix_efficiency_16bit * peak_16bit, c.flops_per_joule_16bit * power),
        "peak_32bit": np.where(columns.uses_tf32, np.maximum(tensor_32bit, plain_32bit), plain_32bit),
        "peak_fp32": peak_fp32,
        "attention_forward_rate": np.minimum(c.flash_forward_efficiency * peak_16bit, c.flops_per_joule_16bit * power),
        "attention_backward_rate": np.minimum(
            c.flash_backward_efficiency * peak_16bit, c.flops_per_joule_16bit * power
        ),
        "attention_32bit_rate": c.attention_fp32_efficiency * peak_fp32,
        "flash_ramp_length": c.flash_ramp_length,
        "matrix_ramp_seconds": c.matrix_ramp_seconds,
        "unaligned_matrix_slowdown": c.unaligned_matrix_slowdown,
        "odd_matrix_slowdown": c.odd_matrix_slowdown,
        "convolution_efficiency": c.convolution_efficiency,
        "depthwise_forward_efficiency": c.depthwise_forward_efficiency,
        "depthwise_backward_efficiency": c.depthwise_backward_efficiency,
        "scan_efficiency": c.scan_efficiency,
        "bandwidth": c.memory_bandwidth_fraction * columns.cluster.memory_bandwidth,
        "num_multiprocessors": columns.cluster.num_multiprocessors,
    }
    # Before Ampere, in fp32 and with a mask, fused attention takes the memory-efficient kernel; cuDNN takes masks too.
    is_efficient = np.array([context.attention == "efficient" for _, context in columns.groups], dtype=bool)
    takes_mask = np.array([takes_mask_tensor(model) for model, _ in columns.groups], dtype=bool)
    has_mask = takes_mask[columns.group_index] & columns.is_compiled & columns.uses_sdpa
    is_cudnn = columns.uses_sdpa & (c.cudnn_attention_speedup > 1.0) & (has_mask | ~is_efficient[columns.group_index])
    flash = np.where(is_cudnn, 1.0 / c.cudnn_attention_speedup, c.flash_attention_slowdown)
    slowdown = np.where(is_efficient[columns.group_index] & ~is_cudnn, c.efficient_attention_slowdown, flash)
    values["visits_hidden_pairs"] = np.where(has_mask, 1.0, 0.0)
    values["attention_forward_rate"] = values["attention_forward_rate"] / slowdown
    values["attention_backward_rate"] = values["attention_backward_rate"] / slowdown
    return DeviceColumns(**{name: value[:, None] for name, value in values.items()})


def _group_rows(group_index: NDArray[np.intp], num_groups: int) -> list[NDArray[np.intp]]:
    order = np.argsort(group_index, kind="stable")
    return np.split(order, np.searchsorted(group_index[order], np.arange(1, num_groups)))


def _largest(sizes: Array) -> Array:
    return sizes.max(axis=1) if sizes.shape[1] else np.zeros(len(sizes))


def _one_group(compiled: CompiledOperations, powers: Array, device: DeviceColumns, is_16bit: Flags) -> dict[str, Array]:
    kernels = kernel_seconds(compiled, powers, device, is_16bit)
    result = {field.name: getattr(kernels, field.name) for field in fields(KernelSeconds)}
    result.update(zip(TOTALS, (powers @ compiled.totals).T, strict=True))
    transients = powers @ compiled.transients
    result["logits_transient_bytes"] = _largest(transients * compiled.transient_is_logits)
    result["transient_bytes"] = _largest(transients * ~compiled.transient_is_logits)
    result["block_saved_bytes"] = _largest(powers @ compiled.block_saved)
    result["block_inputs_bytes"] = (powers @ compiled.block_inputs).sum(axis=1)
    return result


def operation_totals(columns: WorkloadColumns) -> OperationTotals:
    """Evaluates the operation list of each group for all its workloads at once."""
    size = len(columns.micro_batch_size)
    device, is_16bit = device_columns(columns), columns.is_16bit[:, None]
    powers = monomials(columns.micro_batch_size, columns.sequence_length)
    names = [f.name for f in fields(KernelSeconds)] + [
        *TOTALS,
        "logits_transient_bytes",
        "transient_bytes",
        "block_saved_bytes",
        "block_inputs_bytes",
    ]
    results = {name: np.empty(size) for name in names}
    compiled = [compiled_operations(model, context) for model, context in columns.groups]
    for group, rows in zip(compiled, _group_rows(columns.group_index, len(compiled)), strict=True):
        if not len(rows):
            continue
        local = DeviceColumns(**{f.name: getattr(device, f.name)[rows] for f in fields(DeviceColumns)})
        for name, values in _one_group(group, powers[rows], local, is_16bit[rows]).items():
            results[name][rows] = values
    for name in _FROM_PARAMETERS:
        results[name] = np.array([getattr(g.parameters, name) for g in compiled])[columns.group_index]
    for name in _FROM_LIST:
        results[name] = np.array([getattr(g, name) for g in compiled], dtype=np.float64)[columns.group_index]
    kernels = KernelSeconds(**{f.name: results.pop(f.name) for f in fields(KernelSeconds)})
    return OperationTotals(kernels=kernels, **results)
