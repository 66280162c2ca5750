"""Polynomials from values on a grid, and the blocks they are traced on."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.runner.trace.polynomials import fit_size
from estimator.specs.operations import Size

_COEFFICIENTS = st.tuples(*[st.integers(-(2**20), 2**30).map(float)] * 6)


@given(_COEFFICIENTS)
def test_six_points_give_every_polynomial_back(coefficients: tuple[float, ...]) -> None:
    size = Size(coefficients)  # type: ignore[arg-type]
    grid = [(b, s) for b in (2, 3) for s in (64, 128, 192)]
    assert fit_size({point: int(size.at(*point)) for point in grid}) == size


@given(_COEFFICIENTS)
def test_four_points_give_those_linear_in_length(coefficients: tuple[float, ...]) -> None:
    size = Size((*coefficients[:4], 0.0, 0.0))  # type: ignore[arg-type]
    grid = [(b, s) for b in (2, 3) for s in (64, 128)]
    assert fit_size({point: int(size.at(*point)) for point in grid}) == size


def test_images_have_no_length() -> None:
    assert fit_size({(2, 1): 17, (3, 1): 24}) == Size((3.0, 7.0, 0.0, 0.0, 0.0, 0.0))
