"""The command line as tests call it: in this process, away from the developer's own settings."""

import io
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from estimator.app.cli.main import run


@dataclass(frozen=True)
class Outcome:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(autouse=True)
def _own_settings_shut_out(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TRAINCAST_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINCAST_CONFIG_DIR", str(tmp_path_factory.mktemp("config")))
    monkeypatch.setenv("TRAINCAST_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.fixture
def config_directory() -> Path:
    return Path(os.environ["TRAINCAST_CONFIG_DIR"])


@pytest.fixture
def traincast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    def call(*arguments: object, stdin: str = "") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code=int(code), out=captured.out, err=captured.err)

    return call
