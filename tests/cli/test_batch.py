"""estimate --batch: order, errors in their place, equality with single estimates."""

import json
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from estimator.app.session.batch import BatchEstimator
from estimator.app.session.options import WorkloadOptions
from estimator.app.session.service import Session

BASE = {"model": "pythia-70m", "gpu": "a100-80gb"}


def _lines(outcome):
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def _batch(traincast, lines, *arguments):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return traincast("estimate", "--batch", "-", *arguments, stdin=text)


def test_answers_come_in_order(traincast):
    sizes = [1, 2, 4, 8, 16, 8, 4, 2, 1]
    answers = _lines(_batch(traincast, [{**BASE, "micro_batch_size": size} for size in sizes]))
    assert [answer["workload"]["micro_batch_size"] for answer in answers] == sizes


def test_a_line_equals_the_same_estimate_on_its_own(traincast):
    line = {**BASE, "num_gpus": 4, "strategy": "zero_2", "micro_batch_size": 8, "num_training_tokens": "300B"}
    alone = traincast(
        "estimate",
        "--model",
        "pythia-70m",
        "--gpu",
        "a100-80gb",
        "--num-gpus",
        "4",
        "--strategy",
        "zero_2",
        "--micro-batch-size",
        "8",
        "--num-training-tokens",
        "300B",
        "--format",
        "json",
    ).json
    (answer,) = _lines(_batch(traincast, [line]))
    assert answer == alone


def test_workload_of_an_answer_is_a_line_that_gives_the_same_answer(traincast):
    first = _lines(
        _batch(
            traincast,
            [
                {
                    **BASE,
                    "num_gpus": 8,
                    "num_nodes": 2,
                    "strategy": "zero_3",
                    "offload": True,
                    "cpu_memory_gib": 512,
                    "micro_batch_size": 4,
                },
                {"model": "vit-large-16-21k", "gpu": "rtx-4090", "num_gpus": 4, "micro_batch_size": 32},
            ],
        )
    )
    again = _lines(_batch(traincast, [answer["workload"] for answer in first]))
    for old, new in zip(first, again, strict=True):
        assert new["workload"] == old["workload"]
        assert new["step_time_seconds"] == old["step_time_seconds"]
        assert new["peak_reserved_bytes"] == old["peak_reserved_bytes"]


@pytest.mark.parametrize(
    ("line", "code", "field"),
    [
        ('{"model": ', "bad_line", None),
        ("[1, 2]", "bad_line", None),
        ("", "bad_line", None),
        ('"\\ud800"', "bad_line", None),
        ({**BASE, "gpu": "A1000"}, "unknown_gpu", "gpu"),
        ({**BASE, "num_gpus": 0}, "bad_value", "num_gpus"),
        ({**BASE, "num_gpus": True}, "bad_value", "num_gpus"),
        ({**BASE, "num_gpus": [1]}, "bad_value", "num_gpus"),
        ({**BASE, "offload": "maybe"}, "bad_value", "offload"),
        ({**BASE, "micro_batch": 4}, "unknown_option", "micro_batch"),
        ({**BASE, "lora": True}, "not_modelled", "lora"),
        ({**BASE, "activation_checkpointing": "selective"}, "not_modelled", "activation_checkpointing"),
        ({**BASE, "micro_batch_size": 3}, "batch_not_divisible", "micro_batch_size"),
        ({**BASE, "micro_batch_size": 10**30}, "bad_value", "micro_batch_size"),
        ({"gpu": "a100-80gb"}, "missing_option", "model"),
        ("[" * 5000, "bad_line", None),
    ],
)
def test_bad_line_yields_an_error_in_its_place(traincast, line, code, field):
    outcome = _batch(traincast, [BASE, line, BASE])
    first, bad, last = _lines(outcome)
    assert bad["error"]["code"] == code
    assert bad["error"]["field"] == field
    assert first == last
    assert "1 of the lines" in outcome.err


def test_options_of_the_command_line_are_defaults_of_every_line(traincast):
    first, second = _lines(_batch(traincast, [{}, {"gpu": "h200"}], "--model", "pythia-70m", "--gpu", "a100-80gb"))
    assert first["workload"]["gpu"] == "a100-80gb"
    assert second["workload"]["gpu"] == "h200"


def test_file_and_its_absence(traincast, tmp_path):
    path = tmp_path / "work.jsonl"
    path.write_text(json.dumps(BASE))
    assert len(_lines(traincast("estimate", "--batch", path))) == 1
    outcome = traincast("estimate", "--batch", tmp_path / "none.jsonl")
    assert outcome.code == 2
    assert "none.jsonl" in outcome.err


def test_empty_batch_answers_nothing(traincast):
    assert _lines(traincast("estimate", "--batch", "-")) == []


def test_settings_of_a_line_change_the_model(traincast):
    plain, deeper = _lines(_batch(traincast, [BASE, {**BASE, "set": {"num_hidden_layers": 12}}]))
    assert deeper["parameters"] > plain["parameters"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
OPTION_VALUES = st.fixed_dictionaries(
    {}, optional={name: JSON_VALUES for name in WorkloadOptions.__struct_fields__ if name not in ("model", "gpu")}
)


@settings(
    max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(values=OPTION_VALUES)
def test_any_values_yield_an_estimate_or_an_error_that_names_an_option(values):
    estimator = BatchEstimator(Session(), WorkloadOptions())
    (answer,) = [
        json.loads(line) for line in b"".join(estimator.answers([json.dumps({**BASE, **values}).encode()])).splitlines()
    ]
    if "error" in answer:
        assert answer["error"]["field"] is None or answer["error"]["field"] in WorkloadOptions.__struct_fields__
        assert answer["error"]["message"]
    else:
        assert answer["step_time_seconds"]["expected"] > 0


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    """As ``| head -1`` does; the output is far larger than what a pipe holds."""
    lines = tmp_path / "many.jsonl"
    lines.write_text('{"model": "pythia-70m", "gpu": "a100-80gb"}\n' * 20_000)
    command = [sys.executable, "-m", "estimator.app.cli", "estimate", "--batch", str(lines)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["schema"] == 1
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0
