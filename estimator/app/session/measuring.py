"""Measuring on this machine: which rows, on what, and what came of it."""

import importlib.util
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.campaign import Campaign, CampaignProgress, predicted_seconds
from benchmarks.h200_sweeps import SWEEPS
from benchmarks.jobs import Job
from benchmarks.launch import INSTALL_ADVICE, RUNNER_COMMAND, SilenceLimits
from benchmarks.machine import Machine, detect_machine
from benchmarks.pace import Pace
from benchmarks.store import MeasurementStore, answered_keys
from benchmarks.sweeps import FREE_LUNCH, NAIVE, PlannedRow, grid
from estimator.catalog.lookup import find_accelerator, nearest_names
from estimator.specs.errors import MeasurementError, Note, Problem, SpecError
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind
from estimator.specs.units import GIB, format_bytes

from .options import OPTION_BY_KEY, parse_value
from .work_items import ACCUMULATION, WorkPlan, WorkPlanner

_SECONDS_PER_MINUTE = 60.0
_IDLE_DEVICE_BYTES = GIB
"""A driver keeps less than this for itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureRequest:
    """What the user asked for."""

    models: tuple[str, ...] = ()
    strategies: tuple[str, ...] = ()
    """``all``, or kinds; empty: ``none``."""
    offload: bool | None = None
    activation_checkpointing: bool | None = None
    """None: off, or both ways where the strategy is ``all``."""
    settings: str | None = None
    """``free-lunch``, ``naive`` or ``both``; None: what options and the recipe say."""
    micro_batch_sizes: tuple[int, ...] | None = (1,)
    """None searches for the largest."""
    axes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    """Option name -> values of a grid: precision, sequence_length, gpu_memory_gib, ..."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Options with one value for all rows."""
    gradient_accumulation_steps: int = 1
    sweeps: tuple[str, ...] = ()
    jobs_file: Path | None = None
    micro_benchmarks: bool = False
    device: str = "auto"
    num_gpus: int = 1
    num_steps: int = 5
    num_warmup_steps: int = 2
    linear_check: bool = False


def require_training_software() -> None:
    """Raises MeasurementError where what a runner process imports is not installed."""
    needed = ("torch", "transformers", "accelerate", "psutil")
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    if absent:
        message = f"measuring needs {', '.join(absent)}: {INSTALL_ADVICE}"
        raise MeasurementError.of(message, code="no_training_software")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSession:
    """A machine, a store and the rows to measure."""

    machine: Machine
    store: MeasurementStore
    plan: WorkPlan

    @property
    def answered_keys(self) -> frozenset[str]:
        """Keys of the rows that the store already answers."""
        return answered_keys(self.store.read().measurements, self.machine.stack)

    @property
    def predicted_seconds(self) -> float:
        """How long all of it should take, what the store already answers left out."""
        answered = self.answered_keys
        items = [item for item in self.plan.items if not isinstance(item, Job) or item.key not in answered]
        return predicted_seconds(items, Pace())

    def campaign(
        self,
        *,
        time_limit_minutes: float | None,
        silence_seconds: float | None,
        repeats_known: bool,
        on_progress: Callable[[CampaignProgress], None],
    ) -> Campaign:
        """Ready to ``run(plan.items)``; an interrupted one still tells what it has done in its ``summary``."""
        deadline = None if time_limit_minutes is None else time.monotonic() + time_limit_minutes * _SECONDS_PER_MINUTE
        limits = (
            SilenceLimits()
            if silence_seconds is None
            else SilenceLimits(
                job_seconds=silence_seconds,
                compiled_seconds=silence_seconds,
                kernel_build_seconds=silence_seconds,
            )
        )
        return Campaign(
            self.store,
            self.machine,
            limits=limits,
            deadline=deadline,
            on_progress=on_progress,
            repeats_known=repeats_known,
            runner=RUNNER_COMMAND,
        )


def default_store_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """``TRAINCAST_DATA_DIR``, else the system's place for user data."""
    from platformdirs import user_data_path

    override = environment.get("TRAINCAST_DATA_DIR")
    return (Path(override) if override else user_data_path("traincast")) / "measurements"


def prepare_session(request: MeasureRequest, store_folder: Path) -> MeasurementSession:
    """Find the machine and fill in every row; nothing is run and nothing is written."""
    rows = planned_rows(request)
    if not rows:
        raise SpecError(
            Problem(
                code="nothing_to_measure",
                field="model",
                message="Nothing to measure: name a --model, a --sweep, a --jobs file or --micro-benchmarks.",
            )
        )
    machine = detect_machine(request.device, _catalogue_name)
    if machine.device == "cuda" and request.num_gpus > machine.num_devices:
        message = f"--num-gpus is {request.num_gpus}, but {machine.num_devices} GPUs are visible"
        raise MeasurementError.of(message, code="too_few_devices", field="num_gpus")
    plan = WorkPlanner(machine, request.num_gpus).plan(rows)
    if machine.memory_used_bytes > _IDLE_DEVICE_BYTES:
        used = format_bytes(machine.memory_used_bytes)
        busy = Note(code="device_in_use", message=f"{used} of the GPU are in use: times and limits will suffer")
        plan = replace(plan, notes=(*plan.notes, busy))
    return MeasurementSession(machine=machine, store=MeasurementStore(store_folder), plan=plan)


def planned_rows(request: MeasureRequest) -> list[PlannedRow]:
    """All rows asked for, in order: micro-benchmarks, sweeps, the file, the grid of options."""
    rows = [PlannedRow(is_microbenchmark=True)] if request.micro_benchmarks else []
    for name in request.sweeps:
        if name not in SWEEPS:
            nearest = nearest_names(name, tuple(SWEEPS))
            hint = f" Did you mean {nearest[0]}?" if nearest else ""
            message = f"--sweep {name!r} is unknown; there are {', '.join(SWEEPS)}.{hint}"
            raise SpecError(Problem(code="unknown_sweep", message=message, field="sweep"))
        rows += SWEEPS[name]()
    template = PlannedRow(
        num_steps=request.num_steps,
        num_warmup_steps=request.num_warmup_steps,
        linear_check=request.linear_check,
    )
    if request.jobs_file is not None:
        rows += _rows_of_file(request.jobs_file, template)
    settings: Sequence[Mapping[str, object]] = {
        None: ({},),
        "free-lunch": (FREE_LUNCH,),
        "naive": (NAIVE,),
        "both": (NAIVE, FREE_LUNCH),
    }[request.settings]
    common = {**request.options, ACCUMULATION: request.gradient_accumulation_steps}
    rows += grid(
        models=request.models,
        strategies=chosen_strategies(request),
        settings=[{**setting, **common} for setting in settings],
        micro_batch_sizes=request.micro_batch_sizes,
        axes=request.axes,
        template=template,
    )
    return rows


def chosen_strategies(request: MeasureRequest) -> list[Strategy]:
    """The combinations that were asked for, in the order of the 22."""
    everything = "all" in request.strategies
    option = OPTION_BY_KEY["strategy"]
    kinds = {StrategyKind(str(parse_value(option, name))) for name in request.strategies if name != "all"}
    kinds = set(StrategyKind) if everything else kinds or {StrategyKind.NONE}

    def matches(wanted: bool | None, value: bool) -> bool:
        return value == wanted if wanted is not None else everything or not value

    chosen = [
        strategy
        for strategy in ALL_STRATEGIES
        if strategy.kind in kinds
        and matches(request.offload, strategy.offload)
        and matches(request.activation_checkpointing, strategy.activation_checkpointing)
    ]
    if not chosen:
        message = "--offload needs a ZeRO or FSDP strategy (zero_1 works on one GPU)."
        raise SpecError(Problem(code="no_strategy", field="offload", message=message))
    return chosen


def _rows_of_file(path: Path, template: PlannedRow) -> list[PlannedRow]:
    """One workload a line, in option names; ``micro_batch_size`` ``"auto"`` searches for the largest."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        message = f"--jobs {path} cannot be read: {error}"
        raise SpecError(Problem(code="unreadable_file", message=message, field="jobs")) from None
    rows, problems = [], []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            options = json.loads(line)
        except ValueError as error:
            problems.append(Problem(code="bad_line", message=f"{path}:{number}: no JSON ({error})", field="jobs"))
            continue
        if not isinstance(options, dict):
            message = f"{path}:{number}: {line.strip()!r} is no JSON object"
            problems.append(Problem(code="bad_line", message=message, field="jobs"))
            continue
        is_search = options.get("micro_batch_size") == "auto"
        kept = {key: value for key, value in options.items() if not (is_search and key == "micro_batch_size")}
        rows.append(
            PlannedRow(
                options=kept,
                finds_largest_micro_batch=is_search,
                num_steps=template.num_steps,
                num_warmup_steps=template.num_warmup_steps,
                linear_check=template.linear_check,
            )
        )
    if problems:
        raise SpecError(*problems)
    return rows


def _catalogue_name(driver_name: str) -> str | None:
    try:
        return find_accelerator(driver_name)[0].name
    except SpecError:
        return None
