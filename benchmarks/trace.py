"""Starts the process that traces a model, and reads what it reports: no torch here."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from estimator.catalog.traced import load_traced
from estimator.specs.errors import MeasurementError, SpecError
from estimator.specs.models.traced import TracedModel

from .launch import runner_environment

TRACE_COMMAND = ("-P", "-m", "benchmarks.runner.trace")
DEFAULT_TIME_LIMIT_SECONDS = 900.0
_STDERR_TAIL_CHARACTERS = 2000
_NEEDED_PACKAGES = ("torch", "transformers")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """What to trace."""

    name: str
    source: str
    config: Mapping[str, object] | None = None
    """A Hugging Face config; None with ``callable``."""
    callable: str | None = None
    """``module:name`` of the user's own code."""
    search_path: str | None = None
    """Folder in which ``callable``'s module is also looked for."""
    attentions: tuple[str, ...] = ("sdpa", "eager")
    check_length: int | None = None
    """Length at which the size polynomials are checked; None: four times the base length."""
    image_size: int | None = None


def trace(
    request: TraceRequest,
    out: Path,
    *,
    on_progress: Callable[[str], None] = lambda phase: None,
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS,
) -> TracedModel:
    """Trace in a process of its own and write ``out``. Returns what was written.

    Raises SpecError where the model is wrong, MeasurementError where it cannot be traced; ``out`` is then untouched.
    """
    _require_packages()
    _require_writable(out)
    with tempfile.TemporaryDirectory(prefix="traincast-trace-") as folder:
        partial = Path(folder) / "model.json"
        job = {**asdict(request), "out": str(partial)}
        failure = _run(job, Path(folder) / "stderr.txt", on_progress, time_limit_seconds)
        if failure is not None:
            raise failure
        traced = load_traced(partial)
        out.write_bytes(partial.read_bytes())
    return traced


def _require_packages() -> None:
    missing = [name for name in _NEEDED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise MeasurementError.of(
            f"tracing needs {' and '.join(missing)}, which the light install leaves out: "
            "install the extra measure, in a clone of traincast: pip install '.[measure]'. "
            "Traced files made elsewhere work here without it.",
            code="missing_package",
        )


def _require_writable(out: Path) -> None:
    """Say so before a minute of work, not after it."""
    if out.is_dir():
        raise SpecError.of(f"--out {out} is a folder; name a file", code="bad_value", field="out")
    folder = out.parent
    if not folder.is_dir() or not os.access(out if out.exists() else folder, os.W_OK):
        raise SpecError.of(f"--out {out} cannot be written", code="bad_value", field="out")


def _run(
    job: Mapping[str, Any], stderr: Path, on_progress: Callable[[str], None], time_limit_seconds: float
) -> SpecError | MeasurementError | None:
    last: dict[str, str] = {}
    is_late = threading.Event()
    with stderr.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, *TRACE_COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=runner_environment(f"trace-{uuid.uuid4().hex}", 1),
            text=True,
        )

    def stop() -> None:
        is_late.set()
        process.kill()

    watchdog = threading.Timer(time_limit_seconds, stop)
    watchdog.start()
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            with process.stdin as pipe:
                json.dump(job, pipe)
        except BrokenPipeError:
            pass  # It ended before it read its job; its exit code and stderr say why.
        for line in process.stdout:
            last = json.loads(line)
            if last["event"] == "progress":
                on_progress(last["phase"])
        code = process.wait()
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
    if last.get("event") == "finished":
        return None
    if last.get("event") == "failed":
        return _failure(last["code"], last["message"])
    tail = stderr.read_text(encoding="utf-8", errors="replace")[-_STDERR_TAIL_CHARACTERS:]
    if is_late.is_set():
        return _failure("trace_failed", f"the trace took longer than {time_limit_seconds:g} seconds and was ended")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return _failure("trace_failed", f"the tracing process {how}; it last said: {tail.strip() or '(nothing)'}")


def _failure(code: str, message: str) -> SpecError | MeasurementError:
    if code == "bad_input":
        return SpecError(*SpecError.of(message, code="untraceable_model", field="model").problems)
    return MeasurementError(*MeasurementError.of(message, code=code, field="model").problems)
