"""Time of collectives over a node's links and the network between nodes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RingColumns:
    """Achieved bandwidths and latencies of the ring over all ranks, [workloads]."""

    num_gpus: Array
    seconds_per_byte: Array
    """Per byte that each rank hands to its neighbour, on the slowest edge of the ring."""
    latency_seconds: Array
    """One pass around: hops in the node, then between nodes as a tree."""
    launch_seconds: Array

    def gather_seconds(self, total_bytes: Array, num_collectives: Array | float) -> Array:
        """All-gather or reduce-scatter of ``total_bytes`` (the full tensor) in ``num_collectives`` calls.

        t = c (a + l) + (N - 1) / N x V x s
          V bytes of the full tensor, N ranks, s seconds per byte of the slowest edge, c calls, a latency, l launch.
        Source: ring algorithms as NCCL runs them (Thakur et al. 2005; nccl-tests PERFORMANCE.md). Neglected:
        protocol changes at small sizes, contention with other jobs.
        """
        alone = self.num_gpus <= 1
        time = num_collectives * (self.latency_seconds + self.launch_seconds)
        time = time + (self.num_gpus - 1.0) / self.num_gpus * total_bytes * self.seconds_per_byte
        return np.where(alone, 0.0, time)

    def all_reduce_seconds(self, total_bytes: Array, num_collectives: Array | float) -> Array:
        """All-reduce = reduce-scatter + all-gather: twice the volume and the latency."""
        return 2.0 * self.gather_seconds(total_bytes, num_collectives) - np.where(
            self.num_gpus <= 1, 0.0, num_collectives * self.launch_seconds
        )


def ring_columns(columns: WorkloadColumns) -> RingColumns:
    """The ring through all GPUs of all nodes.

    Inside a node each GPU sends over its own link; between nodes the ring crosses each network card once per
    direction, so the slowest edge carries the whole volume. A single GPU per node uses the network only. Without
    peer-to-peer access all copies of a node share the path through host memory.
    """
    cluster, c = columns.cluster, columns.coefficients
    host_staged = c.host_staged_bandwidth_fraction / cluster.gpus_per_node
    fraction = np.where(
        cluster.is_nvlink,
        c.nvlink_bandwidth_fraction,
        np.where(cluster.is_host_staged, host_staged, c.pcie_bandwidth_fraction),
    )
    inside = np.where(cluster.gpus_per_node > 1, 1.0 / (fraction * cluster.peer_bandwidth), 0.0)
    between = np.where(cluster.num_nodes > 1, 1.0 / (c.network_bandwidth_fraction * cluster.network_bandwidth), 0.0)
    hops = cluster.peer_latency * (cluster.gpus_per_node - 1.0)
    hops = hops + cluster.network_latency * np.ceil(np.log2(np.maximum(cluster.num_nodes, 1.0)))
    return RingColumns(
        num_gpus=cluster.num_gpus,
        seconds_per_byte=np.maximum(inside, between),
        latency_seconds=hops,
        launch_seconds=c.collective_launch_seconds,
    )
