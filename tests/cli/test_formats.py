"""Forms of the result: golden bytes, narrow and colourless terminals, other encodings."""

import csv
import dataclasses
import io
import json
import os
import subprocess
import sys

import pytest

from estimator.specs.estimate import Estimate

from . import fixed_answers
from .golden_files import FOLDER, GOLDEN, render

CONTRACT_FIELDS = (
    "schema",
    "workload",
    "basis",
    "parameters",
    "step_time_seconds",
    "step_time_components_seconds",
    "micro_step_seconds",
    "peak_memory_bytes",
    "memory_components_bytes",
    "peak_reserved_bytes",
    "context_bytes",
    "usable_memory_bytes",
    "host_memory_bytes",
    "checkpoint_bytes",
    "fits",
    "model_flops_per_step",
    "mfu_fraction",
    "hfu_fraction",
    "tokens_per_second",
    "samples_per_second",
    "training_days",
    "cost_usd",
    "energy_kwh",
    "optimism",
    "warnings",
    "assumptions",
)


@pytest.mark.parametrize("name", sorted(GOLDEN))
def test_output_equals_the_golden_file(name):
    assert render(name) == (FOLDER / name).read_text(encoding="utf-8")


def test_no_golden_file_is_left_over():
    assert {path.name for path in FOLDER.iterdir()} == set(GOLDEN)


def test_estimate_has_the_fields_of_the_contract_in_order():
    assert tuple(json.loads(render("estimate.json"))) == CONTRACT_FIELDS
    assert tuple(field.name for field in dataclasses.fields(Estimate)) == CONTRACT_FIELDS[2:]


def test_json_round_trips():
    document = json.loads(render("plan.json"))
    assert json.loads(json.dumps(document)) == document
    assert document["best"] == document["strategies"][0]


def test_real_parts_sum_to_their_wholes(traincast):
    document = traincast(
        "estimate", "--model", "pythia-410m", "--gpu", "a100-80gb", "--num-gpus", "4", "--strategy", "zero_3",
        "--offload", "--micro-batch-size", "8", "--format", "json",
    ).json  # fmt: skip
    step, peak = document["step_time_seconds"]["expected"], document["peak_memory_bytes"]["expected"]
    assert sum(document["step_time_components_seconds"].values()) == pytest.approx(step)
    assert sum(document["memory_components_bytes"].values()) == pytest.approx(peak)
    assert sum(part["seconds"] for part in document["optimism"]["parts"]) == pytest.approx(step)


@pytest.mark.parametrize("name", ["plan.csv", "estimate.csv"])
def test_csv_reads_back_with_every_row_complete(name):
    rows = list(csv.DictReader(io.StringIO(render(name))))
    assert all(None not in row and None not in row.values() for row in rows)
    assert rows[0]["step_time_seconds_expected"] == "16.0"


@pytest.mark.parametrize("columns", ["20", "40", "60", "80", "132"])
def test_every_width_prints_without_overflow(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    text = render("plan.txt")
    assert max(map(len, text.splitlines())) <= int(columns)
    assert "zero_1" in text or columns == "20"


def test_ranking_of_80_columns_has_one_line_a_strategy(traincast):
    text = traincast("plan", "--model", "pythia-12b", "--gpu", "a100-80gb", "--num-gpus", "8").out
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if line.lstrip().startswith("# "))
    ranks = []
    for line in lines[first + 1 :]:
        if not line.strip()[:1].isdigit():
            break
        ranks.append(int(line.split()[0]))
    assert ranks == list(range(1, len(ranks) + 1))
    assert len(ranks) >= 10


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_other_encodings_print(encoding):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "NO_COLOR": "1", "COLUMNS": "80"}
    process = subprocess.run(
        [sys.executable, "-m", "estimator.app.cli", "plan", "--model", "pythia-70m", "--gpu", "a100-80gb"],
        env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert b"\x1b[" not in process.stdout
    process.stdout.decode(encoding)


def test_tables_are_plain_ascii():
    for name in ("plan.txt", "plan_nothing_fits.txt", "estimate.txt", "estimate_does_not_fit.txt"):
        assert render(name).isascii()


def test_terminal_json_is_indented(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    GOLDEN["estimate.json"]()
    text = terminal.getvalue()
    assert text.count("\n") > 50
    assert json.loads(text)["parameters"] == fixed_answers.estimate().parameters


def test_a_terminal_of_no_width_gets_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    assert render("plan.txt") == (FOLDER / "plan.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_is_said_in_one_line(form):
    command = [sys.executable, "-m", "estimator.app.cli", "catalog", "gpus", "--format", form]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "error: cannot write: no space left on the device\n"
