"""Jobs, machine and campaign for tests around the fake runner."""

from pathlib import Path

from benchmarks.campaign import Campaign
from benchmarks.jobs import Job
from benchmarks.launch import SilenceLimits
from benchmarks.machine import Machine
from benchmarks.store import MeasurementStore

FAKE_RUNNER = (str(Path(__file__).with_name("fake_runner.py")),)
STACK = {"gpu": "cpu", "torch": "2", "harness": "1"}
MACHINE = Machine(device="cpu", gpu="cpu", num_devices=1, memory_bytes=None, stack=STACK)
QUICK = SilenceLimits(
    startup_seconds=20.0,
    job_seconds=1.0,
    compiled_seconds=1.0,
    kernel_build_seconds=1.0,
    exit_seconds=1.0,
)


def make_job(model: str = "fine", micro_batch_size: int = 1, **options: object) -> Job:
    workload = {
        "model": model,
        "gpu": "cpu",
        "num_gpus": 1,
        "precision": "fp32",
        "attention": "sdpa",
        "strategy": "none",
        "micro_batch_size": micro_batch_size,
        "gradient_accumulation_steps": 1,
        "global_batch_size": micro_batch_size,
        **options,
    }
    return Job(workload=workload, model_config={"model_type": "gpt2"}, num_steps=2, min_seconds=0.0)


def make_campaign(folder: Path, **options: object) -> Campaign:
    settings = {"limits": QUICK, "runner": FAKE_RUNNER, **options}
    return Campaign(MeasurementStore(folder), MACHINE, **settings)  # type: ignore[arg-type]
