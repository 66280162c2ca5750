"""How far the study's estimate is from measured steps: the table of ``benchmarks/README.md``, from stored rows.

``python -m benchmarks.report [FILE.jsonl ...]`` prints it; ``--write`` puts it into the README.

The study divides FLOPs by the dense peak. Per model, length and memory, with times per sample:

    optimism = measured seconds per sample / (model FLOPs per sample / dense peak)

for the best micro batch of naive settings, of free-lunch methods alone, and over all combinations.
"""

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from estimator.specs.measurement import Measurement

from .store import read_json_lines, stack_key
from .sweeps import FREE_LUNCH, NAIVE

_FOLDER = Path(__file__).resolve().parent
_README = _FOLDER / "README.md"
_MEASUREMENTS = _FOLDER.parent / "calibration" / "data" / "measurements"
_BEGIN, _END = "<!-- table of the study's estimate: begin -->", "<!-- table of the study's estimate: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The fastest row of a kind."""

    seconds_per_sample: float
    row: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One model at one length on one GPU (or under one cap)."""

    gpu: str
    model: str
    length: int
    precision: str
    memory_gib: float | None
    analytical_seconds_per_sample: float
    """Model FLOPs / dense peak of the precision (fp32: TF32's peak where a row ran with TF32)."""
    naive: Best | None
    free_lunch: Best | None
    best: Best

    def optimism(self, measured: Best | None) -> float | None:
        return None if measured is None else measured.seconds_per_sample / self.analytical_seconds_per_sample

    @property
    def speedup(self) -> float | None:
        """Naive over best."""
        return None if self.naive is None else self.naive.seconds_per_sample / self.best.seconds_per_sample

    @property
    def cut_by_memory_saving_fraction(self) -> float | None:
        """What memory-saving methods take off the time of free-lunch methods alone."""
        if self.free_lunch is None:
            return None
        return 1.0 - self.best.seconds_per_sample / self.free_lunch.seconds_per_sample


def comparisons(rows: Iterable[Measurement]) -> list[Comparison]:
    """One comparison for each model, length, precision and memory that has a naive or a free-lunch row."""
    groups: dict[tuple[str, str, int, str, float | None], list[Measurement]] = defaultdict(list)
    for row in rows:
        workload = row.workload
        length = workload.get("sequence_length") or workload.get("image_size")
        if row.status == "ok" and row.step_time_seconds and isinstance(length, int) and _analytical(row) is not None:
            cap = workload.get("gpu_memory_gib")
            memory_gib = float(cap) if isinstance(cap, int | float) else None
            precision = str(workload.get("precision"))
            groups[row.stack.get("gpu", "?"), str(workload["model"]), length, precision, memory_gib].append(row)
    found = []
    for (gpu, model, length, precision, memory_gib), members in sorted(groups.items(), key=lambda item: str(item[0])):
        naive = _fastest(row for row in members if _is_plain(row) and _has(row, NAIVE))
        free_lunch = _fastest(row for row in members if _is_plain(row) and _has(row, FREE_LUNCH))
        if naive is None and free_lunch is None:
            continue
        best = _fastest(members)
        assert best is not None
        reference = min(seconds for row in members if (seconds := _analytical(row)) is not None)
        found.append(
            Comparison(
                gpu=gpu,
                model=model,
                length=length,
                precision=precision,
                memory_gib=memory_gib,
                analytical_seconds_per_sample=reference,
                naive=naive,
                free_lunch=free_lunch,
                best=best,
            )
        )
    return found


def _seconds_per_sample(row: Measurement) -> float:
    batch = row.workload["global_batch_size"]
    assert isinstance(batch, int)
    assert row.step_time_seconds is not None
    return row.step_time_seconds / batch


def _analytical(row: Measurement) -> float | None:
    """FLOPs / dense peak per sample; FLOPs are stored per rank and step, so ranks cancel out."""
    flops, peak = row.details.get("model_flops_per_step"), row.details.get("peak_flop_per_second")
    batch, ranks = row.workload.get("global_batch_size"), row.workload.get("num_gpus", 1)
    if not isinstance(flops, float) or not isinstance(peak, float) or not isinstance(batch, int):
        return None
    return flops / peak / batch if isinstance(ranks, int) else None


def _fastest(rows: Iterable[Measurement]) -> Best | None:
    found = [Best(seconds_per_sample=_seconds_per_sample(row), row=row) for row in rows]
    return min(found, key=lambda best: best.seconds_per_sample, default=None)


def _is_plain(row: Measurement) -> bool:
    return row.workload.get("strategy") == "none" and not row.workload.get("activation_checkpointing")


def _has(row: Measurement, settings: Mapping[str, object]) -> bool:
    return all(row.workload.get(name) == value for name, value in settings.items())


def repeat_spreads(rows: Iterable[Measurement]) -> list[tuple[Measurement, int, float]]:
    """Rows measured more than once on one machine and stack: a row, how often, largest over smallest median - 1."""
    groups: dict[tuple[str, ...], list[Measurement]] = defaultdict(list)
    for row in rows:
        if row.status == "ok" and row.step_time_seconds:
            groups[row.workload_key, row.stack.get("machine", ""), *stack_key(row.stack)].append(row)
    spreads = []
    for members in groups.values():
        medians = [row.step_time_seconds for row in members if row.step_time_seconds is not None]
        if len(medians) > 1:
            spreads.append((members[0], len(medians), max(medians) / min(medians) - 1.0))
    return sorted(spreads, key=lambda entry: entry[2])


def repeats_line(rows: Iterable[Measurement]) -> str:
    """How far fresh processes agree, in one line."""
    spreads = repeat_spreads(rows)
    if not spreads:
        return "- no row was measured twice yet"
    fractions = [fraction for _, _, fraction in spreads]
    typical, worst = statistics.median(fractions), max(fractions)
    differences = f"medians differ by {typical:.1%} typically, {worst:.1%} at most"
    return f"- {len(spreads)} rows repeated in fresh processes: {differences}"


def markdown(found: Sequence[Comparison]) -> str:
    """The table and the three figures under it."""
    lines = [
        "| GPU | model | length | precision | memory | FLOPs / peak a sample | naive | free lunch | best | best is |",
        "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in found:
        cells = [
            one.gpu, one.model, str(one.length), one.precision,
            "all" if one.memory_gib is None else f"{one.memory_gib:g} GiB",
            f"{1e3 * one.analytical_seconds_per_sample:.3g} ms", _times(one.optimism(one.naive)),
            _times(one.optimism(one.free_lunch)), _times(one.optimism(one.best)), _combination(one.best.row),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *_figures(found)]) + "\n"


def _figures(found: Sequence[Comparison]) -> list[str]:
    naive = [value for one in found if (value := one.optimism(one.naive)) is not None]
    speedups = [value for one in found if (value := one.speedup) is not None]
    cuts = [value for one in found if (value := one.cut_by_memory_saving_fraction) is not None]
    lines = []
    if naive:
        count = f"{len(naive)} model and memory pairs where naive ran"
        lines.append(f"- naive over FLOPs / peak: mean {statistics.mean(naive):.1f}x over {count} (reported: 6x)")
    if speedups:
        mean = statistics.mean(speedups)
        lines.append(f"- naive over best: mean {mean:.1f}x over {len(speedups)} pairs (reported: 4.3x)")
    if cuts:
        lines.append(f"- memory-saving methods cut free-lunch time by up to {max(cuts):.0%} (reported: 71 %)")
    return lines or ["No pair has both naive and other rows yet."]


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def _combination(row: Measurement) -> str:
    workload = row.workload
    words = [str(workload.get("attention"))]
    words += ["compiled"] if workload.get("compile") else []
    words += [str(workload["strategy"])] if workload.get("strategy") != "none" else []
    words += [name.replace("_", " ") for name in ("offload", "activation_checkpointing") if workload.get(name)]
    return f"{', '.join(words)}, micro batch {workload.get('micro_batch_size')}"


def write_into_readme(table: str, readme: Path = _README) -> None:
    """Replace what stands between the two markers."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    readme.write_text(f"{before}{_BEGIN}\n{table}{_END}{after}", encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Print the table, or write it into the README."""
    files = [Path(argument) for argument in arguments if argument != "--write"] or sorted(_MEASUREMENTS.glob("*.jsonl"))
    entries = [entry for file in files for entry in read_json_lines(file)]
    rows = [entry for entry in entries if isinstance(entry, Measurement)]
    table = f"{markdown(comparisons(rows))}{repeats_line(rows)}\n"
    if "--write" in arguments:
        write_into_readme(table)
    else:
        sys.stdout.write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
