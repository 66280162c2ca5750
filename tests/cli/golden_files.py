"""Golden outputs, one file per format. ``python -m tests.cli.golden_files`` writes them anew: read the difference."""

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

from estimator.app.cli.commands.plan import plan_csv_rows
from estimator.app.cli.output import print_csv, print_json
from estimator.app.cli.tables import print_estimate, print_plan
from estimator.app.session.report import estimate_answer_document, estimate_csv_row, plan_document

from . import fixed_answers

FOLDER = Path(__file__).parent / "golden"


def _estimate_csv() -> None:
    answer = fixed_answers.estimate_answer()
    print_csv([estimate_csv_row(answer.prepared.echo, answer.estimate)])


GOLDEN: dict[str, Callable[[], None]] = {
    "plan.txt": lambda: print_plan(fixed_answers.plan_answer()),
    "plan.json": lambda: print_json(plan_document(fixed_answers.plan_answer())),
    "plan.csv": lambda: print_csv(plan_csv_rows(fixed_answers.plan_answer())),
    "plan_nothing_fits.txt": lambda: print_plan(fixed_answers.plan_answer(nothing_fits=True)),
    "estimate.txt": lambda: print_estimate(fixed_answers.estimate_answer()),
    "estimate_does_not_fit.txt": lambda: print_estimate(fixed_answers.estimate_answer(fits="no")),
    "estimate.json": lambda: print_json(estimate_answer_document(fixed_answers.estimate_answer())),
    "estimate.csv": _estimate_csv,
}


def render(name: str) -> str:
    """The bytes of one output, as a pipe of 80 columns gets them."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        GOLDEN[name]()
    return stream.getvalue()


def main() -> None:
    os.environ.update({"COLUMNS": "80", "NO_COLOR": "1", "TRAINCAST_CONFIG_DIR": os.devnull})
    FOLDER.mkdir(exist_ok=True)
    for name in GOLDEN:
        (FOLDER / name).write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main()
