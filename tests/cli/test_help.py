"""Help pages."""

import importlib
from pathlib import Path

import pytest

from estimator.app.cli.main import COMMANDS
from estimator.app.session.options import OPTIONS, STRATEGY_KEYS, WorkloadOptions

OWN_COMMANDS = ("plan", "estimate", "compare", "catalog", "accuracy")


def test_options_and_their_struct_agree():
    assert tuple(option.key for option in OPTIONS) == WorkloadOptions.__struct_fields__


@pytest.mark.parametrize("name", OWN_COMMANDS)
def test_one_line_help_is_the_first_line_of_the_command_s_own(name):
    command = importlib.import_module(f"estimator.app.cli.commands.{name}").command
    assert command.help.splitlines()[0].rstrip(".").startswith(COMMANDS[name].split(",")[0].split(":")[0].rstrip("."))


@pytest.mark.parametrize("name", ["plan", "estimate", "compare"])
def test_every_option_is_on_the_help_page(traincast, name):
    page = traincast(name, "--help").out
    left_out = set() if name == "estimate" else set(STRATEGY_KEYS)
    left_out |= {"gpu", "num_gpus", "num_nodes"} if name == "compare" else set()
    for option in OPTIONS:
        assert (f"{option.flag} " in page) == (option.key not in left_out), option.key


@pytest.mark.parametrize("name", ["", *OWN_COMMANDS])
def test_help_pages_fit_80_columns_and_start_no_work(traincast, name):
    outcome = traincast(*filter(None, [name]), "--help")
    assert outcome.code == 0
    assert all(len(line) <= 80 for line in outcome.out.splitlines())


def test_commands_of_the_list_exist():
    folder = Path(importlib.import_module("estimator.app.cli.commands").__file__).parent
    assert {path.stem for path in folder.glob("*.py")} >= set(COMMANDS)
