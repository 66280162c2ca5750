"""Comparisons as documents; apart from ``report``, so that a plan does not load what it does not need."""

from .comparison import ComparedHardware, Comparison
from .report import SCHEMA, change_row, note_rows, rejected_row, strategy_row


def comparison_document(comparison: Comparison) -> dict[str, object]:
    """The JSON of ``compare``."""
    return {
        "schema": SCHEMA,
        "rows": [comparison_row(row) for row in comparison.rows],
        "pareto": list(comparison.pareto),
        "least": comparison.least,
    }


def comparison_row(row: ComparedHardware) -> dict[str, object]:
    """One choice of hardware; without a plan, the reasons and the nearest changes."""
    answer = row.answer
    document: dict[str, object] = {
        "hardware": row.hardware,
        "best": strategy_row(row.best, answer.prepared.echo) if row.best else None,
        "purchase_usd": row.purchase_usd,
        "run_cost_usd": row.run_cost_usd,
        "meets_deadline": row.meets_deadline,
        "meets_budget": row.meets_budget,
    }
    if row.best is None:
        document["rejected"] = [rejected_row(entry) for entry in answer.plan.rejected]
        document["nearest_changes"] = [change_row(change) for change in answer.plan.nearest_changes]
        document["warnings"] = note_rows(answer.warnings)
    return document
