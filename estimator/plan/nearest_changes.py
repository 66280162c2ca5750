"""Where it does not fit: the nearest changes with which it would, the least loss of speed first."""

import dataclasses
from collections.abc import Iterable, Iterator

from estimator.analytic.estimate import estimate_many
from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import accelerator_names, find_accelerator
from estimator.coefficients import Coefficients
from estimator.specs.estimate import Estimate
from estimator.specs.hardware import Accelerator, Cluster
from estimator.specs.model import ModelSpec
from estimator.specs.recipe import Precision, TrainingRecipe
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind
from estimator.specs.units import BITS_PER_BYTE, GIB, format_bytes
from estimator.specs.workload import Workload

from .candidates import candidate_workloads, micro_batch_sizes
from .constraints import has_no_effect, lacks_host_memory
from .result import NearestChange

NUM_CHANGES = 3
MOST_GPUS = 4096
GPUS_PER_NODE = 8
SHORTEST_LENGTH = 128
_MICRO_BATCHES_TRIED = 4
"""Smallest micro batches of a changed input; the question is whether it fits, not the last percent of speed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One step of a ladder of changes: all its candidate workloads."""

    kind: str
    description: str
    workloads: list[Workload]


def changes_of_inputs(
    model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe, coefficients: Coefficients
) -> tuple[NearestChange, ...]:
    """Changes of hardware or recipe with which some combination fits; every combination was tried as it is."""
    ladders = (
        _more_gpus(model, cluster, recipe),
        _larger_cards(model, cluster, recipe),
        _shorter_samples(model, cluster, recipe),
        _sixteen_bits(model, cluster, recipe),
        _more_host_memory(model, cluster, recipe),
    )
    found = [change for ladder in ladders if (change := _first_that_fits(ladder, coefficients)) is not None]
    return _fastest_first(found)


def changes_of_strategy(workload: Workload, coefficients: Coefficients) -> tuple[NearestChange, ...]:
    """Changes of micro batch and strategy on the same hardware; where they are few, changes of the inputs too.

    Tried from the least change: a smaller micro batch, checkpointing, another sharding, offload; of each the fastest.
    """
    model, cluster, recipe, old = workload.model, workload.cluster, workload.recipe, workload.strategy
    sizes = [
        s for s in micro_batch_sizes(recipe.global_batch_size, cluster.num_accelerators) if s <= recipe.micro_batch_size
    ]
    checkpointed = dataclasses.replace(old, activation_checkpointing=True)
    possible = [s for s in ALL_STRATEGIES if has_no_effect(s, cluster) is None]
    groups: list[tuple[str, list[Strategy]]] = [("micro_batch_size", [old])]
    if not old.activation_checkpointing:
        groups.append(("activation_checkpointing", [checkpointed]))
    sharded = [s for s in possible if s.kind not in (old.kind, StrategyKind.NONE) and s.offload == old.offload]
    groups.append(("strategy", sharded))
    if not old.offload:
        groups.append(("offload", [s for s in possible if s.offload]))
    found = []
    for kind, strategies in groups:
        workloads = candidate_workloads(model, cluster, recipe, strategies, sizes)
        best = _fastest_fitting(workloads, coefficients)
        if best is not None:
            found.append(
                NearestChange(kind=kind, description=_difference(workload, best[0]), workload=best[0], estimate=best[1])
            )
    found = list(_fastest_first(found))
    if len(found) < NUM_CHANGES:
        found += changes_of_inputs(model, cluster, recipe, coefficients)[: NUM_CHANGES - len(found)]
    return _fastest_first(found)


def _fastest_first(found: list[NearestChange]) -> tuple[NearestChange, ...]:
    def speed(change: NearestChange) -> float:
        estimate = change.estimate
        return estimate.samples_per_second if estimate.tokens_per_second is None else estimate.tokens_per_second

    return tuple(sorted(found, key=speed, reverse=True)[:NUM_CHANGES])


def _first_that_fits(ladder: Iterable[_Attempt], coefficients: Coefficients) -> NearestChange | None:
    """The least step of a ladder that fits without offload, which is slow; failing that, the least that fits at all."""
    first: NearestChange | None = None
    for attempt in ladder:
        resident = [workload for workload in attempt.workloads if not workload.strategy.offload]
        best = _fastest_fitting(resident, coefficients)
        if best is not None:
            return _change(attempt, best)
        if first is None:
            offloaded = [workload for workload in attempt.workloads if workload.strategy.offload]
            best = _fastest_fitting(offloaded, coefficients)
            first = None if best is None else _change(attempt, best)
    return first


def _change(attempt: _Attempt, best: tuple[Workload, Estimate]) -> NearestChange:
    return NearestChange(kind=attempt.kind, description=attempt.description, workload=best[0], estimate=best[1])


def _fastest_fitting(workloads: list[Workload], coefficients: Coefficients) -> tuple[Workload, Estimate] | None:
    """The fastest that fits with room, else tightly."""
    if not workloads:
        return None
    table = estimate_many(workloads, coefficients)
    rows = [(workload, table.estimate(i)) for i, workload in enumerate(workloads)]
    for wanted in ("yes", "tight"):
        fitting = [row for row in rows if row[1].fits == wanted and not lacks_host_memory(row[1], row[0].cluster)]
        if fitting:
            return min(fitting, key=lambda row: row[1].step_time_seconds.expected)
    return None


def _all_strategies(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> list[Workload]:
    num_gpus = cluster.num_accelerators
    batch = max(1, round(recipe.global_batch_size / num_gpus)) * num_gpus
    strategies = [s for s in ALL_STRATEGIES if has_no_effect(s, cluster) is None]
    sizes = micro_batch_sizes(batch, num_gpus)[:_MICRO_BATCHES_TRIED]
    return candidate_workloads(model, cluster, dataclasses.replace(recipe, global_batch_size=batch), strategies, sizes)


def _rebuilt(cluster: Cluster, accelerator: Accelerator, num_gpus: int, num_nodes: int) -> Cluster:
    """The same machine with another card or count; links follow the card."""
    same_card = accelerator.name == cluster.node.accelerator.name
    host = cluster.node.cpu_memory_bytes
    rebuilt, _ = build_cluster(
        accelerator,
        num_gpus,
        num_nodes,
        cpu_memory_gib=None if host is None else host / GIB,
        network_gbit=cluster.network.bandwidth_bytes_per_second * BITS_PER_BYTE / 1e9
        if cluster.network and num_nodes > 1
        else None,
        gpu_memory_gib=cluster.memory_cap_bytes / GIB if same_card and cluster.memory_cap_bytes else None,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour if same_card else None,
    )
    return rebuilt


def _more_gpus(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> Iterator[_Attempt]:
    per_node, nodes = cluster.node.num_accelerators, cluster.num_nodes
    while True:
        per_node, nodes = (per_node * 2, nodes) if per_node * 2 <= GPUS_PER_NODE else (per_node, nodes * 2)
        if per_node * nodes > min(MOST_GPUS, recipe.global_batch_size):
            return
        changed = _rebuilt(cluster, cluster.node.accelerator, per_node, nodes)
        count = f"{per_node} GPUs" if nodes == 1 else f"{nodes} nodes x {per_node} GPUs"
        yield _Attempt(
            kind="num_gpus", description=f"{count} of the same card", workloads=_all_strategies(model, changed, recipe)
        )


def _larger_cards(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> Iterator[_Attempt]:
    """Cards of the same vendor by memory; of equal memory the cheapest to rent first."""
    current = cluster.node.accelerator
    cards = [find_accelerator(name)[0] for name in accelerator_names()]
    larger = [
        card
        for card in cards
        if card.vendor == current.vendor and card.memory_bytes > 1.05 * cluster.usable_memory_bytes
    ]

    def memory_then_price(card: Accelerator) -> tuple[int, float, str]:
        return card.memory_bytes, card.rental_price.usd if card.rental_price else float("inf"), card.name

    for card in sorted(larger, key=memory_then_price):
        changed = _rebuilt(cluster, card, cluster.node.num_accelerators, cluster.num_nodes)
        yield _Attempt(
            kind="gpu",
            description=f"a larger card: {card.display_name}",
            workloads=_all_strategies(model, changed, recipe),
        )


def _shorter_samples(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> Iterator[_Attempt]:
    length = recipe.sequence_length
    while length is not None and length // 2 >= SHORTEST_LENGTH:
        length //= 2
        changed = dataclasses.replace(recipe, sequence_length=length)
        yield _Attempt(
            kind="sequence_length",
            description=f"sequence length {length:,} instead of {recipe.sequence_length:,}",
            workloads=_all_strategies(model, cluster, changed),
        )


def _sixteen_bits(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> Iterator[_Attempt]:
    if recipe.precision is not Precision.FP32:
        return
    precision = Precision.BF16 if cluster.node.accelerator.supports_bf16 else Precision.FP16
    yield _Attempt(
        kind="precision",
        description=f"{precision.value} mixed precision instead of fp32",
        workloads=_all_strategies(model, cluster, dataclasses.replace(recipe, precision=precision)),
    )


def _more_host_memory(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe) -> Iterator[_Attempt]:
    """Offload that the given host memory forbids."""
    given = cluster.node.cpu_memory_bytes
    if given is None:
        return
    for factor in (2, 4, 8, 16):
        node = dataclasses.replace(cluster.node, cpu_memory_bytes=given * factor)
        yield _Attempt(
            kind="cpu_memory_gib",
            description=f"{format_bytes(given * factor)} of host memory, for offload",
            workloads=_all_strategies(model, dataclasses.replace(cluster, node=node), recipe),
        )


def _difference(old: Workload, new: Workload) -> str:
    """What changed, in words."""
    parts = []
    if new.strategy.activation_checkpointing and not old.strategy.activation_checkpointing:
        parts.append("activation checkpointing")
    if new.strategy.kind is not old.strategy.kind:
        parts.append(f"strategy {new.strategy.kind.value}")
    if new.strategy.offload and not old.strategy.offload:
        parts.append("offload")
    if new.recipe.micro_batch_size != old.recipe.micro_batch_size:
        parts.append(f"micro batch {new.recipe.micro_batch_size} instead of {old.recipe.micro_batch_size}")
    return ", ".join(parts)
