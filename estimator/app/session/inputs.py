"""Options -> a validated workload, with everything assumed or adjusted said."""

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from estimator.specs.errors import Note, ProjectError
from estimator.specs.hardware import Cluster
from estimator.specs.recipe import TrainingRecipe
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind
from estimator.specs.units import BITS_PER_BYTE, GIB
from estimator.specs.workload import Workload

from .kernels import Kernels, choose_kernels
from .machine_input import MachineInput, machine_input
from .model_input import ModelInput, model_input
from .options import WorkloadOptions
from .sizes import (
    Length, assumed_global_batch_size, check_batch, length_notes, nearest_dividing_batch, num_training_steps, sample_length,
)  # fmt: skip

_Resolved = TypeVar("_Resolved")
_STRATEGIES = {(s.kind.value, s.offload, s.activation_checkpointing): s for s in ALL_STRATEGIES}
_BITS_PER_GIGABIT = 1e9


@dataclass(slots=True, kw_only=True)
class PreparedWorkload:
    """A workload ready to be estimated."""

    workload: Workload
    echo: WorkloadOptions
    """Every input after defaults were filled in."""
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


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
                found = error
            self._remembered[key] = found
        if isinstance(found, ProjectError):
            raise found
        return found  # type: ignore[return-value]

    def model(self, options: WorkloadOptions) -> ModelInput:
        settings = json.dumps(options.set, sort_keys=True, default=str) if options.set else None
        return self._remember(("model", options.model, settings, options.image_size), lambda: model_input(options))

    def machine(self, options: WorkloadOptions) -> MachineInput:
        key = (options.gpu, options.num_gpus, options.num_nodes, options.gpu_memory_gib, options.cpu_memory_gib,
               options.interconnect, options.network_gbit, options.usd_per_gpu_hour)  # fmt: skip
        return self._remember(("machine", key), lambda: machine_input(options))

    def kernels(self, options: WorkloadOptions, model: ModelInput, machine: MachineInput) -> Kernels:
        key = (model, machine, options.precision, options.tf32, options.attention, options.compile, options.optimizer)
        return self._remember(("kernels", key), lambda: choose_kernels(options, model, machine))

    def length(self, options: WorkloadOptions, model: ModelInput) -> Length:
        key = (model, options.sequence_length, options.image_size, options.num_training_tokens is None)
        return self._remember(("length", key), lambda: sample_length(options, model))

    def prepare(self, options: WorkloadOptions) -> PreparedWorkload:
        """A workload with its strategy: ``estimate``."""
        model, machine = self.model(options), self.machine(options)
        kernels, length = self.kernels(options, model, machine), self.length(options, model)
        warnings = (*model.notes, *machine.notes, *kernels.warnings, *length.warnings)
        assumptions = (*kernels.assumptions, *length.assumptions)
        num_gpus = machine.cluster.num_accelerators
        micro = options.micro_batch_size
        if micro is None:
            micro = 1
            assumptions += (Note(code="assumed_micro_batch_size", message="Micro batch assumed: 1 sample; `plan` finds the best."),)
        batch = options.global_batch_size or (model.recipe.global_batch_size if model.recipe else None)
        if batch is None:
            batch = micro * num_gpus
            assumptions += (Note(code="assumed_global_batch_size",
                                 message=f"Global batch assumed: {batch} samples, no gradient accumulation."),)  # fmt: skip
        check_batch(batch, micro, num_gpus)
        strategy = _STRATEGIES.get((options.strategy or "none", options.offload or False, options.activation_checkpointing or False))
        if strategy is None:
            strategy = Strategy(activation_checkpointing=options.activation_checkpointing or False)
            warnings += (Note(
                code="option_unused",
                message="--offload has no effect with strategy none: offload needs a ZeRO or FSDP strategy (zero_1 works on one GPU)."),)  # fmt: skip
        recipe, run_warnings, run_assumptions = self._recipe(options, model, kernels, length, batch, micro)
        return PreparedWorkload(
            workload=Workload(model=model.spec, cluster=machine.cluster, recipe=recipe, strategy=strategy),
            echo=echo_of(options, model, machine.cluster, recipe, strategy),
            warnings=warnings + run_warnings + strategy_notes(strategy, recipe, num_gpus),
            assumptions=assumptions + run_assumptions)  # fmt: skip

    def prepare_plan(self, options: WorkloadOptions) -> PreparedWorkload:
        """A workload whose strategy and micro batch are still open (``plan``): micro batch 1, nothing sharded."""
        model, machine = self.model(options), self.machine(options)
        kernels, length = self.kernels(options, model, machine), self.length(options, model)
        warnings = (*model.notes, *machine.notes, *kernels.warnings, *length.warnings)
        assumptions = (*kernels.assumptions, *length.assumptions)
        num_gpus = machine.cluster.num_accelerators
        batch = options.global_batch_size or (model.recipe.global_batch_size if model.recipe else None)
        if batch is None:
            batch = assumed_global_batch_size(length.sequence_length, num_gpus)
            tokens = f" ({batch * length.sequence_length:,} tokens)" if length.sequence_length else ""
            assumptions += (Note(code="assumed_global_batch_size", message=f"Global batch assumed: {batch:,} samples{tokens} a step."),)
        elif batch % num_gpus:
            nearest = nearest_dividing_batch(batch, num_gpus)
            warnings += (Note(code="global_batch_adjusted",
                              message=f"Global batch {batch} does not divide over {num_gpus} GPUs; the nearest that does is planned: {nearest}."),)  # fmt: skip
            batch = nearest
        check_batch(batch, 1, num_gpus)
        recipe, run_warnings, run_assumptions = self._recipe(options, model, kernels, length, batch, 1)
        return PreparedWorkload(
            workload=Workload(model=model.spec, cluster=machine.cluster, recipe=recipe, strategy=Strategy()),
            echo=echo_of(options, model, machine.cluster, recipe, None),
            warnings=warnings + run_warnings, assumptions=assumptions + run_assumptions)  # fmt: skip

    def _recipe(self, options: WorkloadOptions, model: ModelInput, kernels: Kernels, length: Length, batch: int,
                micro: int) -> tuple[TrainingRecipe, tuple[Note, ...], tuple[Note, ...]]:  # fmt: skip
        published = model.recipe
        steps = num_training_steps(options, model, batch, length.sequence_length)
        overhead = options.overhead_fraction
        if overhead is None:
            overhead = published.overhead_fraction if published else 0.0
        recipe = TrainingRecipe(
            precision=kernels.precision, tf32=kernels.tf32, attention=kernels.attention, compile=kernels.compile,
            optimizer=kernels.optimizer, sequence_length=length.sequence_length, image_size=length.image_size,
            global_batch_size=batch, micro_batch_size=micro, num_training_steps=steps, overhead_fraction=overhead,
            **({"optimization": published.optimization} if published else {}))  # fmt: skip
        assumptions: tuple[Note, ...] = ()
        if steps is None:
            assumptions = (_NO_LENGTH,)
        elif overhead == 0:
            assumptions = (_NO_OVERHEAD,)
        return recipe, length_notes(options, model, batch, length.sequence_length), assumptions


_NO_LENGTH = Note(code="no_run_length", message="No length of the run is known, so no days or dollars: --num-training-tokens or -steps.")
_NO_OVERHEAD = Note(code="no_overhead", message="No time added for evaluation, saving and restarts (--overhead-fraction 0).")


def strategy_notes(strategy: Strategy, recipe: TrainingRecipe, num_gpus: int) -> tuple[Note, ...]:
    """What a user should know about this strategy with these settings."""
    notes: tuple[Note, ...] = ()
    if num_gpus == 1 and strategy.kind is not StrategyKind.NONE and not strategy.offload:
        notes += (_ALONE,)
    if recipe.compile and strategy.kind.is_zero:
        notes += (_COMPILED_ZERO,)
    if strategy.offload and recipe.optimizer not in ("adamw_torch", "adamw_torch_fused"):
        notes += (Note(code="offload_optimizer", message=f"Offload runs Adam on the host; {recipe.optimizer} is not what will run there."),)
    return notes


_ALONE = Note(code="sharding_without_effect", message="Sharding over one GPU saves nothing: its overhead remains.")
_COMPILED_ZERO = Note(
    code="compile_with_deepspeed",
    message="torch.compile under DeepSpeed: the speed-up is counted for torch 2.6 and DeepSpeed 0.17 or newer; older versions ignore it or fail.")


def echo_of(options: WorkloadOptions, model: ModelInput, cluster: Cluster, recipe: TrainingRecipe, strategy: Strategy | None) -> WorkloadOptions:
    """The workload in option names. The strategy's keys stay open for a plan."""
    node, network = cluster.node, cluster.network if cluster.num_nodes > 1 else None
    return WorkloadOptions(
        model=model.text, set=options.set, gpu=node.accelerator.name, num_gpus=node.num_accelerators, num_nodes=cluster.num_nodes,
        gpu_memory_gib=options.gpu_memory_gib,
        cpu_memory_gib=None if node.cpu_memory_bytes is None else node.cpu_memory_bytes / GIB,
        interconnect=options.interconnect or (node.peer_link.name if node.num_accelerators > 1 else None),
        network_gbit=None if network is None else network.bandwidth_bytes_per_second * BITS_PER_BYTE / _BITS_PER_GIGABIT,
        usd_per_gpu_hour=cluster.usd_per_gpu_hour, precision=recipe.precision.value, tf32=recipe.tf32,
        attention=recipe.attention.value, compile=recipe.compile, optimizer=recipe.optimizer,
        sequence_length=recipe.sequence_length, image_size=recipe.image_size, global_batch_size=recipe.global_batch_size,
        num_training_steps=recipe.num_training_steps, overhead_fraction=recipe.overhead_fraction,
        calibration=options.calibration or "auto",
        micro_batch_size=recipe.micro_batch_size if strategy else None,
        strategy=strategy.kind.value if strategy else None, offload=strategy.offload if strategy else None,
        activation_checkpointing=strategy.activation_checkpointing if strategy else None)  # fmt: skip
