"""Terms of the step, the waterfall, and what each input switches."""

from dataclasses import replace

import pytest

from estimator.analytic.columns import extract_columns
from estimator.analytic.estimate import estimate, estimate_many
from estimator.analytic.operation_totals import operation_totals
from estimator.analytic.optimism import OPTIMISM_PARTS
from estimator.analytic.step_time import host_seconds, micro_step, weight_traffic
from estimator.coefficients import default_coefficients
from estimator.specs.recipe import Precision
from estimator.specs.strategy import ALL_STRATEGIES, StrategyKind
from estimator.specs.workload import Workload
from tests.support.workloads import cluster, operation_list, traced, workload

C = default_coefficients()
LISTING = operation_list()
P = float(LISTING.num_parameters)
CAST = P - 32_000 * 1024


def traffic(one: Workload) -> tuple[float, float, float]:
    columns = extract_columns([one], C)
    return tuple(float(part[0]) for part in weight_traffic(columns, operation_totals(columns)))  # type: ignore[return-value]


def test_autocast_copies_matrices_and_casts_their_gradients() -> None:
    forward, backward, recomputed = traffic(workload())
    assert (forward, backward) == (6 * CAST, 6 * CAST)
    assert recomputed == 6 * 8 * 12 * 1024**2


def test_accumulation_adds_to_the_sum_on_all_but_the_first_micro_batch() -> None:
    assert traffic(workload(accumulation=4))[1] - traffic(workload())[1] == pytest.approx(12 * P * 3 / 4)


def test_zero_and_fp32_cast_nothing() -> None:
    assert traffic(workload(kind=StrategyKind.ZERO_1, on=cluster(2)))[0] == 0
    assert traffic(workload(precision=Precision.FP32))[0] == 0


def test_fsdp_copies_gathered_weights_again_where_it_resharded() -> None:
    once = traffic(workload(kind=StrategyKind.FSDP_SHARD_GRAD_OP, on=cluster(2)))
    twice = traffic(workload(kind=StrategyKind.FSDP_FULL_SHARD, on=cluster(2)))
    assert once[0] == twice[0] == 4 * P
    assert twice[1] == 2 * once[1]


def test_step_cannot_be_faster_than_the_host_launches() -> None:
    tiny = traced(operation_list(hidden=64, layers=48, vocab=64), "thin")
    one = workload(model=tiny, micro_batch_size=1, sequence_length=16)
    columns = extract_columns([one], C)
    totals = operation_totals(columns)
    forward, backward = host_seconds(columns, totals)
    step = micro_step(columns, totals)
    assert step.total[0] == pytest.approx(forward[0] + backward[0] + C.host_seconds_per_micro_step)
    result = estimate(one, C)
    assert "launch_bound" in [note.code for note in result.warnings]
    compiled = estimate(replace(one, recipe=replace(one.recipe, compile=True)), C)
    assert compiled.micro_step_seconds < result.micro_step_seconds / 2


def test_sharding_hooks_cost_host_time_in_order_of_their_work() -> None:
    def host(kind: StrategyKind) -> float:
        columns = extract_columns([workload(on=cluster(2), kind=kind)], C)
        forward, backward = host_seconds(columns, operation_totals(columns))
        return float(forward[0] + backward[0])

    # ZeRO has no casts to launch, so it is compared with itself.
    assert host(StrategyKind.ZERO_1) == host(StrategyKind.ZERO_2) < host(StrategyKind.ZERO_3)


def test_recomputation_is_the_forward_of_the_blocks() -> None:
    plain, again = (estimate(workload(micro_batch_size=16, checkpointing=c), C) for c in (False, True))
    ratio = again.hfu_fraction / again.mfu_fraction
    blocks = 8 * (24 * 1024**2 + 2 * 1024 * 1024)
    assert ratio == pytest.approx(1 + blocks / (blocks + 2 * 1024 * 32_000) / 3, rel=1e-6)
    assert plain.hfu_fraction == pytest.approx(plain.mfu_fraction)
    assert again.micro_step_seconds > plain.micro_step_seconds


def test_model_flops_count_causal_attention_at_half_and_the_output_matrix() -> None:
    tokens, length = 4 * 1024, 1024
    forward = tokens * (2 * CAST + 8 * 2 * length * 1024)
    assert estimate(workload(), C).model_flops_per_step == pytest.approx(3 * forward)


@pytest.mark.parametrize("strategy", ALL_STRATEGIES, ids=lambda s: f"{s.kind}-{s.offload}-{s.activation_checkpointing}")
def test_waterfall_and_components_sum_to_the_step(strategy) -> None:
    one = workload(
        on=cluster(4), kind=strategy.kind, offload=strategy.offload, checkpointing=strategy.activation_checkpointing,
        accumulation=3,
    )  # fmt: skip
    result = estimate(one, C)
    expected = result.step_time_seconds.expected
    assert [part.name for part in result.optimism.parts] == list(OPTIMISM_PARTS)
    assert sum(part.seconds for part in result.optimism.parts) == pytest.approx(expected)
    assert result.step_time_components_seconds.total_seconds == pytest.approx(expected)
    assert result.memory_components_bytes.total_bytes == pytest.approx(result.peak_memory_bytes.expected)
    assert min(part.seconds for part in result.optimism.parts) >= -1e-12
    assert result.optimism.ratio == pytest.approx(1 / result.mfu_fraction)


def test_tf32_counts_against_its_own_peak() -> None:
    one = workload(precision=Precision.FP32)
    plain = replace(one, recipe=replace(one.recipe, tf32=False))
    with_tf32, without = estimate_many([one, plain], C).step_time_seconds
    assert with_tf32 < without / 2
    assert estimate(plain, C).mfu_fraction > 0.3


def test_fused_optimizer_moves_fewer_bytes() -> None:
    def optimizer(name: str) -> float:
        return estimate(workload(optimizer=name), C).step_time_components_seconds.optimizer

    assert optimizer("adamw_torch") > 1.5 * optimizer("adamw_torch_fused")


def test_offload_replaces_the_device_optimizer() -> None:
    parts = estimate(workload(on=cluster(2), kind=StrategyKind.ZERO_2, offload=True), C).step_time_components_seconds
    assert parts.optimizer == 0.0
    assert parts.offload > 0.0
