"""Machines: accelerators, links, nodes, clusters, prices."""

from dataclasses import dataclass
from enum import StrEnum


class NumberFormat(StrEnum):
    """Formats in which matrix units multiply (accumulating in fp32)."""

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    """Listed on data sheets; no recipe trains in it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """An editable default, not a quotation."""

    usd: float
    """Per accelerator-hour when renting, per card when buying."""
    date: str
    """ISO date (or month) on which the source showed it."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One device as software sees it (an MI250 is two)."""

    name: str
    """Canonical name: ``a100-80gb``."""
    display_name: str
    vendor: str
    peak_dense_flop_per_second: dict[NumberFormat, float]
    """Dense data-sheet rate with fp32 accumulation; a missing format is not supported in hardware."""
    memory_bytes: int
    """``total_memory`` as the device reports it, not the marketing figure."""
    memory_bandwidth_bytes_per_second: float
    compute_capability: tuple[int, int] | None
    """NVIDIA compute capability; None for other vendors."""
    num_multiprocessors: int | None
    host_link: str
    """Name of the link to the host: ``pcie4x16``."""
    peer_link: str
    """Default link to other GPUs of its node: ``nvlink3``, ``pcie4x16``."""
    bridge_link: str | None = None
    """NVLink bridge that joins two cards only; four such cards talk over ``peer_link``."""
    supports_peer_to_peer: bool = True
    """False for GeForce since Turing: copies between cards go through host memory unless a bridge joins them."""
    power_watts: float | None = None
    l2_cache_bytes: int | None = None
    context_bytes: int = 500 * 2**20
    """What the driver and libraries take before the first tensor."""
    purchase_price: Price | None = None
    rental_price: Price | None = None
    sources: tuple[str, ...] = ()

    @property
    def supports_bf16(self) -> bool:
        return NumberFormat.BF16 in self.peak_dense_flop_per_second

    @property
    def supports_tf32(self) -> bool:
        return NumberFormat.TF32 in self.peak_dense_flop_per_second


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A path for bytes, per GPU and direction."""

    name: str
    bandwidth_bytes_per_second: float
    """Data-sheet rate per direction."""
    latency_seconds: float
    """Per message and hop of a collective."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with one kind of accelerator."""

    accelerator: Accelerator
    num_accelerators: int
    peer_link: Link
    """Between the GPUs of this node, as chosen or looked up for this count."""
    host_link: Link
    """Between each GPU and host memory."""
    cpu_memory_bytes: int | None = None
    """Host memory; None where the user gave none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes joined by a network."""

    node: Node
    num_nodes: int = 1
    network: Link | None = None
    """Per node and direction; None on a single node."""
    memory_cap_bytes: int | None = None
    """``--gpu-memory-gib``: what the allocator may take; None for the whole card."""
    usd_per_gpu_hour: float | None = None
    """Rental price in use; None where unknown."""

    @property
    def num_accelerators(self) -> int:
        return self.node.num_accelerators * self.num_nodes

    @property
    def usable_memory_bytes(self) -> int:
        """Device memory less context, or the cap."""
        accelerator = self.node.accelerator
        available = accelerator.memory_bytes - accelerator.context_bytes
        return available if self.memory_cap_bytes is None else min(self.memory_cap_bytes, available)
