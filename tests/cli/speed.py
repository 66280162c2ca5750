"""How fast the command line is on this machine: ``python -m tests.cli.speed``. Reported, never asserted."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

NUM_LINES = 100_000
PLAN = ("-m", "estimator.app.cli", "plan", "--model", "pythia-1b", "--gpu", "a100-80gb", "--num-gpus", "4")
MODELS = (
    "pythia-70m", "pythia-1b", "pythia-2.8b", "llama-2-7b", "llama-3-8b", "gpt2", "mistral-7b", "qwen3-8b",
    "bert-large-uncased", "roberta-large", "vit-large-16-21k", "convnext-large-1k", "mamba-2.8b", "opt-1.3b",
)  # fmt: skip
GPUS = (
    "a100-80gb",
    "a100-40gb",
    "h100-sxm",
    "h200",
    "rtx-4090",
    "rtx-3090",
    "rtx-a6000",
    "v100-sxm2-32gb",
    "l40s",
    "b200",
)
STRATEGIES = ("none", "zero_1", "zero_2", "zero_3", "fsdp_shard_grad_op", "fsdp_full_shard")


def seconds(*arguments: str) -> float:
    """Wall clock of one interpreter."""
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - start


def write_lines(path: Path) -> None:
    """Workloads of all kinds, seeded."""
    source = random.Random(1)
    with path.open("w") as stream:
        for _ in range(NUM_LINES):
            num_gpus, micro = source.choice((1, 2, 4, 8)), source.choice((1, 2, 4, 8, 16, 32))
            strategy = source.choice(STRATEGIES)
            line = {
                "model": source.choice(MODELS), "gpu": source.choice(GPUS), "num_gpus": num_gpus,
                "micro_batch_size": micro,
                "global_batch_size": num_gpus * micro * source.choice((1, 2, 4, 8)), "strategy": strategy,
                "offload": strategy != "none" and source.random() < 0.3, "compile": source.random() < 0.5,
                "activation_checkpointing": source.random() < 0.5, "precision": source.choice(("bf16", "fp16", "fp32")),
                "sequence_length": source.choice((512, 1024, 2048, 4096)),
            }  # fmt: skip
            stream.write(json.dumps(line) + "\n")


def main() -> None:
    bare = min(seconds("-c", "pass") for _ in range(5))
    plan = min(seconds(*PLAN) for _ in range(5))
    print(
        f"plan, cold start to table: {plan:.2f} s, {plan / bare:.0f} times the start of the interpreter ({bare:.3f} s)"
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "lines.jsonl"
        write_lines(path)
        empty = seconds("-m", "estimator.app.cli", "estimate", "--batch", "/dev/null")
        measured = (
            "import resource, sys; from estimator.app.cli.main import run; run(sys.argv[1:]); "
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, 'MiB', file=sys.stderr)"
        )
        batch = seconds("-c", measured, "estimate", "--batch", str(path))
    print(f"estimate --batch: {NUM_LINES:,} lines in {batch - empty:.2f} s after a start of {empty:.2f} s")


if __name__ == "__main__":
    main()
