"""Lengths, batches and the number of steps: options over the published recipe over stated assumptions."""

import math
from dataclasses import dataclass
from functools import lru_cache

from estimator.plan.candidates import divisors_of
from estimator.specs.errors import Note
from estimator.specs.units import format_count

from .model_input import DEFAULT_ENCODER_LENGTH, DEFAULT_SEQUENCE_LENGTH, ModelInput
from .options import WorkloadOptions
from .problems import refusal

ASSUMED_TOKENS_PER_STEP = 2**19
"""Where nobody says: about half a million tokens, the batch that GPT-2 and GPT-3's small sizes were trained with."""
ASSUMED_IMAGES_PER_STEP = 1024
LONGEST_SEQUENCE = 2**24
LARGEST_BATCH = 2**31
_SAME_LENGTH = 0.02
"""Relative change of the run's data that is not worth a word (a batch moved to divide by the GPUs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """What one sample is."""

    sequence_length: int | None
    image_size: int | None
    warnings: tuple[Note, ...]
    assumptions: tuple[Note, ...]


def sample_length(options: WorkloadOptions, model: ModelInput) -> Length:
    """Tokens or pixels of one sample."""
    if model.reads_images:
        return _image(options, model)
    warnings: tuple[Note, ...] = ()
    assumptions: tuple[Note, ...] = ()
    if options.image_size is not None:
        warnings = (_unused("image_size", f"{model.spec.name} reads text"),)
    length = options.sequence_length or (model.recipe.sequence_length if model.recipe else None)
    if length is None:
        usual = DEFAULT_ENCODER_LENGTH if model.spec.family == "encoder" else DEFAULT_SEQUENCE_LENGTH
        length = min(model.max_sequence_length or usual, usual)
        assumptions = (Note(code="assumed_sequence_length", message=f"Sequence length assumed: {length:,} tokens."),)
    if length > LONGEST_SEQUENCE:
        message = f"--sequence-length is {length:,}; at most {LONGEST_SEQUENCE:,} tokens a sample."
        raise refusal("bad_value", "sequence_length", message)
    return Length(sequence_length=length, image_size=None, warnings=warnings, assumptions=assumptions)


def _image(options: WorkloadOptions, model: ModelInput) -> Length:
    name = model.spec.name
    if options.num_training_tokens is not None:
        message = f"--num-training-tokens: {name} reads images; use --num-training-samples or --num-training-steps."
        raise refusal("bad_value", "num_training_tokens", message)
    warnings = () if options.sequence_length is None else (_unused("sequence_length", f"{name} reads images"),)
    image_size: int | None = getattr(model.spec, "image_size", None)
    return Length(sequence_length=None, image_size=image_size, warnings=warnings, assumptions=())


def _unused(key: str, reason: str) -> Note:
    return Note(code="option_unused", message=f"--{key.replace('_', '-')} has no effect: {reason}.")


def assumed_global_batch_size(sequence_length: int | None, num_gpus: int) -> int:
    """About ``ASSUMED_TOKENS_PER_STEP``: the GPU count times the power of two that comes nearest."""
    samples = ASSUMED_IMAGES_PER_STEP if sequence_length is None else ASSUMED_TOKENS_PER_STEP / sequence_length
    return int(num_gpus * 2 ** max(0, round(math.log2(max(1.0, samples / num_gpus)))))


def nearest_dividing_batch(global_batch_size: int, num_gpus: int) -> int:
    """The multiple of the GPU count that is nearest to the batch."""
    return max(1, round(global_batch_size / num_gpus)) * num_gpus


def check_batch(global_batch_size: int, micro_batch_size: int, num_gpus: int) -> None:
    """Refuse a micro batch that does not divide, with the nearest that do."""
    per_round = micro_batch_size * num_gpus
    if global_batch_size % per_round == 0 and global_batch_size <= LARGEST_BATCH:
        return
    for field, size in (("global_batch_size", global_batch_size), ("micro_batch_size", micro_batch_size)):
        if size > LARGEST_BATCH:
            flag = "--" + field.replace("_", "-")
            message = f"{flag} is {size:,} samples; at most {LARGEST_BATCH:,}. Tokens belong to --num-training-tokens."
            raise refusal("bad_value", field, message)
    nearest = []
    if global_batch_size % num_gpus == 0:
        per_gpu = global_batch_size // num_gpus
        divisors = divisors_of(per_gpu)
        below = max((d for d in divisors if d < micro_batch_size), default=None)
        above = min((d for d in divisors if d > micro_batch_size), default=None)
        nearest += [f"micro {d} x {per_gpu // d} accumulation" for d in (below, above) if d is not None]
    rounds = max(1, round(global_batch_size / per_round))
    nearest.append(f"global {rounds * per_round} with {rounds}")
    message = (
        f"Global batch {global_batch_size} is not micro batch {micro_batch_size} x {num_gpus} GPUs x a whole number of "
        f"accumulations. Nearest: {', or '.join(nearest)}."
    )
    raise refusal("batch_not_divisible", "micro_batch_size", message)


def num_training_steps(
    options: WorkloadOptions, model: ModelInput, global_batch_size: int, sequence_length: int | None
) -> int | None:
    """Optimizer steps of the run; None where no length is known."""
    given: dict[str, int] = {}
    if options.num_training_steps is not None:
        given["--num-training-steps"] = options.num_training_steps
    if options.num_training_tokens is not None:
        tokens_per_step = global_batch_size * (sequence_length or 1)
        given["--num-training-tokens"] = math.ceil(options.num_training_tokens / tokens_per_step)
    if options.num_training_samples is not None:
        given["--num-training-samples"] = math.ceil(options.num_training_samples / global_batch_size)
    if len(set(given.values())) > 1:
        said = ", ".join(f"{name} makes {value:,} steps" for name, value in given.items())
        message = f"The length of the run is given twice: {said}. Keep one."
        raise refusal("contradiction", "num_training_steps", message)
    for value in given.values():
        return value
    return model.recipe.num_training_steps if model.recipe else None


def length_notes(
    options: WorkloadOptions, model: ModelInput, global_batch_size: int, sequence_length: int | None
) -> tuple[Note, ...]:
    """Say so where the published number of steps now means another amount of data."""
    recipe = model.recipe
    if recipe is None or recipe.num_training_steps is None:
        return ()
    if options.num_training_steps or options.num_training_tokens or options.num_training_samples:
        return ()
    published = recipe.global_batch_size * (recipe.sequence_length or 1)
    now = global_batch_size * (sequence_length or 1)
    if abs(now / published - 1) < _SAME_LENGTH:
        return ()
    return _length_changed(recipe.num_training_steps, published, now, sequence_length is None)


@lru_cache(maxsize=4096)
def _length_changed(steps: int, published: int, now: int, is_images: bool) -> tuple[Note, ...]:
    unit, option = ("samples", "--num-training-samples") if is_images else ("tokens", "--num-training-tokens")
    message = (
        f"The published {steps:,} steps are kept: now {format_count(now * steps)} {unit} instead of "
        f"{format_count(published * steps)}; {option} sets the amount of data."
    )
    return (Note(code="run_length_changed", message=message),)
