"""What the front ends call: options in, answers out. The only wiring of inputs, estimator and planner."""

import dataclasses
from dataclasses import dataclass, field

from estimator.analytic.estimate import estimate
from estimator.plan.nearest_changes import changes_of_strategy
from estimator.plan.result import NearestChange, Plan
from estimator.plan.search import plan
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate

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
        workload = prepared.workload
        coefficients = coefficients_in_use(options.calibration)
        result = merge_notes(estimate(workload, coefficients), notes + prepared.warnings, prepared.assumptions)
        changes = changes_of_strategy(workload, coefficients) if result.fits == "no" else ()
        return EstimateAnswer(prepared=prepared, estimate=result, nearest_changes=changes)

    def plan(self, options: WorkloadOptions, notes: tuple[Note, ...] = ()) -> PlanAnswer:
        """All combinations, ranked."""
        prepared = self.reader.prepare_plan(options)
        workload, warnings = prepared.workload, notes + prepared.warnings
        coefficients = coefficients_in_use(options.calibration)
        found = plan(workload.model, workload.cluster, workload.recipe, coefficients)
        ranked = []
        for row in found.ranked:
            own = strategy_notes(row.workload.strategy, row.workload.recipe)
            merged = merge_notes(row.estimate, warnings + own, prepared.assumptions)
            ranked.append(dataclasses.replace(row, estimate=merged))
        return PlanAnswer(
            prepared=prepared,
            plan=dataclasses.replace(found, ranked=tuple(ranked)),
            warnings=warnings,
            assumptions=prepared.assumptions,
        )


def merge_notes(result: Estimate, warnings: tuple[Note, ...], assumptions: tuple[Note, ...]) -> Estimate:
    """The estimate with what the inputs had to say put first; what both say is said once, in the inputs' words."""
    said = {note.code for note in (*warnings, *assumptions)}
    return dataclasses.replace(
        result,
        warnings=(*dict.fromkeys(warnings), *(note for note in result.warnings if note.code not in said)),
        assumptions=(*dict.fromkeys(assumptions), *(note for note in result.assumptions if note.code not in said)),
    )
