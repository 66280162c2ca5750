"""How runner processes are started."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import launch
from benchmarks.launch import SilenceLimits, runner_command, runner_environment, write_job_file
from benchmarks.process_tree import RUN_VARIABLE

from .campaign_setup import make_job


def test_one_rank_is_a_plain_process_and_several_are_torchrun() -> None:
    job_file = Path("/x/jobs.json")
    assert runner_command(1, job_file) == [sys.executable, "-P", "-m", "benchmarks.runner", "/x/jobs.json"]
    assert runner_command(4, job_file) == [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "4",
        "-m",
        "benchmarks.runner",
        "/x/jobs.json",
    ]


def test_the_environment_marks_the_run_and_shares_out_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process_id: set(range(16)), raising=False)
    environment = runner_environment("run-1", 4, {"TORCH_CUDA_ARCH_LIST": "8.0;9.0a", "PYTHONPATH": "."})
    assert environment[RUN_VARIABLE] == "run-1"
    assert environment["OMP_NUM_THREADS"] == "4"
    assert environment["TORCH_CUDA_ARCH_LIST"] == "8.0;9.0"
    assert environment["PYTHONSAFEPATH"] == "1"
    assert str(Path.cwd()) in environment["PYTHONPATH"].split(os.pathsep)
    assert runner_environment("run-1", 4, {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_a_checkout_is_importable_by_the_runner_and_site_packages_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(Path(launch.__file__).resolve().parent.parent)
    assert runner_environment("r", 1, {})["PYTHONPATH"].split(os.pathsep)[0] == root
    monkeypatch.setattr(launch, "_PACKAGES_ROOT", Path("/somewhere/site-packages"))
    assert runner_environment("r", 1, {})["PYTHONPATH"] == ""


def test_the_job_file_is_what_the_runner_reads(tmp_path: Path) -> None:
    job = make_job(micro_batch_size=4)
    job_file, events = write_job_file(tmp_path, [job], "cpu")
    content = json.loads(job_file.read_text())
    assert content["schema"] == 1
    assert content["device"] == "cpu"
    assert content["events"] == str(events.resolve())
    assert content["jobs"][0]["id"] == job.key
    assert content["jobs"][0]["workload"]["micro_batch_size"] == 4
    assert content["jobs"][0]["model_config"] == {"model_type": "gpt2"}


def test_silence_is_longer_where_kernels_are_built_or_steps_are_long() -> None:
    limits = SilenceLimits(job_seconds=60, compiled_seconds=300, kernel_build_seconds=200)
    assert limits.for_job(make_job()) == 60
    assert limits.for_job(make_job(compile=True)) == 300
    assert limits.for_job(make_job(strategy="zero_2")) == 200
    assert limits.for_job(replace(make_job(), expected_step_seconds=20.0)) == 200
