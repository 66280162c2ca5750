"""The import contracts name every module they are meant for."""

import configparser

import pytest

from .readme import ROOT


@pytest.mark.parametrize("contract", ["torch-in-runner-only", "runner-is-a-process"])
def test_every_module_of_the_harness_but_the_runner_is_under_contract(contract: str) -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / ".importlinter", encoding="utf-8")
    listed = set(parser[f"importlinter:contract:{contract}"]["source_modules"].split())
    modules = {f"benchmarks.{path.stem}" for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__"}
    assert modules <= listed
