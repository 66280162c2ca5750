"""Cold starts stay light: what a command does not need is not imported."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "accelerate", "deepspeed", "sklearn", "scipy", "polars", "textual", "pandas")
SCRIPT = """
import sys
from estimator.app.cli.main import run
code = run(sys.argv[2:])
loaded = [name for name in sys.argv[1].split(",") if name in sys.modules]
print("LOADED", code, loaded, file=sys.stderr)
"""


def _loaded(names: tuple[str, ...], *arguments: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, ",".join(names), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return next(line for line in process.stderr.splitlines() if line.startswith("LOADED"))


PLAN = ("plan", "--model", "pythia-70m", "--gpu", "a100-80gb")


@pytest.mark.parametrize("arguments", [PLAN, ("estimate", "--help"), ("compare", "--help"), ("--help",)])
def test_no_heavy_module_is_loaded(arguments):
    assert _loaded(HEAVY, *arguments) == "LOADED 0 []"


def test_json_needs_no_rich():
    assert _loaded((*HEAVY, "rich"), *PLAN, "--format", "json") == "LOADED 0 []"


def test_help_of_the_program_needs_no_numpy():
    assert _loaded(("numpy", "rich"), "--help") == "LOADED 0 []"
