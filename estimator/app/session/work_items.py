"""From planned rows to what the harness carries out: every input filled in, and what the estimator expects of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from benchmarks.campaign import BoundarySearch, WorkItem
from benchmarks.jobs import Job, JobKind
from benchmarks.machine import Machine
from benchmarks.micro_batch_search import MicroBatchSearch
from benchmarks.sweeps import PlannedRow
from estimator.analytic.estimate import estimate_many
from estimator.catalog.lookup import find_accelerator
from estimator.catalog.resolve import resolve_config
from estimator.specs.errors import Note, Problem, ProjectError, SpecError
from estimator.specs.estimate import Estimate
from estimator.specs.hardware import Accelerator, NumberFormat
from estimator.specs.recipe import Precision, TrainingRecipe
from estimator.specs.workload import Workload

from .calibrations import coefficients_in_use
from .inputs import InputReader, PreparedWorkload
from .options import OPTION_BY_KEY, WorkloadOptions, parse_value

ACCUMULATION = "gradient_accumulation_steps"
"""Not an option of estimates, which derive it; a measurement states it."""
_STAND_IN_GPU = "h200"
"""Fills in defaults where the catalogue lacks the machine's device (a CPU, say); nothing is expected of it then."""
_LARGEST_GUESS = 4096
_SAFE_MEMORY_FRACTION = 0.9
"""Rows that are not about memory stay below: an out-of-memory costs a fresh process."""
_ROW_KEYS = (
    "model",
    "set",
    "gpu",
    "num_gpus",
    "num_nodes",
    "gpu_memory_gib",
    "precision",
    "tf32",
    "attention",
    "compile",
    "optimizer",
    "sequence_length",
    "image_size",
    "global_batch_size",
    "micro_batch_size",
    "strategy",
    "offload",
    "activation_checkpointing",
)
"""What describes a row; the length of a run and prices do not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PreparedRow:
    """A planned row with every input filled in, at its micro batch (of a search: at one sample)."""

    row: PlannedRow
    prepared: PreparedWorkload
    gradient_accumulation_steps: int
    model_config: Mapping[str, object]
    is_bundled_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkPlan:
    """What will be run."""

    items: tuple[WorkItem, ...]
    notes: tuple[Note, ...] = ()
    """What was left out, and why."""


class WorkPlanner:
    """Makes work items for one machine."""

    def __init__(self, machine: Machine, num_gpus: int, reader: InputReader | None = None) -> None:
        self._machine, self._num_gpus = machine, num_gpus
        self._reader = reader or InputReader()
        self._accelerator = _known_accelerator(machine.gpu)

    def plan(self, rows: Sequence[PlannedRow]) -> WorkPlan:
        """Work items in the order of ``rows``; SpecError lists every row that makes no sense."""
        prepared: list[_PreparedRow | None] = []
        problems: list[Problem] = []
        for row in rows:
            try:
                prepared.append(None if row.is_microbenchmark else self._prepare(row))
            except ProjectError as error:
                problems += error.problems
        if problems:
            raise SpecError(*dict.fromkeys(problems))
        estimates = iter(self._estimates([entry.prepared.workload for entry in prepared if entry is not None]))
        items: list[WorkItem] = []
        left_out = 0
        for row, entry in zip(rows, prepared, strict=True):
            if entry is None:
                items.append(self._microbenchmark(row))
            elif row.finds_largest_micro_batch:
                next(estimates)
                items.append(self._search(entry))
            else:
                expected = next(estimates)
                if row.only_if_it_fits and expected is not None and _may_run_out(expected):
                    left_out += 1
                else:
                    items.append(self._job(entry, entry.prepared.workload, expected))
        message = f"{left_out} rows are left out: they may run out of memory, says the estimate"
        note = Note(code="left_out", message=message)
        return WorkPlan(items=tuple(items), notes=(note,) if left_out else ())

    def _prepare(self, row: PlannedRow) -> _PreparedRow:
        values = {key: value for key, value in row.options.items() if key != ACCUMULATION and value is not None}
        unknown = [key for key in values if key not in OPTION_BY_KEY]
        if unknown:
            advice = "see traincast measure --help"
            raise SpecError(
                *(
                    Problem(
                        code="unknown_option", field=key, message=f"{key!r} is no option of a measurement; {advice}"
                    )
                    for key in unknown
                )
            )
        parsed = {key: parse_value(OPTION_BY_KEY[key], value) for key, value in values.items()}
        micro = parsed.get("micro_batch_size", 1)
        accumulation = row.options.get(ACCUMULATION)
        assert isinstance(micro, int)
        if isinstance(accumulation, int):
            parsed["global_batch_size"] = micro * accumulation * self._num_gpus
        elif "global_batch_size" not in parsed:
            parsed["global_batch_size"] = micro * self._num_gpus
        gpu = _STAND_IN_GPU if self._accelerator is None else self._machine.gpu
        options = WorkloadOptions(**{**parsed, "micro_batch_size": micro, "gpu": gpu, "num_gpus": self._num_gpus})  # type: ignore[arg-type]
        prepared = self._reader.prepare(options)
        resolved = resolve_config(str(options.model), overrides=options.set or {})
        return _PreparedRow(
            row=row,
            prepared=prepared,
            gradient_accumulation_steps=prepared.workload.gradient_accumulation_steps,
            model_config=resolved.config,
            is_bundled_model=resolved.is_bundled and not options.set,
        )

    def _estimates(self, workloads: Sequence[Workload]) -> list[Estimate | None]:
        """What the estimator expects; None where the catalogue has no such device."""
        if self._accelerator is None or not workloads:
            return [None] * len(workloads)
        table = estimate_many(workloads, coefficients_in_use(None))
        return [table.estimate(index) for index in range(len(workloads))]

    def _job(self, entry: _PreparedRow, workload: Workload, expected: Estimate | None) -> Job:
        row, echo = entry.row, entry.prepared.echo
        options = {key: value for key in _ROW_KEYS if (value := getattr(echo, key)) is not None}
        options |= {
            "gpu": self._machine.gpu,
            "micro_batch_size": workload.recipe.micro_batch_size,
            "global_batch_size": workload.recipe.global_batch_size,
            ACCUMULATION: workload.gradient_accumulation_steps,
            "max_grad_norm": workload.recipe.optimization.max_grad_norm,
        }
        peak = None if self._accelerator is None else _dense_peak(self._accelerator, workload.recipe)
        return Job(
            workload=options,
            model_config=entry.model_config,
            is_bundled_model=entry.is_bundled_model,
            num_warmup_steps=row.num_warmup_steps,
            num_steps=row.num_steps,
            min_seconds=row.min_seconds,
            linear_check=row.linear_check,
            in_own_process=row.in_own_process,
            peak_flop_per_second=peak,
            model_flops_per_step=None if expected is None else expected.model_flops_per_step / self._num_gpus,
            expected_step_seconds=None if expected is None else expected.step_time_seconds.expected,
        )

    def _search(self, entry: _PreparedRow) -> BoundarySearch:
        @cache
        def make_job(size: int) -> Job:
            workload = self._resized(entry, size)
            return self._job(entry, workload, self._estimates([workload])[0])

        if self._machine.device == "cpu":
            message = "--micro-batch-size auto needs a GPU: host memory has no clean end; name the sizes to measure"
            raise SpecError(Problem(code="no_boundary", message=message, field="micro_batch_size"))
        guess = self._largest_fitting_guess(entry)
        search = MicroBatchSearch(guess=guess, resolution_fraction=entry.row.resolution_fraction)
        if make_job(1).needs_own_process:
            search.max_rungs = 1
        return BoundarySearch(make_job=make_job, search=search)

    def _resized(self, entry: _PreparedRow, size: int) -> Workload:
        """The row at another micro batch and the same accumulation."""
        workload = entry.prepared.workload
        batch = size * entry.gradient_accumulation_steps * self._num_gpus
        return replace(workload, recipe=replace(workload.recipe, micro_batch_size=size, global_batch_size=batch))

    def _largest_fitting_guess(self, entry: _PreparedRow) -> int:
        """The largest micro batch whose expected reserved memory is within what is usable; 1 where nothing is known."""
        low, high = 1, _LARGEST_GUESS
        for _ in range(2):
            step = max(1, (high - low) // 64)
            sizes = list(range(low, high + 1, step))
            estimates = self._estimates([self._resized(entry, size) for size in sizes])
            fitting = [
                size
                for size, expected in zip(sizes, estimates, strict=True)
                if expected is not None and expected.peak_reserved_bytes.expected <= expected.usable_memory_bytes
            ]
            low = max(fitting, default=1)
            high = min(high, low + step)
        return low

    def _microbenchmark(self, row: PlannedRow) -> Job:
        workload = {"benchmark": "machine", "gpu": self._machine.gpu, "num_gpus": self._num_gpus}
        return Job(
            kind=JobKind.MICROBENCHMARK,
            workload=workload,
            num_warmup_steps=row.num_warmup_steps,
            num_steps=row.num_steps,
            min_seconds=row.min_seconds,
        )


def _may_run_out(expected: Estimate) -> bool:
    return expected.peak_reserved_bytes.expected > _SAFE_MEMORY_FRACTION * expected.usable_memory_bytes


def _known_accelerator(name: str) -> Accelerator | None:
    try:
        return find_accelerator(name)[0]
    except SpecError:
        return None


def _dense_peak(accelerator: Accelerator, recipe: TrainingRecipe) -> float | None:
    """Dense data-sheet rate of the format in which matrix products run."""
    if recipe.precision is Precision.FP32:
        number_format = NumberFormat.TF32 if recipe.tf32 and accelerator.supports_tf32 else NumberFormat.FP32
    else:
        number_format = NumberFormat(recipe.precision.value)
    return accelerator.peak_dense_flop_per_second.get(number_format)
