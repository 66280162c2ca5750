"""What must hold for every workload, whatever the numbers are."""

import json
from dataclasses import replace

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.analytic.columns import extract_columns
from estimator.analytic.estimate import estimate, estimate_many
from estimator.analytic.memory import resident_states
from estimator.analytic.operation_totals import operation_totals
from estimator.coefficients import default_coefficients
from estimator.specs.estimate import Estimate
from estimator.specs.recipe import OPTIMIZERS, Precision
from estimator.specs.strategy import ALL_STRATEGIES, StrategyKind
from estimator.specs.workload import Workload
from tests.support.workloads import A100, NVLINK, PCIE, cluster, faster, operation_list, traced, workload

C = default_coefficients()
MODELS = tuple(
    traced(operation_list(hidden=hidden, layers=layers, vocab=vocab), f"{hidden}x{layers}x{vocab}")
    for hidden, layers, vocab in ((256, 2, 100), (1024, 12, 50_000), (4096, 32, 32_000))
)
LINKS = (NVLINK, PCIE)
GEFORCE = replace(A100, name="test-geforce", supports_peer_to_peer=False)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    strategy = draw(st.sampled_from(ALL_STRATEGIES))
    return workload(
        on=cluster(
            draw(st.sampled_from([1, 2, 8])), draw(st.sampled_from([1, 4])), peer_link=draw(st.sampled_from(LINKS)),
            accelerator=draw(st.sampled_from([A100, GEFORCE])),
        ),
        kind=strategy.kind, offload=strategy.offload, checkpointing=strategy.activation_checkpointing,
        micro_batch_size=draw(st.integers(1, 64)), accumulation=draw(st.integers(1, 32)),
        sequence_length=draw(st.integers(1, 8192)), precision=draw(st.sampled_from(list(Precision))),
        model=draw(st.sampled_from(MODELS)), compile=draw(st.booleans()),
        optimizer=draw(st.sampled_from(sorted(OPTIMIZERS))),
    )  # fmt: skip


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1e-12)


@given(workloads())
@settings(max_examples=150, deadline=None)
def test_parts_sum_to_wholes_and_nothing_is_negative(one: Workload) -> None:
    found = estimate(one, C)
    expected = found.step_time_seconds.expected
    assert close(found.step_time_components_seconds.total_seconds, expected)
    assert close(found.memory_components_bytes.total_bytes, found.peak_memory_bytes.expected)
    assert close(sum(part.seconds for part in found.optimism.parts), expected)
    assert min(part.seconds for part in found.optimism.parts) >= -1e-9 * expected
    for interval in (found.step_time_seconds, found.peak_memory_bytes, found.peak_reserved_bytes):
        assert 0 < interval.low <= interval.expected <= interval.high
    assert 0 < found.mfu_fraction <= found.hfu_fraction < 1


@given(workloads(), st.integers(1, 64), st.integers(0, 4096))
@settings(max_examples=100, deadline=None)
def test_memory_never_falls_with_micro_batch_or_length(one: Workload, samples: int, tokens: int) -> None:
    recipe = one.recipe
    length = (recipe.sequence_length or 1) + tokens
    micro = recipe.micro_batch_size + samples
    # Accumulation stays as it is: with fewer micro batches, gradients of earlier ones are not there.
    batch = micro * one.gradient_accumulation_steps * one.cluster.num_accelerators
    wider = replace(one, recipe=replace(recipe, micro_batch_size=micro, global_batch_size=batch))
    longer = replace(one, recipe=replace(recipe, sequence_length=length))
    base, *more = estimate_many([one, wider, longer], C).peak_memory_bytes
    assert all(peak >= base * (1 - 1e-12) for peak in more)


@given(workloads())
@settings(max_examples=60, deadline=None)
def test_model_states_never_rise_with_the_zero_stage(one: Workload) -> None:
    stages = (StrategyKind.ZERO_1, StrategyKind.ZERO_2, StrategyKind.ZERO_3)
    columns = extract_columns([replace(one, strategy=replace(one.strategy, kind=kind)) for kind in stages], C)
    states = resident_states(columns, operation_totals(columns).num_parameters)
    totals = states.parameters + states.gradients + states.optimizer
    assert totals[0] >= totals[1] >= totals[2]


@given(workloads(), st.floats(1.0, 8.0), st.floats(1.0, 8.0), st.floats(1.0, 8.0))
@settings(max_examples=100, deadline=None)
def test_faster_hardware_is_never_slower(one: Workload, compute: float, bandwidth: float, link: float) -> None:
    node = one.cluster.node
    better_device = faster(node.accelerator, compute=compute, bandwidth=bandwidth)
    better_link = replace(
        node.peer_link, bandwidth_bytes_per_second=node.peer_link.bandwidth_bytes_per_second * link
    )
    devices = replace(one, cluster=replace(one.cluster, node=replace(node, accelerator=better_device)))
    links = replace(one, cluster=replace(one.cluster, node=replace(node, peer_link=better_link)))
    base, with_device, with_link = estimate_many([one, devices, links], C).step_time_seconds
    assert with_device <= base * (1 + 1e-9)
    assert with_link <= base * (1 + 1e-9)


@given(workloads())
@settings(max_examples=60, deadline=None)
def test_json_round_trips(one: Workload) -> None:
    table = estimate_many([one], C)
    found = table.json_dict(0)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    answer = table.estimate(0)
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Estimate) == answer
