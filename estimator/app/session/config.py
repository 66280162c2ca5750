"""Where option values come from: typed flag > environment > profile > the model's recipe or a default."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from estimator.catalog.lookup import nearest_names
from estimator.catalog.user_files import config_directory
from estimator.specs.errors import Note, Problem, ProjectError, SpecError

from .not_modelled import hint_for_name, not_modelled
from .options import OPTION_BY_KEY, OPTIONS, STRATEGY_KEYS, WorkloadOptions, parse_value

ENVIRONMENT_PREFIX = "TRAINCAST_"
RESERVED_VARIABLES = frozenset(
    {
        "TRAINCAST_PROFILE",
        "TRAINCAST_CACHE_DIR",
        "TRAINCAST_COMMIT",
        "TRAINCAST_CONFIG_DIR",
        "TRAINCAST_DATA_DIR",
        "TRAINCAST_DEBUG",
    }
)
"""Read elsewhere; not options of a workload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The value of one option, where it was given, and what it beat."""

    key: str
    value: object
    origin: str
    """``--num-gpus``, ``TRAINCAST_NUM_GPUS``, ``profile lab.toml``."""
    beaten: tuple[tuple[str, object], ...] = ()
    """(origin, value) of lower layers that also gave one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatheredOptions:
    """All layers merged."""

    options: WorkloadOptions
    choices: tuple[Choice, ...]
    notes: tuple[Note, ...] = ()


def gather_options(
    typed: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    profile: str | None = None,
    with_strategy: bool = True,
) -> GatheredOptions:
    """Merge typed flags, environment and profile into parsed options; every problem found is reported at once.

    ``with_strategy`` is False for commands that choose the strategy themselves; what a profile or the environment
    says about it is then left aside with a note.
    """
    environment = os.environ if environment is None else environment
    notes: list[Note] = []
    problems: list[Problem] = []
    layers: list[dict[str, tuple[str, object]]] = [{}, {}, {}]
    for key, raw in typed.items():
        _add(layers[0], key, f"--{key.replace('_', '-')}", raw, problems)
    for name, text in sorted(environment.items()):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in RESERVED_VARIABLES:
            continue
        key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key not in OPTION_BY_KEY:
            notes.append(Note(code="unknown_variable", message=f"{name} is set but names no option; it has no effect."))
        else:
            raw = text.split(",") if key == "set" else text
            _add(layers[1], key, name, raw, problems)
    origin, table = _read_profile(profile or environment.get("TRAINCAST_PROFILE"), environment, problems)
    for key, raw in table.items():
        _add(layers[2], key, origin, raw, problems)
    if not with_strategy:
        for layer in layers[1:]:
            for key in STRATEGY_KEYS & layer.keys():
                source, _ = layer.pop(key)
                notes.append(
                    Note(code="option_unused", message=f"{key} from {source} has no effect: this command chooses it.")
                )
    if problems:
        raise SpecError(*problems)
    return _merge(layers, tuple(notes))


def _merge(layers: list[dict[str, tuple[str, object]]], notes: tuple[Note, ...]) -> GatheredOptions:
    values: dict[str, object] = {}
    choices: list[Choice] = []
    for option in OPTIONS:
        given = [layer[option.key] for layer in layers if option.key in layer]
        if not given:
            continue
        (origin, value), *beaten = given
        values[option.key] = value
        choices.append(Choice(key=option.key, value=value, origin=origin, beaten=tuple(beaten)))
    # The run's length is one choice with three spellings: the highest layer that gives any of them wins.
    lengths = ("num_training_steps", "num_training_tokens", "num_training_samples")
    for layer in layers:
        chosen = [key for key in lengths if key in layer]
        if chosen:
            for key in set(lengths) - set(chosen):
                values.pop(key, None)
            choices = [choice for choice in choices if choice.key not in lengths or choice.key in chosen]
            break
    return GatheredOptions(options=WorkloadOptions(**values), choices=tuple(choices), notes=notes)  # type: ignore[arg-type]


def _add(layer: dict[str, tuple[str, object]], key: str, origin: str, raw: object, problems: list[Problem]) -> None:
    option = OPTION_BY_KEY.get(key)
    if option is None:
        problems.append(unknown_option(key, where=origin))
        return
    try:
        layer[key] = (origin, parse_value(option, raw))
    except ProjectError as error:
        for problem in error.problems:
            where = "" if origin == option.flag else f" (from {origin})"
            problems.append(Problem(code=problem.code, message=problem.message + where, field=problem.field))


def unknown_option(key: str, *, where: str) -> Problem:
    """What to say about a name that is no option: not modelled, another tool's name, or a slip."""
    reason = not_modelled(key)
    if reason is not None:
        return Problem(code="not_modelled", message=f"{key}: {reason}", field=key)
    hint = hint_for_name(key)
    if hint is None:
        nearest = nearest_names(key, tuple(OPTION_BY_KEY))
        hint = f"did you mean {' or '.join(nearest[:2])}?" if nearest else "see `traincast estimate --help`"
    return Problem(code="unknown_option", message=f"Unknown option {key!r} ({where}): {hint}", field=key)


def _read_profile(
    name: str | None, environment: Mapping[str, str], problems: list[Problem]
) -> tuple[str, dict[str, object]]:
    """A profile by path (``*.toml``) or by name in the settings folder; ``default.toml`` there where it exists."""
    if name is not None and (name.endswith(".toml") or os.sep in name):
        path = Path(name)
    else:
        path = config_directory() / "profiles" / f"{name or 'default'}.toml"
    origin = f"profile {path}"
    try:
        return origin, tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if name is not None:
            others = sorted(p.stem for p in path.parent.glob("*.toml"))
            known = f" Known here: {', '.join(others)}." if others else ""
            problems.append(
                Problem(code="unknown_profile", message=f"Profile {name!r}: no file {path}.{known}", field="profile")
            )
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        problems.append(Problem(code="bad_profile", message=f"Profile {path} cannot be read: {error}", field="profile"))
    return origin, {}
