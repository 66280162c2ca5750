"""A user's own accelerators, models and prices: TOML files of the bundled schema in the user's configuration directory.

``accelerators/*.toml``, ``models/*.toml`` and ``prices.toml`` below ``TRAINCAST_CONFIG_DIR`` (or the system's place for
user settings). They win over bundled entries of the same name.
"""

import os
from functools import lru_cache
from pathlib import Path

from ..specs.errors import Problem, SpecError
from ..specs.hardware import Accelerator
from .load import PricesTable, load_accelerator, load_prices
from .spelling import normalised

_Fingerprint = tuple[tuple[str, int, int], ...]
"""Path, modification time and size of each file: a changed file is read again."""


def config_directory() -> Path:
    """Where the user's files lie."""
    override = os.environ.get("TRAINCAST_CONFIG_DIR")
    if override:
        return Path(override)
    # Imported here: most runs set no directory but have no such file either, and the scan is all they pay.
    from platformdirs import user_config_path

    return user_config_path("traincast")


def _files(kind: str) -> _Fingerprint:
    try:
        entries = sorted(os.scandir(config_directory() / kind), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        place = str(config_directory() / kind)
        message = f"{place}: cannot be read: {error.strerror}"
        raise SpecError(Problem(code="bad_file", message=message, field=place)) from None
    found = [(entry.path, entry.stat()) for entry in entries if entry.name.endswith(".toml")]
    return tuple((path, status.st_mtime_ns, status.st_size) for path, status in found)


def user_accelerators() -> dict[str, tuple[Accelerator, Path]]:
    """By normalised name and alias."""
    return _accelerators(_files("accelerators"))


@lru_cache(maxsize=4)
def _accelerators(fingerprint: _Fingerprint) -> dict[str, tuple[Accelerator, Path]]:
    found: dict[str, tuple[Accelerator, Path]] = {}
    for text, _, _ in fingerprint:
        path = Path(text)
        accelerator, aliases = load_accelerator(path)
        for name in (accelerator.name, *aliases):
            _add(found, name, (accelerator, path), path)
    return found


def user_model_files() -> dict[str, Path]:
    """Model files by normalised file name (the model's name)."""
    return {normalised(Path(text).stem): Path(text) for text, _, _ in _files("models")}


def user_prices() -> tuple[PricesTable, Path] | None:
    """The user's price file."""
    path = config_directory() / "prices.toml"
    try:
        status = path.stat()
    except OSError:
        return None
    return _prices((str(path), status.st_mtime_ns, status.st_size)), path


@lru_cache(maxsize=4)
def _prices(fingerprint: tuple[str, int, int]) -> PricesTable:
    return load_prices(Path(fingerprint[0]))


def _add(found: dict[str, tuple[Accelerator, Path]], name: str, entry: tuple[Accelerator, Path], path: Path) -> None:
    key = normalised(name)
    other = found.get(key)
    if other is not None and other[1] != path:
        message = f"{path}: name: {name!r} is also in {other[1]}; two files cannot share a name"
        raise SpecError(Problem(code="bad_file", message=message, field=f"{path}: name"))
    found[key] = entry
