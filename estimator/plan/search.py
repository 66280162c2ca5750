"""The search: every combination at every micro batch in one evaluation, the best of each, ranked."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from estimator.analytic.estimate import estimate_many
from estimator.coefficients import Coefficients
from estimator.specs.estimate import Estimate
from estimator.specs.hardware import Cluster
from estimator.specs.model import ModelSpec
from estimator.specs.recipe import TrainingRecipe
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind
from estimator.specs.workload import Workload

from .candidates import candidate_workloads, micro_batch_sizes
from .constraints import has_no_effect, lacks_host_memory, rejection
from .nearest_changes import changes_of_inputs
from .result import Plan, PlannedStrategy, RejectedStrategy

_SIMPLEST_FIRST = (
    StrategyKind.NONE,
    StrategyKind.ZERO_1,
    StrategyKind.ZERO_2,
    StrategyKind.FSDP_SHARD_GRAD_OP,
    StrategyKind.FSDP_FULL_SHARD,
    StrategyKind.ZERO_3,
)
_SAME_TIME = 1e-6
"""Relative difference of step times below which the simpler strategy or smaller micro batch goes first."""


def plan(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe, coefficients: Coefficients) -> Plan:
    """Rank all 22 combinations by expected step time; reject what cannot run, each with its reason.

    Each combination stands at the micro batch with the shortest step among those that fit with room (``yes``),
    or, where none does, among those that fit tightly. ``recipe.micro_batch_size`` is ignored; the global batch
    must divide by the number of GPUs.
    """
    found = search(model, cluster, recipe, coefficients)
    ranked = tuple(
        PlannedStrategy(rank=rank, workload=workload, estimate=estimate)
        for rank, (workload, estimate) in enumerate(sorted(found.best, key=_ranking_key), start=1)
    )
    changes = () if ranked else changes_of_inputs(model, cluster, recipe, coefficients)
    return Plan(
        num_parameters=found.num_parameters,
        basis=coefficients.basis,
        ranked=ranked,
        rejected=tuple(found.rejected),
        nearest_changes=changes,
    )


class Found(NamedTuple):
    """What one evaluation of all combinations gave."""

    num_parameters: int
    best: list[tuple[Workload, Estimate]]
    """The best of each combination that can run."""
    rejected: list[RejectedStrategy]


def search(model: ModelSpec, cluster: Cluster, recipe: TrainingRecipe, coefficients: Coefficients) -> Found:
    """Evaluate all combinations at all micro batches and choose one micro batch for each."""
    rejected: list[RejectedStrategy] = []
    strategies: list[Strategy] = []
    for strategy in ALL_STRATEGIES:
        pointless = has_no_effect(strategy, cluster)
        if pointless is None:
            strategies.append(strategy)
        else:
            rejected.append(pointless)
    sizes = micro_batch_sizes(recipe.global_batch_size, cluster.num_accelerators)
    workloads = candidate_workloads(model, cluster, recipe, strategies, sizes)
    table = estimate_many(workloads, coefficients)
    best: list[tuple[Workload, Estimate]] = []
    for index, strategy in enumerate(strategies):
        start = index * len(sizes)
        estimates = [table.estimate(i) for i in range(start, start + len(sizes))]
        chosen = best_of(estimates, cluster)
        if chosen is None:
            rejected.append(rejection(strategy, estimates[0], cluster))
        else:
            best.append((workloads[start + chosen], estimates[chosen]))
    return Found(num_parameters=table.estimate(0).parameters, best=best, rejected=rejected)


def best_of(estimates: Sequence[Estimate], cluster: Cluster) -> int | None:
    """Index of the fastest that fits with room, else of the fastest that fits tightly; None where nothing fits."""
    for wanted in ("yes", "tight"):
        fitting = [i for i, e in enumerate(estimates) if e.fits == wanted and not lacks_host_memory(e, cluster)]
        if fitting:
            fastest = min(estimates[i].step_time_seconds.expected for i in fitting)
            return next(i for i in fitting if estimates[i].step_time_seconds.expected <= fastest * (1 + _SAME_TIME))
    return None


def _ranking_key(row: tuple[Workload, Estimate]) -> tuple[float, int, bool, bool]:
    workload, estimate = row
    strategy = workload.strategy
    return (
        round(math.log(estimate.step_time_seconds.expected) / _SAME_TIME),
        _SIMPLEST_FIRST.index(strategy.kind),
        strategy.activation_checkpointing,
        strategy.offload,
    )
