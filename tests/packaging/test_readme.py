"""The README's two commands are the ones that are tested, and what it shows is what is printed."""

import re

from .readme import PLAN, README, ROOT, captured_plan, fresh_machine_commands, printed_plan


def test_exactly_two_commands_for_a_fresh_machine() -> None:
    plan, tests = fresh_machine_commands()
    assert "\n" not in plan
    assert "\n" not in tests
    assert f"traincast {' '.join(PLAN)}" in plan
    assert tests.endswith("pytest")


def test_continuous_integration_runs_the_test_command_word_for_word() -> None:
    _, tests = fresh_machine_commands()
    assert tests in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def test_the_captured_plan_is_what_the_command_prints() -> None:
    assert captured_plan() == printed_plan()


def test_links_within_the_readme_resolve() -> None:
    targets = re.findall(r"\]\((?!https?://|#)([^)#]+)\)", README.read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []
