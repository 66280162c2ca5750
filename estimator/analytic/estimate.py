"""Workloads in, estimates out: one implementation for one workload and for a hundred thousand."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..coefficients import Coefficients
from ..specs.errors import Note
from ..specs.estimate import Estimate, Interval, MemoryBreakdown, Optimism, OptimismPart, TimeBreakdown
from ..specs.workload import Workload
from .collectives import ring_columns
from .columns import WorkloadColumns, extract_columns
from .cost import run_costs
from .memory import MEMORY_PARTS, checkpoint_bytes, peak_memory
from .notes import NoteColumns, note_columns
from .offload import host_memory_bytes
from .operation_totals import operation_totals
from .optimism import OPTIMISM_PARTS, hardware_flops, optimism_parts
from .step_time import step_seconds

Array = NDArray[np.float64]

TIME_PARTS = ("forward_backward", "optimizer", "communication", "offload", "input")
FITS = ("no", "tight", "yes")
_CHUNK = 16384
"""Rows evaluated at once: temporaries stay within tens of MB."""
_INTERVALS = (
    "step_time_seconds",
    "peak_memory_bytes",
    "peak_reserved_bytes",
    "training_days",
    "cost_usd",
    "energy_kwh",
)
_SCALARS = (
    "parameters",
    "micro_step_seconds",
    "context_bytes",
    "usable_memory_bytes",
    "host_memory_bytes",
    "checkpoint_bytes",
    "model_flops_per_step",
    "mfu_fraction",
    "hfu_fraction",
    "tokens_per_second",
    "samples_per_second",
    "optimism_ratio",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateTable:
    """Estimates of many workloads as columns, by the names of the JSON.

    ``columns[name]`` is [workloads] for single numbers, [workloads, 3] (low, expected, high) for intervals and
    [workloads, parts] for ``step_time_components_seconds``, ``memory_components_bytes`` and ``optimism_parts``;
    NaN stands for null.
    """

    basis: str
    columns: dict[str, Array]
    notes: tuple[tuple[int, NoteColumns], ...]
    """First row and notes of each chunk."""
    _rows: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    """Columns of the last block of rows as lists, for cheap rows one after the other."""

    def __len__(self) -> int:
        return len(self.columns["parameters"])

    @property
    def step_time_seconds(self) -> Array:
        """Expected seconds of one optimizer step."""
        return self.columns["step_time_seconds"][:, 1]

    @property
    def peak_memory_bytes(self) -> Array:
        """Expected peak of allocated memory."""
        return self.columns["peak_memory_bytes"][:, 1]

    @property
    def fits(self) -> Array:
        """Index into ``FITS``: 0 no, 1 tight, 2 yes."""
        return self.columns["fits"]

    def estimate(self, row: int) -> Estimate:
        """One workload's answer as objects."""
        values = self._block(row)
        at = row % _CHUNK
        notes, local = self._notes(row)

        def interval(name: str) -> Interval:
            low, expected, high = values[name][at]
            return Interval(low=low, expected=expected, high=high)

        def optional(name: str) -> Interval | None:
            found = interval(name)
            return None if found.expected != found.expected else found

        scalars = {name: values[name][at] for name in _SCALARS if name not in ("parameters", "optimism_ratio")}
        tokens = scalars.pop("tokens_per_second")
        return Estimate(
            basis=self.basis,
            parameters=round(values["parameters"][at]),
            step_time_seconds=interval("step_time_seconds"),
            peak_memory_bytes=interval("peak_memory_bytes"),
            peak_reserved_bytes=interval("peak_reserved_bytes"),
            step_time_components_seconds=TimeBreakdown(
                **_named(TIME_PARTS, values["step_time_components_seconds"][at])
            ),
            memory_components_bytes=MemoryBreakdown(**_named(MEMORY_PARTS, values["memory_components_bytes"][at])),
            fits=FITS[int(values["fits"][at])],
            tokens_per_second=None if tokens != tokens else tokens,
            training_days=optional("training_days"),
            cost_usd=optional("cost_usd"),
            energy_kwh=optional("energy_kwh"),
            optimism=Optimism(
                ratio=values["optimism_ratio"][at],
                parts=tuple(
                    OptimismPart(name=name, seconds=seconds)
                    for name, seconds in _named(OPTIMISM_PARTS, values["optimism_parts"][at]).items()
                ),
            ),
            warnings=tuple(Note(**note) for note in notes.warnings_of(local)),
            assumptions=tuple(Note(**note) for note in notes.assumptions_of(local)),
            **scalars,
        )

    def json_dict(self, row: int) -> dict[str, object]:
        """One workload's answer in the order of the JSON, without ``schema`` and ``workload``."""
        values = self._block(row)
        at = row % _CHUNK
        notes, local = self._notes(row)

        def interval(name: str) -> dict[str, object] | None:
            low, expected, high = values[name][at]
            return None if expected != expected else {"low": low, "expected": expected, "high": high}

        tokens = values["tokens_per_second"][at]
        parts = _named(OPTIMISM_PARTS, values["optimism_parts"][at])
        return {
            "basis": self.basis,
            "parameters": round(values["parameters"][at]),
            "step_time_seconds": interval("step_time_seconds"),
            "step_time_components_seconds": _named(TIME_PARTS, values["step_time_components_seconds"][at]),
            "micro_step_seconds": values["micro_step_seconds"][at],
            "peak_memory_bytes": interval("peak_memory_bytes"),
            "memory_components_bytes": _named(MEMORY_PARTS, values["memory_components_bytes"][at]),
            "peak_reserved_bytes": interval("peak_reserved_bytes"),
            "context_bytes": values["context_bytes"][at],
            "usable_memory_bytes": values["usable_memory_bytes"][at],
            "host_memory_bytes": values["host_memory_bytes"][at],
            "checkpoint_bytes": values["checkpoint_bytes"][at],
            "fits": FITS[int(values["fits"][at])],
            "model_flops_per_step": values["model_flops_per_step"][at],
            "mfu_fraction": values["mfu_fraction"][at],
            "hfu_fraction": values["hfu_fraction"][at],
            "tokens_per_second": None if tokens != tokens else tokens,
            "samples_per_second": values["samples_per_second"][at],
            "training_days": interval("training_days"),
            "cost_usd": interval("cost_usd"),
            "energy_kwh": interval("energy_kwh"),
            "optimism": {
                "ratio": values["optimism_ratio"][at],
                "parts": [{"name": name, "seconds": seconds} for name, seconds in parts.items()],
            },
            "warnings": notes.warnings_of(local),
            "assumptions": notes.assumptions_of(local),
        }

    def _block(self, row: int) -> dict[str, list[Any]]:
        if not 0 <= row < len(self):
            raise IndexError(f"row {row} of {len(self)} estimates")
        number = row // _CHUNK
        block = self._rows.get(number)
        if block is None:
            self._rows.clear()
            part = slice(number * _CHUNK, (number + 1) * _CHUNK)
            block = self._rows[number] = {name: column[part].tolist() for name, column in self.columns.items()}
        return block

    def _notes(self, row: int) -> tuple[NoteColumns, int]:
        start, notes = self.notes[row // _CHUNK]
        return notes, row - start


def _named(names: tuple[str, ...], values: list[float]) -> dict[str, float]:
    return dict(zip(names, values, strict=True))


def estimate_many(workloads: Sequence[Workload], coefficients: Coefficients) -> EstimateTable:
    """Estimates of all workloads, in order."""
    pieces, notes = [], []
    for start in range(0, len(workloads), _CHUNK):
        columns = extract_columns(workloads[start : start + _CHUNK], coefficients)
        piece, piece_notes = _evaluate(columns, coefficients.basis == "calibrated")
        pieces.append(piece)
        notes.append((start, piece_notes))
    names = pieces[0] if pieces else dict.fromkeys((*_SCALARS, *_INTERVALS), np.empty(0))
    joined = {name: np.concatenate([piece[name] for piece in pieces]) if pieces else np.empty(0) for name in names}
    return EstimateTable(basis=coefficients.basis, columns=joined, notes=tuple(notes))


def estimate(workload: Workload, coefficients: Coefficients) -> Estimate:
    """The estimate of one workload: a batch of one."""
    return estimate_many((workload,), coefficients).estimate(0)


def _evaluate(columns: WorkloadColumns, is_calibrated: bool) -> tuple[dict[str, Array], NoteColumns]:
    totals = operation_totals(columns)
    step, memory = step_seconds(columns, totals), peak_memory(columns, totals)
    host_memory = host_memory_bytes(columns, totals.num_parameters)
    total, cluster = step.total, columns.cluster
    ranks = cluster.num_gpus
    per_round = columns.accumulation_steps * ranks
    model_flops = 3.0 * totals.kernels.model_forward_flops * per_round
    executed = hardware_flops(columns, totals) * per_round
    samples = columns.micro_batch_size * per_round / total
    costs = run_costs(columns, total)
    time_factor, memory_factor = _interval_factors(columns)
    reserved = _interval(memory.reserved_bytes, memory_factor)
    parts = optimism_parts(columns, totals, step)
    notes = note_columns(
        columns,
        totals,
        step,
        seconds_per_byte=ring_columns(columns).seconds_per_byte,
        logits_bytes=totals.logits_bytes + totals.logits_transient_bytes,
        host_memory=host_memory,
        is_calibrated=is_calibrated,
    )
    return {
        "parameters": totals.num_parameters,
        "step_time_seconds": _interval(total, time_factor),
        "step_time_components_seconds": np.stack([getattr(step, name) for name in TIME_PARTS], axis=1),
        "micro_step_seconds": step.micro.total,
        "peak_memory_bytes": _interval(memory.peak_bytes, memory_factor),
        "memory_components_bytes": memory.parts,
        "peak_reserved_bytes": reserved,
        "context_bytes": cluster.context_bytes,
        "usable_memory_bytes": cluster.usable_memory_bytes,
        "host_memory_bytes": host_memory,
        "checkpoint_bytes": checkpoint_bytes(columns, totals.num_parameters),
        "fits": (reserved[:, 1] <= cluster.usable_memory_bytes).astype(float)
        + (reserved[:, 2] <= cluster.usable_memory_bytes),
        "model_flops_per_step": model_flops,
        "mfu_fraction": model_flops / (total * ranks * columns.peak),
        "hfu_fraction": executed / (total * ranks * columns.peak),
        "tokens_per_second": np.where(columns.has_length, samples * columns.sequence_length, np.nan),
        "samples_per_second": samples,
        "training_days": _interval(costs.training_days, time_factor),
        "cost_usd": _interval(costs.cost_usd, time_factor),
        "energy_kwh": _interval(costs.energy_kwh, time_factor),
        "optimism_ratio": total / parts[:, 0],
        "optimism_parts": parts,
    }, notes


def _interval_factors(columns: WorkloadColumns) -> tuple[Array, Array]:
    """Half widths of the stated 90 % intervals as factors: by strategy class until a calibration knows better."""
    c = columns.coefficients
    time = np.where(columns.cluster.num_gpus > 1, c.time_factor_distributed, c.time_factor_single)
    return np.where(columns.has_offload, c.time_factor_offload, time), c.memory_factor


def _interval(expected: Array, factor: Array) -> Array:
    return np.stack([expected / factor, expected, expected * factor], axis=1)
