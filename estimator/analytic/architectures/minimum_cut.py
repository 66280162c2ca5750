"""Which tensors a compiler keeps for the backward pass: the cheapest cut between what is there and what is needed."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from math import inf

_SOURCE = "source"
_SINK = "sink"


def cheapest_cut(
    sizes: Mapping[Hashable, float], dependencies: Mapping[Hashable, Iterable[Hashable]], needed: Iterable[Hashable]
) -> set[Hashable]:
    """The values of least total size from which all ``needed`` ones can be computed.

    ``dependencies``: what each recomputable value is computed from; a value without an entry exists only if kept.
    Each value is an edge of its size from its inside to its outside, computing one from another an edge without
    limit; the maximum flow from what cannot be recomputed to what is needed saturates the cheapest cut
    (Ford-Fulkerson; PyTorch's min_cut_rematerialization_partition builds the same network).
    """
    residual: dict[Hashable, dict[Hashable, float]] = {}

    def connect(start: Hashable, end: Hashable, capacity: float) -> None:
        residual.setdefault(start, {})[end] = capacity
        residual.setdefault(end, {}).setdefault(start, 0.0)

    pending, seen = list(needed), set()
    for value in pending:
        connect((value, "out"), _SINK, inf)
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        connect((value, "in"), (value, "out"), sizes[value])
        inputs = dependencies.get(value)
        if inputs is None:
            connect(_SOURCE, (value, "in"), inf)
            continue
        for origin in inputs:
            connect((origin, "out"), (value, "in"), inf)
            pending.append(origin)
    if not seen:
        return set()
    while (path := _augmenting_path(residual)) is not None:
        flow = min(residual[start][end] for start, end in path)
        for start, end in path:
            residual[start][end] -= flow
            residual[end][start] += flow
    reached = _reachable(residual)
    return {value for value in seen if (value, "in") in reached and (value, "out") not in reached}


def _reachable(residual: Mapping[Hashable, Mapping[Hashable, float]]) -> dict[Hashable, Hashable]:
    """Every vertex with capacity left on a path from the source, with its predecessor."""
    before: dict[Hashable, Hashable] = {_SOURCE: _SOURCE}
    queue: deque[Hashable] = deque([_SOURCE])
    while queue:
        vertex = queue.popleft()
        for following, capacity in residual.get(vertex, {}).items():
            if capacity > 0 and following not in before:
                before[following] = vertex
                queue.append(following)
    return before


def _augmenting_path(
    residual: Mapping[Hashable, Mapping[Hashable, float]],
) -> list[tuple[Hashable, Hashable]] | None:
    """Edges of a shortest path with capacity from source to sink."""
    before = _reachable(residual)
    if _SINK not in before:
        return None
    path: list[tuple[Hashable, Hashable]] = []
    vertex: Hashable = _SINK
    while vertex != _SOURCE:
        path.append((before[vertex], vertex))
        vertex = before[vertex]
    return path
