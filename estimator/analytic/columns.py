"""Workloads as columns: one array per input, extracted once per distinct object."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..coefficients import NUMBERS, Coefficients
from ..specs.hardware import Accelerator, Cluster, NumberFormat
from ..specs.model import ModelSpec
from ..specs.numerics import numerics_of
from ..specs.operations import OperationContext
from ..specs.recipe import OPTIMIZERS, AttentionKernel, Precision, TrainingRecipe
from ..specs.strategy import Strategy, StrategyKind
from ..specs.workload import Workload
from .compute import attention_path

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_DEFAULT_MULTIPROCESSORS = 100.0
"""Where the data sheet gives none; only wave quantisation depends on it."""
_DEFAULT_POWER_WATTS = 1e9
"""Unknown power never caps the clock."""
_ZERO_STAGES = {StrategyKind.ZERO_1: 1, StrategyKind.ZERO_2: 2, StrategyKind.ZERO_3: 3}
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterColumns:
    """What time and memory need of a cluster, one entry per workload."""

    num_gpus: Array
    gpus_per_node: Array
    num_nodes: Array
    peak_fp16: Array
    """Dense FLOP/s; where a device lacks a 16-bit format, the other one's."""
    peak_bf16: Array
    peak_fp32: Array
    peak_tf32: Array
    """Equal to fp32 where the device has no TF32."""
    has_tf32: Flags
    memory_bandwidth: Array
    num_multiprocessors: Array
    power_watts: Array
    knows_power: Flags
    peer_bandwidth: Array
    peer_latency: Array
    is_nvlink: Flags
    is_host_staged: Flags
    """Copies between GPUs go through host memory."""
    network_bandwidth: Array
    network_latency: Array
    host_link_bandwidth: Array
    usable_memory_bytes: Array
    device_memory_bytes: Array
    context_bytes: Array
    cpu_memory_bytes: Array
    """NaN where the user gave none."""
    usd_per_gpu_hour: Array
    """NaN where unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadColumns:
    """Inputs of many workloads as arrays of one length."""

    workloads: Sequence[Workload]
    micro_batch_size: Array
    sequence_length: Array
    """Tokens per sample; 1 for images, whose operation lists depend on the micro batch only."""
    has_length: Flags
    global_batch_size: Array
    accumulation_steps: Array
    num_training_steps: Array
    overhead_fraction: Array
    zero_stage: Array
    is_none: Flags
    is_fsdp: Flags
    is_full_shard: Flags
    has_offload: Flags
    has_checkpointing: Flags
    is_16bit: Flags
    is_fp16: Flags
    uses_tf32: Flags
    is_compiled: Flags
    uses_sdpa: Flags
    has_clipping: Flags
    optimizer_state_bytes: Array
    optimizer_traffic_bytes: Array
    optimizer_kernels_per_tensor: Array
    is_fused_optimizer: Flags
    cluster: ClusterColumns
    coefficients: "CoefficientColumns"
    group_index: NDArray[np.intp]
    groups: tuple[tuple[ModelSpec, OperationContext], ...]

    @property
    def peak_16bit(self) -> Array:
        """Dense FLOP/s of the recipe's 16-bit format."""
        return np.where(self.is_fp16, self.cluster.peak_fp16, self.cluster.peak_bf16)

    @property
    def peak_32bit(self) -> Array:
        """Dense FLOP/s of fp32 operands: TF32's where the recipe allows it."""
        return np.where(self.uses_tf32, self.cluster.peak_tf32, self.cluster.peak_fp32)

    @property
    def peak(self) -> Array:
        """Dense FLOP/s that MFU is counted against."""
        return np.where(self.is_16bit, self.peak_16bit, self.peak_32bit)


class CoefficientColumns:
    """Coefficients as arrays: one entry per workload, by the accelerator it runs on."""

    __slots__ = ("_columns", "_index", "_values")

    def __init__(self, values: Sequence[Coefficients], index: NDArray[np.intp]) -> None:
        self._values = values
        self._index = index
        self._columns: dict[str, Array] = {}

    def __getattr__(self, name: str) -> Array:
        if name not in NUMBERS:
            raise AttributeError(name)
        column = self._columns.get(name)
        if column is None:
            column = np.array([getattr(value, name) for value in self._values], dtype=np.float64)[self._index]
            self._columns[name] = column
        return column

    def rows(self, rows: NDArray[np.intp]) -> "CoefficientColumns":
        """The same coefficients for some of the workloads."""
        return CoefficientColumns(self._values, self._index[rows])


def _cluster_values(cluster: Cluster) -> tuple[float, ...]:
    accelerator, node = cluster.node.accelerator, cluster.node
    peaks = accelerator.peak_dense_flop_per_second
    fp32 = peaks.get(NumberFormat.FP32) or min(peaks.values())
    fp16 = peaks.get(NumberFormat.FP16) or peaks.get(NumberFormat.BF16) or fp32
    network = cluster.network
    return (
        cluster.num_accelerators,
        node.num_accelerators,
        cluster.num_nodes,
        fp16,
        peaks.get(NumberFormat.BF16, fp16),
        fp32,
        peaks.get(NumberFormat.TF32, fp32),
        NumberFormat.TF32 in peaks,
        accelerator.memory_bandwidth_bytes_per_second,
        accelerator.num_multiprocessors or _DEFAULT_MULTIPROCESSORS,
        accelerator.power_watts or _DEFAULT_POWER_WATTS,
        accelerator.power_watts is not None,
        node.peer_link.bandwidth_bytes_per_second,
        node.peer_link.latency_seconds,
        not node.peer_link.name.startswith("pcie"),
        node.peer_link.name.startswith("pcie") and not accelerator.supports_peer_to_peer,
        network.bandwidth_bytes_per_second if network else np.inf,
        network.latency_seconds if network else 0.0,
        node.host_link.bandwidth_bytes_per_second,
        cluster.usable_memory_bytes,
        accelerator.memory_bytes,
        accelerator.context_bytes,
        np.nan if node.cpu_memory_bytes is None else node.cpu_memory_bytes,
        np.nan if cluster.usd_per_gpu_hour is None else cluster.usd_per_gpu_hour,
    )


class _Distinct(Generic[Item]):
    """Numbers distinct objects in order of appearance, by identity first and by equality second."""

    __slots__ = ("_by_id", "_by_key", "_key", "items")

    def __init__(self, key: Callable[[Item], object]) -> None:
        self.items: list[Item] = []
        self._key = key
        self._by_id: dict[int, int] = {}
        self._by_key: dict[object, int] = {}

    def number(self, item: Item) -> int:
        """Index of an object equal to ``item`` in ``items``. Callers keep the objects alive, so ids stay valid."""
        index = self._by_id.get(id(item))
        if index is None:
            index = self._by_key.setdefault(self._key(item), len(self.items))
            if index == len(self.items):
                self.items.append(item)
            self._by_id[id(item)] = index
        return index


def _accelerator_key(accelerator: Accelerator) -> object:
    # Rates are a dict, which cannot be hashed; copies of a catalogue entry share it, so its identity stands for it.
    return accelerator.name, accelerator.memory_bytes, id(accelerator.peak_dense_flop_per_second)


def _cluster_key(cluster: Cluster) -> object:
    node = cluster.node
    return (
        _accelerator_key(node.accelerator),
        node.num_accelerators,
        node.peer_link,
        node.host_link,
        node.cpu_memory_bytes,
        cluster.num_nodes,
        cluster.network,
        cluster.memory_cap_bytes,
        cluster.usd_per_gpu_hour,
    )


class _Setting(NamedTuple):
    """The categorical inputs of a workload."""

    precision: Precision
    attention: AttentionKernel
    is_compiled: bool
    tf32: bool
    optimizer: str
    kind: StrategyKind
    has_offload: bool
    has_checkpointing: bool


_RECIPE_SETTING = attrgetter("precision", "attention", "compile", "tf32", "optimizer")
_STRATEGY_SETTING = attrgetter("kind", "offload", "activation_checkpointing")


def extract_columns(workloads: Sequence[Workload], coefficients: Coefficients) -> WorkloadColumns:
    """All inputs of ``workloads`` as arrays; cost is a few attribute reads per workload."""
    models: _Distinct[ModelSpec] = _Distinct(lambda model: model)
    clusters: _Distinct[Cluster] = _Distinct(_cluster_key)
    strategies: _Distinct[Strategy] = _Distinct(lambda strategy: strategy)
    settings: dict[tuple[object, ...], int] = {}
    samples: list[TrainingRecipe] = []
    numbers: list[float] = []
    indices: list[int] = []
    for workload in workloads:
        recipe = workload.recipe
        cluster = clusters.number(workload.cluster)
        key = (*_RECIPE_SETTING(recipe), strategies.number(workload.strategy))
        setting = settings.get(key)
        if setting is None:
            setting = settings[key] = len(samples)
            samples.append(recipe)
        length, steps = recipe.sequence_length, recipe.num_training_steps
        numbers += (
            recipe.micro_batch_size,
            -1 if length is None else length,
            recipe.global_batch_size,
            math.nan if steps is None else steps,
            recipe.overhead_fraction,
            recipe.optimization.max_grad_norm is not None,
        )
        indices += (models.number(workload.model), cluster, setting)
    setting_list = [
        _Setting._make((*key[:-1], *_STRATEGY_SETTING(strategies.items[cast(int, key[-1])]))) for key in settings
    ]
    by_row = np.array(indices, dtype=np.intp).reshape(-1, 3)
    cluster_columns, accelerators, accelerator_of_cluster = _cluster_columns(clusters.items, by_row[:, 1])
    accelerator_index = accelerator_of_cluster[by_row[:, 1]]
    groups, group_index = _variants(
        models.items, by_row[:, 0], accelerators, accelerator_index, setting_list, by_row[:, 2], samples
    )
    return _assemble(
        workloads,
        np.array(numbers, dtype=np.float64).reshape(-1, 6),
        _setting_columns(setting_list, by_row[:, 2]),
        cluster_columns,
        CoefficientColumns([coefficients.for_accelerator(a) for a in accelerators], accelerator_index),
        group_index,
        groups,
    )


_Variant = tuple[ModelSpec, OperationContext]


def _variants(
    models: list[ModelSpec],
    model_index: NDArray[np.intp],
    accelerators: list[Accelerator],
    accelerator_index: NDArray[np.intp],
    settings: list[_Setting],
    setting_index: NDArray[np.intp],
    samples: list[TrainingRecipe],
) -> tuple[tuple[_Variant, ...], NDArray[np.intp]]:
    """The distinct operation lists and which of them each workload runs.

    A list depends on model, numerics, attention kernel (hence recipe and accelerator) and compilation.
    """
    variants: dict[tuple[object, ...], int] = {}
    variant_of_setting = np.array(
        [
            variants.setdefault(
                (s.precision, s.attention, s.is_compiled, numerics_of(s.precision, s.kind)), len(variants)
            )
            for s in settings
        ],
        dtype=np.intp,
    )
    _, first_setting = np.unique(variant_of_setting, return_index=True)
    combined = (model_index * len(accelerators) + accelerator_index) * len(variants) + variant_of_setting[setting_index]
    distinct, inverse = np.unique(combined, return_inverse=True)
    merged: dict[tuple[int, OperationContext], int] = {}
    group_of_distinct = []
    for code in distinct.tolist():
        rest, variant = divmod(code, len(variants))
        model, accelerator = divmod(rest, len(accelerators))
        setting = int(first_setting[variant])
        context = OperationContext(
            numerics=numerics_of(settings[setting].precision, settings[setting].kind),
            attention=attention_path(models[model], samples[setting], accelerators[accelerator]),
            is_compiled=settings[setting].is_compiled,
        )
        group_of_distinct.append(merged.setdefault((model, context), len(merged)))
    groups = tuple((models[model], context) for model, context in merged)
    return groups, np.array(group_of_distinct, dtype=np.intp)[inverse]


def _cluster_columns(
    clusters: list[Cluster], index: NDArray[np.intp]
) -> tuple[ClusterColumns, list[Accelerator], NDArray[np.intp]]:
    """Columns of the clusters, the distinct accelerators, and which of them each cluster has."""
    table = np.array([_cluster_values(cluster) for cluster in clusters], dtype=np.float64)
    columns: dict[str, Any] = {}
    for position, spec in enumerate(fields(ClusterColumns)):
        values = table[:, position][index]
        columns[spec.name] = values.astype(bool) if spec.type is Flags else values
    accelerators: _Distinct[Accelerator] = _Distinct(_accelerator_key)
    numbers = [accelerators.number(cluster.node.accelerator) for cluster in clusters]
    return ClusterColumns(**columns), accelerators.items, np.array(numbers, dtype=np.intp)


def _setting_columns(settings: list[_Setting], index: NDArray[np.intp]) -> dict[str, Any]:
    """Columns of everything categorical, named as in ``WorkloadColumns``."""
    rows: list[dict[str, float | bool]] = []
    for setting in settings:
        kind, cost = setting.kind, OPTIMIZERS[setting.optimizer]
        rows.append(
            {
                "zero_stage": _ZERO_STAGES.get(kind, 0),
                "is_none": kind is StrategyKind.NONE,
                "is_fsdp": kind.is_fsdp,
                "is_full_shard": kind is StrategyKind.FSDP_FULL_SHARD,
                "has_offload": setting.has_offload,
                "has_checkpointing": setting.has_checkpointing,
                "is_16bit": setting.precision is not Precision.FP32,
                "is_fp16": setting.precision is Precision.FP16,
                "uses_tf32": setting.tf32,
                "is_compiled": setting.is_compiled,
                "uses_sdpa": setting.attention is AttentionKernel.SDPA,
                "optimizer_state_bytes": cost.state_bytes_per_parameter,
                "optimizer_traffic_bytes": cost.traffic_bytes_per_parameter,
                "optimizer_kernels_per_tensor": cost.kernels_per_tensor,
                "is_fused_optimizer": cost.is_fused,
            }
        )
    return {name: np.array([row[name] for row in rows])[index] for name in rows[0]}


def _assemble(
    workloads: Sequence[Workload],
    numbers: Array,
    settings: dict[str, Any],
    cluster: ClusterColumns,
    coefficients: CoefficientColumns,
    group_index: NDArray[np.intp],
    groups: tuple[_Variant, ...],
) -> WorkloadColumns:
    micro, length, batch = numbers[:, 0], numbers[:, 1], numbers[:, 2]
    settings["uses_tf32"] = settings["uses_tf32"] & cluster.has_tf32
    return WorkloadColumns(
        workloads=workloads,
        micro_batch_size=micro,
        sequence_length=np.where(length < 0, 1.0, length),
        has_length=length >= 0,
        global_batch_size=batch,
        accumulation_steps=np.maximum(1.0, np.floor(batch / (micro * cluster.num_gpus))),
        num_training_steps=numbers[:, 3],
        overhead_fraction=numbers[:, 4],
        has_clipping=numbers[:, 5] > 0,
        cluster=cluster,
        coefficients=coefficients,
        group_index=group_index,
        groups=groups,
        **settings,
    )
