"""The answer as a whole: one implementation for one and many, the JSON, notes, costs."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from estimator.analytic.estimate import estimate, estimate_many
from estimator.coefficients import default_coefficients
from estimator.specs.recipe import Precision
from estimator.specs.strategy import ALL_STRATEGIES, StrategyKind
from tests.support.workloads import A100, PCIE, TINY, cluster, operation_list, traced, workload

C = default_coefficients()
SMALL = traced(operation_list(hidden=512, layers=4), "small")
MIXED = [
    workload(
        on=cluster(gpus), kind=s.kind, offload=s.offload, checkpointing=s.activation_checkpointing, model=model,
        precision=precision, accumulation=accumulation,
    )
    for index, s in enumerate(ALL_STRATEGIES)
    for gpus, model, precision, accumulation in (
        ((1, TINY, Precision.BF16, 1), (4, SMALL, Precision.FP32, 2))[index % 2], (2, SMALL, Precision.FP16, 3),
    )
]  # fmt: skip


def test_one_workload_and_many_give_the_same_numbers() -> None:
    table = estimate_many(MIXED, C)
    assert len(table) == len(MIXED)
    for row, one in enumerate(MIXED):
        alone = estimate_many([one], C)
        for name, column in table.columns.items():
            np.testing.assert_allclose(column[row], alone.columns[name][0], rtol=1e-12, err_msg=name)
        assert estimate(one, C).warnings == table.estimate(row).warnings


def test_copies_of_model_cluster_and_card_are_recognised() -> None:
    one = workload(on=cluster(4))
    copy = replace(
        one,
        model=replace(one.model),
        cluster=replace(one.cluster, node=replace(one.cluster.node, accelerator=replace(A100))),
    )
    table = estimate_many([one, copy], C)
    assert table.json_dict(0) == table.json_dict(1)


def test_json_holds_the_contracts_keys_in_order_and_survives_a_round_trip() -> None:
    found = estimate_many([workload(on=cluster(4), kind=StrategyKind.ZERO_1)], C).json_dict(0)
    assert list(found) == [
        "basis", "parameters", "step_time_seconds", "step_time_components_seconds", "micro_step_seconds",
        "peak_memory_bytes", "memory_components_bytes", "peak_reserved_bytes", "context_bytes", "usable_memory_bytes",
        "host_memory_bytes", "checkpoint_bytes", "fits", "model_flops_per_step", "mfu_fraction", "hfu_fraction",
        "tokens_per_second", "samples_per_second", "training_days", "cost_usd", "energy_kwh", "optimism", "warnings",
        "assumptions",
    ]  # fmt: skip
    assert list(found["step_time_components_seconds"]) == [  # type: ignore[call-overload]
        "forward_backward", "optimizer", "communication", "offload", "input",
    ]  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_objects_and_json_agree() -> None:
    one = workload(on=cluster(2), accumulation=2)
    table = estimate_many([one], C)
    found, as_json = table.estimate(0), table.json_dict(0)
    assert as_json["step_time_seconds"] == {
        "low": found.step_time_seconds.low, "expected": found.step_time_seconds.expected,
        "high": found.step_time_seconds.high,
    }  # fmt: skip
    assert as_json["parameters"] == found.parameters
    assert [note["code"] for note in as_json["warnings"]] == [note.code for note in found.warnings]  # type: ignore[attr-defined]


def test_rows_beyond_the_table_are_an_index_error() -> None:
    with pytest.raises(IndexError, match="row 3"):
        estimate_many([workload()], C).json_dict(3)


def test_no_workloads_make_an_empty_table() -> None:
    assert len(estimate_many([], C)) == 0


def test_days_dollars_and_energy_follow_from_the_step() -> None:
    one = workload(on=cluster(4), num_training_steps=10_000)
    one = replace(one, recipe=replace(one.recipe, overhead_fraction=0.1))
    found = estimate(one, C)
    seconds = 10_000 * found.step_time_seconds.expected * 1.1
    assert found.training_days is not None
    assert found.cost_usd is not None
    assert found.energy_kwh is not None
    assert found.training_days.expected == pytest.approx(seconds / 86_400)
    assert found.cost_usd.expected == pytest.approx(seconds / 3600 * 4 * 2.0)
    assert found.energy_kwh.expected == pytest.approx(seconds / 3600 * 4 * 0.4 * C.power_fraction)


def test_what_is_unknown_is_null() -> None:
    dark = replace(A100, name="test-dark", power_watts=None)
    found = estimate_many([workload(on=cluster(accelerator=dark, usd_per_gpu_hour=None))], C).json_dict(0)
    assert found["training_days"] is not None
    assert (found["cost_usd"], found["energy_kwh"]) == (None, None)
    unbounded = estimate_many([workload(num_training_steps=None)], C).json_dict(0)
    assert (unbounded["training_days"], unbounded["cost_usd"]) == (None, None)


def test_tokens_only_where_there_is_a_length() -> None:
    one = workload()
    assert estimate(one, C).tokens_per_second == pytest.approx(1024 * estimate(one, C).samples_per_second)
    images = replace(one, recipe=replace(one.recipe, sequence_length=None, image_size=224))
    assert estimate(images, C).tokens_per_second is None


def codes(one) -> set[str]:
    found = estimate(one, C)
    return {note.code for note in found.warnings} | {note.code for note in found.assumptions}


@pytest.mark.parametrize(
    ("one", "code"),
    [
        (workload(micro_batch_size=32), "large_logits"),
        (workload(on=cluster(4, peer_link=replace(PCIE, bandwidth_bytes_per_second=2e9))), "communication_bound"),
        (workload(on=cluster(4, peer_link=replace(PCIE, bandwidth_bytes_per_second=2e9))), "slow_link"),
        (workload(kind=StrategyKind.ZERO_2, offload=True), "offload_without_cpu_memory"),
        (workload(on=cluster(cpu_memory_bytes=2**30)), "cpu_memory_too_small"),
        (workload(compile=True, checkpointing=True), "compile_with_checkpointing"),
        (
            workload(model=traced(replace(operation_list(), active_parameter_fraction=0.25), "moe")),
            "mixture_of_experts",
        ),
        (workload(sequence_length=8192, micro_batch_size=1), "length_beyond_positions"),
        (workload(kind=StrategyKind.FSDP_FULL_SHARD), "sharding_on_one_gpu"),
        (workload(), "default_coefficients"),
        (workload(on=cluster(2), kind=StrategyKind.FSDP_FULL_SHARD, accumulation=2), "fsdp_reduces_every_micro_batch"),
        (workload(kind=StrategyKind.ZERO_3, offload=True), "cpu_adam_speed"),
    ],
)
def test_notes_name_what_a_user_should_know(one, code: str) -> None:
    assert code in codes(one)
    assert code not in codes(workload(sequence_length=128, micro_batch_size=64, model=SMALL)) or code in (
        "default_coefficients",
    )


def test_notes_state_values() -> None:
    found = estimate(workload(kind=StrategyKind.ZERO_2, offload=True), C)
    message = next(note.message for note in found.warnings if note.code == "offload_without_cpu_memory")
    assert f"{found.host_memory_bytes / 2**30:,.0f} GiB" in message


def test_interval_widens_with_what_is_less_certain() -> None:
    def width(one) -> float:
        interval = estimate(one, C).step_time_seconds
        return math.log(interval.high / interval.low)

    single, several = width(workload()), width(workload(on=cluster(2)))
    assert single < several < width(workload(on=cluster(2), kind=StrategyKind.ZERO_1, offload=True))


def test_calibrated_coefficients_say_so() -> None:
    found = estimate(workload(), replace(C, basis="calibrated"))
    assert found.basis == "calibrated"
    assert "default_coefficients" not in [note.code for note in found.assumptions]


def test_a_batch_spans_chunks_without_seams() -> None:
    one, other = workload(), workload(micro_batch_size=2)
    table = estimate_many([one, other] * 9000, C)
    steps = table.step_time_seconds
    assert np.unique(steps[::2]).size == 1
    assert np.unique(steps[1::2]).size == 1
    assert table.json_dict(17_999) == table.json_dict(1)
