"""The best plan of several hardware choices side by side."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from estimator.catalog.prices import base_machine_usd, write_off_years
from estimator.plan.result import PlannedStrategy
from estimator.specs.errors import Note
from estimator.specs.hardware import Cluster
from estimator.specs.units import SECONDS_PER_DAY

from .options import Option, OptionGroup, OptionKind, WorkloadOptions, parse_value
from .problems import refusal
from .service import PlanAnswer, Session

COUNT_LADDER = ((1, 1), (2, 1), (4, 1), (8, 1), (8, 2), (8, 4), (8, 8), (8, 16), (8, 32))
"""(GPUs per node, nodes) tried for hardware without a count."""
DAYS_PER_YEAR = 365.25
_HARDWARE = re.compile(r"^(?P<gpu>.+?)(?::(?P<count>\d+)(?:x(?P<nodes>\d+))?)?$", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What the hardware has to deliver."""

    deadline_days: float | None = None
    budget_usd: float | None = None
    buy: bool = False
    """Judge by the purchase written off over the run instead of by rent."""
    write_off_years: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedHardware:
    """One choice of hardware with its best plan."""

    hardware: str
    answer: PlanAnswer
    purchase_usd: float | None
    """Cards and machines; None where a price is unknown."""
    run_cost_usd: float | None
    """Rent of the run, or its share of the purchase; None where price or length is unknown."""
    meets_deadline: bool | None
    """None without a deadline or a length of the run."""
    meets_budget: bool | None

    @property
    def best(self) -> PlannedStrategy | None:
        return self.answer.plan.best

    @property
    def days(self) -> float | None:
        """Expected days of the run."""
        if self.best is None or self.best.estimate.training_days is None:
            return None
        return self.best.estimate.training_days.expected

    @property
    def satisfies(self) -> bool:
        return self.best is not None and self.meets_deadline is not False and self.meets_budget is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All choices."""

    rows: tuple[ComparedHardware, ...]
    pareto: tuple[int, ...]
    """Rows that no other row beats in both days and cost."""
    least: int | None
    """The row with the fewest GPUs, then the lowest cost, that meets every demand; None where there is none."""


def parse_hardware(text: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """``GPU:COUNT[xNODES]`` -> (GPU, counts to try); without a count the whole ladder."""
    match = _HARDWARE.match(text.strip())
    if match is None or ":" in match["gpu"]:
        message = f"--hardware is {text!r}; write GPU:COUNT or GPU:COUNTxNODES, such as h100:8x2."
        raise refusal("bad_value", "hardware", message)
    if match["count"] is None:
        return match["gpu"].strip(), COUNT_LADDER
    count, nodes = int(match["count"]), int(match["nodes"] or 1)
    if count < 1 or nodes < 1:
        raise refusal("bad_value", "hardware", f"--hardware is {text!r}; counts start at 1.")
    return match["gpu"].strip(), ((count, nodes),)


def compare(
    session: Session, options: WorkloadOptions, hardware: tuple[str, ...], demands: Demands, notes: tuple[Note, ...]
) -> Comparison:
    """Plan every choice; of hardware without a count, the least count that meets the demands (or the largest tried)."""
    if not hardware:
        raise refusal("missing_option", "hardware", "--hardware is missing: GPU:COUNT[xNODES], repeatable.")
    rows = []
    for gpu, counts in [parse_hardware(text) for text in hardware]:
        tried = (_compared(session, options, gpu, count, demands, notes) for count in counts)
        rows.append(_first_satisfying(tried))
    _refuse_idle_demands(rows, demands)
    return Comparison(rows=tuple(rows), pareto=pareto_rows(rows), least=_least_row(rows, demands))


def _first_satisfying(tried: Iterable[ComparedHardware]) -> ComparedHardware:
    """The first that does, else the last."""
    row = None
    for row in tried:
        if row.satisfies:
            break
    assert row is not None
    return row


def _least_row(rows: list[ComparedHardware], demands: Demands) -> int | None:
    if demands.deadline_days is None and demands.budget_usd is None:
        return None

    def size_then_cost(index: int) -> tuple[int, float]:
        cost = rows[index].run_cost_usd
        return rows[index].answer.prepared.workload.cluster.num_accelerators, float("inf") if cost is None else cost

    satisfying = [index for index, row in enumerate(rows) if row.satisfies]
    return min(satisfying, key=size_then_cost, default=None)


def _refuse_idle_demands(rows: list[ComparedHardware], demands: Demands) -> None:
    """A deadline, or a budget of rent, needs to know how long the run is."""
    demand = "--deadline-days" if demands.deadline_days is not None else None
    if demand is None and demands.budget_usd is not None and not demands.buy:
        demand = "--budget-usd"
    planned = [row for row in rows if row.best is not None]
    if demand and planned and all(row.days is None for row in planned):
        message = f"{demand} needs the length of the run: --num-training-tokens, -samples or -steps."
        raise refusal("missing_option", "num_training_steps", message)


def _compared(
    session: Session,
    options: WorkloadOptions,
    gpu: str,
    count: tuple[int, int],
    demands: Demands,
    notes: tuple[Note, ...],
) -> ComparedHardware:
    num_gpus, num_nodes = count
    answer = session.plan(msgspec.structs.replace(options, gpu=gpu, num_gpus=num_gpus, num_nodes=num_nodes), notes)
    cluster, best = answer.prepared.workload.cluster, answer.plan.best
    purchase = purchase_usd(cluster)
    days = best.estimate.training_days.expected if best and best.estimate.training_days else None
    rent = best.estimate.cost_usd.expected if best and best.estimate.cost_usd else None
    lifetime_days = demands.write_off_years * DAYS_PER_YEAR
    written_off = None if purchase is None or days is None else purchase * min(1.0, days / lifetime_days)
    spent = purchase if demands.buy else rent
    return ComparedHardware(
        hardware=f"{cluster.node.accelerator.name}:{num_gpus}" + (f"x{num_nodes}" if num_nodes > 1 else ""),
        answer=answer,
        purchase_usd=purchase,
        run_cost_usd=written_off if demands.buy else rent,
        meets_deadline=None if demands.deadline_days is None or days is None else days <= demands.deadline_days,
        meets_budget=None if demands.budget_usd is None or spent is None else spent <= demands.budget_usd,
    )


def purchase_usd(cluster: Cluster) -> float | None:
    """Cards and the machines that hold them."""
    node = cluster.node
    if node.accelerator.purchase_price is None:
        return None
    return cluster.num_nodes * (
        node.num_accelerators * node.accelerator.purchase_price.usd + base_machine_usd(node.num_accelerators)
    )


def pareto_rows(rows: list[ComparedHardware]) -> tuple[int, ...]:
    """Rows that run and that no other row beats in time and cost together; an unknown cost counts as the highest."""

    def place(row: ComparedHardware) -> tuple[float, float] | None:
        if row.best is None:
            return None
        estimate = row.best.estimate
        seconds = row.days * SECONDS_PER_DAY if row.days is not None else 1 / estimate.samples_per_second
        return seconds, float("inf") if row.run_cost_usd is None else row.run_cost_usd

    places = [place(row) for row in rows]
    kept = []
    for index, own in enumerate(places):
        if own is None:
            continue
        beaten = any(
            other is not None and other[0] <= own[0] and other[1] <= own[1] and other != own
            for position, other in enumerate(places)
            if position != index
        )
        if not beaten:
            kept.append(index)
    return tuple(kept)


_DEMAND_OPTIONS = {
    key: Option(key=key, kind=OptionKind.POSITIVE, group=OptionGroup.RUN, help="")
    for key in ("deadline_days", "budget_usd", "write_off_years")
}


def demands_of(*, deadline_days: str | None, budget_usd: str | None, years: str | None, buy: bool) -> Demands:
    """Demands from their texts."""
    texts = {"deadline_days": deadline_days, "budget_usd": budget_usd, "write_off_years": years}
    values = {
        key: float(str(parse_value(_DEMAND_OPTIONS[key], text))) for key, text in texts.items() if text is not None
    }
    if years is not None and not buy:
        raise refusal("option_unused", "write_off_years", "--write-off-years has no effect without --buy.")
    return Demands(
        buy=buy,
        deadline_days=values.get("deadline_days"),
        budget_usd=values.get("budget_usd"),
        write_off_years=values.get("write_off_years") or write_off_years(),
    )
