"""Models known by name: a Hugging Face config as published, and the recipe the model was trained with."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..specs.errors import Note, Problem, SpecError
from ..specs.model import ModelSpec
from ..specs.recipe import (
    OPTIMIZER_ALIASES,
    OPTIMIZERS,
    AttentionKernel,
    OptimizationSettings,
    Precision,
    TrainingRecipe,
)
from .huggingface import model_from_config
from .load import SourceTable, Table, convert, read_toml
from .lookup import find_model_file, nearest_models

_Count = Annotated[int, msgspec.Meta(ge=1, lt=2**60)]
_Fraction = Annotated[float, msgspec.Meta(ge=0, lt=1)]
_Positive = Annotated[float, msgspec.Meta(gt=0)]


class OptimizationTable(Table, frozen=True, kw_only=True):
    """``[recipe.optimization]``: fields as in ``OptimizationSettings``; absent means not published."""

    learning_rate: _Positive | None = None
    adam_beta1: _Fraction | None = None
    adam_beta2: _Fraction | None = None
    adam_epsilon: _Positive | None = None
    weight_decay: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_grad_norm: _Positive | None = None
    lr_schedule: str | None = None
    min_lr_fraction: _Fraction | None = None
    warmup_steps: Annotated[int, msgspec.Meta(ge=0)] | None = None


class RecipeTable(Table, frozen=True, kw_only=True):
    """``[recipe]``: fields as in ``TrainingRecipe``."""

    precision: Precision
    global_batch_size: _Count
    tf32: bool = True
    attention: AttentionKernel = AttentionKernel.SDPA
    compile: bool = True
    optimizer: str = "adamw_torch"
    sequence_length: _Count | None = None
    image_size: _Count | None = None
    num_training_steps: _Count | None = None
    is_published: bool = True
    """False: a sensible default, because nobody published one."""
    optimization: OptimizationTable = OptimizationTable()


class ModelTable(Table, frozen=True, kw_only=True):
    """A file of ``models/``. Its name is the file's name."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    config: dict[str, Any]
    """Fields of the model's ``config.json`` as published."""
    null_fields: tuple[str, ...] = ()
    """Fields that the published config sets to null, which TOML cannot say; absent, they would take a default."""
    display_name: str | None = None
    hub_id: str | None = None
    recipe: RecipeTable | None = None
    sources: tuple[SourceTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledModel:
    """A model known by name."""

    spec: ModelSpec
    recipe: TrainingRecipe | None
    notes: tuple[Note, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """A model file before its config is read."""

    name: str
    config: dict[str, Any]
    recipe: TrainingRecipe | None
    notes: tuple[Note, ...]
    sources: tuple[str, ...]
    is_own: bool
    """The user's file, not a bundled one."""
    path: Path


def find_model_entry(text: str) -> ModelEntry | None:
    """The entry that a name or alias (a hub id, say) means; None where no such name is known."""
    found = find_model_file(text)
    if found is None:
        return None
    path, is_own = found
    status = path.stat()
    return _load_entry(path, is_own, status.st_mtime_ns)


@lru_cache(maxsize=128)
def _load_entry(path: Path, is_own: bool, _changed_at: int) -> ModelEntry:
    table = convert(read_toml(path), ModelTable, path=path)
    if table.name != path.stem:
        raise _problem(path, "name", f"is {table.name!r}; a model is named like its file, {path.stem!r}")
    notes: tuple[Note, ...] = ()
    if is_own:
        notes += (Note(code="user_model", message=f"{table.name} is described by {path}."),)
    if table.recipe is not None and not table.recipe.is_published:
        notes += (Note(code="default_recipe", message=f"{table.name}: default recipe, not published."),)
    sources = tuple(f"{', '.join(entry.fields)}: {entry.source} ({entry.read})" for entry in table.sources)
    recipe = None if table.recipe is None else _recipe(table.recipe, path)
    config = {**table.config, **dict.fromkeys(table.null_fields)}
    return ModelEntry(
        name=table.name, config=config, recipe=recipe, notes=notes, sources=sources, is_own=is_own, path=path,
    )  # fmt: skip


def _recipe(table: RecipeTable, path: Path) -> TrainingRecipe:
    optimizer = OPTIMIZER_ALIASES.get(table.optimizer, table.optimizer)
    if optimizer not in OPTIMIZERS:
        allowed = ", ".join((*OPTIMIZERS, *OPTIMIZER_ALIASES))
        raise _problem(path, "recipe.optimizer", f"is {table.optimizer!r}; it must be one of {allowed}")
    optimization = OptimizationSettings(**{
        field.name: getattr(table.optimization, field.name) for field in msgspec.structs.fields(OptimizationTable)
    })  # fmt: skip
    return TrainingRecipe(
        precision=table.precision, tf32=table.tf32, attention=table.attention, compile=table.compile,
        optimizer=optimizer, sequence_length=table.sequence_length, image_size=table.image_size,
        global_batch_size=table.global_batch_size, num_training_steps=table.num_training_steps,
        optimization=optimization,
    )  # fmt: skip


def _problem(path: Path, field: str, message: str) -> SpecError:
    return SpecError(Problem(code="bad_file", message=f"{path}: {field}: {message}", field=f"{path}: {field}"))


def load_bundled_model(name: str) -> BundledModel:
    """A model by name, alias or hub id of a bundled one. Raises SpecError ``unknown_model``."""
    entry = find_model_entry(name)
    if entry is None:
        near = nearest_models(name)
        hint = f"Did you mean {', '.join(near)}?" if near else "`traincast catalog models` lists the known ones."
        message = f"No model is called {name[:100]!r}. {hint}"
        raise SpecError(Problem(code="unknown_model", message=message, field="model"))
    source = str(entry.path) if entry.is_own else "bundled"
    spec, notes = model_from_config(entry.config, name=entry.name, source=source)
    return BundledModel(spec=spec, recipe=entry.recipe, notes=(*entry.notes, *notes), sources=entry.sources)
