"""``traincast measure`` from the outside, with the fake runner in place of the training software."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.campaign import BoundarySearch
from benchmarks.h200_sweeps import SWEEPS
from benchmarks.jobs import Job
from benchmarks.store import MeasurementStore
from estimator.app.cli.main import run
from estimator.app.session import measuring

from .campaign_setup import FAKE_RUNNER

_CONFIG = {
    "model_type": "gpt_neox",
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "max_position_embeddings": 64,
}


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the command on the CPU; returns exit code, stdout, stderr."""
    monkeypatch.setattr(measuring, "RUNNER_COMMAND", FAKE_RUNNER)
    monkeypatch.setenv("TRAINCAST_DATA_DIR", str(tmp_path / "data"))
    model = tmp_path / "config.json"
    model.write_text(json.dumps(_CONFIG))

    def call(*arguments: str, model_name: str | None = str(model)) -> tuple[int, str, str]:
        model_options = [] if model_name is None else ["--model", model_name]
        code = run(["measure", "--device", "cpu", *model_options, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def _store(tmp_path: Path) -> MeasurementStore:
    return MeasurementStore(tmp_path / "data" / "measurements")


def test_rows_are_measured_stored_and_not_repeated(measure: Any, tmp_path: Path) -> None:
    options = ("--sequence-length", "16", "--micro-batch-size", "1,2", "--strategy", "zero_1,none", "--format", "json")
    code, out, err = measure(*options)
    document = json.loads(out)
    assert code == 0
    assert [row["status"] for row in document["rows"]] == ["ok"] * 4
    assert {(row["workload"]["strategy"], row["workload"]["micro_batch_size"]) for row in document["rows"]} == {
        (strategy, size) for strategy in ("none", "zero_1") for size in (1, 2)
    }
    assert err.count("4 rows") == 1
    assert "0 left" in err
    row = document["rows"][0]
    assert row["workload"]["gpu"] == "cpu"
    assert row["workload"]["gradient_accumulation_steps"] == 1
    assert row["details"]["model_config"] == _CONFIG
    code, out, _ = measure(*options)
    assert code == 0
    assert json.loads(out)["num_resumed"] == 4
    assert json.loads(out)["rows"] == []
    assert len(_store(tmp_path).read().measurements) == 4
    _, out, _ = measure(*options, "--again")
    assert len(json.loads(out)["rows"]) == 4


def test_all_strategies_are_the_22(measure: Any) -> None:
    code, out, _ = measure("--strategy", "all", "--dry-run", "--format", "json")
    assert code == 0
    assert len(json.loads(out)["rows"]) == 22
    _, out, _ = measure("--strategy", "all", "--no-offload", "--dry-run", "--format", "json")
    assert len(json.loads(out)["rows"]) == 12


def test_a_dry_run_says_what_and_for_how_long_and_writes_nothing(measure: Any, tmp_path: Path) -> None:
    code, out, _ = measure("--settings", "both", "--dry-run")
    assert code == 0
    assert "2 rows" in out
    assert "compiled" in out
    assert "in all" in out
    assert not (tmp_path / "data").exists()


def test_a_file_of_workloads(measure: Any, tmp_path: Path) -> None:
    lines = tmp_path / "rows.jsonl"
    model = str(tmp_path / "config.json")
    rows = [{"model": model, "sequence_length": 16, "micro_batch_size": size, "precision": "fp32"} for size in (1, 2)]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = measure("--jobs", str(lines), "--format", "csv", model_name=None)
    assert code == 0
    assert len(out.splitlines()) == 3
    lines.write_text('{"model": "x", "learning_speed": 3}\nnonsense\n[]\n')
    code, _, err = measure("--jobs", str(lines), model_name=None)
    assert code == 2
    assert "rows.jsonl:2" in err
    assert "rows.jsonl:3" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--strategy", "zero_4"), "zero_4"),
        (("--micro-batch-size", "0"), "at least 1"),
        (("--micro-batch-size", "auto,4"), "not both"),
        (("--micro-batch-size", "auto"), "needs a GPU"),
        (("--precision", "fp8"), "fp8"),
        (("--sweep", "h200-plane"), "Did you mean h200-plain"),
        (("--strategy", "none", "--offload"), "needs a ZeRO or FSDP"),
        (("--gradient-accumulation-steps", "-1"), "--gradient-accumulation-steps"),
        (("--jobs", "/nowhere.jsonl"), "/nowhere.jsonl"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    measure: Any,
    tmp_path: Path,
    options: tuple[str, ...],
    words: str,
) -> None:
    code, out, err = measure(*options)
    assert code == 2
    assert words in err
    assert "Traceback" not in err
    assert out == ""
    assert not (tmp_path / "data").exists()


def test_nothing_asked_is_refused(measure: Any) -> None:
    code, _, err = measure(model_name=None)
    assert code == 2
    assert "--sweep" in err


def test_exit_code_4_where_nothing_could_be_measured(measure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "RUNNER_COMMAND", ("-c", "raise SystemExit('no luck')"))
    code, _, err = measure("--sequence-length", "16")
    assert code == 4
    assert "no luck" in err


def test_the_store_is_exported_and_merged(measure: Any, tmp_path: Path) -> None:
    measure("--sequence-length", "16")
    exported = tmp_path / "rows.jsonl"
    code, _, err = measure("--export", str(exported), model_name=None)
    assert code == 0
    assert "1 records" in err
    assert len(exported.read_text().splitlines()) == 1
    other = tmp_path / "other"
    code, _, err = measure(
        "--merge",
        str(tmp_path / "data" / "measurements"),
        "--store",
        str(other),
        model_name=None,
    )
    assert code == 0
    assert "1 records copied" in err
    assert len(MeasurementStore(other).read().measurements) == 1


_PROGRAM = """
import sys
from estimator.app.cli.main import main
from estimator.app.session import measuring
measuring.RUNNER_COMMAND = (sys.argv.pop(1),)
main()
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_exits_130_with_what_it_has(tmp_path: Path, how: signal.Signals) -> None:
    model = tmp_path / "config.json"
    # Seconds that the fake runner takes a row.
    model.write_text(json.dumps({**_CONFIG, "initializer_range": 0.2}))
    sizes = ",".join(str(size) for size in range(1, 200))
    command = [
        sys.executable,
        "-c",
        _PROGRAM,
        *FAKE_RUNNER,
        "measure",
        "--device",
        "cpu",
        "--model",
        str(model),
        "--sequence-length",
        "16",
        "--micro-batch-size",
        sizes,
        "--format",
        "json",
        "--store",
        str(tmp_path / "store"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    store = MeasurementStore(tmp_path / "store")
    give_up = time.monotonic() + 60
    while len(store.read().measurements) < 3:
        assert time.monotonic() < give_up
        time.sleep(0.05)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    rows = json.loads(out)["rows"]
    assert 2 <= len(rows) < 199
    # One may have been stored at the very moment, before it was counted.
    assert 0 <= len(store.read().measurements) - len(rows) <= 1
    assert "goes on from there" in err
    assert "Traceback" not in err


@pytest.fixture
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose driver names one H200."""
    programs = tmp_path / "programs"
    programs.mkdir()
    driver = programs / "nvidia-smi"
    driver.write_text('#!/bin/sh\necho "NVIDIA H200, 143771, 3, 580.159.03, GPU-aaaa"\n')
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.usefixtures("h200")
@pytest.mark.parametrize("sweep", list(SWEEPS))
def test_every_sweep_is_understood_on_its_gpu(sweep: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code = run(["measure", "--sweep", sweep, "--dry-run", "--format", "json", "--store", str(tmp_path)])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert document["machine"]["gpu"] == "NVIDIA H200"
    assert len(document["rows"]) >= 0.9 * len(SWEEPS[sweep]())
    if sweep != "h200-micro":
        assert all(row["expected_step_seconds"] > 0 for row in document["rows"])


@pytest.mark.usefixtures("h200")
def test_a_row_carries_what_makes_it_impossible(tmp_path: Path) -> None:
    request = measuring.MeasureRequest(
        models=("pythia-1b",), device="cuda", micro_batch_sizes=(4,), axes={"precision": ("bf16", "fp32")}
    )
    session = measuring.prepare_session(request, tmp_path)
    half, full = (item for item in session.plan.items if isinstance(item, Job))
    assert half.workload["gpu"] == "h200"
    assert half.workload["max_grad_norm"] == 1.0
    assert half.peak_flop_per_second == pytest.approx(989e12, rel=0.01)
    assert full.peak_flop_per_second == pytest.approx(half.peak_flop_per_second / 2, rel=0.01)
    # 6 x parameters x tokens, attention and embeddings aside.
    assert half.model_flops_per_step == pytest.approx(6 * 0.91e9 * 4 * 2048, rel=0.15)


@pytest.mark.usefixtures("h200")
def test_a_search_starts_at_what_the_estimator_thinks_fits(tmp_path: Path) -> None:
    request = measuring.MeasureRequest(
        models=("pythia-410m",), device="cuda", micro_batch_sizes=None, axes={"gpu_memory_gib": (16.0, 40.0)}
    )
    items = measuring.prepare_session(request, tmp_path).plan.items
    guesses = [item.search.guess for item in items if isinstance(item, BoundarySearch)]
    assert len(guesses) == 2
    assert 1 <= guesses[0] < guesses[1]


def test_missing_training_software_is_said_before_anything_is_promised(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(["measure", "--model", "pythia-70m", "--device", "cpu", "--store", str(tmp_path)]) == 4
    said = capsys.readouterr().err
    assert "measuring needs torch" in said
    assert "pip install '.[measure]'" in said
    assert "Traceback" not in said
    assert "rows, about" not in said
