"""What the front ends call: options in, answers out. The only wiring of inputs, estimator and planner."""

import dataclasses
from dataclasses import dataclass, field

from estimator.analytic.estimate import estimate
from estimator.coefficients import Coefficients
from estimator.plan.nearest_changes import changes_of_strategy
from estimator.plan.result import NearestChange, Plan
from estimator.plan.search import plan
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate
from estimator.specs.hardware import Cluster
from estimator.specs.units import format_bytes
from estimator.specs.workload import Workload

from .calibrations import coefficients_in_use
from .inputs import InputReader, PreparedWorkload, strategy_notes
from .options import WorkloadOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """One workload estimated."""

    prepared: PreparedWorkload
    estimate: Estimate
    """With the warnings and assumptions of the inputs merged in."""
    nearest_changes: tuple[NearestChange, ...] = ()
    """Where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """All strategies of one model on one machine."""

    prepared: PreparedWorkload
    plan: Plan
    warnings: tuple[Note, ...] = ()
    assumptions: tuple[Note, ...] = ()


@dataclass(slots=True)
class Session:
    """Remembers what it resolved; one per process."""

    reader: InputReader = field(default_factory=InputReader)

    def estimate(self, options: WorkloadOptions, notes: tuple[Note, ...] = ()) -> EstimateAnswer:
        """One fully specified workload."""
        prepared = self.reader.prepare(options)
        coefficients = coefficients_in_use(options.calibration, prepared.workload.cluster)
        result = merge_notes(estimate(prepared.workload, coefficients), notes + prepared.warnings, prepared.assumptions, prepared.workload)
        changes = changes_of_strategy(prepared.workload, coefficients) if result.fits == "no" else ()
        return EstimateAnswer(prepared=prepared, estimate=result, nearest_changes=changes)

    def plan(self, options: WorkloadOptions, notes: tuple[Note, ...] = ()) -> PlanAnswer:
        """All combinations, ranked."""
        prepared = self.reader.prepare_plan(options)
        coefficients: Coefficients = coefficients_in_use(options.calibration, prepared.workload.cluster)
        workload = prepared.workload
        found = plan(workload.model, workload.cluster, workload.recipe, coefficients)
        ranked = tuple(
            dataclasses.replace(row, estimate=merge_notes(
                row.estimate, notes + prepared.warnings + strategy_notes(
                    row.workload.strategy, row.workload.recipe, row.workload.cluster.num_accelerators),
                prepared.assumptions, row.workload))
            for row in found.ranked
        )  # fmt: skip
        warnings = notes + prepared.warnings
        if any(row.code == "host_memory" for row in found.rejected):
            warnings += (Note(code="host_memory_short", message="Offload strategies were rejected for want of host memory (--cpu-memory-gib)."),)
        return PlanAnswer(prepared=prepared, plan=dataclasses.replace(found, ranked=ranked), warnings=warnings,
                          assumptions=prepared.assumptions)  # fmt: skip


def merge_notes(result: Estimate, warnings: tuple[Note, ...], assumptions: tuple[Note, ...], workload: Workload) -> Estimate:
    """The estimate with what the inputs had to say put first, each note once."""
    warnings = (*warnings, *result.warnings, *host_memory_notes(result, workload))
    return dataclasses.replace(
        result, warnings=tuple(dict.fromkeys(warnings)), assumptions=tuple(dict.fromkeys((*assumptions, *result.assumptions))))


def host_memory_notes(result: Estimate, workload: Workload) -> tuple[Note, ...]:
    """Offload lives on host memory: say how much it wants where none was given, or too little."""
    cluster: Cluster = workload.cluster
    if not workload.strategy.offload:
        return ()
    needed, given = result.host_memory_bytes, cluster.node.cpu_memory_bytes
    if given is None:
        return (Note(
            code="host_memory_unknown",
            message=f"Offload needs host memory; this plan wants about {format_bytes(needed)} a node. --cpu-memory-gib checks it."),)  # fmt: skip
    if needed > given:
        return (Note(
            code="host_memory_short",
            message=f"Offload needs about {format_bytes(needed)} of host memory a node; {format_bytes(given)} are given: it will be killed."),)  # fmt: skip
    return ()
