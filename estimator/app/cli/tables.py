"""The tables of plan and estimate: what was understood, the ranking, the details, what was rejected, what to know."""

from collections.abc import Sequence

from estimator.plan.result import NearestChange, PlannedStrategy, RejectedStrategy
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate
from estimator.specs.units import GIB, format_usd
from estimator.specs.workload import Workload

from ..session.service import EstimateAnswer, PlanAnswer
from .output import console, facts_table, plain_table
from .wording import (
    basis_line, figure, hardware_line, low_high, memory_line, model_line, note_lines, optimism_line, recipe_line, run_line,
    speed_line, step_line, storage_line, strategy_name, time_line,
)  # fmt: skip

_FIT_WORDS = {"yes": "yes", "tight": "TIGHT", "no": "NO"}


def print_plan(answer: PlanAnswer) -> None:
    """The whole answer of ``plan``."""
    out, found, base = console(), answer.plan, answer.prepared.workload
    num_parameters, usable, basis = _facts_of_plan(answer)
    out.print(_understood(base, num_parameters, usable, basis))
    out.print()
    if found.best is None:
        out.print("Nothing fits.", style="bold")
        _print_changes(found.nearest_changes)
    else:
        out.print(_ranking(found.ranked))
        out.print()
        best = found.best
        num_gpus = base.cluster.num_accelerators
        out.print(f"Best: {strategy_name(best.workload.strategy, num_gpus)}, micro batch {best.workload.recipe.micro_batch_size}"
                  f" x {best.workload.gradient_accumulation_steps} accumulations"
                  + (" (tight: may run out of memory)" if best.estimate.fits == "tight" else ""), style="bold")  # fmt: skip
        out.print(_details(best.estimate, num_gpus))
    if found.rejected:
        out.print()
        out.print("Rejected", style="bold")
        out.print(_rejected(found.rejected))
    warnings = answer.warnings + (found.best.estimate.warnings if found.best else ())
    assumptions = answer.assumptions + (found.best.estimate.assumptions if found.best else ())
    _print_notes(warnings, assumptions)


def print_estimate(answer: EstimateAnswer) -> None:
    """The whole answer of ``estimate``."""
    out, estimate, workload = console(), answer.estimate, answer.prepared.workload
    num_gpus = workload.cluster.num_accelerators
    out.print(_understood(workload, estimate.parameters, estimate.usable_memory_bytes, estimate.basis))
    out.print()
    fits = {"yes": "fits", "tight": "fits tightly: may run out of memory", "no": "does NOT fit"}[estimate.fits]
    out.print(f"{strategy_name(workload.strategy, num_gpus)}, micro batch {workload.recipe.micro_batch_size}"
              f" x {workload.gradient_accumulation_steps} accumulations: {fits}", style="bold")  # fmt: skip
    out.print(_details(estimate, num_gpus))
    if answer.nearest_changes:
        out.print()
        _print_changes(answer.nearest_changes)
    _print_notes(estimate.warnings, estimate.assumptions)


def _facts_of_plan(answer: PlanAnswer) -> tuple[int, float, str]:
    found, cluster = answer.plan, answer.prepared.workload.cluster
    if found.best is not None:
        estimate = found.best.estimate
        return estimate.parameters, estimate.usable_memory_bytes, estimate.basis
    if found.nearest_changes:
        estimate = found.nearest_changes[0].estimate
        return estimate.parameters, cluster.usable_memory_bytes, estimate.basis
    from estimator.analytic.parameters import num_parameters

    return num_parameters(answer.prepared.workload.model), cluster.usable_memory_bytes, "analytical"


def _understood(workload: Workload, num_parameters: int, usable_bytes: float, basis: str) -> object:
    return facts_table([
        ("model", model_line(workload.model, num_parameters)), ("hardware", hardware_line(workload.cluster, usable_bytes)),
        ("recipe", recipe_line(workload.recipe)), ("step", step_line(workload.recipe)), ("basis", basis_line(basis)),
    ])  # fmt: skip


def _ranking(ranked: Sequence[PlannedStrategy]) -> object:
    has_days = ranked[0].estimate.training_days is not None
    has_cost = ranked[0].estimate.cost_usd is not None
    columns = [("#", "right"), ("strategy", "left"), ("offl", "left"), ("ckpt", "left"), ("micro", "right"), ("acc", "right"), ("s/step", "right")]
    columns += [("days (90 %)", "right")] if has_days else [("tokens/s" if ranked[0].estimate.tokens_per_second else "samples/s", "right")]
    columns += [("cost", "right")] if has_cost else []
    columns += [("GiB", "right"), ("fits", "left")]
    table = plain_table(*columns, padding=1)
    for row in ranked:
        estimate, strategy = row.estimate, row.workload.strategy
        cells = [str(row.rank), strategy.kind.value, "yes" if strategy.offload else "-", "yes" if strategy.activation_checkpointing else "-",
                 str(row.workload.recipe.micro_batch_size), str(row.workload.gradient_accumulation_steps),
                 figure(estimate.step_time_seconds.expected)]  # fmt: skip
        if estimate.training_days is not None:
            cells.append(low_high(estimate.training_days))
        else:
            cells.append(figure(estimate.tokens_per_second or estimate.samples_per_second))
        if estimate.cost_usd is not None:
            cells.append(format_usd(estimate.cost_usd.expected))
        cells += [f"{estimate.peak_reserved_bytes.expected / GIB:.1f}", _FIT_WORDS[estimate.fits]]
        table.add_row(*cells, style="bold" if row.rank == 1 else None)
    return table


def _details(estimate: Estimate, num_gpus: int) -> object:
    run = run_line(estimate)
    facts = [("time", time_line(estimate)), ("speed", speed_line(estimate, num_gpus))]
    facts += [("run", run)] if run else []
    facts += [("memory", memory_line(estimate)), ("storage", storage_line(estimate)), ("optimism", optimism_line(estimate))]
    return facts_table(facts)


def _rejected(rejected: Sequence[RejectedStrategy]) -> object:
    """Rows of equal reason share one line."""
    by_reason: dict[str, list[str]] = {}
    for row in rejected:
        by_reason.setdefault(row.reason, []).append(strategy_name(row.strategy, 1))
    table = plain_table(("strategy", "left"), ("reason", "left"))
    for reason, names in by_reason.items():
        table.add_row(", ".join(names), reason)
    return table


def _print_changes(changes: Sequence[NearestChange]) -> None:
    out = console()
    if not changes:
        out.print("No change of card, count, length or precision tried makes it fit.")
        return
    out.print("Nearest changes that fit, the least loss of speed first", style="bold")
    table = plain_table(("change", "left"), ("then", "left"), ("s/step", "right"), ("GiB", "right"), ("fits", "left"))
    for change in changes:
        workload, estimate = change.workload, change.estimate
        name = strategy_name(workload.strategy, workload.cluster.num_accelerators)
        table.add_row(change.description, f"{name}, micro batch {workload.recipe.micro_batch_size}", figure(estimate.step_time_seconds.expected),
                      f"{estimate.peak_reserved_bytes.expected / GIB:.1f} of {estimate.usable_memory_bytes / GIB:.1f}",
                      _FIT_WORDS[estimate.fits])  # fmt: skip
    out.print(table)


def _print_notes(warnings: Sequence[Note], assumptions: Sequence[Note]) -> None:
    out = console()
    for heading, notes in (("Warnings", warnings), ("Assumptions", assumptions)):
        lines = note_lines(notes)
        if lines:
            out.print()
            out.print(heading, style="bold")
            out.print(facts_table([("-", line) for line in lines]))
