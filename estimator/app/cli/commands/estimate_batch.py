"""``traincast estimate --batch``."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from estimator.specs.errors import Problem, SpecError

from ...session.batch import BatchEstimator
from ...session.options import WorkloadOptions
from ...session.service import Session


def run_batch(batch_file: str, defaults: WorkloadOptions) -> int:
    """Write one JSON object per line of the file to stdout; return how many lines were bad."""
    estimator = BatchEstimator(Session(), defaults)
    out = sys.stdout.buffer
    with _opened(batch_file) as stream, _without_cycle_collection():
        for answers in estimator.answers(stream):
            out.write(answers)
    out.flush()
    return estimator.num_bad


@contextmanager
def _without_cycle_collection() -> Iterator[None]:
    """Millions of small objects live and die by their counts; looking for cycles among them takes half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _opened(batch_file: str) -> Iterator[BinaryIO]:
    if batch_file == "-":
        if sys.stdin is None:
            raise SpecError(Problem(code="bad_file", field="batch", message="--batch -: stdin is closed."))
        yield sys.stdin.buffer
        return
    try:
        stream = open(batch_file, "rb")  # noqa: SIM115  closed below; what fails later is not the opening of this file
    except OSError as error:
        raise SpecError(
            Problem(code="bad_file", field="batch", message=f"--batch {batch_file}: {error.strerror}.")
        ) from error
    with stream:
        yield stream
