"""The tables of plan and estimate: what was understood, the ranking, the details, what was rejected, what to know."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimator.plan.result import NearestChange, PlannedStrategy, RejectedStrategy
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate
from estimator.specs.units import GIB
from estimator.specs.workload import Workload

from ..session.service import EstimateAnswer, PlanAnswer
from .output import Page, facts_table, plain_table
from .wording import (
    basis_line,
    compact_usd,
    figure,
    hardware_line,
    low_high,
    memory_line,
    model_line,
    note_lines,
    optimism_line,
    recipe_line,
    run_line,
    speed_line,
    step_line,
    storage_line,
    strategy_name,
    time_line,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_STRATEGY_CHANGES = frozenset({"micro_batch_size", "activation_checkpointing", "strategy", "offload"})
"""Kinds of change whose description names the new strategy already."""
_FIT_WORDS = {"yes": "yes", "tight": "TIGHT", "no": "NO"}
_FIT_SENTENCES = {"yes": "fits", "tight": "fits tightly, may run out of memory", "no": "does NOT fit"}


def print_plan(answer: PlanAnswer) -> None:
    """The whole answer of ``plan``."""
    page, found, base = Page(), answer.plan, answer.prepared.workload
    page.add(_understood(base, found.num_parameters, base.cluster.usable_memory_bytes, found.basis))
    best = found.best
    if best is None:
        page.heading("Nothing fits.")
        _add_changes(page, found.nearest_changes)
    else:
        page.space()
        _add_ranking(page, found.ranked)
        page.heading("Best: " + _chosen(best.workload, best.estimate))
        page.add(_details(best.estimate, base.cluster.num_accelerators))
    if found.rejected:
        page.heading("Rejected")
        page.add(facts_table(_rejected(found.rejected)))
    warnings, assumptions = (
        (answer.warnings, answer.assumptions) if best is None else (best.estimate.warnings, best.estimate.assumptions)
    )
    _add_notes(page, warnings, assumptions)
    page.print()


def print_estimate(answer: EstimateAnswer) -> None:
    """The whole answer of ``estimate``."""
    page, estimate, workload = Page(), answer.estimate, answer.prepared.workload
    page.add(_understood(workload, estimate.parameters, estimate.usable_memory_bytes, estimate.basis))
    page.heading(_chosen(workload, estimate))
    page.add(_details(estimate, workload.cluster.num_accelerators))
    if answer.nearest_changes:
        page.space()
        _add_changes(page, answer.nearest_changes)
    _add_notes(page, estimate.warnings, estimate.assumptions)
    page.print()


def _chosen(workload: Workload, estimate: Estimate) -> str:
    name = strategy_name(workload.strategy, workload.cluster.num_accelerators)
    micro, accumulation = workload.recipe.micro_batch_size, workload.gradient_accumulation_steps
    plural = "s" if accumulation > 1 else ""
    return f"{name}, micro batch {micro} x {accumulation} accumulation{plural}: {_FIT_SENTENCES[estimate.fits]}"


def _understood(workload: Workload, num_parameters: int, usable_bytes: float, basis: str) -> "RenderableType":
    return facts_table(
        [
            ("model", model_line(workload.model, num_parameters)),
            ("hardware", hardware_line(workload.cluster, usable_bytes)),
            ("recipe", recipe_line(workload.recipe)),
            ("step", step_line(workload.recipe)),
            ("basis", basis_line(basis)),
        ]
    )


def _add_ranking(page: Page, ranked: Sequence[PlannedStrategy]) -> None:
    """One line a strategy, 80 columns at most."""
    first = ranked[0].estimate
    speed = "tokens/s" if first.tokens_per_second is not None else "samples/s"
    columns = [("#", "right"), ("strategy", "left"), ("offl", "left"), ("ckpt", "left"), ("micro", "right")]
    columns += [("acc", "right"), ("s/step", "right"), (speed if first.training_days is None else "days", "right")]
    columns += [("cost", "right")] if first.cost_usd is not None else []
    columns += [("GiB", "right"), ("fits", "left")]
    table = plain_table(*columns, padding=1)
    for row in ranked:
        estimate, strategy, recipe = row.estimate, row.workload.strategy, row.workload.recipe
        days, cost = estimate.training_days, estimate.cost_usd
        cells = [str(row.rank), strategy.kind.value, "yes" if strategy.offload else "-"]
        cells += ["yes" if strategy.activation_checkpointing else "-", str(recipe.micro_batch_size)]
        cells += [str(row.workload.gradient_accumulation_steps), figure(estimate.step_time_seconds.expected)]
        cells += [figure(estimate.tokens_per_second or estimate.samples_per_second) if days is None else low_high(days)]
        cells += [compact_usd(cost.expected)] if cost is not None else []
        cells += [f"{estimate.peak_reserved_bytes.expected / GIB:.1f}", _FIT_WORDS[estimate.fits]]
        table.add_row(*cells, style="bold" if row.rank == 1 else None)
    page.add(table)
    days_legend = "" if first.training_days is None else "days: 90 % interval; "
    legend = f"{days_legend}GiB: reserved at the peak, of {first.usable_memory_bytes / GIB:.1f} usable"
    page.add(legend, style="dim")


def _details(estimate: Estimate, num_gpus: int) -> "RenderableType":
    run = run_line(estimate)
    facts = [("time", time_line(estimate)), ("speed", speed_line(estimate, num_gpus))]
    facts += [("run", run)] if run else []
    facts += [("memory", memory_line(estimate)), ("storage", storage_line(estimate))]
    return facts_table([*facts, ("optimism", optimism_line(estimate))])


def _rejected(rejected: Sequence[RejectedStrategy]) -> list[tuple[str, str]]:
    """Rows of equal reason share one sentence; a pair that differs in checkpointing only is named once."""
    by_reason: dict[str, dict[str, list[bool]]] = {}
    for row in rejected:
        name = row.strategy.kind.value + (" + offload" if row.strategy.offload else "")
        names = by_reason.setdefault(row.reason, {})
        names.setdefault(name, []).append(row.strategy.activation_checkpointing)
    lines = []
    for reason, names in by_reason.items():
        parts = []
        for name, checkpointing in names.items():
            suffix = " (ckpt or not)" if len(checkpointing) == 2 else " + ckpt" if checkpointing[0] else ""
            parts.append(name + suffix)
        lines.append(("-", f"{', '.join(parts)}: {reason}"))
    return lines


def _add_changes(page: Page, changes: Sequence[NearestChange]) -> None:
    if not changes:
        page.add("No change of card, count, length or precision that was tried makes it fit.")
        return
    page.add("Nearest changes that fit, the least loss of speed first:", style="bold")
    lines = []
    for number, change in enumerate(changes, start=1):
        workload, estimate = change.workload, change.estimate
        name = strategy_name(workload.strategy, workload.cluster.num_accelerators)
        tight = " (tight)" if estimate.fits == "tight" else ""
        needed, usable = estimate.peak_reserved_bytes.expected / GIB, estimate.usable_memory_bytes / GIB
        result = f"{figure(estimate.step_time_seconds.expected)} s a step, {needed:.1f} of {usable:.1f} GiB{tight}"
        micro = f"micro batch {workload.recipe.micro_batch_size}"
        then = "" if change.kind in _STRATEGY_CHANGES else f"then {name}, {micro}, "
        lines.append((str(number), f"{change.description}: {then}{result}"))
    page.add(facts_table(lines))


def _add_notes(page: Page, warnings: Sequence[Note], assumptions: Sequence[Note]) -> None:
    for heading, notes in (("Warnings", warnings), ("Assumptions", assumptions)):
        lines = note_lines(notes)
        if lines:
            page.heading(heading)
            page.add(facts_table([("-", line) for line in lines]))
