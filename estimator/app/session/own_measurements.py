"""The estimator against rows of our own harness, by settings."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np

import calibration
from benchmarks.store import read_json_lines
from estimator.analytic.estimate import estimate_many
from estimator.coefficients import Coefficients
from estimator.specs.measurement import Measurement

from .inputs import InputReader
from .options import WorkloadOptions

FOLDER = Path(calibration.__path__[0]) / "data" / "measurements"
_OPTIONS = frozenset(WorkloadOptions.__struct_fields__)


def own_rows() -> list[Measurement]:
    """Every finished step that the project ships."""
    entries = (entry for file in sorted(FOLDER.glob("*.jsonl")) for entry in read_json_lines(file))
    return [
        entry
        for entry in entries
        if isinstance(entry, Measurement)
        and entry.status == "ok"
        and entry.step_time_seconds is not None
        and entry.peak_allocated_bytes is not None
    ]


def own_accuracy(rows: Iterable[Measurement], coefficients: Coefficients) -> list[dict[str, object]]:
    """Median and 90th percentile of the absolute relative error of step time and allocated memory, by settings."""
    measured = list(rows)
    reader = InputReader()
    workloads = [reader.prepare(_options(row)).workload for row in measured]
    table = estimate_many(workloads, coefficients)
    step_errors = _relative(table.columns["step_time_seconds"][:, 1], [row.step_time_seconds for row in measured])
    memory_errors = _relative(table.peak_memory_bytes, [row.peak_allocated_bytes for row in measured])
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index, row in enumerate(measured):
        groups[row.stack.get("gpu", "unknown"), _settings(row)].append(index)
        groups[row.stack.get("gpu", "unknown"), "all"].append(index)
    return [
        {
            "gpu": gpu,
            "settings": settings,
            "rows": len(members),
            **_figures("step_time", step_errors[members]),
            **_figures("memory", memory_errors[members]),
        }
        for (gpu, settings), members in sorted(groups.items(), key=lambda group: (group[0][0], -len(group[1])))
    ]


def _relative(predicted: object, measured: list[float | None] | list[int | None]) -> np.ndarray:
    errors: np.ndarray = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0
    return errors


def _figures(name: str, errors: np.ndarray) -> dict[str, float]:
    absolute = np.abs(errors)
    return {
        f"{name}_error": float(np.median(absolute)),
        f"{name}_bias": float(np.median(errors)),
        f"{name}_p90": float(np.quantile(absolute, 0.9)),
    }


def _options(row: Measurement) -> WorkloadOptions:
    known = {name: value for name, value in row.workload.items() if name in _OPTIONS}
    return WorkloadOptions(**known)  # type: ignore[arg-type]


def _settings(row: Measurement) -> str:
    workload = row.workload
    words = [str(workload["precision"]), str(workload["attention"])]
    words += [str(workload["strategy"])] if workload["strategy"] != "none" else []
    flags = {"compile": "compiled", "offload": "offload", "activation_checkpointing": "checkpointing"}
    return ", ".join([*words, *(word for name, word in flags.items() if workload[name])])
