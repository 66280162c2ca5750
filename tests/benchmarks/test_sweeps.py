"""Grids and named sweeps."""

from collections import Counter

import pytest

from benchmarks.h200_sweeps import BY_NAME, SWEEPS, SWEPT_MODELS
from benchmarks.sweeps import FREE_LUNCH, NAIVE, PlannedRow, grid
from estimator.specs.strategy import ALL_STRATEGIES


def test_a_grid_is_every_combination_with_micro_batches_ascending() -> None:
    rows = grid(
        models=("a", "b"),
        strategies=ALL_STRATEGIES,
        settings=(NAIVE, FREE_LUNCH),
        micro_batch_sizes=(4, 1),
        axes={"precision": ("bf16", "fp32"), "gpu_memory_gib": (16.0, 24.0, 40.0)},
        template=PlannedRow(num_steps=7),
    )
    assert len(rows) == 2 * 22 * 2 * 2 * 2 * 3
    assert len({tuple(sorted((key, str(value)) for key, value in row.options.items())) for row in rows}) == len(rows)
    assert [row.options["micro_batch_size"] for row in rows[:4]] == [1, 4, 1, 4]
    assert all(row.num_steps == 7 for row in rows)


def test_a_grid_without_sizes_searches() -> None:
    rows = grid(
        models=("a",),
        strategies=ALL_STRATEGIES[:1],
        settings=({},),
        micro_batch_sizes=None,
        axes={},
        template=PlannedRow(),
    )
    assert [row.finds_largest_micro_batch for row in rows] == [True]
    assert "micro_batch_size" not in rows[0].options


@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "h200-micro"])
def test_sweeps_have_no_row_twice_and_start_with_many_models(name: str) -> None:
    rows = SWEEPS[name]()
    keys = [tuple(sorted((key, repr(value)) for key, value in row.options.items())) for row in rows]
    assert len(set(keys)) == len(keys)
    if name in ("h200-plain", "h200-naive", "h200-compile", "h200-memory"):
        first = Counter(row.options["model"] for row in rows[: 2 * len(SWEPT_MODELS)])
        assert len(first) >= 12, "a run that is cut off still holds many models"


def test_the_plain_sweep_covers_what_coefficients_hang_on() -> None:
    rows = [row.options for row in SWEEPS["h200-plain"]()]
    assert len(rows) >= 200
    for wanted in (
        {"precision": "bf16"},
        {"precision": "fp16"},
        {"precision": "fp32", "tf32": True},
        {"precision": "fp32", "tf32": False},
        {"attention": "eager"},
        {"attention": "sdpa"},
        {"activation_checkpointing": True},
        {"gradient_accumulation_steps": 2},
        {"optimizer": "adamw_torch_fused"},
        {"micro_batch_size": 1},
    ):
        matching = {row["model"] for row in rows if wanted.items() <= row.items()}
        assert len(matching) >= 12, wanted


def test_the_memory_sweep_visits_every_cap() -> None:
    caps = Counter(row.options["gpu_memory_gib"] for row in SWEEPS["h200-memory"]())
    assert set(caps) == {16, 24, 40, 48, 80}
    assert min(caps.values()) >= 3


def test_the_sharded_sweep_holds_every_single_gpu_combination() -> None:
    rows = SWEEPS["h200-sharded"]()
    combinations = {(row.options["strategy"], row.options["offload"]) for row in rows[:10]}
    assert len(combinations) == 10
    assert all(row.options["model"] in BY_NAME for row in rows)
