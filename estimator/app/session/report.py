"""Answers as documents (JSON), flat rows (CSV) and the words that every front end shares."""

import dataclasses
from collections.abc import Mapping

from estimator.plan.result import NearestChange, PlannedStrategy, RejectedStrategy
from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate
from estimator.specs.strategy import Strategy
from estimator.specs.workload import Workload

from .options import STRATEGY_KEYS, WorkloadOptions
from .service import EstimateAnswer, PlanAnswer

SCHEMA = 1
ESTIMATE_FIELDS = tuple(field.name for field in dataclasses.fields(Estimate))


def estimate_document(echo: WorkloadOptions, estimate: Estimate) -> dict[str, object]:
    """The JSON of an estimate."""
    document: dict[str, object] = {"schema": SCHEMA, "workload": echo}
    for name in ESTIMATE_FIELDS:
        document[name] = getattr(estimate, name)
    return document


def estimate_answer_document(answer: EstimateAnswer) -> dict[str, object]:
    """The JSON of ``estimate``: with the nearest changes where it does not fit."""
    document = estimate_document(answer.prepared.echo, answer.estimate)
    if answer.nearest_changes:
        document["nearest_changes"] = [change_row(change) for change in answer.nearest_changes]
    return document


def strategy_keys(strategy: Strategy) -> dict[str, object]:
    return {
        "strategy": strategy.kind.value,
        "offload": strategy.offload,
        "activation_checkpointing": strategy.activation_checkpointing,
    }


def echo_with_strategy(echo: WorkloadOptions, workload: Workload) -> WorkloadOptions:
    """The echo of a plan's inputs, completed with what the planner chose."""
    fields = {name: getattr(echo, name) for name in echo.__struct_fields__}
    return WorkloadOptions(
        **{**fields, "micro_batch_size": workload.recipe.micro_batch_size, **strategy_keys(workload.strategy)}
    )


def strategy_row(row: PlannedStrategy, echo: WorkloadOptions) -> dict[str, object]:
    """One ranked strategy of a plan."""
    workload = row.workload
    return {
        "rank": row.rank,
        **strategy_keys(workload.strategy),
        "micro_batch_size": workload.recipe.micro_batch_size,
        "gradient_accumulation_steps": workload.gradient_accumulation_steps,
        "estimate": estimate_document(echo_with_strategy(echo, workload), row.estimate),
    }


def rejected_row(row: RejectedStrategy) -> dict[str, object]:
    return {**strategy_keys(row.strategy), "code": row.code, "reason": row.reason}


def change_row(change: NearestChange) -> dict[str, object]:
    """What to change, and what it would bring."""
    workload, estimate = change.workload, change.estimate
    return {
        "kind": change.kind,
        "description": change.description,
        "gpu": workload.cluster.node.accelerator.name,
        "num_gpus": workload.cluster.node.num_accelerators,
        "num_nodes": workload.cluster.num_nodes,
        "precision": workload.recipe.precision.value,
        "sequence_length": workload.recipe.sequence_length,
        "global_batch_size": workload.recipe.global_batch_size,
        "micro_batch_size": workload.recipe.micro_batch_size,
        **strategy_keys(workload.strategy),
        "step_time_seconds": estimate.step_time_seconds,
        "tokens_per_second": estimate.tokens_per_second,
        "samples_per_second": estimate.samples_per_second,
        "peak_reserved_bytes": estimate.peak_reserved_bytes,
        "usable_memory_bytes": estimate.usable_memory_bytes,
        "fits": estimate.fits,
    }


def note_rows(notes: tuple[Note, ...]) -> list[dict[str, str]]:
    return [{"code": note.code, "message": note.message} for note in dict.fromkeys(notes)]


def plan_document(answer: PlanAnswer) -> dict[str, object]:
    """The JSON of ``plan``."""
    echo, found = answer.prepared.echo, answer.plan
    strategies = [strategy_row(row, echo) for row in found.ranked]
    workload = {name: getattr(echo, name) for name in echo.__struct_fields__ if name not in STRATEGY_KEYS}
    return {
        "schema": SCHEMA,
        "workload": workload,
        "best": strategies[0] if strategies else None,
        "strategies": strategies,
        "rejected": [rejected_row(row) for row in found.rejected],
        "nearest_changes": [change_row(change) for change in found.nearest_changes],
        "warnings": note_rows(answer.warnings),
        "assumptions": note_rows(answer.assumptions),
    }


def flat(document: object, prefix: str = "") -> dict[str, object]:
    """A document as one flat row: ``step_time_seconds_expected``. Lists are left out; notes become their codes."""
    row: dict[str, object] = {}
    if dataclasses.is_dataclass(document) and not isinstance(document, type):
        document = {field.name: getattr(document, field.name) for field in dataclasses.fields(document)}
    if isinstance(document, WorkloadOptions):
        document = {name: getattr(document, name) for name in document.__struct_fields__}
    if isinstance(document, Mapping):
        for key, value in document.items():
            row.update(flat(value, f"{prefix}_{key}" if prefix else str(key)))
    elif isinstance(document, list | tuple):
        if all(isinstance(entry, Note) for entry in document):
            row[prefix] = " ".join(dict.fromkeys(entry.code for entry in document))
    else:
        row[prefix] = document
    return row


def estimate_csv_row(echo: WorkloadOptions, estimate: Estimate) -> dict[str, object]:
    """One estimate as a row: the workload's options, then the figures."""
    document = estimate_document(echo, estimate)
    del document["workload"]
    row: dict[str, object] = {name: getattr(echo, name) for name in echo.__struct_fields__ if name != "set"}
    for name in ("training_days", "cost_usd", "energy_kwh"):
        if document[name] is None:
            document[name] = {"low": None, "expected": None, "high": None}
    row.update(flat(document))
    return row
