"""Which link joins the cards, what joins the nodes, and what is said about it."""

import math

import pytest

from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import find_accelerator
from estimator.specs.errors import Note, SpecError
from estimator.specs.hardware import Cluster
from estimator.specs.units import GB, GIB


def build(gpu: str, num_gpus: int, num_nodes: int = 1, **options: object) -> tuple[Cluster, tuple[Note, ...]]:
    return build_cluster(find_accelerator(gpu)[0], num_gpus, num_nodes, **options)  # type: ignore[arg-type]


def link(gpu: str, num_gpus: int, **options: object) -> str:
    return build(gpu, num_gpus, **options)[0].node.peer_link.name


def codes(notes: tuple[Note, ...]) -> set[str]:
    return {note.code for note in notes}


@pytest.mark.parametrize(
    ("gpu", "count", "name"),
    [
        ("a100-80gb", 8, "nvlink3"),
        ("h100-sxm", 2, "nvlink4"),
        ("a100-pcie-80gb", 2, "nvlink-bridge-a100"),
        ("a100-pcie-80gb", 4, "pcie4x16"),
        ("rtx-3090", 2, "nvlink-bridge-3"),
        ("rtx-3090", 4, "pcie4x16-host-staged"),
        ("rtx-a6000", 4, "pcie4x16"),
        ("rtx-4090", 2, "pcie4x16-host-staged"),
        ("rtx-5060-ti-16gb", 2, "pcie5x8-host-staged"),
        ("h100-nvl", 2, "nvlink-bridge-h100"),
        ("h100-nvl", 8, "pcie5x16"),
        ("mi300x", 8, "infinity-fabric-mi300"),
    ],
)
def test_the_link_follows_card_and_count(gpu: str, count: int, name: str) -> None:
    assert link(gpu, count) == name


def test_every_assumption_about_links_is_said() -> None:
    assert "bridge_assumed" in codes(build("rtx-3090", 2)[1])
    assert "bridge_joins_pairs" in codes(build("rtx-a6000", 4)[1])
    assert "no_peer_to_peer" in codes(build("rtx-4090", 4)[1])
    assert not codes(build("rtx-4090", 1)[1]) & {"no_peer_to_peer", "bridge_assumed"}
    assert "many_gpus_per_node" in codes(build("a100-80gb", 64)[1])
    assert "many_gpus_per_node" not in codes(build("gb200", 72)[1])


@pytest.mark.parametrize(
    ("gpu", "count", "typed", "name"),
    [
        ("a100-80gb", 4, "nvlink", "nvlink3"),
        ("a100-80gb", 4, "PCIe", "pcie4x16"),
        ("a100-80gb", 4, "pcie3", "pcie3x16"),
        ("rtx-3090", 2, "pcie", "pcie4x16-host-staged"),
        ("rtx-3090", 2, "NVLink", "nvlink-bridge-3"),
        ("rtx-a6000", 4, "nvlink", "pcie4x16"),
        ("rtx-4090", 2, "pcie-p2p", "pcie4x16"),
        ("mi300x", 8, "xgmi", "infinity-fabric-mi300"),
        ("gh200", 2, "pcie", "pcie5x16"),
        ("a100-80gb", 8, "nvlink2", "nvlink2"),
    ],
)
def test_a_named_link_is_taken(gpu: str, count: int, typed: str, name: str) -> None:
    assert link(gpu, count, interconnect=typed) == name


def test_the_chosen_link_can_be_typed_again() -> None:
    for gpu in ("rtx-4090", "a100-80gb", "a100-pcie-80gb", "mi300x"):
        chosen = link(gpu, 4)
        assert link(gpu, 4, interconnect=chosen) == chosen


def test_stated_peer_to_peer_access_holds_for_the_cluster() -> None:
    cluster, notes = build("rtx-4090", 2, interconnect="pcie-p2p")
    assert cluster.node.accelerator.supports_peer_to_peer
    assert "peer_to_peer_stated" in codes(notes)


def test_a_mesh_gives_a_small_group_a_part_of_its_links() -> None:
    rates = {n: build("mi300x", n)[0].node.peer_link.bandwidth_bytes_per_second for n in (2, 4, 8)}
    assert rates[8] == 448 * GB
    assert rates[2] == pytest.approx(64 * GB)
    assert rates[4] == pytest.approx(3 * 64 * GB)


def test_a_link_that_the_card_lacks_is_refused_with_those_it_has() -> None:
    with pytest.raises(SpecError, match=r"'nvlink', which rtx-4090 does not have; it has pcie"):
        build("rtx-4090", 2, interconnect="nvlink")
    with pytest.raises(SpecError, match="carrier pigeon"):
        build("a100-80gb", 2, interconnect="carrier pigeon")


def test_network_between_nodes() -> None:
    alone, _ = build("a100-80gb", 8)
    assert alone.network is None
    given, notes = build("a100-80gb", 8, 2, network_gbit=100)
    assert given.network is not None
    assert given.network.bandwidth_bytes_per_second == 12.5 * GB
    assert "assumed_network" not in codes(notes)
    known, notes = build("h100-sxm", 8, 2)
    assert known.network is not None
    assert known.network.bandwidth_bytes_per_second == 400 * GB
    assert "assumed_network" in codes(notes)
    unknown, notes = build("rtx-a4000", 3, 2)
    assert unknown.network is not None
    assert unknown.network.bandwidth_bytes_per_second == 12.5 * GB
    assert unknown.num_accelerators == 6


def test_memory_price_and_host() -> None:
    cluster, notes = build("a100-80gb", 4, cpu_memory_gib=256, gpu_memory_gib=40, usd_per_gpu_hour=0)
    assert cluster.node.cpu_memory_bytes == 256 * GIB
    assert cluster.usable_memory_bytes == 40 * GIB
    assert cluster.usd_per_gpu_hour == 0
    assert notes == ()
    cluster, notes = build("a100-80gb", 4, gpu_memory_gib=200)
    card = cluster.node.accelerator
    assert cluster.usable_memory_bytes == card.memory_bytes - card.context_bytes
    assert {"memory_cap_without_effect", "assumed_price"} <= codes(notes)
    assert cluster.node.cpu_memory_bytes is None
    assert cluster.usd_per_gpu_hour == card.rental_price.usd  # type: ignore[union-attr]


def test_every_bad_number_is_reported_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        build(
            "a100-80gb",
            0,
            -1,
            network_gbit=0.0,
            cpu_memory_gib=math.nan,
            gpu_memory_gib=math.inf,
            usd_per_gpu_hour=-1.0,
        )
    assert {problem.field for problem in caught.value.problems} == {
        "num_gpus",
        "num_nodes",
        "network_gbit",
        "cpu_memory_gib",
        "gpu_memory_gib",
        "usd_per_gpu_hour",
    }
