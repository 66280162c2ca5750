"""Tables and documents of ``measure``."""

from collections.abc import Iterable
from typing import Any

import msgspec

from benchmarks.campaign import CampaignSummary, WorkItem
from benchmarks.jobs import Job
from estimator.specs.measurement import Measurement
from estimator.specs.units import format_bytes, format_seconds

from ..session.measuring import MeasurementSession
from .output import Page, plain_table

_SCHEMA = 1


def job_of(item: WorkItem) -> Job:
    """The job, or the one at which a search begins."""
    return item if isinstance(item, Job) else item.make_job(max(1, item.search.guess))


def dry_run_document(session: MeasurementSession) -> dict[str, Any]:
    """What would run, in order."""
    answered = session.answered_keys
    rows = []
    for item in session.plan.items:
        job = job_of(item)
        rows.append(
            {
                "title": job.title,
                "is_search": not isinstance(item, Job),
                "is_stored": job.key in answered,
                "expected_step_seconds": job.expected_step_seconds,
                "predicted_seconds": job.predicted_seconds,
                "workload_key": job.key,
            }
        )
    return {
        "schema": _SCHEMA,
        "machine": session.machine.stack,
        "predicted_seconds": session.predicted_seconds,
        "rows": rows,
    }


def print_dry_run(session: MeasurementSession) -> None:
    """The same as a table."""
    table = plain_table(("row", "left"), ("expected step", "right"), ("takes", "right"))
    document = dry_run_document(session)
    for row in document["rows"]:
        step = row["expected_step_seconds"]
        title = f"{row['title']} (search)" if row["is_search"] else row["title"]
        takes = "stored" if row["is_stored"] else format_seconds(row["predicted_seconds"])
        table.add_row(title, "" if step is None else format_seconds(step), takes)
    page = Page()
    page.add(table)
    length = format_seconds(document["predicted_seconds"])
    page.add(f"{len(document['rows'])} rows on {session.machine.gpu}, about {length} in all")
    page.print()


def summary_document(session: MeasurementSession, summary: CampaignSummary) -> dict[str, Any]:
    """What came of a run."""
    return {
        "schema": _SCHEMA,
        "machine": session.machine.stack,
        "store": str(session.store.folder),
        "rows": msgspec.to_builtins(summary.measurements),
        "largest_micro_batches": [
            {"workload": dict(job.workload), "micro_batch_size": size} for job, size in summary.largest_micro_batches
        ],
        "num_resumed": summary.num_resumed,
        "num_implied": summary.num_implied,
        "num_left": summary.num_left,
        "notes": msgspec.to_builtins(summary.notes),
    }


def measurement_csv_rows(rows: Iterable[Measurement]) -> list[dict[str, object]]:
    """One line a row: inputs, then what was seen."""
    return [
        {
            **row.workload,
            "status": row.status,
            "step_time_seconds": row.step_time_seconds,
            "micro_step_seconds": row.micro_step_seconds,
            "optimizer_step_seconds": row.optimizer_step_seconds,
            "peak_allocated_bytes": row.peak_allocated_bytes,
            "peak_reserved_bytes": row.peak_reserved_bytes,
            "reason": row.reason,
        }
        for row in rows
    ]


def print_summary(session: MeasurementSession, summary: CampaignSummary) -> None:
    """Rows of this run, the answers of searches, and counts."""
    page = Page()
    if summary.measurements:
        table = plain_table(
            ("row", "left"),
            ("status", "left"),
            ("step", "right"),
            ("micro step", "right"),
            ("optimizer", "right"),
            ("allocated", "right"),
            ("reserved", "right"),
        )
        for row in summary.measurements:
            times = (row.step_time_seconds, row.micro_step_seconds, row.optimizer_step_seconds)
            sizes = (row.peak_allocated_bytes, row.peak_reserved_bytes)
            table.add_row(
                Job(workload=row.workload).title,
                row.status,
                *("" if value is None else format_seconds(value) for value in times),
                *("" if value is None else format_bytes(value) for value in sizes),
            )
        page.add(table)
    for job, size in summary.largest_micro_batches:
        answer = f"largest micro batch {size}" if size else "not even one sample fits"
        page.add(f"{job.title}: {answer}")
    counts = [f"{len(summary.measurements)} measured", f"{summary.num_resumed} already stored"]
    if summary.num_implied:
        counts.append(f"{summary.num_implied} larger than one that ran out of memory")
    if summary.num_left:
        counts.append(f"{summary.num_left} left for want of time")
    page.add(f"{', '.join(counts)}; records lie in {session.store.folder}")
    page.print()
