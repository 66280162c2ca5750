"""The model that a user named, with its published recipe and what its kind decides about inputs."""

import dataclasses
from dataclasses import dataclass

from estimator.catalog.resolve import resolve_model
from estimator.specs.errors import Note
from estimator.specs.model import ModelSpec
from estimator.specs.models.convnext import ConvNextSpec
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.models.encoder import EncoderSpec
from estimator.specs.models.traced import TracedModel
from estimator.specs.models.vision import VisionTransformerSpec
from estimator.specs.recipe import TrainingRecipe

from .options import WorkloadOptions
from .problems import refusal

DEFAULT_SEQUENCE_LENGTH = 2048
DEFAULT_ENCODER_LENGTH = 512
LARGEST_IMAGE = 16_384


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ModelInput:
    """A resolved model. Compared by identity: one per (text, overrides)."""

    text: str
    """As it should be typed again."""
    spec: ModelSpec
    recipe: TrainingRecipe | None
    """Published, for bundled models."""
    notes: tuple[Note, ...]

    @property
    def reads_images(self) -> bool:
        spec = self.spec
        if isinstance(spec, TracedModel):
            return spec.input_kind == "images"
        return isinstance(spec, VisionTransformerSpec | ConvNextSpec)

    @property
    def has_attention(self) -> bool:
        return self.spec.family not in ("convnext", "mamba")

    @property
    def max_sequence_length(self) -> int | None:
        """Tokens the position embeddings were made for; None where there is no such limit."""
        spec = self.spec
        if isinstance(spec, EncoderSpec):
            return spec.max_sequence_length
        if isinstance(spec, DecoderSpec | TracedModel):
            return spec.max_position_embeddings
        return None


def model_input(options: WorkloadOptions) -> ModelInput:
    """Resolve ``--model`` with ``--set`` and, for image models, ``--image-size``."""
    if options.model is None:
        message = (
            "--model is missing: a bundled name (`traincast catalog models`), a config.json, a folder or a hub id."
        )
        raise refusal("missing_option", "model", message)
    resolved = resolve_model(options.model, overrides=options.set or {})
    spec = resolved.spec
    if options.image_size is not None:
        spec = _with_image_size(spec, options.image_size)
    return ModelInput(text=options.model, spec=spec, recipe=resolved.recipe, notes=tuple(resolved.notes))


def _with_image_size(spec: ModelSpec, image_size: int) -> ModelSpec:
    """The model at another image size; a text model as it is (the option is then reported as unused)."""
    if isinstance(spec, TracedModel) and spec.image_size is not None and spec.image_size != image_size:
        message = (
            f"--image-size is {image_size}, but {spec.name} was traced with images of {spec.image_size}; "
            "trace it again at the other size."
        )
        raise refusal("image_size_fixed", "image_size", message)
    if not isinstance(spec, VisionTransformerSpec | ConvNextSpec):
        return spec
    smallest = spec.patch_size if isinstance(spec, VisionTransformerSpec) else spec.patch_size << (len(spec.depths) - 1)
    if not smallest <= image_size <= LARGEST_IMAGE:
        message = f"--image-size is {image_size}; {spec.name} needs {smallest} to {LARGEST_IMAGE} pixels a side."
        raise refusal("bad_value", "image_size", message)
    return dataclasses.replace(spec, image_size=image_size)
