"""Precision, attention kernel, compilation and optimizer: what model and machine together allow."""

from dataclasses import dataclass

from estimator.specs.errors import Note
from estimator.specs.hardware import Accelerator, NumberFormat
from estimator.specs.recipe import AttentionKernel, Precision, TrainingRecipe

from .machine_input import MachineInput
from .model_input import ModelInput
from .options import WorkloadOptions

_AMPERE = (8, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The part of a recipe that does not depend on sizes."""

    precision: Precision
    tf32: bool
    attention: AttentionKernel
    compile: bool
    optimizer: str
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


def choose_kernels(options: WorkloadOptions, model: ModelInput, machine: MachineInput) -> Kernels:
    """Options over the published recipe over defaults, moved to what the GPU can do, each move with a warning."""
    warnings: list[Note] = []
    assumptions: list[Note] = []
    accelerator, recipe = machine.accelerator, model.recipe
    precision = _precision(options, recipe, accelerator, warnings, assumptions)
    tf32 = _first(options.tf32, recipe.tf32 if recipe else None, True)
    if tf32 and not accelerator.supports_tf32:
        if options.tf32:
            warnings.append(
                Note(code="tf32_unsupported", message=f"{_card(accelerator)} has no TF32; plain fp32 is used.")
            )
        tf32 = False
    compile_model = _first(options.compile, recipe.compile if recipe else None, model.spec.family != "mamba")
    if options.optimizer is None and recipe is None:
        assumptions.append(Note(code="assumed_optimizer", message="Optimizer assumed: adamw_torch."))
    return Kernels(
        precision=precision,
        tf32=tf32,
        attention=_attention(options, model, accelerator, precision, warnings),
        compile=compile_model,
        optimizer=options.optimizer or (recipe.optimizer if recipe else "adamw_torch"),
        warnings=tuple(warnings),
        assumptions=tuple(assumptions),
    )


def _first(*values: bool | None) -> bool:
    return next(value for value in values if value is not None)


def _card(accelerator: Accelerator) -> str:
    capability = accelerator.compute_capability
    return accelerator.display_name + (f" (compute {capability[0]}.{capability[1]})" if capability else "")


def _precision(
    options: WorkloadOptions,
    recipe: TrainingRecipe | None,
    accelerator: Accelerator,
    warnings: list[Note],
    assumptions: list[Note],
) -> Precision:
    """bf16 falls back to fp16, fp16 to fp32, where the card has no units for it."""
    if options.precision is not None:
        wanted = Precision(options.precision)
    elif recipe is not None:
        wanted = recipe.precision
    else:
        wanted = Precision.BF16 if accelerator.supports_bf16 else Precision.FP16
        assumptions.append(
            Note(code="assumed_precision", message=f"Precision assumed: {wanted.value} mixed, fp32 master weights.")
        )
    has_fp16 = NumberFormat.FP16 in accelerator.peak_dense_flop_per_second
    if wanted is Precision.BF16 and not accelerator.supports_bf16:
        wanted = Precision.FP16 if has_fp16 else Precision.FP32
        warnings.append(
            Note(
                code="bf16_unsupported",
                message=f"{_card(accelerator)} has no bf16 tensor cores, even if torch says bf16 is supported; "
                f"using {wanted.value}.",
            )
        )
    if wanted is Precision.FP16 and not has_fp16:
        wanted = Precision.FP32
        warnings.append(
            Note(code="fp16_unsupported", message=f"{_card(accelerator)} has no fp16 matrix units; using fp32.")
        )
    return wanted


def _attention(
    options: WorkloadOptions, model: ModelInput, accelerator: Accelerator, precision: Precision, warnings: list[Note]
) -> AttentionKernel:
    if not model.has_attention:
        if options.attention is not None:
            warnings.append(
                Note(code="option_unused", message=f"--attention has no effect: {model.spec.name} has no attention.")
            )
        return AttentionKernel.SDPA
    if options.attention is None:
        return model.recipe.attention if model.recipe else AttentionKernel.SDPA
    wanted = AttentionKernel(options.attention)
    if wanted is AttentionKernel.FLASH_ATTENTION_2:
        capability = accelerator.compute_capability
        if capability is not None and capability < _AMPERE:
            reason = f"flash_attention_2 needs Ampere or newer; {_card(accelerator)} is older"
        elif precision is Precision.FP32:
            reason = "flash_attention_2 needs bf16 or fp16"
        else:
            return wanted
        warnings.append(Note(code="flash_attention_unavailable", message=f"{reason}; using sdpa."))
        return AttentionKernel.SDPA
    return wanted
