"""The search: every combination once, each at its best micro batch, ranked by expected step time."""

import dataclasses
from itertools import pairwise

import pytest

from estimator.analytic.estimate import estimate_many
from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import find_accelerator
from estimator.catalog.resolve import resolve_model
from estimator.coefficients import default_coefficients
from estimator.plan.candidates import candidate_workloads, divisors_of, micro_batch_sizes
from estimator.plan.nearest_changes import changes_of_inputs, changes_of_strategy
from estimator.plan.search import plan
from estimator.specs.recipe import Precision
from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind
from estimator.specs.workload import Workload

COEFFICIENTS = default_coefficients()


def inputs(model="pythia-410m", gpu="a100-80gb", num_gpus=4, num_nodes=1, **cluster_options):
    resolved = resolve_model(model, overrides={})
    cluster, _ = build_cluster(find_accelerator(gpu)[0], num_gpus, num_nodes, **cluster_options)
    return resolved.spec, cluster, resolved.recipe


@pytest.mark.parametrize("number", [1, 2, 97, 1024, 5040])
def test_divisors(number):
    assert divisors_of(number) == tuple(d for d in range(1, number + 1) if number % d == 0)


@pytest.mark.parametrize(("batch", "num_gpus"), [(1024, 4), (1023, 3), (720_720, 1), (8, 8), (2**20, 1)])
def test_micro_batches_divide_and_stay_few(batch, num_gpus):
    sizes = micro_batch_sizes(batch, num_gpus)
    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))
    assert len(sizes) <= 24
    assert all(batch // num_gpus % size == 0 for size in sizes)


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "memory"),
    [
        ("pythia-410m", "a100-80gb", 4, None),
        ("pythia-2.8b", "rtx-4090", 8, 512),
        ("pythia-1b", "rtx-3090", 1, None),
        ("pythia-12b", "a100-40gb", 8, 64),
    ],
)
def test_every_combination_is_ranked_or_rejected_once(model, gpu, num_gpus, memory):
    found = plan(*inputs(model, gpu, num_gpus, cpu_memory_gib=memory), COEFFICIENTS)
    seen = [row.workload.strategy for row in found.ranked] + [row.strategy for row in found.rejected]
    assert sorted(seen, key=str) == sorted(ALL_STRATEGIES, key=str)
    assert [row.rank for row in found.ranked] == list(range(1, len(found.ranked) + 1))
    times = [row.estimate.step_time_seconds.expected for row in found.ranked]
    assert all(later >= earlier * (1 - 2e-6) for earlier, later in pairwise(times))
    assert all(row.estimate.fits in ("yes", "tight") for row in found.ranked)
    assert all(row.reason for row in found.rejected)


def test_no_other_micro_batch_of_a_ranked_combination_fits_and_is_faster():
    model, cluster, recipe = inputs("pythia-1b", "a100-40gb", 4)
    found = plan(model, cluster, recipe, COEFFICIENTS)
    assert found.ranked
    for row in found.ranked:
        workloads = candidate_workloads(
            model, cluster, recipe, [row.workload.strategy], micro_batch_sizes(recipe.global_batch_size, 4)
        )
        table = estimate_many(workloads, COEFFICIENTS)
        fitting = [e for i in range(len(workloads)) if (e := table.estimate(i)).fits == row.estimate.fits]
        fastest = min(e.step_time_seconds.expected for e in fitting)
        assert row.estimate.step_time_seconds.expected <= fastest * (1 + 1e-6)
        if row.estimate.fits == "tight":
            assert not any(table.estimate(i).fits == "yes" for i in range(len(workloads)))


def test_one_gpu_rejects_the_ten_that_do_nothing_there():
    found = plan(*inputs("pythia-70m", num_gpus=1), COEFFICIENTS)
    assert len(found.ranked) == 12
    assert {row.code for row in found.rejected} == {"no_effect"}
    assert all(row.strategy.kind is not StrategyKind.NONE and not row.strategy.offload for row in found.rejected)


def test_rejection_says_how_much_is_short():
    found = plan(*inputs("pythia-12b", "a100-40gb", 8), COEFFICIENTS)
    row = next(row for row in found.rejected if row.strategy == Strategy())
    workload = Workload(
        model=inputs("pythia-12b")[0],
        cluster=inputs("pythia-12b", "a100-40gb", 8)[1],
        recipe=dataclasses.replace(inputs("pythia-12b")[2], micro_batch_size=1),
        strategy=Strategy(),
    )
    smallest = estimate_many([workload], COEFFICIENTS).estimate(0)
    short = (smallest.peak_reserved_bytes.expected - smallest.usable_memory_bytes) / 2**30
    assert row.code == "gpu_memory"
    assert row.reason.startswith(f"{short:.1f} GiB short")


def test_host_memory_forbids_offload_by_name():
    found = plan(*inputs("pythia-12b", "a100-80gb", 8, cpu_memory_gib=64), COEFFICIENTS)
    rows = [row for row in found.rejected if row.strategy.offload and row.code == "host_memory"]
    assert rows
    assert all("64.0 GiB given" in row.reason for row in rows)


def test_more_memory_never_makes_the_best_slower():
    times = []
    for gib in (16, 24, 40, 78):
        best = plan(*inputs("pythia-1b", "a100-80gb", 4, gpu_memory_gib=gib), COEFFICIENTS).best
        assert best is not None
        times.append(best.estimate.step_time_seconds.expected)
    # A combination that fits tightly may give way to one that fits with room: allow for that step.
    assert all(later <= earlier * 1.05 for earlier, later in pairwise(times))


# Nearest changes


@pytest.mark.parametrize(
    ("model", "gpu", "num_gpus", "memory"),
    [("pythia-12b", "rtx-3060-12gb", 1, 32), ("llama-2-7b", "rtx-4090", 1, 32), ("llama-2-70b", "a100-80gb", 4, 256)],
)
def test_changes_of_inputs_fit_and_differ_in_one_respect(model, gpu, num_gpus, memory):
    spec, cluster, recipe = inputs(model, gpu, num_gpus, cpu_memory_gib=memory)
    changes = changes_of_inputs(spec, cluster, recipe, COEFFICIENTS)
    assert 1 <= len(changes) <= 3
    assert len({change.kind for change in changes}) == len(changes)
    for change in changes:
        assert change.estimate.fits in ("yes", "tight")
        new = change.workload
        changed = {
            "num_gpus": new.cluster.num_accelerators != num_gpus,
            "gpu": new.cluster.node.accelerator.name != gpu,
            "sequence_length": new.recipe.sequence_length != recipe.sequence_length,
            "cpu_memory_gib": new.cluster.node.cpu_memory_bytes != cluster.node.cpu_memory_bytes,
        }
        assert [kind for kind, is_changed in changed.items() if is_changed] == [change.kind]
    speeds = [change.estimate.tokens_per_second or 0 for change in changes]
    assert speeds == sorted(speeds, reverse=True)


def test_fewest_gpus_of_the_ladder_are_named():
    spec, cluster, recipe = inputs("llama-2-13b", "a100-80gb", 1, cpu_memory_gib=16)
    changes = {change.kind: change for change in changes_of_inputs(spec, cluster, recipe, COEFFICIENTS)}
    count = changes["num_gpus"].workload.cluster.num_accelerators
    half, _ = build_cluster(find_accelerator("a100-80gb")[0], count // 2, 1, cpu_memory_gib=16)
    assert not plan(spec, half, recipe, COEFFICIENTS).ranked


def test_changes_of_strategy_start_from_the_workload():
    model, cluster, recipe = inputs("pythia-410m", "rtx-3090", 2)
    recipe = dataclasses.replace(recipe, micro_batch_size=64)
    workload = Workload(model=model, cluster=cluster, recipe=recipe, strategy=Strategy())
    assert estimate_many([workload], COEFFICIENTS).estimate(0).fits == "no"
    changes = changes_of_strategy(workload, COEFFICIENTS)
    assert changes
    for change in changes:
        assert change.estimate.fits in ("yes", "tight")
        assert change.workload.cluster is cluster
        assert change.workload.recipe.micro_batch_size <= 64
        assert change.description
    micro = next(change for change in changes if change.kind == "micro_batch_size")
    assert micro.workload.strategy == Strategy()
    assert "instead of 64" in micro.description


def test_sixteen_bits_are_a_change_of_fp32():
    spec, cluster, recipe = inputs("pythia-12b", "rtx-3060-12gb", 1, cpu_memory_gib=32)
    recipe = dataclasses.replace(recipe, precision=Precision.FP32)
    kinds = {change.kind for change in changes_of_inputs(spec, cluster, recipe, COEFFICIENTS)}
    assert kinds <= {"num_gpus", "gpu", "sequence_length", "precision", "cpu_memory_gib"}
