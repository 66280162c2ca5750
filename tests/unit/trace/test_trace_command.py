"""``traincast trace`` before anything is traced: what it refuses, and how."""

import importlib.util
import sys
from pathlib import Path

import pytest

from benchmarks import trace as trace_parent
from benchmarks.trace import TraceRequest
from estimator.app.cli.main import run
from estimator.specs.errors import MeasurementError

REQUEST = TraceRequest(name="gpt2", source="test", config={"model_type": "gpt2"})


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    with pytest.raises(MeasurementError, match=r"tracing needs torch.*pip install '\.\[measure\]'"):
        trace_parent.trace(REQUEST, tmp_path / "out.json")


def test_crash_of_the_process_is_a_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(trace_parent, "TRACE_COMMAND", ("-c", "import os, sys; sys.stderr.write('bang'); os.abort()"))
    with pytest.raises(MeasurementError, match=r"ended by SIGABRT.*bang"):
        trace_parent.trace(REQUEST, tmp_path / "out.json")


def test_events_of_the_process_are_relayed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = (
        "import json, sys; json.load(sys.stdin); print(json.dumps({'event': 'progress', 'phase': 'building'}));"
        "print(json.dumps({'event': 'failed', 'code': 'trace_failed', 'message': 'no way'}))"
    )
    monkeypatch.setattr(trace_parent, "TRACE_COMMAND", ("-c", script))
    phases: list[str] = []
    with pytest.raises(MeasurementError, match="no way"):
        trace_parent.trace(REQUEST, tmp_path / "out.json", on_progress=phases.append)
    assert phases == ["building"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such-model"], "no-such-model"),
        (["gpt2", "--out", "/no/such/folder/x.json"], "cannot be written"),
        (["gpt2", "--attention", "flash_attention_2"], "flash_attention_2"),
        (["gpt2", "--set", "n_layer"], "KEY=VALUE"),
        ([], "MODEL"),
    ],
)
def test_bad_input(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", *arguments]) == 2
    assert words in capfd.readouterr().err


def test_command_and_parent_need_no_torch() -> None:
    import subprocess

    script = (
        "import sys; import estimator.app.cli.commands.trace;"
        "assert not {'torch', 'transformers', 'benchmarks.runner'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-P", "-c", script], check=True)
