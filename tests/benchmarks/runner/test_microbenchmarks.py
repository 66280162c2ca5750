"""The machine's micro-benchmarks run in a small form on the CPU."""

from pathlib import Path

import pytest

from .running import job, results, run

pytestmark = pytest.mark.slow

_EVERYWHERE = {"matrix_product", "attention", "convolution", "memory", "launch", "optimizer", "cpu_adam"}


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_microbenchmarks_run(num_ranks: int, tmp_path: Path) -> None:
    measured = results(run([job(kind="microbenchmark")], tmp_path, num_ranks=num_ranks))["tiny"]
    assert measured["status"] == "ok", measured["reason"]
    found = measured["details"]["microbenchmarks"]
    assert {entry["name"] for entry in found} == _EVERYWHERE | ({"collective"} if num_ranks > 1 else set())
    for entry in found:
        assert entry["status"] == "ok", entry
        assert len(entry["samples_seconds"]) >= 3
        assert entry["rate"] == pytest.approx(entry["work"] / entry["median_seconds"])


def test_chosen_groups_only(tmp_path: Path) -> None:
    asked = job(kind="microbenchmark", options={"microbenchmark_groups": ["launch_overhead"]})
    measured = results(run([asked], tmp_path))["tiny"]
    assert {entry["name"] for entry in measured["details"]["microbenchmarks"]} == {"launch"}


def test_unknown_group_is_refused(tmp_path: Path) -> None:
    asked = job(kind="microbenchmark", options={"microbenchmark_groups": ["quantum"]})
    measured = results(run([asked], tmp_path))["tiny"]
    assert measured["status"] == "error"
    assert "quantum" in measured["reason"]
    assert "matrix_products" in measured["reason"]
