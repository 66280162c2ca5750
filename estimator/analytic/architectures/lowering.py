"""From a forward graph to operations, as it runs: eagerly or compiled."""

from ...specs.operations import Operation
from .eager import eager_operations
from .forward_graph import ForwardGraph
from .fusion import fused_operations


def operations_of(graph: ForwardGraph) -> tuple[Operation, ...]:
    """The operations of a graph under its own context."""
    return fused_operations(graph) if graph.context.is_compiled else eager_operations(graph)
