"""Warnings and assumptions of an estimate, as data: flagged for all workloads at once, worded when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

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
    """One warning or assumption and how it is worded."""

    code: str
    template: str
    """Format of the message over ``values``."""
    values: tuple[str, ...] = ()
    """Columns of ``NoteColumns.values`` that the message names."""


WARNINGS: tuple[NoteRule, ...] = (
    NoteRule(
        code="launch_bound",
        values=("launch_share",),
        template=(
            "The GPU waits for the host in {:.0%} of forward and backward: a larger micro batch or torch.compile helps."
        ),
    ),
    NoteRule(
        code="large_logits",
        values=("logits_gib", "logits_share"),
        template=(
            "Logits and their copies in the loss take {:.1f} GiB, {:.0%} of the card: "
            "a chunked or fused loss would lower the peak."
        ),
    ),
    NoteRule(
        code="communication_bound",
        values=("communication_share",),
        template=(
            "{:.0%} of the step waits for communication: more accumulation, a lower stage or a faster link helps."
        ),
    ),
    NoteRule(
        code="slow_link",
        values=("link_gb_per_second",),
        template=(
            "GPUs exchange data at about {:.1f} GB/s (PCIe, host memory or a slow network): "
            "sharding and data parallelism scale poorly here."
        ),
    ),
    NoteRule(
        code="offload_without_cpu_memory",
        values=("host_memory_gib",),
        template=("Offload needs about {:,.0f} GiB of host memory per node; none was stated (--cpu-memory-gib)."),
    ),
    NoteRule(
        code="cpu_memory_too_small",
        values=("host_memory_gib", "cpu_memory_gib"),
        template=("About {:,.0f} GiB of host memory per node are needed, {:,.0f} GiB are there."),
    ),
    NoteRule(
        code="compile_with_checkpointing",
        template=(
            "torch.compile decides itself what checkpointed blocks keep: "
            "memory may differ from the estimate either way."
        ),
    ),
    NoteRule(
        code="mixture_of_experts",
        values=("active_fraction",),
        template=(
            "Mixture of experts: {:.0%} of the parameters work on a token; "
            "routing keeps utilisation low (MFU below 20-30 % is usual)."
        ),
    ),
    NoteRule(
        code="length_beyond_positions",
        values=("sequence_length", "max_positions"),
        template=(
            "Sequence length {:.0f} exceeds the model's {:.0f} positions: "
            "this needs scaled rotary embeddings or longer tables."
        ),
    ),
    NoteRule(code="sharding_on_one_gpu", template="Sharding on one GPU saves nothing and keeps its overhead."),
    NoteRule(
        code="batch_not_divisible",
        template=(
            "The global batch is no multiple of micro batch x GPUs: the estimate takes the whole rounds that fit."
        ),
    ),
)

ASSUMPTIONS: tuple[NoteRule, ...] = (
    NoteRule(code="input_keeps_up", template="The data loader delivers batches as fast as they are consumed."),
    NoteRule(
        code="default_coefficients",
        template=(
            "No calibration for this GPU and software: coefficients from data sheets and published measurements."
        ),
    ),
    NoteRule(
        code="fsdp_reduces_every_micro_batch",
        template=(
            "FSDP reduces gradients on every micro batch (accelerate: sync_each_batch), so that they stay sharded."
        ),
    ),
    NoteRule(
        code="flash_attention_unavailable",
        template=(
            "Attention takes SDPA's memory-efficient kernel (cuDNN's on Hopper): flash does not go with this "
            "precision, this GPU or the mask tensor of a compiled decoder."
        ),
    ),
    NoteRule(
        code="cpu_adam_speed",
        template=("CPU Adam at a typical host's speed; published hosts differ 10x: measure before relying on offload."),
    ),
    NoteRule(
        code="no_overhead",
        template=("Training time without evaluation, saving and restarts (--overhead-fraction; 5-10 % is usual)."),
    ),
)


def _max_positions(columns: WorkloadColumns) -> Array:
    limits = []
    for model, _context in columns.groups:
        limit = getattr(model, "max_sequence_length", None) or getattr(model, "max_position_embeddings", None)
        limits.append(np.inf if limit is None else float(limit))
    return np.array(limits)[columns.group_index]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteColumns:
    """Which rules hold, as one bit mask per workload, and the values their sentences name."""

    warning_masks: list[int]
    assumption_masks: list[int]
    values: dict[str, list[float]]

    def warnings_of(self, row: int) -> list[dict[str, str]]:
        """Code and message of each warning of one workload."""
        return self._worded(_warnings_of_mask(self.warning_masks[row]), row)

    def assumptions_of(self, row: int) -> list[dict[str, str]]:
        """Code and message of each assumption of one workload."""
        return self._worded(_assumptions_of_mask(self.assumption_masks[row]), row)

    def _worded(self, rules: tuple[NoteRule, ...], row: int) -> list[dict[str, str]]:
        return [
            {
                "code": rule.code,
                "message": rule.template.format(*[self.values[name][row] for name in rule.values])
                if rule.values
                else rule.template,
            }
            for rule in rules
        ]


@lru_cache(maxsize=2048)
def _warnings_of_mask(mask: int) -> tuple[NoteRule, ...]:
    return tuple(rule for position, rule in enumerate(WARNINGS) if mask >> position & 1)


@lru_cache(maxsize=64)
def _assumptions_of_mask(mask: int) -> tuple[NoteRule, ...]:
    return tuple(rule for position, rule in enumerate(ASSUMPTIONS) if mask >> position & 1)


def _masks(flags: Sequence[Flags]) -> list[int]:
    """Bit i of a workload's mask: does rule i hold."""
    weights = 2 ** np.arange(len(flags))
    masks: list[int] = (np.stack(flags, axis=1) @ weights).tolist()
    return masks


def note_columns(
    columns: WorkloadColumns,
    totals: OperationTotals,
    step: StepSeconds,
    *,
    seconds_per_byte: Array,
    logits_bytes: Array,
    host_memory: Array,
    is_calibrated: bool,
) -> NoteColumns:
    """Evaluates every rule; thresholds are the module's constants."""
    cluster, total = columns.cluster, step.total
    several = cluster.num_gpus > 1
    needs = columns.has_offload
    positions = _max_positions(columns)
    with np.errstate(divide="ignore"):
        link = np.where(seconds_per_byte > 0, 1.0 / seconds_per_byte / GB, np.inf)
    values = {
        "launch_share": step.micro.launch / step.micro.total,
        "logits_gib": logits_bytes / GIB,
        "logits_share": logits_bytes / cluster.device_memory_bytes,
        "communication_share": step.communication / total,
        "link_gb_per_second": link,
        "host_memory_gib": host_memory / GIB,
        "cpu_memory_gib": cluster.cpu_memory_bytes / GIB,
        "active_fraction": totals.active_parameter_fraction,
        "sequence_length": columns.sequence_length,
        "max_positions": positions,
    }
    is_efficient = np.array([context.attention == "efficient" for _, context in columns.groups], dtype=bool)
    has_attention = np.array([hasattr(model, "num_attention_heads") for model, _ in columns.groups], dtype=bool)
    is_sharded = ~columns.is_none
    warnings = _masks(
        [
            values["launch_share"] > _LAUNCH_SHARE,
            values["logits_share"] > _LOGITS_SHARE,
            values["communication_share"] > _COMMUNICATION_SHARE,
            several & (seconds_per_byte > _SLOW_LINK_SECONDS_PER_BYTE),
            needs & np.isnan(cluster.cpu_memory_bytes),
            host_memory > cluster.cpu_memory_bytes,
            columns.is_compiled & columns.has_checkpointing,
            totals.active_parameter_fraction < 1.0,
            columns.has_length & (columns.sequence_length > positions),
            is_sharded & ~several & ~needs,
            columns.global_batch_size % (columns.micro_batch_size * cluster.num_gpus) != 0,
        ]
    )
    always = np.ones(len(total), dtype=bool)
    assumptions = _masks(
        [
            always,
            always & (not is_calibrated),
            columns.is_fsdp & (columns.accumulation_steps > 1),
            (is_efficient & has_attention)[columns.group_index],
            needs,
            (columns.overhead_fraction == 0) & ~np.isnan(columns.num_training_steps),
        ]
    )
    return NoteColumns(
        warning_masks=warnings,
        assumption_masks=assumptions,
        values={name: column.tolist() for name, column in values.items()},
    )
