"""A runner without training software: what each job does is named by its workload's ``model``.

Started through the real guard and launcher. Ranks other than the first, where started by hand, are not needed.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> None:
    content = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    events = Path(content["events"])

    def report(event: str, **fields: object) -> None:
        with events.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, **fields}) + "\n")

    for job in content["jobs"]:
        model, job_id, workload = job["workload"]["model"], job["id"], job["workload"]
        if model == "no-start":
            sys.exit("ImportError: No module named 'torch'")
        report("started", id=job_id)
        time.sleep(job.get("model_config", {}).get("initializer_range", 0))
        behave(model, job_id, workload, report)
        if model == "exits-after-oom" or (model == "fits-8" and workload["micro_batch_size"] > 8):
            return
    report("finished")


def behave(model: str, job_id: str, workload: dict[str, object], report) -> None:
    if model == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif model == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    elif model == "hang":
        time.sleep(1000)
    elif model in ("hang-with-orphan", "orphan"):
        # As torchrun starts its ranks: a session of its own.
        program = "import time; time.sleep(1000)"
        subprocess.Popen([sys.executable, "-c", program, sys.argv[1]], start_new_session=True)
        time.sleep(0 if model == "orphan" else 1000)
        _ok(job_id, report)
    elif model == "driver-error":
        sys.exit("RuntimeError: CUDA error: unspecified launch failure")
    elif model == "crash-with-oom":
        sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    elif model == "exits-after-oom" or (model == "fits-8" and int(str(workload["micro_batch_size"])) > 8):
        report("result", id=job_id, status="oom", reason="out of memory")
    elif model == "slow":
        time.sleep(0.4)
        _ok(job_id, report)
    elif model == "too-fast":
        _ok(job_id, report, step=1e-9)
    elif model == "garbage":
        print("a library chats on standard output")
        report("result", id=job_id, status="ok", step_time_seconds="soon")
    else:
        _ok(job_id, report)


def _ok(job_id: str, report, step: float = 0.5) -> None:
    report("progress", id=job_id, phase="warm-up")
    report(
        "result",
        id=job_id,
        status="ok",
        step_times_seconds=[step, step],
        step_time_seconds=step,
        peak_allocated_bytes=1000,
        peak_reserved_bytes=2000,
        stack={"runner": "fake"},
        details={"process_id": os.getpid()},
    )


if __name__ == "__main__":
    main()
