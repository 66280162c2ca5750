"""Runs the runner as the parent does and reads its events."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TINY_DECODER = {
    "model_type": "gpt_neox", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64,
}
_WORKLOAD = {
    "model": "tiny", "micro_batch_size": 2, "gradient_accumulation_steps": 2, "strategy": "none", "offload": False,
    "activation_checkpointing": False, "precision": "bf16", "tf32": True, "attention": "sdpa", "compile": False,
    "optimizer": "adamw_torch", "sequence_length": 32,
}
RUNNER = ("-m", "benchmarks.runner")


def job(
    job_id: str = "tiny", *, model_config: Mapping[str, Any] = TINY_DECODER, kind: str = "workload",
    options: Mapping[str, Any] | None = None, **workload: Any,
) -> dict[str, Any]:
    """A small job; ``workload`` changes its options, ``options`` the job around it."""
    return {
        "id": job_id, "kind": kind, "workload": _WORKLOAD | workload, "model_config": dict(model_config),
        "num_warmup_steps": 1, "num_steps": 2, **(options or {}),
    }


def run(
    jobs: Sequence[Mapping[str, Any]], folder: Path, *, num_ranks: int = 1, runner: Sequence[str] = RUNNER,
    environment: Mapping[str, str] | None = None, device: str = "cpu",
) -> list[dict[str, Any]]:
    """All events of one runner process, or of one group of ranks."""
    job_file, events = folder / "jobs.json", folder / "events.jsonl"
    job_file.write_text(
        json.dumps({"schema": 1, "jobs": list(jobs), "device": device, "events": str(events)}), encoding="utf-8"
    )
    command = [sys.executable, "-P"]
    if num_ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    root = Path(__file__).resolve().parents[3]
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1", "PYTHONPATH": str(root),
        **(environment or {}),
    }
    finished = subprocess.run(
        [*command, *runner, str(job_file)], env=variables, capture_output=True, text=True, timeout=280, check=False,
        cwd=folder,
    )
    assert events.exists(), finished.stderr[-3000:]
    return [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]


def results(events: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Results by job."""
    return {str(event["id"]): dict(event) for event in events if event["event"] == "result"}
