"""Offload: transfers over PCIe, Adam on the CPU, host memory."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSeconds:
    """Exposed seconds of one optimizer step."""

    transfers: Array
    cpu_optimizer: Array

    @property
    def total(self) -> Array:
        return self.transfers + self.cpu_optimizer


def offload_seconds(columns: WorkloadColumns, num_parameters: Array) -> OffloadSeconds:
    """Transfers and CPU Adam of one step; zero without offload.

    ZeRO-1/2: each micro batch sends its reduced 16-bit gradients to the host (with accumulation the running sum comes
    back first, in and out: DeepSpeed stage_1_and_2.async_accumulate_grad_in_cpu_via_gpu); the step returns 16-bit
    weights. ZeRO-3 and FSDP fetch weight shards for forward and for backward of each micro batch too (16 bit, and
    fp32 for FSDP) and send gradients; part of that hides behind compute.
    CPU Adam: DeepSpeed's uses all cores for the ranks of a node together: P / nodes / rate. FSDP's torch optimizer
    runs per rank on its own shard: P / N / rate.
    Neglected: NUMA, memory bandwidth of the host, paging. Source: file names above; rates in ``Coefficients``.
    """
    c, cluster = columns.coefficients, columns.cluster
    steps, shard = columns.accumulation_steps, num_parameters / cluster.num_gpus
    is_light = (columns.zero_stage == 1) | (columns.zero_stage == 2)
    gradient_bytes = np.where(columns.is_fsdp, 4.0, 2.0)
    weight_bytes = np.where(columns.is_fsdp, 4.0, 2.0)
    # ZeRO-1 reduces, and so sends, at the end of the accumulation only.
    sends = np.where(columns.zero_stage == 1, 1.0, steps)
    accumulations = np.where(is_light & (columns.zero_stage == 2), 2.0 * (steps - 1.0), 0.0)
    exposed = shard * gradient_bytes * (sends + accumulations) + np.where(is_light, 2.0 * shard, 0.0)
    hideable = np.where(is_light, 0.0, 2.0 * steps * weight_bytes * shard)
    rate = c.pcie_copy_fraction * cluster.host_link_bandwidth
    transfers = (exposed + (1.0 - c.offload_overlap_fraction) * hideable) / rate
    per_host = num_parameters / cluster.num_nodes / c.cpu_adam_parameters_per_second
    cpu = np.where(columns.is_fsdp, shard / c.cpu_adam_torch_parameters_per_second, per_host)
    return OffloadSeconds(
        transfers=np.where(columns.has_offload, transfers, 0.0), cpu_optimizer=np.where(columns.has_offload, cpu, 0.0)
    )


def host_memory_bytes(columns: WorkloadColumns, num_parameters: Array) -> Array:
    """Host memory per node.

    Each rank holds interpreter and libraries, and builds the model in fp32 before it moves (4 bytes per parameter,
    not with ZeRO-3, which shards while building). Offload keeps 16 bytes per parameter of the node's share (fp32
    master, gradient and two moments), times 1 + overhead for pinned and staging copies: 33B on one node ran with
    750-800 GB where 16 bytes make 520. Neglected: the data set in the page cache.
    """
    c, cluster = columns.coefficients, columns.cluster
    building = np.where(columns.zero_stage == 3, 0.0, 4.0 * num_parameters) * cluster.gpus_per_node
    states = num_parameters / cluster.num_nodes * (columns.optimizer_state_bytes + 8.0)
    offloaded = np.where(columns.has_offload, states * (1.0 + c.host_memory_overhead_fraction), 0.0)
    return c.host_bytes_per_rank * cluster.gpus_per_node + np.maximum(building, offloaded)
