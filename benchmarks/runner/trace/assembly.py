"""From the traces of two shallow copies at several sizes to the operations of the full model."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from estimator.specs.operations import Component, Operation, OperationKind, Size, as_size

from .blocks import Block
from .failures import UnequalTracesError
from .polynomials import fit_size
from .recorder import RecordedOperation
from .single_trace import Trace

Point = tuple[int, int]
"""Micro batch and length of a trace."""

_SIZES = ("batch", "m", "k", "n", "forward_bytes", "backward_bytes", "saved_bytes")
_SWITCHES = (
    "target", "kind", "is_causal", "window", "key_value_groups", "has_weight", "is_fp32", "has_input_gradient",
    "forward_kernels", "backward_kernels",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Distinct:
    """What makes an operation another one: equal ones are counted."""

    group: str | None
    path: str
    switches: tuple[object, ...]
    sizes: tuple[Size, ...]
    is_logits: bool

    def values_at(self, point: Point) -> tuple[object, ...]:
        """The same key with sizes as numbers."""
        return (self.group, self.path, self.switches, tuple(round(size.at(*point)) for size in self.sizes))


def fit_or_constant(values: Mapping[Point, int]) -> Size:
    """The polynomial through values of a grid."""
    return as_size(next(iter(values.values()))) if len(set(values.values())) == 1 else fit_size(values)


class Places:
    """Module paths with the block's position replaced by its group."""

    def __init__(self, position: Mapping[str, Block]) -> None:
        self._position = position
        self._known: dict[str, tuple[str | None, str]] = {}

    def of(self, path: str) -> tuple[str | None, str]:
        if path not in self._known:
            self._known[path] = self._find(path)
        return self._known[path]

    def _find(self, path: str) -> tuple[str | None, str]:
        prefix = path
        while prefix:
            block = self._position.get(prefix)
            if block is not None:
                return block.group, block.group + path[len(prefix) :]
            prefix = prefix.rpartition(".")[0]
        return None, path


def operations_of(
    traces: Mapping[Point, Trace],
    position: Mapping[str, Block],
    check: tuple[Point, Trace, Mapping[str, Block]],
    num_blocks: Mapping[str, int],
) -> tuple[Operation, ...]:
    """Operations of the full model from traces of a short copy on a grid of sizes and one of a longer copy.

    Each distinct operation occurs c1 + (c2 - c1) / (d2 - d1) x (depth - d1) times, where c and d are its count and
    the number of blocks of its group in the two copies. The longer copy is traced at a size off the grid, so it also
    shows that sizes are polynomials. Raises UnequalTracesError where either does not hold.
    """
    places = Places(position)
    short = _distinct_operations(traces, places)
    counts = Counter(entry for entry, _ in short)
    point, longer, longer_position = check
    slopes = _slopes(counts, point, longer, longer_position, position)
    transients: dict[_Distinct, Size] = {}
    for entry, transient in short:
        known = transients.get(entry)
        if known is None or transient.at(*point) > known.at(*point):
            transients[entry] = transient
    short_blocks = Counter(block.group for block in position.values())
    result = []
    for entry, count in counts.items():
        missing = num_blocks[entry.group] - short_blocks[entry.group] if entry.group is not None else 0
        repeats = count + slopes[entry] * missing
        if repeats > 0:
            result.append(_operation(entry, repeats, transients[entry]))
    return tuple(result)


def _distinct_operations(traces: Mapping[Point, Trace], places: Places) -> list[tuple[_Distinct, Size]]:
    """Aligned over the sizes by order, with the transient bytes beside."""
    points = list(traces)
    reference = traces[points[0]].operations
    for point in points[1:]:
        _require_equal_order(reference, traces[point].operations, points[0], point)
    distinct = []
    for index, first in enumerate(reference):
        entries = {point: traces[point].operations[index] for point in points}
        fitted: dict[str, Size] = {}
        for name in (*_SIZES, "forward_transient_bytes", "backward_transient_bytes"):
            values = {point: getattr(entry, name) for point, entry in entries.items()}
            fitted[name] = fit_or_constant(values)
        group, path = places.of(first.path)
        key = _Distinct(
            group=group,
            path=path,
            switches=tuple(getattr(first, name) for name in _SWITCHES),
            sizes=tuple(fitted[name] for name in _SIZES),
            is_logits=first.is_logits,
        )
        largest = max(points)
        forward, backward = fitted["forward_transient_bytes"], fitted["backward_transient_bytes"]
        distinct.append((key, max(forward, backward, key=lambda size: size.at(*largest))))
    return distinct


def _require_equal_order(
    left: Sequence[RecordedOperation], right: Sequence[RecordedOperation], left_at: Point, right_at: Point
) -> None:
    for one, other in zip(left, right, strict=False):
        for name in ("path", *_SWITCHES):
            if getattr(one, name) != getattr(other, name):
                raise UnequalTracesError(
                    f"operation {one.target} of module {one.path or 'model'} at (samples, length) {left_at} answers to "
                    f"{other.target} of {other.path or 'model'} at {right_at}: {name} {getattr(one, name)} against "
                    f"{getattr(other, name)}"
                )
    if len(left) != len(right):
        extra = max(left, right, key=len)[min(len(left), len(right))]
        raise UnequalTracesError(
            f"{len(left)} operations at (samples, length) {left_at}, but {len(right)} at {right_at}; the first without "
            f"a counterpart is {extra.target} of module {extra.path or 'model'}"
        )


def _slopes(
    counts: Mapping[_Distinct, int],
    point: Point,
    longer: Trace,
    longer_position: Mapping[str, Block],
    position: Mapping[str, Block],
) -> dict[_Distinct, float]:
    """Occurrences per added block of each distinct operation."""
    places = Places(longer_position)
    found: Counter[tuple[object, ...]] = Counter()
    for operation in longer.operations:
        group, path = places.of(operation.path)
        switches = tuple(getattr(operation, name) for name in _SWITCHES)
        found[(group, path, switches, tuple(getattr(operation, name) for name in _SIZES))] += 1
    expected: dict[tuple[object, ...], list[_Distinct]] = defaultdict(list)
    for entry in counts:
        expected[entry.values_at(point)].append(entry)
    unknown = next((key for key in found if key not in expected), None) or next(
        (key for key in expected if key not in found), None
    )
    if unknown is not None:
        raise UnequalTracesError(
            f"at (samples, length) {point}, operation {unknown[2][0]} of {unknown[1] or 'model'} is not what the "
            "smaller sizes lead to: sizes are no polynomials in samples and length, or blocks differ"
        )
    short_blocks = Counter(block.group for block in position.values())
    long_blocks = Counter(block.group for block in longer_position.values())
    slopes: dict[_Distinct, float] = {}
    for key, entries in expected.items():
        count = sum(counts[entry] for entry in entries)
        group = entries[0].group
        added = long_blocks[group] - short_blocks[group] if group is not None else 0
        if added == 0 and found[key] != count:
            raise UnequalTracesError(
                f"operation {entries[0].switches[0]} of {entries[0].path or 'model'}, outside the repeated blocks, "
                f"occurs {count} times in the shorter copy and {found[key]} times in the longer one"
            )
        share = (found[key] - count) / added if added else 0.0
        for entry in entries:
            slopes[entry] = share * counts[entry] / count
    return slopes


def _operation(entry: _Distinct, repeats: float, transient: Size) -> Operation:
    switches = dict(zip(_SWITCHES, entry.switches, strict=True))
    target, kind = switches.pop("target"), switches.pop("kind")
    forward_kernels, backward_kernels = switches.pop("forward_kernels"), switches.pop("backward_kernels")
    batch, m, k, n, forward_bytes, backward_bytes, saved_bytes = entry.sizes
    operation = Operation(
        name=f"{entry.path}.{target}" if entry.path else str(target),
        kind=kind,
        block=entry.group,
        repeats=repeats,
        forward_bytes=forward_bytes,
        backward_bytes=backward_bytes,
        forward_kernels=forward_kernels,
        backward_kernels=backward_kernels,
        saved_bytes=saved_bytes,
        transient_bytes=transient,
        component=Component.LOGITS if entry.is_logits else Component.ACTIVATIONS,
    )
    if kind is OperationKind.MEMORY_BOUND:
        return operation
    return replace(
        operation,
        batch=batch,
        m=m,
        k=k,
        n=n,
        **switches,
    )
