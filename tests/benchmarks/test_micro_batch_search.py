"""Whatever the guess, the search ends at the largest size that fits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.micro_batch_search import MicroBatchSearch


def _run(search: MicroBatchSearch, largest: int) -> tuple[int, int]:
    """Drive a search against a machine on which ``largest`` fits; returns (processes, tries)."""
    processes = tries = 0
    while ladder := search.next_ladder():
        assert list(ladder) == sorted(set(ladder))
        assert ladder[0] > search.largest_fitting
        processes += 1
        for size in ladder:
            tries += 1
            search.record(size, fits=size <= largest)
            if size > largest:
                break
        assert processes < 50
    return processes, tries


@given(guess=st.integers(1, 3000), largest=st.integers(0, 3000), rungs=st.sampled_from([1, 4, 8]))
def test_search_finds_the_exact_boundary(guess: int, largest: int, rungs: int) -> None:
    search = MicroBatchSearch(guess=guess, max_rungs=rungs)
    _run(search, largest)
    assert search.largest_fitting == largest
    assert search.smallest_failing == largest + 1


@given(guess=st.integers(1, 3000), largest=st.integers(1, 3000))
def test_a_coarse_search_brackets_within_its_resolution(guess: int, largest: int) -> None:
    search = MicroBatchSearch(guess=guess, resolution_fraction=0.1)
    _run(search, largest)
    assert search.smallest_failing is not None
    assert search.largest_fitting <= largest < search.smallest_failing
    assert search.smallest_failing - search.largest_fitting <= max(1, 0.1 * search.largest_fitting)


@given(guess=st.integers(1, 300), largest=st.integers(1, 300), limit=st.integers(1, 300))
def test_nothing_above_the_limit_is_tried(guess: int, largest: int, limit: int) -> None:
    search = MicroBatchSearch(guess=guess, upper_limit=limit)
    _run(search, largest)
    assert search.largest_fitting == min(largest, limit)


@pytest.mark.parametrize("error", [0.85, 1.0, 1.2])
def test_a_good_guess_needs_one_process_for_a_bracket_of_a_quarter(error: float) -> None:
    search = MicroBatchSearch(guess=round(100 * error), resolution_fraction=0.25)
    processes, _ = _run(search, 100)
    assert processes == 1


def test_single_rungs_double_and_bisect() -> None:
    search = MicroBatchSearch(guess=8, max_rungs=1)
    tried = []
    while ladder := search.next_ladder():
        tried.append(ladder[0])
        search.record(ladder[0], fits=ladder[0] <= 20)
    assert tried[:3] == [8, 16, 32]
    assert len(tried) <= 8
