"""From traces at a few sizes to polynomials in micro batch b and length s."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from estimator.specs.operations import Size

_POWERS_OF_LENGTH = (0, 1, 2)


def fit_size(values: Mapping[tuple[int, int], float]) -> Size:
    """The polynomial through values on a grid of two micro batches and up to three lengths, exact in fractions.

    Linear in b; of degree (number of lengths - 1) in s. Coefficients in the order of ``MONOMIALS``.
    """
    batches = sorted({b for b, _ in values})
    lengths = sorted({s for _, s in values})
    if len(batches) != 2 or len(values) != 2 * len(lengths):
        raise AssertionError("values on a full grid of two micro batches are needed")
    low, high = batches
    slopes = [Fraction(values[high, s]) - Fraction(values[low, s]) for s in lengths]
    slopes = [slope / (high - low) for slope in slopes]
    constants = [Fraction(values[low, s]) - slope * low for s, slope in zip(lengths, slopes, strict=True)]
    constant, per_sample = _interpolate(lengths, constants), _interpolate(lengths, slopes)
    return Size((
        float(constant[0]), float(per_sample[0]), float(constant[1]), float(per_sample[1]),
        float(constant[2]), float(per_sample[2]),
    ))  # fmt: skip


def _interpolate(points: Sequence[int], values: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of 1, s, s^2 of the polynomial of lowest degree through the points (Newton)."""
    differences = list(values)
    for order in range(1, len(points)):
        for index in range(len(points) - 1, order - 1, -1):
            span = points[index] - points[index - order]
            differences[index] = (differences[index] - differences[index - 1]) / span
    coefficients = [Fraction(0)] * len(_POWERS_OF_LENGTH)
    for order in range(len(points) - 1, -1, -1):
        shifted = [Fraction(0), *coefficients[:-1]]
        coefficients = [up - points[order] * same for up, same in zip(shifted, coefficients, strict=True)]
        coefficients[0] += differences[order]
    return coefficients


def fit_all(traces: Mapping[tuple[int, int], Sequence[object]], read: Callable[[object], float]) -> list[Size]:
    """One polynomial per position of equally long sequences."""
    grid = list(traces)
    return [
        fit_size({point: read(entry) for point, entry in zip(grid, entries, strict=True)})
        for entries in zip(*(traces[point] for point in grid), strict=True)
    ]
