"""Exit codes, and which stream carries what."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from estimator.app.cli import main

PLAN = ("plan", "--model", "pythia-70m", "--gpu", "a100-80gb")
NEEDS_FULL_DEVICE = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
TOO_BIG = ("estimate", "--model", "pythia-12b", "--gpu", "rtx-3060-12gb", "--micro-batch-size", "1")


def test_plan_that_fits_is_zero_and_prints_to_stdout_only(traincast):
    outcome = traincast(*PLAN)
    assert outcome.code == 0
    assert "pythia-70m" in outcome.out
    assert outcome.err == ""


def test_bad_input_is_two_and_leaves_stdout_empty(traincast):
    outcome = traincast(*PLAN[:-1], "A1000")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("error: ")


def test_estimate_that_does_not_fit_is_three_with_the_estimate_printed(traincast):
    outcome = traincast(*TOO_BIG, "--format", "json")
    assert outcome.code == 3
    assert outcome.json["fits"] == "no"
    assert outcome.json["nearest_changes"]


def test_plan_where_nothing_fits_is_three_with_every_reason(traincast):
    outcome = traincast(
        "plan", "--model", "pythia-12b", "--gpu", "rtx-3060-12gb", "--cpu-memory-gib", "32", "--format", "json"
    )
    assert outcome.code == 3
    plan = outcome.json
    assert plan["best"] is None
    assert plan["strategies"] == []
    assert len(plan["rejected"]) == 22
    assert all(row["reason"] for row in plan["rejected"])
    assert plan["nearest_changes"]


def test_error_document_is_on_stdout_where_json_is_asked_for(traincast):
    outcome = traincast(*PLAN[:-1], "A1000", "--format", "json")
    assert outcome.code == 2
    assert outcome.err == ""
    error = outcome.json["error"]
    assert error["code"] == "unknown_gpu"
    assert error["field"] == "gpu"
    assert "A1000" in error["message"]


def test_error_document_even_where_the_command_line_cannot_be_parsed(traincast):
    outcome = traincast("plan", "--no-such-option", "--format=json")
    assert outcome.code == 2
    assert outcome.json["error"]["code"] == "unknown_option"


def test_every_problem_is_listed_at_once(traincast):
    outcome = traincast("plan", "--num-gpus", "0", "--sequence-length", "-5", "--format", "json")
    fields = {problem["field"] for problem in outcome.json["error"]["problems"]}
    assert fields == {"num_gpus", "sequence_length"}


@pytest.mark.parametrize(("raised", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("planted"), 1)])
def test_interruption_and_internal_failure(traincast, monkeypatch, raised, code):
    def fail(**_: object) -> None:
        raise raised

    monkeypatch.setattr(main.traincast, "main", fail)
    outcome = traincast(*PLAN)
    assert outcome.code == code
    assert outcome.out == ""
    assert "Traceback" not in outcome.err


def test_reader_that_goes_away_is_no_failure():
    process = subprocess.run(
        f"{sys.executable} -m estimator.app.cli catalog gpus --format csv | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.stdout.startswith("name,")
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("catalog gpus >&-", 1, "stdout is closed"),
        ("estimate --batch - <&-", 2, "stdin is closed"),
        pytest.param("catalog gpus >/dev/full", 1, "no space left", marks=NEEDS_FULL_DEVICE),
        pytest.param("catalog gpus --format json >/dev/full", 1, "no space left", marks=NEEDS_FULL_DEVICE),
        pytest.param("plan --model zzz --gpu t4 --format json >/dev/full", 2, "zzz", marks=NEEDS_FULL_DEVICE),
    ],
)
def test_stream_that_is_closed_or_full_is_named(arguments, code, words):
    command = f"{sys.executable} -m estimator.app.cli {arguments}"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == code
    assert words in process.stderr
    assert "fault of the program" not in process.stderr
    assert "Traceback" not in process.stderr


def test_unknown_command_names_the_commands(traincast):
    outcome = traincast("plam")
    assert outcome.code == 2
    assert "Did you mean plan?" in outcome.err


def test_json_of_a_pipe_is_one_line(traincast):
    outcome = traincast(*PLAN, "--format", "json")
    assert outcome.out.count("\n") == 1
    assert json.loads(outcome.out)["schema"] == 1
