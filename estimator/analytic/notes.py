"""Warnings and assumptions of an estimate, as data: flagged for all workloads at once, worded when asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..specs.errors import Note
from ..specs.units import GB, GIB
from .columns import WorkloadColumns
from .operation_totals import OperationTotals
from .step_time import StepSeconds

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_LAUNCH_SHARE = 0.25
"""Of forward and backward; above this the device waits for the host."""
_LOGITS_SHARE = 0.10
_COMMUNICATION_SHARE = 0.25
_SLOW_LINK_SECONDS_PER_BYTE = 1.0 / (12.5 * GB)
"""100 Gbit/s between nodes, or a host-staged PCIe path: slower makes sharding expensive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteRule:
    """One warning or assumption: how it is worded for a row of values."""

    code: str
    word: Callable[[Mapping[str, float]], str]


WARNINGS: tuple[NoteRule, ...] = (
    NoteRule(code="launch_bound", word=lambda v: (
        f"The GPU waits for the host in {v['launch_share']:.0%} of forward and backward: a larger micro batch or torch.compile helps.")),
    NoteRule(code="large_logits", word=lambda v: (
        f"Logits and their copies in the loss take {v['logits_bytes'] / GIB:.1f} GiB, {v['logits_share']:.0%} of the card: "
        "a chunked or fused loss would lower the peak.")),
    NoteRule(code="communication_bound", word=lambda v: (
        f"{v['communication_share']:.0%} of the step waits for communication: more accumulation, a lower stage or a faster link helps.")),
    NoteRule(code="slow_link", word=lambda v: (
        f"GPUs exchange data at about {v['link_gigabytes_per_second']:.1f} GB/s (PCIe through the host, or a slow network): "
        "sharding and data parallelism scale poorly here.")),
    NoteRule(code="offload_without_cpu_memory", word=lambda v: (
        f"Offload needs about {v['host_memory_bytes'] / GIB:,.0f} GiB of host memory per node; none was stated (--cpu-memory-gib).")),
    NoteRule(code="cpu_memory_too_small", word=lambda v: (
        f"About {v['host_memory_bytes'] / GIB:,.0f} GiB of host memory per node are needed, {v['cpu_memory_bytes'] / GIB:,.0f} GiB are there.")),
    NoteRule(code="compile_with_checkpointing", word=lambda v: (
        "torch.compile decides itself what checkpointed blocks keep: memory may differ from the estimate either way.")),
    NoteRule(code="mixture_of_experts", word=lambda v: (
        f"Mixture of experts: {v['active_fraction']:.0%} of the parameters work on a token; routing keeps utilisation low (MFU below 20-30 % is usual).")),
    NoteRule(code="length_beyond_positions", word=lambda v: (
        f"Sequence length {v['sequence_length']:.0f} exceeds the model's {v['max_positions']:.0f} positions: this needs scaled rotary embeddings or longer tables.")),
    NoteRule(code="sharding_on_one_gpu", word=lambda v: "Sharding on one GPU saves nothing and keeps its overhead."),
    NoteRule(code="batch_not_divisible", word=lambda v: (
        "The global batch is no multiple of micro batch x GPUs: the estimate takes the whole rounds that fit.")),
)

ASSUMPTIONS: tuple[NoteRule, ...] = (
    NoteRule(code="input_keeps_up", word=lambda v: "The data loader delivers batches as fast as they are consumed."),
    NoteRule(code="default_coefficients", word=lambda v: (
        "No calibration for this GPU and software: coefficients from data sheets and published measurements.")),
    NoteRule(code="fsdp_reduces_every_micro_batch", word=lambda v: (
        "FSDP reduces gradients on every micro batch (accelerate: sync_each_batch), so that they stay sharded.")),
    NoteRule(code="flash_attention_unavailable", word=lambda v: (
        "No flash kernel for this precision and GPU: attention takes SDPA's memory-efficient kernel.")),
    NoteRule(code="cpu_adam_speed", word=lambda v: (
        "CPU Adam at a typical host's speed; published hosts differ 10x: measure before relying on offload.")),
    NoteRule(code="no_overhead", word=lambda v: (
        "Training time without evaluation, saving and restarts (--overhead-fraction; 5-10 % is usual).")),
)


def _max_positions(columns: WorkloadColumns) -> Array:
    limits = []
    for model, _context in columns.groups:
        limit = getattr(model, "max_sequence_length", None) or getattr(model, "max_position_embeddings", None)
        limits.append(np.inf if limit is None else float(limit))
    return np.array(limits)[columns.group_index]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteColumns:
    """Which rules hold, [workloads, rules], and the values their sentences name."""

    warnings: Flags
    assumptions: Flags
    values: dict[str, Array]

    def warnings_of(self, row: int) -> tuple[Note, ...]:
        return self._notes(WARNINGS, self.warnings, row)

    def assumptions_of(self, row: int) -> tuple[Note, ...]:
        return self._notes(ASSUMPTIONS, self.assumptions, row)

    def _notes(self, rules: tuple[NoteRule, ...], flags: Flags, row: int) -> tuple[Note, ...]:
        positions = np.flatnonzero(flags[row])
        if not len(positions):
            return ()
        values = {name: float(column[row]) for name, column in self.values.items()}
        return tuple(Note(code=rules[p].code, message=rules[p].word(values)) for p in positions)


def note_columns(
    columns: WorkloadColumns, totals: OperationTotals, step: StepSeconds, *, seconds_per_byte: Array,
    logits_bytes: Array, host_memory: Array, is_calibrated: bool,
) -> NoteColumns:
    """Evaluates every rule; thresholds are the module's constants."""
    cluster, total = columns.cluster, step.total
    several = cluster.num_gpus > 1
    needs = columns.has_offload
    positions = _max_positions(columns)
    with np.errstate(divide="ignore"):
        link = np.where(seconds_per_byte > 0, 1.0 / seconds_per_byte / GB, np.inf)
    values = {
        "launch_share": step.micro.launch / step.micro.total, "logits_bytes": logits_bytes,
        "logits_share": logits_bytes / cluster.device_memory_bytes, "communication_share": step.communication / total,
        "link_gigabytes_per_second": link, "host_memory_bytes": host_memory, "cpu_memory_bytes": cluster.cpu_memory_bytes,
        "active_fraction": totals.active_parameter_fraction, "sequence_length": columns.sequence_length,
        "max_positions": positions,
    }
    is_efficient = np.array([context.attention == "efficient" for _, context in columns.groups], dtype=bool)
    has_attention = np.array([hasattr(model, "num_attention_heads") for model, _ in columns.groups], dtype=bool)
    is_sharded = ~columns.is_none
    warnings = np.stack([
        values["launch_share"] > _LAUNCH_SHARE, values["logits_share"] > _LOGITS_SHARE,
        values["communication_share"] > _COMMUNICATION_SHARE,
        several & (seconds_per_byte > _SLOW_LINK_SECONDS_PER_BYTE),
        needs & np.isnan(cluster.cpu_memory_bytes), host_memory > cluster.cpu_memory_bytes,
        columns.is_compiled & columns.has_checkpointing, totals.active_parameter_fraction < 1.0,
        columns.has_length & (columns.sequence_length > positions), is_sharded & ~several & ~needs,
        columns.global_batch_size % (columns.micro_batch_size * cluster.num_gpus) != 0,
    ], axis=1)
    always = np.ones(len(total), dtype=bool)
    assumptions = np.stack([
        always, always & (not is_calibrated),
        columns.is_fsdp & (columns.accumulation_steps > 1),
        (is_efficient & has_attention)[columns.group_index],
        needs, (columns.overhead_fraction == 0) & ~np.isnan(columns.num_training_steps),
    ], axis=1)
    return NoteColumns(warnings=warnings, assumptions=assumptions, values=values)
