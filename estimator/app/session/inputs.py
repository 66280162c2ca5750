"""Options -> a validated workload, with everything assumed or adjusted said."""

import json
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeVar

import msgspec

from estimator.specs.errors import Note, Problem, ProjectError, SpecError
from estimator.specs.recipe import OptimizationSettings, TrainingRecipe
from estimator.specs.strategy import ALL_STRATEGIES, Strategy
from estimator.specs.workload import Workload

from .echo import echo_of
from .kernels import Kernels, choose_kernels
from .machine_input import MachineInput, machine_input
from .model_input import ModelInput, model_input
from .options import WorkloadOptions
from .problems import refusal
from .sizes import (
    Length,
    assumed_global_batch_size,
    check_batch,
    length_notes,
    nearest_dividing_batch,
    num_training_steps,
    sample_length,
)

_FIELDS = WorkloadOptions.__struct_fields__
_FIRST_MACHINE, _FIRST_KERNEL, _FIRST_BATCH = (_FIELDS.index(key) for key in ("gpu", "precision", "global_batch_size"))
NUM_INPUT_FIELDS = _FIRST_BATCH
_MOST_REMEMBERED = 50_000
_Resolved = TypeVar("_Resolved")
_First = TypeVar("_First")
_Second = TypeVar("_Second")
_STRATEGIES = {(s.kind.value, s.offload, s.activation_checkpointing): s for s in ALL_STRATEGIES}
_TRAINER_SETTINGS = OptimizationSettings(max_grad_norm=1.0)
"""What Hugging Face Trainer does where nobody says: gradients are clipped, which costs a pass over them."""
_ASSUMPTION_CODES = frozenset(
    {"assumed_price", "default_recipe", "hub_cache", "peer_to_peer_stated", "user_gpu", "user_model", "user_price"}
)
"""Notes of the catalogue that say where a figure comes from; all others say what may be wrong."""
_NO_LENGTH = Note(
    code="no_run_length",
    message="The length of the run is not known, so no days or dollars: give --num-training-tokens or -steps.",
)
_ASSUMED_MICRO_BATCH = Note(
    code="assumed_micro_batch_size", message="Micro batch assumed: 1 sample; `traincast plan` finds the best."
)
_COMPILED_ZERO = Note(
    code="compile_with_deepspeed",
    message="torch.compile under DeepSpeed: its speed-up is counted as torch 2.6 and DeepSpeed 0.17 or newer give it; "
    "older versions ignore it or fail.",
)


class PreparedWorkload(NamedTuple):
    """A workload ready to be estimated."""

    workload: Workload
    echo: WorkloadOptions
    """Every input after defaults were filled in."""
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


class Inputs(NamedTuple):
    """What does not depend on batch and strategy: one per combination of model, machine, kernels and length."""

    model: ModelInput
    machine: MachineInput
    kernels: Kernels
    length: Length
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


def _both(first: Callable[[], _First], second: Callable[[], _Second]) -> tuple[_First, _Second]:
    """Two resolutions; where both are refused, the problems of both."""
    try:
        found = first()
    except ProjectError as error:
        try:
            second()
        except ProjectError as other:
            raise SpecError(*error.problems, *other.problems) from None
        raise
    return found, second()


class _Refused(NamedTuple):
    """What cannot be resolved, and why."""

    problems: tuple[Problem, ...]


class InputReader:
    """Turns options into workloads; remembers models, machines and their pairings, so a batch resolves each once."""

    def __init__(self) -> None:
        self._remembered: dict[Hashable, object] = {}

    def _remember(self, key: Hashable, produce: Callable[[], _Resolved]) -> _Resolved:
        found = self._remembered.get(key)
        if found is None:
            try:
                found = produce()
            except ProjectError as error:
                # A raised error grows with every raise and keeps frames alive: remember its problems, raise anew.
                found = _Refused(problems=error.problems)
            if len(self._remembered) >= _MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = found
        if isinstance(found, _Refused):
            raise SpecError(*found.problems)
        return found  # type: ignore[return-value]

    def inputs(self, o: WorkloadOptions) -> Inputs:
        """What the first ``NUM_INPUT_FIELDS`` options (and tokens as the run's length) decide."""
        values = msgspec.structs.astuple(o)
        settings = None if o.set is None else json.dumps(o.set, sort_keys=True, default=str)
        key = (o.model, settings, *values[_FIRST_MACHINE:_FIRST_BATCH], o.num_training_tokens is None)

        def produce() -> Inputs:
            model, machine = _both(
                lambda: self._remember(("model", o.model, settings, o.image_size), lambda: model_input(o)),
                lambda: self._remember(("machine", *values[_FIRST_MACHINE:_FIRST_KERNEL]), lambda: machine_input(o)),
            )
            kernels, length = choose_kernels(o, model, machine), sample_length(o, model)
            notes = (*model.notes, *machine.notes)
            assumed = tuple(note for note in notes if note.code in _ASSUMPTION_CODES)
            return Inputs(
                model=model,
                machine=machine,
                kernels=kernels,
                length=length,
                warnings=(*(n for n in notes if n.code not in _ASSUMPTION_CODES), *kernels.warnings, *length.warnings),
                assumptions=(*kernels.assumptions, *length.assumptions, *assumed),
            )

        return self._remember(key, produce)

    def prepare(self, options: WorkloadOptions, inputs: Inputs | None = None) -> PreparedWorkload:
        """A workload with its strategy: ``estimate``. ``inputs`` where the caller has them from equal options."""
        inputs = inputs or self.inputs(options)
        model, cluster = inputs.model, inputs.machine.cluster
        assumptions = inputs.assumptions
        num_gpus = cluster.num_accelerators
        micro = options.micro_batch_size
        if micro is None:
            micro = 1
            assumptions += (_ASSUMED_MICRO_BATCH,)
        batch = options.global_batch_size or (model.recipe.global_batch_size if model.recipe else None)
        if batch is None:
            batch = micro * num_gpus
            message = f"Global batch assumed: {batch:,} samples, no gradient accumulation."
            assumptions += (Note(code="assumed_global_batch_size", message=message),)
        check_batch(batch, micro, num_gpus)
        strategy = _strategy(options)
        recipe, run_warnings = _recipe(options, inputs, batch, micro)
        if recipe.num_training_steps is None:
            assumptions += (_NO_LENGTH,)
        return PreparedWorkload(
            Workload(model=model.spec, cluster=cluster, recipe=recipe, strategy=strategy),
            echo_of(options, model, cluster, recipe, strategy),
            inputs.warnings + run_warnings + strategy_notes(strategy, recipe),
            assumptions,
        )

    def prepare_plan(self, options: WorkloadOptions) -> PreparedWorkload:
        """A workload whose strategy and micro batch are still open (``plan``): micro batch 1, nothing sharded."""
        inputs = self.inputs(options)
        model, cluster, length = inputs.model, inputs.machine.cluster, inputs.length
        warnings, assumptions = inputs.warnings, inputs.assumptions
        num_gpus = cluster.num_accelerators
        batch = options.global_batch_size or (model.recipe.global_batch_size if model.recipe else None)
        if batch is None:
            batch = assumed_global_batch_size(length.sequence_length, num_gpus)
            tokens = f" ({batch * length.sequence_length:,} tokens)" if length.sequence_length else ""
            message = f"Global batch assumed: {batch:,} samples{tokens} a step."
            assumptions += (Note(code="assumed_global_batch_size", message=message),)
        elif batch % num_gpus:
            nearest = nearest_dividing_batch(batch, num_gpus)
            message = f"Global batch {batch} does not divide over {num_gpus} GPUs; planned is the nearest: {nearest}."
            warnings += (Note(code="global_batch_adjusted", message=message),)
            batch = nearest
        check_batch(batch, 1, num_gpus)
        recipe, run_warnings = _recipe(options, inputs, batch, 1)
        if recipe.num_training_steps is None:
            assumptions += (_NO_LENGTH,)
        return PreparedWorkload(
            Workload(model=model.spec, cluster=cluster, recipe=recipe, strategy=Strategy()),
            echo_of(options, model, cluster, recipe, None),
            warnings + run_warnings,
            assumptions,
        )


def _recipe(
    options: WorkloadOptions, inputs: Inputs, batch: int, micro: int
) -> tuple[TrainingRecipe, tuple[Note, ...]]:
    kernels, length, published = inputs.kernels, inputs.length, inputs.model.recipe
    overhead = options.overhead_fraction
    if overhead is None:
        overhead = published.overhead_fraction if published else 0.0
    recipe = TrainingRecipe(
        precision=kernels.precision,
        tf32=kernels.tf32,
        attention=kernels.attention,
        compile=kernels.compile,
        optimizer=kernels.optimizer,
        sequence_length=length.sequence_length,
        image_size=length.image_size,
        global_batch_size=batch,
        micro_batch_size=micro,
        num_training_steps=num_training_steps(options, inputs.model, batch, length.sequence_length),
        overhead_fraction=overhead,
        optimization=published.optimization if published else _TRAINER_SETTINGS,
    )
    return recipe, length_notes(options, inputs.model, batch, length.sequence_length)


def _strategy(options: WorkloadOptions) -> Strategy:
    kind = options.strategy or "none"
    found = _STRATEGIES.get((kind, options.offload or False, options.activation_checkpointing or False))
    if found is None:
        message = (
            f"--offload does not go with --strategy {kind}: there is nothing that moves a plain optimizer to the host. "
            "zero_1 with offload does, on one GPU too; zero_3 and the fsdp ones move parameters as well."
        )
        raise refusal("contradiction", "offload", message)
    return found


def strategy_notes(strategy: Strategy, recipe: TrainingRecipe) -> tuple[Note, ...]:
    """What a user should know about this strategy with these settings, beyond what the estimate itself says."""
    notes: tuple[Note, ...] = ()
    if recipe.compile and strategy.kind.is_zero:
        notes += (_COMPILED_ZERO,)
    if strategy.offload and recipe.optimizer not in ("adamw_torch", "adamw_torch_fused"):
        message = f"Offload runs Adam on the host; {recipe.optimizer} is not what will run there."
        notes += (Note(code="offload_optimizer", message=message),)
    return notes
