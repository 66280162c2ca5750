"""Answers with made-up figures, so that golden files show the form and do not move with the model of cost."""

from estimator.app.session.inputs import PreparedWorkload
from estimator.app.session.options import WorkloadOptions
from estimator.app.session.service import EstimateAnswer, PlanAnswer, Session
from estimator.plan.result import NearestChange, Plan, PlannedStrategy, RejectedStrategy
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate, Interval, MemoryBreakdown, Optimism, OptimismPart, TimeBreakdown
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.units import GIB

OPTIONS = WorkloadOptions(
    model="pythia-1b", gpu="a100-80gb", num_gpus=4, micro_batch_size=16, strategy="zero_1", usd_per_gpu_hour=1.5
)
WARNING = Note(
    code="planted_warning", message="A warning that is long enough to be wrapped on a terminal of 80 columns."
)
ASSUMPTION = Note(code="planted_assumption", message="An assumption.")


def interval(expected: float) -> Interval:
    return Interval(low=expected * 0.75, expected=expected, high=expected * 1.5)


def estimate(*, seconds: float = 16.0, gib: float = 40.0, fits: str = "yes", days: bool = True) -> Estimate:
    parts = (
        ("flops_at_peak", 0.5),
        ("kernel_efficiency", 0.25),
        ("memory_bound_operations", 0.1875),
        ("offload", 0.0625),
    )
    return Estimate(
        basis="analytical",
        parameters=1_011_781_632,
        step_time_seconds=interval(seconds),
        step_time_components_seconds=TimeBreakdown(
            forward_backward=seconds * 0.75,
            optimizer=seconds * 0.125,
            communication=seconds * 0.125,
            offload=0.0,
            input=0.0,
        ),
        micro_step_seconds=seconds / 32,
        peak_memory_bytes=interval(gib * GIB),
        memory_components_bytes=MemoryBreakdown(
            parameters=gib * GIB / 8,
            gradients=gib * GIB / 8,
            optimizer=gib * GIB / 4,
            activations=gib * GIB / 4,
            logits=gib * GIB / 8,
            buffers=gib * GIB / 8,
        ),
        peak_reserved_bytes=interval(gib * GIB * 1.25),
        context_bytes=0.5 * GIB,
        usable_memory_bytes=78.5 * GIB,
        host_memory_bytes=0.0,
        checkpoint_bytes=12 * GIB,
        fits=fits,
        model_flops_per_step=1.25e16,
        mfu_fraction=0.5,
        hfu_fraction=0.625,
        tokens_per_second=131_072.0,
        samples_per_second=64.0,
        training_days=interval(32.0) if days else None,
        cost_usd=interval(4608.0) if days else None,
        energy_kwh=interval(1000.0) if days else None,
        optimism=Optimism(
            ratio=2.0, parts=tuple(OptimismPart(name=name, seconds=seconds * share) for name, share in parts)
        ),
        warnings=(WARNING,),
        assumptions=(ASSUMPTION,),
    )


def _prepared(*, for_plan: bool) -> PreparedWorkload:
    reader = Session().reader
    return reader.prepare_plan(OPTIONS) if for_plan else reader.prepare(OPTIONS)


def _change(prepared: PreparedWorkload) -> NearestChange:
    return NearestChange(
        kind="num_gpus",
        description="8 GPUs of the same card",
        workload=prepared.workload,
        estimate=estimate(seconds=8.0, gib=60.0, fits="tight"),
    )


def estimate_answer(*, fits: str = "yes") -> EstimateAnswer:
    prepared = _prepared(for_plan=False)
    changes = (_change(prepared),) if fits == "no" else ()
    gib = 80.0 if fits == "no" else 40.0
    return EstimateAnswer(prepared=prepared, estimate=estimate(fits=fits, gib=gib), nearest_changes=changes)


def plan_answer(*, nothing_fits: bool = False) -> PlanAnswer:
    prepared = _prepared(for_plan=True)
    base = prepared.workload
    ranked = []
    for rank, (kind, offload, checkpointing, fits) in enumerate(
        (
            (StrategyKind.ZERO_1, False, False, "yes"),
            (StrategyKind.NONE, False, False, "tight"),
            (StrategyKind.FSDP_SHARD_GRAD_OP, True, True, "yes"),
        ),
        start=1,
    ):
        strategy = Strategy(kind=kind, offload=offload, activation_checkpointing=checkpointing)
        workload = type(base)(model=base.model, cluster=base.cluster, recipe=base.recipe, strategy=strategy)
        ranked.append(PlannedStrategy(rank=rank, workload=workload, estimate=estimate(seconds=16.0 * rank, fits=fits)))
    short = "4.0 GiB short: 82.5 GiB of 78.5 GiB usable at micro batch 1"
    rejected = (
        RejectedStrategy(strategy=Strategy(kind=StrategyKind.ZERO_2), code="gpu_memory", reason=short),
        RejectedStrategy(
            strategy=Strategy(kind=StrategyKind.ZERO_2, activation_checkpointing=True), code="gpu_memory", reason=short
        ),
        RejectedStrategy(
            strategy=Strategy(kind=StrategyKind.ZERO_3, offload=True),
            code="host_memory",
            reason="needs 96.0 GiB of host memory a node, 64.0 GiB given",
        ),
    )
    return PlanAnswer(
        prepared=prepared,
        plan=Plan(
            num_parameters=1_011_781_632,
            basis="analytical",
            ranked=() if nothing_fits else tuple(ranked),
            rejected=rejected,
            nearest_changes=(_change(prepared),) if nothing_fits else (),
        ),
        warnings=(WARNING,),
        assumptions=(ASSUMPTION,),
    )
