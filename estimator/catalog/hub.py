"""``config.json`` of a hub id: fetched once, kept in the user's cache. Nothing else is ever fetched or sent."""

import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ..specs.errors import Note, Problem, SpecError
from .lookup import nearest_models

if TYPE_CHECKING:
    from urllib.error import HTTPError

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
LARGEST_CONFIG_BYTES = 4 * 2**20
TIMEOUT_SECONDS = 10.0
_DEFAULT_ENDPOINT = "https://huggingface.co"
_TRUE = {"1", "true", "yes", "on"}
_GATED = (401, 403)


def cache_directory() -> Path:
    """``TRAINCAST_CACHE_DIR``, else the system's place for a user's caches."""
    override = os.environ.get("TRAINCAST_CACHE_DIR")
    if override:
        return Path(override)
    # Imported here: only hub ids need it.
    from platformdirs import user_cache_path

    return user_cache_path("traincast")


def hub_config(hub_id: str, *, cache_dir: Path | None = None) -> tuple[str, str, tuple[Note, ...]]:
    """Text of a config, where it came from, and notes. Raises SpecError: gated, not found, offline, too large."""
    endpoint = (os.environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")
    url = f"{endpoint}/{hub_id}/resolve/main/config.json"
    path = (cache_dir or cache_directory()) / "hub" / _endpoint_name(endpoint) / hub_id / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        content = _fetch(hub_id, url)
        text = _decoded(hub_id, content)
        return text, url, _keep(path, content)
    note = Note(code="hub_cache", message=f"{hub_id}: config from the cache; delete {path} to fetch it again.")
    return text, url, (note,)


def _endpoint_name(endpoint: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", endpoint.partition("://")[2]) or "hub"


def _fetch(hub_id: str, url: str) -> bytes:
    if any(os.environ.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        raise _refusal(hub_id, "hub_offline", "not in the cache, and HF_HUB_OFFLINE forbids fetching it")
    if not url.startswith(("http://", "https://")):
        raise _refusal(hub_id, "hub_offline", f"HF_ENDPOINT is no http address ({url})")
    # Imported here: costs more than the rest of a plan, and only hub ids need it.
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError

    from .hub_request import get

    token = os.environ.get("HF_TOKEN")
    try:
        content = get(url, token=token, timeout_seconds=TIMEOUT_SECONDS, most_bytes=LARGEST_CONFIG_BYTES)
    except HTTPError as error:
        with error:
            raise _http_refusal(hub_id, error, has_token=bool(token)) from None
    except (URLError, HTTPException, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise _refusal(hub_id, "hub_offline", f"offline: no answer from {url} ({reason})") from None
    if len(content) > LARGEST_CONFIG_BYTES:
        raise _refusal(hub_id, "hub_too_large", f"its config.json is larger than {LARGEST_CONFIG_BYTES // 2**20} MiB")
    return content


def _http_refusal(hub_id: str, error: "HTTPError", *, has_token: bool) -> SpecError:
    """What the hub's answer means: it says 401 for gated and for unknown repositories, and names which in a header."""
    said = error.headers.get("X-Error-Code", "") if error.headers else ""
    if said == "RepoNotFound" or (error.code == 404 and said != "EntryNotFound"):
        return _refusal(hub_id, "hub_not_found", "no such repository on the hub (or a private one)")
    if error.code == 404:
        return _refusal(hub_id, "hub_not_found", "the repository has no config.json")
    if error.code in _GATED:
        login = "the token in HF_TOKEN has no access: accept the licence on the model's page" if has_token else (
            "accept the licence on the model's page and set HF_TOKEN")  # fmt: skip
        return _refusal(hub_id, "hub_gated", f"access is gated (HTTP {error.code}): {login}")
    return _refusal(hub_id, "hub_failed", f"the hub answered HTTP {error.code}; try again later")


def _refusal(hub_id: str, code: str, reason: str) -> SpecError:
    near = nearest_models(hub_id)
    preset = f"a bundled preset ({', '.join(near)})" if near else "a bundled preset (`traincast catalog models`)"
    message = f"{hub_id}: {reason}. Or use {preset} or --model PATH of a config.json."
    return SpecError(Problem(code=code, message=message, field="model"))


def _decoded(hub_id: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal(hub_id, "hub_broken", "its config.json is no UTF-8 text") from None


def _keep(path: Path, content: bytes) -> tuple[Note, ...]:
    """Write a file whole or not at all: no process ever reads half of it. A full disk is a note, not a failure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
    except OSError as error:
        message = f"{path} could not be written ({error.strerror}); it is fetched each time."
        return (Note(code="cache_not_written", message=message),)
    return ()
