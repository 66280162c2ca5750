"""Child process of ``traincast trace``: a job as JSON on standard input, events as JSON lines on standard output.

Job: ``config`` (a Hugging Face config) or ``callable`` (``module:name``) with ``search_path``; ``name``, ``source``,
``attentions``, ``check_length``, ``image_size``, ``out``. Events: ``progress``, ``finished``, ``failed`` (with ``code``
and ``message``).
"""

import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def main() -> int:
    """Trace and save. 0 where the file was written."""
    job = json.load(sys.stdin)
    # Libraries and user code may print: that goes to standard error.
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def report(event: str, **fields: str) -> None:
        events.write(json.dumps({"event": event, **fields}) + "\n")

    warnings.simplefilter("ignore")
    report("progress", phase="importing torch and transformers")
    from .failures import TraceError

    try:
        _trace(job, lambda phase: report("progress", phase=phase))
    except TraceError as error:
        report("failed", code=error.code, message=str(error))
        return 1
    report("finished")
    return 0


def _trace(job: Mapping[str, Any], progress: Any) -> None:
    from estimator.catalog.traced import save_traced

    from .model_trace import trace_model
    from .subject import subject_from_callable, subject_from_config

    if job.get("callable") is not None:
        subject = subject_from_callable(job["callable"], search_path=job["search_path"])
    else:
        assume_unpacked_batches()
        subject = subject_from_config(job["config"], name=job["name"], image_size=job.get("image_size"))
    traced = trace_model(
        subject,
        attentions=tuple(job["attentions"]),
        check_length=job.get("check_length"),
        source=job["source"],
        progress=progress,
    )
    save_traced(traced, Path(job["out"]))


def assume_unpacked_batches() -> None:
    """transformers reads position ids to see whether several samples share a row; a traced tensor has no values, and
    the answer for plain batches is no."""
    from transformers import masking_utils

    if hasattr(masking_utils, "find_packed_sequence_indices"):
        masking_utils.find_packed_sequence_indices = lambda position_ids: None


if __name__ == "__main__":
    sys.exit(main())
