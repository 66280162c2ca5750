"""Which workloads a search tries: the combinations that can differ, times the micro batches that divide the batch."""

import dataclasses
import math
from collections.abc import Iterable

from estimator.specs.hardware import Cluster
from estimator.specs.model import ModelSpec
from estimator.specs.recipe import TrainingRecipe
from estimator.specs.strategy import Strategy
from estimator.specs.workload import Workload

LARGEST_MICRO_BATCH = 4096
"""Samples; no step becomes faster beyond, and memory has long run out."""
MOST_MICRO_BATCHES = 24
"""Highly composite batches have dozens of divisors; neighbours differ too little to matter."""


def divisors_of(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    low = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*low, *(number // divisor for divisor in low)}))


def micro_batch_sizes(global_batch_size: int, num_gpus: int) -> tuple[int, ...]:
    """The micro batches that divide ``global_batch_size / num_gpus``, evenly thinned to ``MOST_MICRO_BATCHES``."""
    sizes = [size for size in divisors_of(global_batch_size // num_gpus) if size <= LARGEST_MICRO_BATCH]
    while len(sizes) > MOST_MICRO_BATCHES:
        # Drop the size whose neighbours lie closest together, never the first or the last.
        gaps = [sizes[i + 1] / sizes[i - 1] for i in range(1, len(sizes) - 1)]
        del sizes[1 + gaps.index(min(gaps))]
    return tuple(sizes)


def candidate_workloads(
    model: ModelSpec,
    cluster: Cluster,
    recipe: TrainingRecipe,
    strategies: Iterable[Strategy],
    micro_batches: Iterable[int],
) -> list[Workload]:
    """Every strategy at every micro batch; a strategy's workloads lie together, micro batches in the order given."""
    recipes = [dataclasses.replace(recipe, micro_batch_size=size) for size in micro_batches]
    return [
        Workload(model=model, cluster=cluster, recipe=sized, strategy=strategy)
        for strategy in strategies
        for sized in recipes
    ]
