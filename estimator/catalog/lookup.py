"""Accelerators and bundled models by name, in any usual spelling."""

import dataclasses
import os
from functools import lru_cache
from pathlib import Path

from ..specs.errors import Note, Problem, SpecError
from ..specs.hardware import Accelerator
from .load import DATA_DIRECTORY, NodeTable, Table, convert, load_accelerator, read_toml
from .prices import price_notes, purchase_price, rental_price
from .spelling import NUM_NAMES, nearest_names, normalised
from .user_files import config_directory, user_accelerators, user_model_files

__all__ = ["accelerator_names", "bundled_model_names", "find_accelerator", "known_nodes", "nearest_names"]

_FOREIGN = ("tpu", "gaudi", "trainium", "trn1", "trn2", "inferentia", "ascend", "cerebras", "ipu", "groq")
_LONGEST_NAME = 100
_SPELLINGS_TRIED = 8
"""Several spellings of one card look alike; these many hold a few cards."""


class _Ambiguous(Table, frozen=True, kw_only=True):
    """A name of several cards."""

    assume: str
    meaning: str
    others: tuple[str, ...]
    advice: str | None = None


class _Names(Table, frozen=True, kw_only=True):
    """``accelerator_names.toml``."""

    aliases: dict[str, tuple[str, ...]]
    ambiguous: dict[str, _Ambiguous]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _NameIndex:
    canonical: dict[str, str]
    """Normalised alias -> canonical name."""
    ambiguous: dict[str, _Ambiguous]
    spelled: dict[str, tuple[str, ...]]
    """Every spelling and what to suggest for it."""


def accelerator_names() -> tuple[str, ...]:
    """Canonical names of the bundled accelerators and of the user's own."""
    own = {accelerator.name for accelerator, _ in user_accelerators().values()}
    return tuple(sorted(own | set(_stems("accelerators").values())))


def bundled_model_names() -> tuple[str, ...]:
    """Canonical names of the bundled models and of the user's own."""
    own = {path.stem for path in user_model_files().values()}
    return tuple(sorted(own | set(_stems("models").values())))


@lru_cache(maxsize=4)
def _stems(kind: str) -> dict[str, str]:
    """Normalised name -> name of the bundled files."""
    names = (entry[: -len(".toml")] for entry in os.listdir(DATA_DIRECTORY / kind) if entry.endswith(".toml"))
    return {normalised(name): name for name in names}


@lru_cache(maxsize=1)
def _index() -> _NameIndex:
    path = DATA_DIRECTORY / "accelerator_names.toml"
    names = convert(read_toml(path), _Names, path=path)
    spelled: dict[str, tuple[str, ...]] = {name: (name,) for name in _stems("accelerators").values()}
    for name, aliases in names.aliases.items():
        spelled |= {alias: (name,) for alias in aliases}
    for text, entry in names.ambiguous.items():
        spelled[text] = (entry.assume, *entry.others[:1])
    return _NameIndex(
        canonical={normalised(alias): name for name, aliases in names.aliases.items() for alias in aliases},
        ambiguous={normalised(text): entry for text, entry in names.ambiguous.items()},
        spelled=spelled,
    )


@lru_cache(maxsize=128)
def _bundled_accelerator(name: str) -> Accelerator:
    return load_accelerator(DATA_DIRECTORY / "accelerators" / f"{name}.toml")[0]


def find_accelerator(text: str) -> tuple[Accelerator, tuple[Note, ...]]:
    """The accelerator that a name means, with a note on what was assumed. Raises SpecError ``unknown_gpu``."""
    key = normalised(text[:_LONGEST_NAME])
    own = user_accelerators().get(key)
    if own is not None:
        accelerator, path = own
        return _priced(accelerator, (Note(code="user_gpu", message=f"{accelerator.name} is described by {path}."),))
    name = _stems("accelerators").get(key)
    if name is not None:
        return _priced(_bundled_accelerator(name), ())
    index = _index()
    if key in index.canonical:
        return _priced(_bundled_accelerator(index.canonical[key]), ())
    entry = index.ambiguous.get(key)
    if entry is None:
        raise _unknown(text, key, index)
    message = f"Assuming {entry.assume} ({entry.meaning}) for {text!r}"
    if entry.others:
        message += f"; for another type {', '.join(entry.others)}"
    message += f" ({entry.advice})." if entry.advice else "."
    return _priced(_bundled_accelerator(entry.assume), (Note(code="gpu_assumed", message=message),))


def _priced(accelerator: Accelerator, notes: tuple[Note, ...]) -> tuple[Accelerator, tuple[Note, ...]]:
    name = accelerator.name
    priced = dataclasses.replace(accelerator, rental_price=rental_price(name), purchase_price=purchase_price(name))
    return priced, (*notes, *price_notes(name))


def _unknown(text: str, key: str, index: _NameIndex) -> SpecError:
    shown = repr(text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "...")
    if any(word in key for word in _FOREIGN):
        message = f"{shown} is not modelled: GPUs only. `traincast catalog gpus` lists them."
        return SpecError(Problem(code="not_modelled", message=message, field="gpu"))
    for node in known_nodes():
        if key in {normalised(name) for name in (node.name, *node.aliases)}:
            message = (
                f"{shown} is a machine, not a GPU: --gpu {node.gpu} --num-gpus {node.num_gpus} "
                f"--cpu-memory-gib {node.cpu_memory_gib:g} (and --network-gbit {node.network_gbit:g} for several)."
            )
            return SpecError(Problem(code="machine_name", message=message, field="gpu"))
    near: list[str] = []
    own = (accelerator.name for accelerator, _ in user_accelerators().values())
    for spelling in nearest_names(text, (*index.spelled, *own), most=_SPELLINGS_TRIED):
        near += [name for name in index.spelled.get(spelling, (spelling,)) if name not in near]
    listed = " `traincast catalog gpus` lists the known ones."
    suggestion = f" Did you mean {', '.join(near[:NUM_NAMES])}?" if near else listed
    place = config_directory() / "accelerators" / "my-gpu.toml"
    message = (
        f"Unknown GPU {shown}.{suggestion} Or describe it in a file: {place} with name, memory_bytes, "
        "memory_bandwidth_bytes_per_second and the dense rates in [peak_dense_flop_per_second], such as bf16 = 312e12."
    )
    return SpecError(Problem(code="unknown_gpu", message=message, field="gpu"))


@lru_cache(maxsize=1)
def known_nodes() -> tuple[NodeTable, ...]:
    """Machines that many people use."""
    directory = DATA_DIRECTORY / "clusters"
    paths = sorted(directory / name for name in os.listdir(directory) if name.endswith(".toml"))
    return tuple(convert(read_toml(path), NodeTable, path=path) for path in paths)


class _ModelNames(Table, frozen=True, kw_only=True):
    aliases: dict[str, tuple[str, ...]]


@lru_cache(maxsize=1)
def _model_aliases() -> dict[str, str]:
    """Normalised alias (hub ids among them) -> bundled name."""
    path = DATA_DIRECTORY / "model_names.toml"
    names = convert(read_toml(path), _ModelNames, path=path)
    return {normalised(alias): name for name, aliases in names.aliases.items() for alias in aliases}


def find_model_file(text: str) -> tuple[Path, bool] | None:
    """The file of a named model and whether it is the user's own; None where the name is not known."""
    key = normalised(text)
    own = user_model_files().get(key)
    if own is not None:
        return own, True
    name = _stems("models").get(key) or _model_aliases().get(key)
    return None if name is None else (DATA_DIRECTORY / "models" / f"{name}.toml", False)


def nearest_models(text: str) -> tuple[str, ...]:
    """Bundled names near a model's name, owner of a hub id ignored."""
    short = text.rstrip("/").rsplit("/", 1)[-1]
    return nearest_names(short, bundled_model_names())
