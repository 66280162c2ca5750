"""Clusters from a card and counts: which link joins the cards, what joins the nodes, what was assumed."""

import dataclasses
import math

from ..specs.errors import Note, Problem, SpecError
from ..specs.hardware import Accelerator, Cluster, Link, Node
from ..specs.units import BITS_PER_BYTE, GIB
from .load import load_links
from .lookup import known_nodes
from .spelling import nearest_names

_STAGED = "-host-staged"
_BITS_PER_GIGABIT = 1e9
_DEFAULT_NETWORK_GBIT = 100.0
_FAST_NETWORK_GBIT = 200.0
_FAST_LATENCY_SECONDS = 8e-6
_SLOW_LATENCY_SECONDS = 25e-6
_MOST_GPUS_WITHOUT_REMARK = 16
_PCIE_WORDS = {"pcie": None, "pci": None, **{f"pcie{number}": f"pcie{number}x16" for number in (3, 4, 5, 6)}}
_NVLINK_WORDS = ("nvlink", "nvswitch", "nv", "sxm", "nvlink-bridge", "bridge")
_FABRIC_WORDS = ("infinity-fabric", "xgmi")
_PEER_TO_PEER = "pcie-p2p"


def build_cluster(
    accelerator: Accelerator,
    num_gpus: int,
    num_nodes: int,
    *,
    interconnect: str | None = None,
    network_gbit: float | None = None,
    cpu_memory_gib: float | None = None,
    gpu_memory_gib: float | None = None,
    usd_per_gpu_hour: float | None = None,
) -> tuple[Cluster, tuple[Note, ...]]:
    """``num_nodes`` equal nodes of ``num_gpus`` cards, and what was assumed. Raises SpecError with every problem."""
    problems = [
        *_count_problems("num_gpus", num_gpus), *_count_problems("num_nodes", num_nodes),
        *_size_problems("network_gbit", network_gbit, "Gbit/s"),
        *_size_problems("cpu_memory_gib", cpu_memory_gib, "GiB"),
        *_size_problems("gpu_memory_gib", gpu_memory_gib, "GiB"),
        *_size_problems("usd_per_gpu_hour", usd_per_gpu_hour, "USD", may_be_zero=True),
    ]  # fmt: skip
    if problems:
        raise SpecError(*problems)
    accelerator, peer_link, notes = _peer_link(accelerator, num_gpus, interconnect)
    notes += _count_notes(accelerator, num_gpus)
    network, network_notes = _network(accelerator, num_gpus, num_nodes, network_gbit)
    cap, cap_notes = _memory_cap(accelerator, gpu_memory_gib)
    price, price_notes = _price(accelerator, usd_per_gpu_hour)
    node = Node(
        accelerator=accelerator, num_accelerators=num_gpus, peer_link=peer_link, host_link=_link(accelerator.host_link),
        cpu_memory_bytes=None if cpu_memory_gib is None else round(cpu_memory_gib * GIB),
    )  # fmt: skip
    cluster = Cluster(node=node, num_nodes=num_nodes, network=network, memory_cap_bytes=cap, usd_per_gpu_hour=price)
    return cluster, (*notes, *network_notes, *cap_notes, *price_notes)


def _count_problems(field: str, value: int) -> list[Problem]:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 1_000_000:
        return []
    message = f"{field} is {value!r}; it must be a whole number from 1 to 1,000,000"
    return [Problem(code="bad_value", field=field, message=message)]


def _size_problems(field: str, value: float | None, unit: str, *, may_be_zero: bool = False) -> list[Problem]:
    if value is None or (math.isfinite(value) and (value > 0 or (may_be_zero and value == 0))):
        return []
    lowest = "at least 0" if may_be_zero else "more than 0"
    return [Problem(code="bad_value", field=field, message=f"{field} is {value!r}; it must be {lowest} {unit}")]


def _link(name: str) -> Link:
    return load_links()[name][0]


def _mesh_link(name: str, num_gpus: int) -> Link:
    """A link; of a mesh of direct links, the part that ``num_gpus`` cards can use."""
    link, mesh_peers = load_links()[name]
    if mesh_peers is None or not 2 <= num_gpus <= mesh_peers:
        return link
    share = (num_gpus - 1) / mesh_peers
    return dataclasses.replace(link, bandwidth_bytes_per_second=link.bandwidth_bytes_per_second * share)


def _peer_link(
    accelerator: Accelerator, num_gpus: int, interconnect: str | None
) -> tuple[Accelerator, Link, tuple[Note, ...]]:
    notes: tuple[Note, ...] = ()
    name_of_card = accelerator.name
    if interconnect is None:
        name = accelerator.peer_link
        if num_gpus == 2 and accelerator.bridge_link is not None:
            name = accelerator.bridge_link
            message = f"Assuming an NVLink bridge between the two {name_of_card}; without one: --interconnect pcie."
            notes = (Note(code="bridge_assumed", message=message),)
        elif num_gpus > 2 and accelerator.bridge_link is not None:
            notes = (_pairs_only(accelerator, num_gpus),)
    else:
        accelerator, name, notes = _named_link(accelerator, num_gpus, interconnect)
    if name.startswith("pcie") and not accelerator.supports_peer_to_peer and not name.endswith(_STAGED):
        name = name + _STAGED if name + _STAGED in load_links() else name
        if num_gpus > 1:
            notes += (Note(code="no_peer_to_peer", message=(
                f"{name_of_card} has no peer-to-peer access over PCIe: data between cards goes through host memory "
                f"(with a driver that allows it: --interconnect {_PEER_TO_PEER}).")),)  # fmt: skip
    return accelerator, _mesh_link(name, num_gpus), notes


def _named_link(
    accelerator: Accelerator, num_gpus: int, interconnect: str
) -> tuple[Accelerator, str, tuple[Note, ...]]:
    """The link that a user names: a kind (``nvlink``, ``pcie``) or an entry of ``links.toml``."""
    word = interconnect.strip().lower().replace("_", "-").replace(" ", "-")
    if word == _PEER_TO_PEER:
        message = f"Peer-to-peer access over PCIe taken as working on {accelerator.name}."
        able = dataclasses.replace(accelerator, supports_peer_to_peer=True)
        return able, _pcie_of(accelerator), (Note(code="peer_to_peer_stated", message=message),)
    if word in _PCIE_WORDS:
        return accelerator, _PCIE_WORDS[word] or _pcie_of(accelerator), ()
    if word in load_links():
        return accelerator, word, ()
    own = accelerator.peer_link
    if word in _FABRIC_WORDS and own.startswith("infinity-fabric"):
        return accelerator, own, ()
    if word in _NVLINK_WORDS or (word.startswith("nvlink") and word.removeprefix("nvlink").strip("-").isdigit()):
        if own.startswith("nvlink"):
            return accelerator, own, ()
        if accelerator.bridge_link is not None and num_gpus <= 2:
            return accelerator, accelerator.bridge_link, ()
        if accelerator.bridge_link is not None:
            return accelerator, own, (_pairs_only(accelerator, num_gpus),)
    allowed = _allowed(accelerator)
    near = nearest_names(word, (*allowed, *load_links()))
    hint = f"did you mean {', '.join(near)}?" if near else "`traincast catalog gpus` shows each card's link."
    has = f"which {accelerator.name} does not have; it has {', '.join(allowed)}"
    message = f"interconnect is {interconnect[:60]!r}, {has}; {hint}"
    raise SpecError(Problem(code="bad_value", field="interconnect", message=message))


def _pairs_only(accelerator: Accelerator, num_gpus: int) -> Note:
    message = f"NVLink bridges of {accelerator.name} join pairs only: {num_gpus} cards exchange data over PCIe."
    return Note(code="bridge_joins_pairs", message=message)


def _pcie_of(accelerator: Accelerator) -> str:
    """The PCIe slot of a card; a coherent host link stands for PCIe 5."""
    return accelerator.host_link if accelerator.host_link.startswith("pcie") else "pcie5x16"


def _allowed(accelerator: Accelerator) -> tuple[str, ...]:
    fast = [name for name in (accelerator.peer_link, accelerator.bridge_link) if name and not name.startswith("pcie")]
    return (*fast, "pcie")


def _count_notes(accelerator: Accelerator, num_gpus: int) -> tuple[Note, ...]:
    if num_gpus <= _MOST_GPUS_WITHOUT_REMARK or accelerator.host_link.startswith("nvlink-c2c"):
        return ()
    message = f"{num_gpus} GPUs in one node is unusual: --num-gpus counts one node, --num-nodes the nodes."
    return (Note(code="many_gpus_per_node", message=message),)


def _network(
    accelerator: Accelerator, num_gpus: int, num_nodes: int, gbit: float | None
) -> tuple[Link | None, tuple[Note, ...]]:
    if num_nodes == 1:
        return None, ()
    notes: tuple[Note, ...] = ()
    source = "as given"
    if gbit is None:
        same = [node for node in known_nodes() if node.gpu == accelerator.name and node.num_gpus == num_gpus]
        gbit = min((node.network_gbit for node in same), default=_DEFAULT_NETWORK_GBIT)
        source = f"as in {same[0].display_name}" if same else "a common data centre network"
        notes = (Note(code="assumed_network", message=(
            f"Network between nodes assumed: {gbit:g} Gbit/s a node, {source} (--network-gbit).")),)  # fmt: skip
    latency = _FAST_LATENCY_SECONDS if gbit >= _FAST_NETWORK_GBIT else _SLOW_LATENCY_SECONDS
    link = Link(
        name=f"network-{gbit:g}gbit", bandwidth_bytes_per_second=gbit * _BITS_PER_GIGABIT / BITS_PER_BYTE,
        latency_seconds=latency, source=source,
    )  # fmt: skip
    return link, notes


def _memory_cap(accelerator: Accelerator, gib: float | None) -> tuple[int | None, tuple[Note, ...]]:
    if gib is None:
        return None, ()
    offered = (accelerator.memory_bytes - accelerator.context_bytes) / GIB
    if gib > offered:
        message = f"--gpu-memory-gib {gib:g} is more than {accelerator.name} offers; {offered:.1f} GiB are counted."
        return round(gib * GIB), (Note(code="memory_cap_without_effect", message=message),)
    return round(gib * GIB), ()


def _price(accelerator: Accelerator, usd: float | None) -> tuple[float | None, tuple[Note, ...]]:
    if usd is not None:
        return usd, ()
    price = accelerator.rental_price
    if price is None:
        return None, ()
    message = f"Rental price assumed: ${price.usd:,.2f} per GPU-hour ({price.date}; --usd-per-gpu-hour)."
    return price.usd, (Note(code="assumed_price", message=message),)
