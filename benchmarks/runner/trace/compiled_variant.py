"""The same model under ``torch.compile``: what was traced eagerly, as a graph for the estimator's fusion rules.

Neglected: the second and later gradients that a fused region reads where several products share its result (closed
forms count an addition for each: up to a quarter of the backward bytes where queries, keys and values are separate
products and no cast lies before them).
"""

from collections.abc import Mapping

from estimator.analytic.architectures.forward_graph import ForwardGraph, Node, Storage, Tensor
from estimator.analytic.architectures.fusion import fused_operations
from estimator.specs.numerics import Numerics
from estimator.specs.operations import (
    ZERO,
    AttentionPath,
    Component,
    Operation,
    OperationContext,
    OperationKind,
    Size,
)

from .assembly import Places, Point, fit_or_constant
from .blocks import Block
from .recorder import RecordedOperation, Value
from .single_trace import Trace

_REDUCTIONS = frozenset({
    "native_layer_norm", "_fused_rms_norm", "native_group_norm", "native_batch_norm", "_softmax", "_log_softmax", "sum",
    "mean", "var", "var_mean", "std", "amax", "amin", "norm", "linalg_vector_norm", "logsumexp", "nll_loss_forward",
})  # fmt: skip
_BARRIERS = frozenset({
    "embedding", "index_put", "index_put_", "scatter", "scatter_add", "scatter_", "gather", "sort", "topk", "argsort",
    "cumsum", "cumprod", "max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d",
    "upsample_bicubic2d", "upsample_nearest2d", "nonzero", "bincount", "_fft_r2c", "_fft_c2r", "_fft_c2c",
})  # fmt: skip


def compiled_operations_of(
    traces: Mapping[Point, Trace],
    position: Mapping[str, Block],
    num_blocks: Mapping[str, int],
    context: OperationContext,
) -> tuple[Operation, ...]:
    """Fuse the last block of each group (it stands for all of its group) and what lies outside blocks."""
    representative = {block.group: path for path, block in position.items()}
    builder = _Builder(list(traces))
    graph = ForwardGraph(context)
    places = Places(position)
    unfused: set[Storage] = set()
    """Results of products whose parts were not seen yet."""
    for entries in zip(*(trace.operations for trace in traces.values()), strict=True):
        group, path = places.of(entries[0].path)
        inside = representative.get(group, "") if group is not None else ""
        is_chosen = group is None or entries[0].path == inside or entries[0].path.startswith(inside + ".")
        # Every operation is followed, so that a block's inputs have their producer; only chosen ones are kept.
        node = builder.node(entries, f"{path}.{entries[0].target}" if path else entries[0].target)
        if node is None:
            continue
        if node.is_barrier:
            unfused.add(node.output.storage)
        elif node.forward_kernels == 0:
            # Gradients of several parts of a product's result are joined once; other views vanish in what is fused.
            if node.inputs[0].storage not in unfused:
                continue
            unfused.remove(node.inputs[0].storage)
        if is_chosen:
            node.block, node.repeats = group, float(num_blocks[group]) if group is not None else 1.0
            graph.nodes.append(node)
    return fused_operations(graph)


class _Builder:
    """Nodes from aligned operations at several sizes; an operation in place makes a new version of its storage."""

    def __init__(self, points: list[Point]) -> None:
        self._points = points
        self._versions: dict[int, int] = {}
        self._storages: dict[tuple[int, int], Storage] = {}
        self._tensors: dict[tuple[object, ...], Tensor] = {}

    def node(self, entries: tuple[RecordedOperation, ...], name: str) -> Node | None:
        """None for operations without a result."""
        first = entries[0]
        if first.output is None:
            return None
        inputs = tuple(self._each(entries, "inputs"))
        if first.forward_kernels and first.output.storage in {value.storage for value in first.inputs}:
            self._versions[first.output.storage] = self._versions.get(first.output.storage, 0) + 1
        output = self._tensor([entry.output for entry in entries if entry.output is not None])
        is_memory_bound = first.kind is OperationKind.MEMORY_BOUND
        sizes = {
            field: self._fit([getattr(entry, field) for entry in entries])
            for field in ("batch", "m", "k", "n", "forward_bytes", "backward_bytes", "backward_transient_bytes")
        }
        products = {field: sizes[field] for field in ("batch", "m", "k", "n")} if not is_memory_bound else {}
        return Node(
            name=name,
            kind=first.kind,
            block=None,
            repeats=1.0,
            inputs=inputs,
            output=output,
            saved=tuple(self._each(entries, "saved")),
            forward_bytes=sizes["forward_bytes"],
            backward_bytes=sizes["backward_bytes"],
            forward_kernels=first.forward_kernels,
            backward_kernels=first.backward_kernels,
            transient_bytes=sizes["backward_transient_bytes"],
            held_bytes=ZERO,
            component=Component.LOGITS if first.is_logits else Component.ACTIVATIONS,
            is_reduction=first.target in _REDUCTIONS,
            is_barrier=not is_memory_bound or first.target in _BARRIERS,
            is_causal=first.is_causal,
            window=first.window,
            window_repeats=0.0,
            key_value_groups=first.key_value_groups,
            has_weight=first.has_weight,
            has_input_gradient=first.has_input_gradient,
            is_fp32=first.is_fp32,
            **products,
        )

    def _each(self, entries: tuple[RecordedOperation, ...], field: str) -> list[Tensor]:
        columns = zip(*(getattr(entry, field) for entry in entries), strict=True)
        return [self._tensor(list(values)) for values in columns]

    def _tensor(self, values: list[Value]) -> Tensor:
        first = values[0]
        version = (first.storage, self._versions.get(first.storage, 0))
        if version not in self._storages:
            num_bytes = self._fit([value.storage_bytes for value in values])
            self._storages[version] = Storage(num_bytes=num_bytes, is_resident=first.is_resident)
        storage = self._storages[version]
        elements = self._fit([value.num_bytes for value in values]) * (1 / first.width)
        key = (version, elements, first.width, first.requires_grad)
        if key not in self._tensors:
            self._tensors[key] = Tensor(
                elements=elements, width=first.width, storage=storage, requires_grad=first.requires_grad
            )
        return self._tensors[key]

    def _fit(self, values: list[int]) -> Size:
        return fit_or_constant(dict(zip(self._points, values, strict=True)))


def context_of(numerics: Numerics, path: AttentionPath) -> OperationContext:
    """The compiled variant."""
    return OperationContext(numerics=numerics.value, attention=path, is_compiled=True)
