"""Which public rows qualify, how they become workloads, and how far the default coefficients are off."""

import csv
from pathlib import Path

import pytest

import calibration
from calibration.assess import assess, main, median_over_groups, report_lines
from calibration.public_rows import (
    MeasuredRun,
    read_measured_runs,
    reason_to_leave_out,
    select_rows,
    stack_of_run,
    workload_of_run,
)
from estimator.analytic.estimate import estimate_many
from estimator.coefficients import default_coefficients
from estimator.specs.recipe import Precision
from estimator.specs.strategy import StrategyKind

TABLE = Path(calibration.__file__).parent / "data" / "public" / "measured-runs.csv"
RUNS = {run.id: run for run in read_measured_runs()}
ROWS = {row.row_id: row for row in select_rows().rows}


@pytest.fixture(scope="module")
def assessment():
    return assess(select_rows().rows, default_coefficients())


def test_every_row_is_either_selected_or_counted_with_a_reason() -> None:
    with TABLE.open(newline="") as stream:
        total = sum(1 for _ in csv.DictReader(stream))
    selection = select_rows()
    assert len(selection.rows) + sum(selection.left_out.values()) == total == len(RUNS)


def test_several_hundred_rows_of_several_sources_qualify() -> None:
    assert len(ROWS) >= 500
    assert {row.source for row in ROWS.values()} >= {"foundry", "lambda", "dle", "neusight"}


def test_most_groups_are_held_out() -> None:
    held_out = {row.group for row in ROWS.values() if row.is_held_out}
    assert len(held_out) >= 10
    assert ("foundry", "mpt-7b") in held_out
    assert ("neusight", "bert-large") not in held_out


def changed(row_id: str, **values: object) -> MeasuredRun:
    fields = {name: getattr(RUNS[row_id], name) for name in MeasuredRun.__struct_fields__}
    return MeasuredRun(**{**fields, **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"notes": "SUSPECT: too fast"}, "suspect"),
        ({"notes": "LoRA; rank 8"}, "LoRA"),
        ({"tensor_parallel": 8}, "tensor or pipeline"),
        ({"precision": "fp8"}, "fp8"),
        ({"micro_batch": None}, "not stated"),
        ({"sharding": "unknown"}, "not stated"),
        ({"activation_checkpointing": "selective"}, "selective"),
        ({"framework": "MaxText (JAX)"}, "PyTorch"),
        ({"id": "elsewhere-0001"}, "table of stacks"),
        ({"tokens_per_s_per_gpu": None, "samples_per_s_per_gpu": None, "peak_mem_gb": None}, "neither"),
    ],
)
def test_rows_are_left_out_for_a_stated_reason(values: dict[str, object], words: str) -> None:
    assert reason_to_leave_out(changed("foundry-0162")) is None
    assert words in (reason_to_leave_out(changed("foundry-0162", **values)) or "")


def test_a_row_becomes_the_workload_its_source_ran() -> None:
    one = ROWS["foundry-0162"].workload
    assert (one.cluster.node.accelerator.name, one.cluster.num_accelerators) == ("a100-40gb", 8)
    assert one.strategy.kind is StrategyKind.FSDP_FULL_SHARD
    assert one.strategy.activation_checkpointing
    assert (one.recipe.sequence_length, one.recipe.micro_batch_size, one.gradient_accumulation_steps) == (32_768, 1, 4)
    assert one.recipe.precision is Precision.BF16


def test_shapes_reproduce_the_published_parameter_counts() -> None:
    chosen = ["foundry-0162", "foundry-0021", "foundry-0175"]
    found = estimate_many([ROWS[name].workload for name in chosen], default_coefficients()).columns["parameters"]
    assert found.tolist() == [2_730_480_640, 30_019_254_272, 1_328_533_504]


@pytest.mark.parametrize(("global_batch", "expected"), [(None, 1), (64, 1), (640, 10)])
def test_blank_accumulation_follows_from_the_batches(global_batch: int | None, expected: int) -> None:
    run = changed("foundry-0162", grad_accum=None, micro_batch=8, global_batch_samples=global_batch)
    facts = stack_of_run(run)
    assert facts is not None
    assert workload_of_run(run, facts).gradient_accumulation_steps == expected


def test_blank_compile_and_offload_mean_no() -> None:
    assert RUNS["foundry-0162"].compiled is None
    one = ROWS["foundry-0162"].workload
    assert not one.recipe.compile
    assert not one.strategy.offload


def test_throughput_of_held_out_groups_is_within_a_quarter(assessment) -> None:
    ours = median_over_groups(assessment.throughput, "rate_error", held_out=True)
    assert ours <= 0.25
    assert median_over_groups(assessment.throughput, "rate_error") <= 0.25
    assert ours < median_over_groups(assessment.throughput, "constant_error", held_out=True)


def test_memory_is_within_fifteen_percent_of_what_the_driver_shows(assessment) -> None:
    assert median_over_groups(assessment.memory, "memory_error") <= 0.15


def test_report_prints_every_group_with_its_count_and_the_reasons(assessment) -> None:
    text = "\n".join(report_lines(assessment, {**select_rows().left_out, "no reason": 3}))
    for source, model in {row.group for row in ROWS.values()}:
        assert f"{source:<10}{model:<15}" in text
    assert "45%MFU" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "    3  no reason" in text


def test_command_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert "median, all" in capsys.readouterr().out
