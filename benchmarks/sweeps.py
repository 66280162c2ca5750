"""Which rows to measure: the cross product of options."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from estimator.specs.strategy import Strategy

NAIVE = {"attention": "eager", "tf32": False, "compile": False}
"""The study's naive settings; the precision is the published one."""
FREE_LUNCH = {"attention": "sdpa", "tf32": True, "compile": True}
"""No cost in quality: always worth having."""
EAGER_SDPA = {"attention": "sdpa", "tf32": True, "compile": False}
"""Free lunch without the minutes that compiling takes: most rows of a sweep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One row, or one search for the largest micro batch, before the machine and defaults are filled in."""

    options: Mapping[str, object] = field(default_factory=dict)
    """In the option names of the command line; what is absent takes the model's recipe or a default."""
    finds_largest_micro_batch: bool = False
    resolution_fraction: float = 0.0
    """Of the search: stop when what fits and what does not are this close."""
    num_warmup_steps: int = 2
    num_steps: int = 3
    min_seconds: float = 0.3
    linear_check: bool = False
    in_own_process: bool = False
    is_microbenchmark: bool = False
    only_if_it_fits: bool = False
    """Leave it out where the estimator says that it does not fit: this row is not about memory."""


def strategy_options(strategy: Strategy) -> dict[str, object]:
    """A strategy in option names."""
    return {
        "strategy": str(strategy.kind),
        "offload": strategy.offload,
        "activation_checkpointing": strategy.activation_checkpointing,
    }


def grid(
    *,
    models: Sequence[str],
    strategies: Sequence[Strategy],
    settings: Sequence[Mapping[str, object]],
    micro_batch_sizes: Sequence[int] | None,
    axes: Mapping[str, Sequence[object]],
    template: PlannedRow,
) -> list[PlannedRow]:
    """Every combination; ``micro_batch_sizes`` None searches for the largest. Micro batches ascend innermost, so that
    the first that does not fit spares the rest."""
    rows = []
    for model, setting, values in product(models, settings, list(product(*axes.values()))):
        for strategy in strategies:
            options: dict[str, object] = {"model": model}
            options |= {**setting, **dict(zip(axes, values, strict=True)), **strategy_options(strategy)}
            if micro_batch_sizes is None:
                rows.append(replace(template, options=options, finds_largest_micro_batch=True))
            for size in sorted(micro_batch_sizes or ()):
                rows.append(replace(template, options={**options, "micro_batch_size": size}))
    return rows
