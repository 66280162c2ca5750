"""``--model``: bundled name, ``config.json``, folder, traced file or hub id; ``--set`` changes config fields."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..specs.errors import Note, Problem, SpecError
from ..specs.model import ModelSpec
from ..specs.recipe import TrainingRecipe
from .bundled import find_model_entry
from .families.decoder import FAMILIES
from .huggingface import model_from_config, parse_config
from .lookup import nearest_models, nearest_names
from .traced import decode_traced, is_traced

LARGEST_CONFIG_BYTES = 16 * 2**20
LARGEST_TRACE_BYTES = 512 * 2**20
CONFIG_FILE = "config.json"
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedModel:
    """A model ready to be estimated."""

    spec: ModelSpec
    recipe: TrainingRecipe | None
    """Published, or a bundled default that a note declares."""
    notes: tuple[Note, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """The config behind a model's name, overrides applied: what a runner builds the model from."""

    name: str
    source: str
    config: dict[str, object]
    recipe: TrainingRecipe | None
    notes: tuple[Note, ...]
    is_bundled: bool
    given_fields: frozenset[str]
    """Fields that the config had before overrides."""


class _ReadRecord(Mapping[str, object]):
    """A config that remembers which fields were asked for: those are what an override may set."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        # Not recorded: copying a config reads every field.
        return self._config[key]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            self.asked.add(key)
        return key in self._config

    def get(self, key: str, default: object = None) -> object:
        self.asked.add(key)
        return self._config.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)


def resolve_model(text: str, *, overrides: Mapping[str, object], cache_dir: Path | None = None) -> ResolvedModel:
    """The model that a user's text means. Raises SpecError: not found, gated, offline, broken, not modelled."""
    content, path = _local_content(text)
    if content is not None and is_traced(content):
        if overrides:
            message = f"--set {', '.join(overrides)}: {path} is a traced model without config fields; trace it again"
            raise _problem("set", "unused_override", message)
        return ResolvedModel(spec=decode_traced(content, source=str(path)), recipe=None, notes=())
    resolved = _resolve_config(text, content, path, overrides, cache_dir)
    record = _ReadRecord(resolved.config)
    try:
        spec, notes = model_from_config(record, name=resolved.name, source=resolved.source)
    except SpecError:
        _refuse_unknown_overrides(overrides, resolved, record.asked)
        raise
    _refuse_unknown_overrides(overrides, resolved, record.asked)
    return ResolvedModel(spec=spec, recipe=resolved.recipe, notes=(*resolved.notes, *notes))


def resolve_config(text: str, *, overrides: Mapping[str, object], cache_dir: Path | None = None) -> ResolvedConfig:
    """The config behind a user's text. Raises SpecError, also for a traced model, which has none."""
    content, path = _local_content(text)
    if content is not None and is_traced(content):
        raise _problem("model", "no_config", f"{path} is a traced model; a config or a name is needed here")
    return _resolve_config(text, content, path, overrides, cache_dir)


def _resolve_config(
    text: str, content: bytes | None, path: Path | None, overrides: Mapping[str, object], cache_dir: Path | None
) -> ResolvedConfig:
    recipe: TrainingRecipe | None = None
    notes: tuple[Note, ...] = ()
    is_bundled = False
    entry = None if content is not None else find_model_entry(text)
    if content is not None:
        assert path is not None
        name, source = _name_of(path), str(path)
        config = parse_config(_decoded(content, path), source=source)
    elif entry is not None:
        name, source, config = entry.name, "bundled", dict(entry.config)
        recipe, notes, is_bundled = entry.recipe, entry.notes, not entry.is_own
    else:
        name, source, config, notes = _from_hub(text, cache_dir)
    # The keys that overrides add are checked once the reader has said which fields it knows.
    merged = {**config, **{_native_key(config, key): parse_override(value) for key, value in overrides.items()}}
    return ResolvedConfig(
        name=name, source=source, config=merged, recipe=recipe, notes=notes, is_bundled=is_bundled,
        given_fields=frozenset(config),
    )  # fmt: skip


def _from_hub(text: str, cache_dir: Path | None) -> tuple[str, str, dict[str, object], tuple[Note, ...]]:
    # Imported here: names and files never need it.
    from .hub import HUB_ID, hub_config

    if not HUB_ID.fullmatch(text):
        raise _unknown(text)
    content, url, notes = hub_config(text, cache_dir=cache_dir)
    return text, url, parse_config(content, source=url), notes


def _local_content(text: str) -> tuple[bytes | None, Path | None]:
    """Content of the file that a text names, if it names one; of a folder, its ``config.json``."""
    looks_like_path = text.endswith((".json", "/", "\\")) or text.startswith((".", "~", "/"))
    is_word = not looks_like_path and "/" not in text and "\\" not in text
    if is_word and (not os.path.exists(text) or find_model_entry(text) is not None):
        return None, None  # a bundled name wins over a folder that happens to lie here
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            path = path / CONFIG_FILE
            if not path.is_file():
                raise _problem("model", "file_not_found", f"{text}: the folder has no {CONFIG_FILE}")
        if not path.is_file():
            if path.exists():
                message = f"{_shown(text)} is no regular file; save the config to a file"
                raise _problem("model", "file_not_read", message)
            if looks_like_path:
                raise _problem("model", "file_not_found", f"{_shown(text)}: no such file or folder")
            return None, None
        if path.stat().st_size > LARGEST_TRACE_BYTES:
            raise _problem("model", "file_too_large", f"{path} is larger than {LARGEST_TRACE_BYTES // 2**20} MiB")
        return path.read_bytes(), path
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _problem("model", "file_not_read", f"{_shown(text)} cannot be read: {reason}") from None


def _decoded(content: bytes, path: Path) -> str:
    if len(content) > LARGEST_CONFIG_BYTES:
        message = f"{path} is larger than {LARGEST_CONFIG_BYTES // 2**20} MiB: no config"
        raise _problem("model", "file_too_large", message)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _problem("model", "bad_config", f"{path} is no UTF-8 text; a config is JSON") from None


def _name_of(path: Path) -> str:
    """A folder names its model better than ``config.json`` does."""
    folder = path.resolve().parent.name
    return folder if path.name == CONFIG_FILE and folder else path.stem


def _native_key(config: Mapping[str, object], key: str) -> str:
    """The field that a common spelling means: ``num_hidden_layers`` is ``n_layer`` in GPT-2's config."""
    family = FAMILIES.get(str(config.get("model_type")))
    native = family.names.get(key, key) if family is not None and key not in config else key
    return native if native in config else key


def parse_override(value: object) -> object:
    """The value of ``--set KEY=VALUE``: JSON where it is JSON (24, 1.5, true, null, [1, 2]), else the text itself."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def _refuse_unknown_overrides(overrides: Mapping[str, object], resolved: ResolvedConfig, asked: set[str]) -> None:
    """An override that no reader asked for would change nothing, silently: refused."""
    known = resolved.given_fields | asked
    problems = []
    for key in overrides:
        if _native_key(resolved.config, key) in known:
            continue
        near = nearest_names(key, sorted(known - set(overrides)))
        some = ", ".join(sorted(resolved.given_fields)[:12])
        hint = f"did you mean {', '.join(near)}?" if near else f"it has {some}, ..."
        problems.append(Problem(
            code="unknown_config_field", field=f"set.{key}",
            message=f"--set {key[:100]}: {resolved.name}'s config has no such field; {hint}"))  # fmt: skip
    if problems:
        raise SpecError(*problems)


def _unknown(text: str) -> SpecError:
    near = nearest_models(text)
    suggestion = f" Did you mean {', '.join(near)}?" if near else ""
    allowed = "a bundled model (`traincast catalog models`), a config.json or its folder, a traced file, or a hub id"
    message = f"Unknown model {_shown(text)!r}.{suggestion} Name {allowed} (owner/name)."
    return _problem("model", "unknown_model", message)


def _shown(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def _problem(field: str, code: str, message: str) -> SpecError:
    return SpecError(Problem(code=code, message=message, field=field))
