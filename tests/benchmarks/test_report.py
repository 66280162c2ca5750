"""The table of the study's estimate, from planted rows."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.report import comparisons, main, repeat_spreads, repeats_line, write_into_readme
from benchmarks.store import write_json_lines
from estimator.specs.measurement import Measurement


def _row(seconds: float, *, micro: int = 4, status: str = "ok", **options: object) -> Measurement:
    workload = {
        "model": "pythia-1b",
        "sequence_length": 2048,
        "num_gpus": 1,
        "precision": "bf16",
        "attention": "sdpa",
        "tf32": True,
        "compile": False,
        "strategy": "none",
        "micro_batch_size": micro,
        "global_batch_size": micro,
        **options,
    }
    details: dict[str, object] = {"model_flops_per_step": 1e13 * micro, "peak_flop_per_second": 1e15}
    return Measurement(
        schema=1,
        workload=workload,
        workload_key=str(seconds),
        status=status,
        step_time_seconds=seconds,
        stack={"gpu": "NVIDIA H200"},
        details=details,
    )


_NAIVE = {"attention": "eager", "tf32": False}
_ROWS = [
    _row(0.24, **_NAIVE),  # 60 ms a sample: 6x of 10 ms
    _row(0.20, micro=2, **_NAIVE),
    _row(0.12, compile=True),  # 30 ms: 3x
    _row(0.12, micro=8, compile=True, activation_checkpointing=True),  # 15 ms: 1.5x
    _row(0.001, status="refused", compile=True),
    _row(0.4, gpu_memory_gib=16.0),
]


def test_each_kind_is_compared_at_its_best_micro_batch() -> None:
    (whole,) = comparisons(_ROWS)  # under the cap there is neither a naive nor a free-lunch row
    assert whole.optimism(whole.naive) == pytest.approx(6.0)
    assert whole.optimism(whole.free_lunch) == pytest.approx(3.0)
    assert whole.optimism(whole.best) == pytest.approx(1.5)
    assert whole.speedup == pytest.approx(4.0)
    assert whole.cut_by_memory_saving_fraction == pytest.approx(0.5)
    assert whole.memory_gib is None


def test_precisions_are_not_compared_with_each_other() -> None:
    slow, fast = comparisons([*_ROWS, _row(0.9, precision="fp32", **_NAIVE), _row(0.5, precision="fp32", compile=True)])
    assert (slow.precision, fast.precision) == ("bf16", "fp32")
    assert fast.speedup == pytest.approx(1.8)


def test_fp32_is_held_against_the_peak_of_tf32_where_a_row_ran_with_it() -> None:
    naive = _row(0.9, precision="fp32", **_NAIVE)
    on_vector_units = replace(naive, details={**naive.details, "peak_flop_per_second": 1e14})
    (found,) = comparisons([on_vector_units, _row(0.5, precision="fp32", compile=True)])
    assert found.analytical_seconds_per_sample == pytest.approx(0.01)


def test_rows_that_were_repeated_say_how_far_they_agree() -> None:
    def repeated(seconds: float, key: str, machine: str = "a") -> Measurement:
        return replace(_row(seconds), workload_key=key, stack={"gpu": "NVIDIA H200", "machine": machine})

    rows = [repeated(1.0, "x"), repeated(1.02, "x"), repeated(5.0, "x", "b"), repeated(2.0, "y"), repeated(2.2, "y")]
    assert [(count, round(fraction, 3)) for _, count, fraction in repeat_spreads(rows)] == [(2, 0.02), (2, 0.1)]
    assert "10.0% at most" in repeats_line(rows)
    assert repeats_line(_ROWS[:2]) == "- no row was measured twice yet"


def test_the_table_goes_between_the_markers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    write_json_lines(_ROWS, file)
    assert main([str(file)]) == 0
    table = capsys.readouterr().out
    assert "| 6.0x | 3.0x | 1.5x |" in table
    assert "mean 6.0x" in table
    assert "up to 50%" in table
    readme = tmp_path / "README.md"
    marks = [f"<!-- table of the study's estimate: {place} -->" for place in ("begin", "end")]
    readme.write_text(f"before\n{marks[0]}\nold\n{marks[1]}\nafter\n")
    write_into_readme(table, readme)
    write_into_readme(table, readme)
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert text.count("| 6.0x |") == 1
