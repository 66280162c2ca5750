"""Lengths, batches and the number of steps: options over the published recipe over stated assumptions."""

import math
from dataclasses import dataclass

from estimator.plan.candidates import divisors_of
from estimator.specs.errors import Note, Problem, SpecError
from estimator.specs.units import format_count

from .model_input import DEFAULT_ENCODER_LENGTH, DEFAULT_SEQUENCE_LENGTH, ModelInput
from .options import WorkloadOptions

ASSUMED_TOKENS_PER_STEP = 2**19
"""Where nobody says: about half a million tokens, the batch that GPT-2 and GPT-3's small sizes were trained with."""
ASSUMED_IMAGES_PER_STEP = 1024
LONGEST_SEQUENCE = 2**24
LARGEST_BATCH = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What one sample is."""

    sequence_length: int | None
    image_size: int | None
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


def sample_length(options: WorkloadOptions, model: ModelInput) -> Length:
    """Tokens or pixels of one sample."""
    warnings: list[Note] = []
    if model.reads_images:
        if options.sequence_length is not None:
            warnings.append(_unused("sequence_length", f"{model.spec.name} reads images"))
        if options.num_training_tokens is not None:
            raise SpecError(Problem(
                code="bad_value", field="num_training_tokens",
                message=f"--num-training-tokens: {model.spec.name} reads images; use --num-training-samples or --num-training-steps."))  # fmt: skip
        image_size = getattr(model.spec, "image_size", None)
        return Length(sequence_length=None, image_size=image_size, warnings=tuple(warnings), assumptions=())
    if options.image_size is not None:
        warnings.append(_unused("image_size", f"{model.spec.name} reads text"))
    longest = model.max_sequence_length
    assumptions: tuple[Note, ...] = ()
    length = options.sequence_length or (model.recipe.sequence_length if model.recipe else None)
    if length is None:
        usual = DEFAULT_ENCODER_LENGTH if model.spec.family == "encoder" else DEFAULT_SEQUENCE_LENGTH
        length = min(longest or usual, usual)
        assumptions = (Note(code="assumed_sequence_length", message=f"Sequence length assumed: {length:,} tokens."),)
    if length > LONGEST_SEQUENCE:
        raise SpecError(Problem(
            code="bad_value", field="sequence_length",
            message=f"--sequence-length is {length:,}; at most {LONGEST_SEQUENCE:,} tokens a sample."))  # fmt: skip
    if longest is not None and length > longest:
        remedy = "a longer position table" if model.has_learned_positions else "RoPE scaling or the like"
        warnings.append(Note(
            code="sequence_longer_than_positions",
            message=f"Sequence length {length:,} is beyond the {longest:,} positions of {model.spec.name}; training needs {remedy}."))  # fmt: skip
    return Length(sequence_length=length, image_size=None, warnings=tuple(warnings), assumptions=assumptions)


def _unused(key: str, reason: str) -> Note:
    return Note(code="option_unused", message=f"--{key.replace('_', '-')} has no effect: {reason}.")


def assumed_global_batch_size(sequence_length: int | None, num_gpus: int) -> int:
    """About ``ASSUMED_TOKENS_PER_STEP``: the GPU count times the power of two that comes nearest."""
    samples = ASSUMED_IMAGES_PER_STEP if sequence_length is None else ASSUMED_TOKENS_PER_STEP / sequence_length
    return num_gpus * 2 ** max(0, round(math.log2(max(1.0, samples / num_gpus))))


def nearest_dividing_batch(global_batch_size: int, num_gpus: int) -> int:
    """The multiple of the GPU count that is nearest to the batch."""
    return max(1, round(global_batch_size / num_gpus)) * num_gpus


def check_batch(global_batch_size: int, micro_batch_size: int, num_gpus: int) -> None:
    """Refuse a micro batch that does not divide, with the nearest that do."""
    for field, size in (("global_batch_size", global_batch_size), ("micro_batch_size", micro_batch_size)):
        if size > LARGEST_BATCH:
            raise SpecError(Problem(
                code="bad_value", field=field,
                message=f"--{field.replace('_', '-')} is {size:,} samples; at most {LARGEST_BATCH:,}. Tokens belong to --num-training-tokens."))  # fmt: skip
    per_round = micro_batch_size * num_gpus
    if global_batch_size % per_round == 0:
        return
    suggestions = []
    if global_batch_size % num_gpus == 0:
        per_gpu = global_batch_size // num_gpus
        divisors = divisors_of(per_gpu)
        below = max((d for d in divisors if d < micro_batch_size), default=None)
        above = min((d for d in divisors if d > micro_batch_size), default=None)
        suggestions += [f"micro {d} x {per_gpu // d} accumulation" for d in (below, above) if d is not None]
    rounds = max(1, round(global_batch_size / per_round))
    suggestions.append(f"global {rounds * per_round} with {rounds}")
    gpus = f"{num_gpus} GPU" + ("s" if num_gpus > 1 else "")
    raise SpecError(Problem(
        code="batch_not_divisible", field="micro_batch_size",
        message=f"Global batch {global_batch_size} is not micro batch {micro_batch_size} x {gpus} x a whole number of accumulations. "
                f"Nearest: {', or '.join(suggestions)}."))  # fmt: skip


def num_training_steps(options: WorkloadOptions, model: ModelInput, global_batch_size: int, sequence_length: int | None) -> int | None:
    """Optimizer steps of the run; None where no length is known."""
    given = {
        "--num-training-steps": options.num_training_steps,
        "--num-training-tokens": options.num_training_tokens and math.ceil(
            options.num_training_tokens / (global_batch_size * (sequence_length or 1))),
        "--num-training-samples": options.num_training_samples and math.ceil(options.num_training_samples / global_batch_size),
    }  # fmt: skip
    steps = {name: value for name, value in given.items() if value is not None}
    if len(set(steps.values())) > 1:
        said = ", ".join(f"{name} makes {value:,} steps" for name, value in steps.items())
        raise SpecError(Problem(code="contradiction", field="num_training_steps", message=f"The length of the run is given twice: {said}. Keep one."))
    if steps:
        return next(iter(steps.values()))
    return model.recipe.num_training_steps if model.recipe else None


def length_notes(options: WorkloadOptions, model: ModelInput, global_batch_size: int, sequence_length: int | None) -> tuple[Note, ...]:
    """Say so where the published number of steps now means another amount of data."""
    recipe = model.recipe
    if recipe is None or recipe.num_training_steps is None or options.num_training_steps or options.num_training_tokens or (
            options.num_training_samples):  # fmt: skip
        return ()
    published = recipe.global_batch_size * (recipe.sequence_length or 1)
    now = global_batch_size * (sequence_length or 1)
    if published == now or abs(now / published - 1) < 0.02:
        return ()
    unit, option = ("tokens", "--num-training-tokens") if sequence_length else ("samples", "--num-training-samples")
    return (Note(
        code="run_length_changed",
        message=f"{recipe.num_training_steps:,} steps kept from the published recipe: now {format_count(now * recipe.num_training_steps)} "
                f"{unit} instead of {format_count(published * recipe.num_training_steps)}; {option} sets the amount of data."),)  # fmt: skip
