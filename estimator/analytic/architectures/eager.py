"""From a forward graph to operations: eager execution, one kernel after another."""

from dataclasses import replace

from ...specs.operations import ZERO, Operation, OperationKind, Size
from .forward_graph import ForwardGraph, Node, Storage

REFERENCE_MICRO_BATCH = 4
REFERENCE_LENGTH = 2048
"""Where sizes with different growth are compared (the largest transient of a group of kernels)."""


def eager_operations(graph: ForwardGraph) -> tuple[Operation, ...]:
    """Consecutive memory-bound nodes of one name become one operation; everything else one operation each."""
    counted: set[Storage] = set()
    operations: list[Operation] = []
    members: list[Node] = []
    for node in graph.nodes:
        if members and not _belongs(node, members[-1]):
            operations += _merged(members, counted)
            members = []
        members.append(node)
    if members:
        operations += _merged(members, counted)
    return tuple(operations)


def _belongs(node: Node, before: Node) -> bool:
    """Whether a node continues the group of the one before it."""
    return (
        node.kind is OperationKind.MEMORY_BOUND
        and before.kind is OperationKind.MEMORY_BOUND
        and (node.name, node.block, node.repeats, node.component)
        == (before.name, before.block, before.repeats, before.component)
    )


def _newly_saved_bytes(node: Node, counted: set[Storage]) -> Size:
    """Bytes of storages that no earlier node keeps."""
    saved = ZERO
    for tensor in node.saved:
        storage = tensor.storage
        if not storage.is_resident and storage not in counted:
            counted.add(storage)
            saved = saved + storage.num_bytes
    return saved


def larger(a: Size, b: Size) -> Size:
    """The larger of two sizes at the reference workload (a maximum of polynomials is none)."""
    at = REFERENCE_MICRO_BATCH, REFERENCE_LENGTH
    return a if a.at(*at) >= b.at(*at) else b


def _merged(members: list[Node], counted: set[Storage]) -> tuple[Operation, ...]:
    """The operation of one or several nodes, with what they are the first to keep."""
    saved_bytes = ZERO
    for node in members:
        saved_bytes = saved_bytes + _newly_saved_bytes(node, counted)
    return operation_of_nodes(members, saved_bytes)


def operation_of_nodes(members: list[Node], saved_bytes: Size) -> tuple[Operation, ...]:
    """The operation of one or several nodes: costs add up, transients do not. Attention with a window in some layers
    makes two."""
    first = members[0]
    forward_bytes = backward_bytes = transient_bytes = ZERO
    for node in members:
        forward_bytes = forward_bytes + node.forward_bytes
        backward_bytes = backward_bytes + node.backward_bytes
        transient_bytes = larger(transient_bytes, node.transient_bytes)
    operation = Operation(
        name=first.name,
        kind=first.kind,
        block=first.block,
        repeats=first.repeats,
        batch=first.batch,
        m=first.m,
        k=first.k,
        n=first.n,
        is_causal=first.is_causal,
        window=first.window,
        key_value_groups=first.key_value_groups,
        has_weight=first.has_weight,
        has_input_gradient=first.has_input_gradient,
        is_fp32=first.is_fp32,
        forward_bytes=forward_bytes,
        backward_bytes=backward_bytes,
        forward_kernels=sum(node.forward_kernels for node in members),
        backward_kernels=sum(node.backward_kernels for node in members),
        saved_bytes=saved_bytes,
        transient_bytes=transient_bytes,
        component=first.component,
    )
    return _by_window(operation, first)


def _by_window(operation: Operation, node: Node) -> tuple[Operation, ...]:
    """Attention of sliding layers and of the others, which differ in what they compute only."""
    if node.window is None or node.window_repeats == 0:
        return (replace(operation, window=None),)
    sliding = replace(operation, name=f"sliding_{operation.name}", repeats=node.window_repeats)
    rest = operation.repeats - node.window_repeats
    return (sliding,) if rest <= 0 else (sliding, replace(operation, window=None, repeats=rest))
