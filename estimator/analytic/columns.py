"""Workloads as columns: one array per input, extracted once per distinct object."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from ..coefficients import NUMBERS, Coefficients
from ..specs.hardware import Accelerator, Cluster, NumberFormat
from ..specs.model import ModelSpec
from ..specs.numerics import numerics_of
from ..specs.operations import OperationContext
from ..specs.recipe import OPTIMIZERS, AttentionKernel, Precision, TrainingRecipe
from ..specs.strategy import StrategyKind
from ..specs.workload import Workload
from .compute import attention_path

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

_DEFAULT_MULTIPROCESSORS = 100.0
"""Where the data sheet gives none; only wave quantisation depends on it."""
_DEFAULT_POWER_WATTS = 1e9
"""Unknown power never caps the clock."""
_KINDS = tuple(StrategyKind)
_RECIPE_FIELDS = attrgetter("micro_batch_size", "sequence_length", "global_batch_size")


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
        cluster.num_accelerators, node.num_accelerators, cluster.num_nodes,
        fp16, peaks.get(NumberFormat.BF16, fp16), fp32, peaks.get(NumberFormat.TF32, fp32), NumberFormat.TF32 in peaks,
        accelerator.memory_bandwidth_bytes_per_second,
        accelerator.num_multiprocessors or _DEFAULT_MULTIPROCESSORS,
        accelerator.power_watts or _DEFAULT_POWER_WATTS, accelerator.power_watts is not None,
        node.peer_link.bandwidth_bytes_per_second, node.peer_link.latency_seconds,
        not node.peer_link.name.startswith("pcie"),
        node.peer_link.name.startswith("pcie") and not accelerator.supports_peer_to_peer,
        network.bandwidth_bytes_per_second if network else np.inf, network.latency_seconds if network else 0.0,
        node.host_link.bandwidth_bytes_per_second,
        cluster.usable_memory_bytes, accelerator.memory_bytes, accelerator.context_bytes,
        np.nan if node.cpu_memory_bytes is None else node.cpu_memory_bytes,
        np.nan if cluster.usd_per_gpu_hour is None else cluster.usd_per_gpu_hour,
    )


class _Distinct:
    """Numbers distinct objects in order of appearance, by identity first and by equality second."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self._by_id: dict[int, int] = {}
        self._by_value: dict[object, int] = {}

    def number(self, item: object) -> int:
        index = self._by_id.get(id(item))
        if index is None:
            index = self._by_value.setdefault(_value_key(item), len(self.items))
            if index == len(self.items):
                self.items.append(item)
            self._by_id[id(item)] = index
        return index


def _value_key(item: object) -> object:
    # An Accelerator holds a dict of rates, so clusters cannot be hashed: identity of the accelerator stands for it.
    if isinstance(item, Cluster):
        node = item.node
        return (
            id(node.accelerator), node.num_accelerators, node.peer_link, node.host_link, node.cpu_memory_bytes,
            item.num_nodes, item.network, item.memory_cap_bytes, item.usd_per_gpu_hour,
        )
    return item


def extract_columns(workloads: Sequence[Workload], coefficients: Coefficients) -> WorkloadColumns:
    """All inputs of ``workloads`` as arrays; cost is a few attribute reads per workload."""
    models, clusters, groups = _Distinct(), _Distinct(), {}
    numbers = np.empty((len(workloads), 6), dtype=np.float64)
    indices = np.empty((len(workloads), 5), dtype=np.intp)
    settings: dict[tuple[object, ...], int] = {}
    group_keys: list[tuple[int, TrainingRecipe, StrategyKind, Accelerator]] = []
    for row, workload in enumerate(workloads):
        recipe, strategy, cluster = workload.recipe, workload.strategy, workload.cluster
        model_index, cluster_index = models.number(workload.model), clusters.number(cluster)
        micro, length, batch = _RECIPE_FIELDS(recipe)
        steps = recipe.num_training_steps
        numbers[row] = (
            micro, -1 if length is None else length, batch, np.nan if steps is None else steps,
            recipe.overhead_fraction, recipe.optimization.max_grad_norm is not None,
        )
        key = (recipe.precision, recipe.attention, recipe.compile, recipe.tf32, recipe.optimizer, strategy.kind,
               strategy.offload, strategy.activation_checkpointing)
        setting = settings.setdefault(key, len(settings))
        accelerator = cluster.node.accelerator
        group_key = (model_index, id(accelerator), key[0], key[1], key[2], key[5])
        group = groups.get(group_key)
        if group is None:
            group = groups[group_key] = len(groups)
            group_keys.append((model_index, recipe, strategy.kind, accelerator))
        indices[row] = (model_index, cluster_index, setting, group, 0)
    contexts, context_of_group = _contexts(group_keys, models.items)
    cluster_columns, accelerators, accelerator_index = _cluster_columns(clusters.items, indices[:, 1])
    return _assemble(
        workloads, numbers, _setting_columns(tuple(settings), indices[:, 2]), cluster_columns,
        CoefficientColumns([coefficients.for_accelerator(a) for a in accelerators], accelerator_index),
        context_of_group[indices[:, 3]], contexts,
    )


def _contexts(
    keys: list[tuple[int, TrainingRecipe, StrategyKind, Accelerator]], models: list[object]
) -> tuple[tuple[tuple[ModelSpec, OperationContext], ...], NDArray[np.intp]]:
    """Operation list variant of each group, duplicates (two GPUs that take the same path) merged."""
    merged: dict[tuple[int, OperationContext], int] = {}
    index = []
    for model_index, recipe, kind, accelerator in keys:
        model = models[model_index]
        context = OperationContext(
            numerics=numerics_of(recipe.precision, kind),
            attention=attention_path(model, recipe, accelerator),  # type: ignore[arg-type]
            is_compiled=recipe.compile,
        )
        index.append(merged.setdefault((model_index, context), len(merged)))
    pairs = tuple((models[model_index], context) for model_index, context in merged)
    return pairs, np.array(index, dtype=np.intp)  # type: ignore[return-value]


def _cluster_columns(
    clusters: list[object], index: NDArray[np.intp]
) -> tuple[ClusterColumns, list[Accelerator], NDArray[np.intp]]:
    table = np.array([_cluster_values(cluster) for cluster in clusters], dtype=np.float64)  # type: ignore[arg-type]
    columns = {}
    for position, spec in enumerate(fields(ClusterColumns)):
        values = table[:, position][index]
        columns[spec.name] = values.astype(bool) if spec.type is Flags else values
    accelerators: dict[int, int] = {}
    kept: list[Accelerator] = []
    number = []
    for cluster in clusters:
        accelerator = cluster.node.accelerator  # type: ignore[attr-defined]
        position = accelerators.setdefault(id(accelerator), len(kept))
        if position == len(kept):
            kept.append(accelerator)
        number.append(position)
    return ClusterColumns(**columns), kept, np.array(number, dtype=np.intp)[index]


def _setting_columns(settings: tuple[tuple[object, ...], ...], index: NDArray[np.intp]) -> dict[str, NDArray[np.generic]]:
    rows = []
    for precision, _attention, is_compiled, tf32, optimizer, kind, offload, checkpointing in settings:
        cost = OPTIMIZERS[str(optimizer)]
        rows.append((
            (StrategyKind.ZERO_1, StrategyKind.ZERO_2, StrategyKind.ZERO_3).index(kind) + 1 if kind.is_zero else 0,  # type: ignore[attr-defined, arg-type]
            kind is StrategyKind.NONE, kind.is_fsdp, kind is StrategyKind.FSDP_FULL_SHARD, offload, checkpointing,  # type: ignore[attr-defined]
            precision is not Precision.FP32, precision is Precision.FP16, tf32, is_compiled,
            cost.state_bytes_per_parameter, cost.traffic_bytes_per_parameter, cost.kernels_per_tensor, cost.is_fused,
        ))
    table = np.array(rows, dtype=np.float64)
    names = ("zero_stage", "is_none", "is_fsdp", "is_full_shard", "has_offload", "has_checkpointing", "is_16bit",
             "is_fp16", "uses_tf32", "is_compiled", "optimizer_state_bytes", "optimizer_traffic_bytes",
             "optimizer_kernels_per_tensor", "is_fused_optimizer")
    flags = {name for name in names if name.startswith(("is_", "has_", "uses_"))}
    return {
        name: table[:, position][index].astype(bool) if name in flags else table[:, position][index]
        for position, name in enumerate(names)
    }


def _assemble(
    workloads: Sequence[Workload], numbers: Array, settings: dict[str, NDArray[np.generic]], cluster: ClusterColumns,
    coefficients: CoefficientColumns, group_index: NDArray[np.intp],
    groups: tuple[tuple[ModelSpec, OperationContext], ...],
) -> WorkloadColumns:
    micro, length, batch = numbers[:, 0], numbers[:, 1], numbers[:, 2]
    settings["uses_tf32"] = settings["uses_tf32"].astype(bool) & cluster.has_tf32
    return WorkloadColumns(
        workloads=workloads, micro_batch_size=micro, sequence_length=np.where(length < 0, 1.0, length),
        has_length=length >= 0, global_batch_size=batch,
        accumulation_steps=np.maximum(1.0, np.floor(batch / (micro * cluster.num_gpus))),
        num_training_steps=numbers[:, 3], overhead_fraction=numbers[:, 4], has_clipping=numbers[:, 5] > 0,
        cluster=cluster, coefficients=coefficients, group_index=group_index, groups=groups, **settings,  # type: ignore[arg-type]
    )
