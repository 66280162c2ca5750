"""From a forward graph to operations as ``torch.compile`` runs them.

Rules (torch/_inductor/scheduler.py, torch/_functorch/partitioners.py), applied to each kind of block by itself:

1. Matrix products, attention, sorting and look-ups run as they are; what lies between them and hangs together is
   fused. A fused region reads each tensor from outside once and writes what others need, in one kernel for each
   size of output. The same cast of one tensor is done once.
2. Kept for the backward pass is the cheapest set of tensors from which the rest follows by running memory-bound
   kernels again. Never computed again are results of products and attention, their operands (which would have to
   be written out again), small results of reductions, and dropout masks.
3. The backward pass of a region reads the gradients of its outputs and what was kept, and writes the gradients of
   its inputs; each parameter's gradient is one more kernel.

Neglected: limits on the size of fused kernels, heuristics against long chains, autotuned product templates with
fused epilogues.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field

from ...specs.operations import ZERO, Component, Operation, OperationKind, Size
from .eager import REFERENCE_LENGTH, REFERENCE_MICRO_BATCH, operation_of_nodes
from .forward_graph import ForwardGraph, Node, Storage, Tensor
from .minimum_cut import cheapest_cut

SMALL_REDUCTION = 4.0
"""A reduction this many times smaller than its inputs is kept (ban_recompute_reductions)."""


def _weight(size: Size) -> float:
    return size.at(REFERENCE_MICRO_BATCH, REFERENCE_LENGTH)


@dataclass(slots=True, eq=False)
class _Scope:
    """The nodes of one kind of block (or of none) that all occur together."""

    nodes: list[Node]
    producers: dict[Storage, Node] = field(default_factory=dict)
    kept: set[Storage] = field(default_factory=set)


def fused_operations(graph: ForwardGraph) -> tuple[Operation, ...]:
    """The operations of a graph, compiled."""
    operations: list[Operation] = []
    shared: set[Storage] = {t.storage for node in graph.nodes if not node.inputs for t in (*node.saved, node.output)}
    for block in dict.fromkeys(node.block for node in graph.nodes):
        scope = _Scope(_without_repeated_casts([node for node in graph.nodes if node.block == block]))
        scope.producers = {node.output.storage: node for node in scope.nodes if node.forward_kernels > 0}
        scope.kept = _kept(scope, shared)
        operations += [operation for operation in _lowered(scope, shared) if not _is_empty(operation)]
    return tuple(operations)


def _is_empty(operation: Operation) -> bool:
    """A split whose gradients are written in place."""
    return operation.forward_kernels + operation.backward_kernels == 0


def _without_repeated_casts(nodes: list[Node]) -> list[Node]:
    """Common casts are done once: later ones stand for the first."""
    first: dict[tuple[int, int], Tensor] = {}
    replaced: dict[int, Tensor] = {}
    result = []
    for node in nodes:
        node.inputs = tuple(replaced.get(id(t), t) for t in node.inputs)
        node.saved = tuple(replaced.get(id(t), t) for t in node.saved)
        is_cast = len(node.inputs) == 1 and not node.is_barrier and not node.saved and not node.is_reduction
        if is_cast and node.forward_kernels == 1 and node.inputs[0].width != node.output.width:
            key = (id(node.inputs[0]), node.output.width)
            if key in first:
                replaced[id(node.output)] = first[key]
                continue
            first[key] = node.output
        result.append(node)
    return result


def _is_recomputable(node: Node) -> bool:
    if node.is_barrier:
        return False
    inputs = sum(_weight(tensor.num_bytes) for tensor in node.inputs)
    return not (node.is_reduction and _weight(node.output.num_bytes) * SMALL_REDUCTION < inputs)


def _origins(node: Node) -> set[Storage]:
    """Storages that running a node again needs; what is alive anyway is free."""
    return {tensor.storage for tensor in node.inputs if not tensor.storage.is_resident}


def _kept(scope: _Scope, shared: set[Storage]) -> set[Storage]:
    """Rule 2."""
    needed = {
        tensor.storage
        for node in scope.nodes
        for tensor in node.saved
        if not tensor.storage.is_resident and tensor.storage not in shared
    }
    operands = {tensor.storage for node in scope.nodes if node.is_barrier for tensor in node.saved}
    dependencies: dict[Hashable, set[Storage]] = {
        storage: _origins(node) - shared
        for storage, node in scope.producers.items()
        if storage not in operands and _is_recomputable(node)
    }
    sizes: dict[Hashable, float] = {}
    for node in scope.nodes:
        for tensor in (*node.inputs, *node.saved, node.output):
            sizes[tensor.storage] = _weight(tensor.storage.num_bytes)
    return {value for value in cheapest_cut(sizes, dependencies, needed) if isinstance(value, Storage)}


def _regions(scope: _Scope) -> list[list[Node]]:
    """Memory-bound nodes that hang together through tensors, in order of their first node (rule 1)."""
    group: dict[int, int] = {}
    members: dict[int, list[Node]] = {}
    for index, node in enumerate(scope.nodes):
        if node.is_barrier or node.forward_kernels == 0:
            continue
        group[id(node)] = index
        members[index] = [node]
        for tensor in node.inputs:
            producer = scope.producers.get(tensor.storage)
            if producer is None or id(producer) not in group or producer.repeats != node.repeats:
                continue
            old, new = group[id(producer)], group[id(node)]
            if old != new:
                low, high = min(old, new), max(old, new)
                for moved in members.pop(high):
                    group[id(moved)] = low
                    members[low].append(moved)
    return [members[index] for index in sorted(members)]


def _lowered(scope: _Scope, shared: set[Storage]) -> list[Operation]:
    regions = _regions(scope)
    region_of = {id(node): index for index, region in enumerate(regions) for node in region}
    counted = set(shared)
    consumers: dict[Storage, set[int | None]] = {}
    for node in scope.nodes:
        if node.forward_kernels == 0 and not node.is_barrier:
            continue
        for tensor in node.inputs:
            consumers.setdefault(tensor.storage, set()).add(region_of.get(id(node)))
    emitted: list[Operation] = []
    for node in scope.nodes:
        index = region_of.get(id(node))
        if index is None:
            emitted += _unfused(scope, node, consumers, counted)
        elif regions[index][0] is node:
            emitted.append(_fused(scope, regions[index], index, consumers, counted))
    return emitted


def _newly_kept(scope: _Scope, storages: list[Storage], counted: set[Storage]) -> Size:
    total = ZERO
    for storage in dict.fromkeys(storages):
        if storage in scope.kept and storage not in counted:
            counted.add(storage)
            total = total + storage.num_bytes
    return total


def _unfused(
    scope: _Scope, node: Node, consumers: dict[Storage, set[int | None]], counted: set[Storage]
) -> tuple[Operation, ...]:
    """A product, attention, a look-up; or a split, whose gradients are joined where several operations made them."""
    storages = [tensor.storage for tensor in (*node.inputs, *node.saved, node.output)]
    saved = _newly_kept(scope, storages, counted)
    if node.forward_kernels == 0:
        users = consumers.get(node.inputs[0].storage, set())
        is_joined = not node.is_grouped and (None in users or len(users) > 1)
        node.backward_bytes = node.inputs[0].num_bytes * 2 if is_joined else ZERO
        node.backward_kernels = 1.0 if is_joined else 0.0
    return operation_of_nodes([node], saved)


def _fused(
    scope: _Scope,
    region: list[Node],
    index: int,
    consumers: dict[Storage, set[int | None]],
    counted: set[Storage],
) -> Operation:
    """One fused region (rules 1 and 3)."""
    made = {node.output.storage for node in region}
    read: dict[int, Tensor] = {}
    for node in region:
        for tensor in node.inputs:
            if tensor.storage not in made:
                read[id(tensor)] = tensor
    written: dict[Storage, Tensor] = {}
    for node in region:
        storage = node.output.storage
        users = consumers.get(storage, set())
        # Used elsewhere, kept, or the result of the scope.
        if users - {index} or storage in scope.kept or not users:
            written[storage] = node.output
    reads = sum((tensor.num_bytes for tensor in read.values()), ZERO)
    writes = sum((tensor.num_bytes for tensor in written.values()), ZERO)
    gradients = [t for t in read.values() if t.requires_grad and not t.storage.is_resident]
    parameters = [t for t in read.values() if t.requires_grad and t.storage.is_resident]
    saved_inputs = _saved_of(scope, region)
    outputs = [t for t in written.values() if t.requires_grad]
    backward = [*outputs, *saved_inputs, *gradients]
    is_differentiable = bool(gradients or parameters)
    transient = sum((t.num_bytes for t in (*gradients, *written.values())), ZERO)
    held = min((node.held_bytes for node in region), key=_weight)
    last = region[-1]
    component = Component.LOGITS if any(node.component is Component.LOGITS for node in region) else last.component
    storages = [t.storage for node in region for t in (*node.inputs, *node.saved, node.output)]
    return Operation(
        name="_".join(dict.fromkeys(node.name for node in region)),
        kind=OperationKind.MEMORY_BOUND,
        block=last.block,
        repeats=last.repeats,
        forward_bytes=reads + writes,
        backward_bytes=sum((t.num_bytes for t in backward), ZERO) if is_differentiable else ZERO,
        forward_kernels=float(max(1, len({t.elements for t in written.values()}))),
        backward_kernels=float(max(1, len({t.elements for t in gradients})) + len(parameters))
        if is_differentiable
        else 0.0,
        saved_bytes=_newly_kept(scope, storages, counted),
        transient_bytes=transient + held,
        component=component,
    )


def _saved_of(scope: _Scope, region: list[Node]) -> list[Tensor]:
    """What was kept and the region's backward pass reads."""
    found: dict[Storage, Tensor] = {}
    for node in region:
        for tensor in (*node.saved, *node.inputs):
            if tensor.storage in scope.kept:
                found[tensor.storage] = tensor
    return list(found.values())

