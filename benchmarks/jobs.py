"""What is asked of a runner process: one workload to time, or the machine's micro-benchmarks."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

HARNESS_VERSION = "1"
"""Raised whenever the method of measuring changes, so that rows of different methods can be told apart."""
JOB_FILE_SCHEMA = 1

# Guesses that only plan a run's length; what was seen so far corrects them as it goes on.
_SETUP_SECONDS = 1.0
_COMPILE_SECONDS = 40.0
_UNKNOWN_STEP_SECONDS = 1.0
_MICROBENCHMARK_SECONDS = 90.0


class JobKind(StrEnum):
    """What a job measures."""

    WORKLOAD = "workload"
    MICROBENCHMARK = "microbenchmark"


def workload_key(workload: Mapping[str, object]) -> str:
    """Stable hash of a workload: equal for equal options in any order; an option that is None is as good as absent."""
    stated = {name: value for name, value in workload.items() if value is not None}
    canonical = json.dumps(stated, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One row to measure."""

    workload: Mapping[str, object]
    """Every input in the option names of the command line, the machine included."""
    kind: JobKind = JobKind.WORKLOAD
    model_config: Mapping[str, object] | None = None
    """Hugging Face config; None for micro-benchmarks."""
    is_bundled_model: bool = True
    """False: the row keeps the whole config, for the model's name alone does not lead back to it."""
    num_warmup_steps: int = 2
    num_steps: int = 5
    """Timed steps at least; more are run until ``min_seconds`` are full."""
    min_seconds: float = 0.3
    linear_check: bool = False
    """Also time a step with twice the accumulations: it must cost one more set of micro steps."""
    model_flops_per_step: float | None = None
    """Per rank; with the peak, what makes a row physically impossible."""
    peak_flop_per_second: float | None = None
    in_own_process: bool = False
    """Asked for, to see how far fresh processes agree."""
    expected_step_seconds: float | None = None
    """The estimator's answer; plans the order and the time left, never the result."""

    @property
    def key(self) -> str:
        return workload_key(self.workload)

    @property
    def num_ranks(self) -> int:
        number = self.workload.get("num_gpus", 1)
        return number if isinstance(number, int) else 1

    @property
    def micro_batch_size(self) -> int | None:
        number = self.workload.get("micro_batch_size")
        return number if isinstance(number, int) else None

    @property
    def is_compiled(self) -> bool:
        return bool(self.workload.get("compile"))

    @property
    def is_sharded(self) -> bool:
        return self.workload.get("strategy", "none") != "none"

    @property
    def needs_own_process(self) -> bool:
        """DeepSpeed and FSDP leave memory behind in the process that ran them (29 GiB became 81 when measured), and
        several ranks must not disagree about where in a list they are after one of them failed."""
        return self.in_own_process or self.is_sharded or self.num_ranks > 1

    @property
    def configuration(self) -> tuple[tuple[str, str], ...]:
        """The workload without its micro batch: an out-of-memory at one size answers for all larger ones."""
        sizes = ("micro_batch_size", "global_batch_size")
        return tuple(sorted((name, repr(value)) for name, value in self.workload.items() if name not in sizes))

    @property
    def predicted_seconds(self) -> float:
        """How long the job should take inside a running process; a guess for planning."""
        if self.kind is JobKind.MICROBENCHMARK:
            return _MICROBENCHMARK_SECONDS
        step = _UNKNOWN_STEP_SECONDS if self.expected_step_seconds is None else self.expected_step_seconds
        num_parts = min(5.0, max(2.0, 0.3 / max(step, 1e-6)))
        num_steps = self.num_warmup_steps + max(self.num_steps, self.min_seconds / max(step, 1e-6)) + num_parts
        if self.linear_check:
            num_steps += 2 + 4 * num_parts
        return _SETUP_SECONDS + num_steps * step + (_COMPILE_SECONDS if self.is_compiled else 0.0)

    def payload(self) -> dict[str, object]:
        """The job as the runner reads it."""
        content: dict[str, object] = {
            "id": self.key,
            "kind": str(self.kind),
            "workload": dict(self.workload),
            "num_warmup_steps": self.num_warmup_steps,
            "num_steps": self.num_steps,
            "min_seconds": self.min_seconds,
            "linear_check": self.linear_check,
        }
        optional = {
            "model_config": self.model_config,
            "model_flops_per_step": self.model_flops_per_step,
            "peak_flop_per_second": self.peak_flop_per_second,
        }
        return content | {name: value for name, value in optional.items() if value is not None}

    @property
    def title(self) -> str:
        """One line for people: ``pythia-410m bf16 sdpa 2048 micro 8 x1 zero_2+offload+checkpointing``."""
        workload = self.workload
        if self.kind is JobKind.MICROBENCHMARK:
            return f"micro-benchmarks of {workload.get('gpu', 'this machine')}"
        size = workload.get("sequence_length") or workload.get("image_size") or ""
        precision = workload.get("precision")
        tf32 = "+tf32" if precision == "fp32" and workload.get("tf32") else ""
        strategy = str(workload.get("strategy", "none"))
        if workload.get("offload"):
            strategy += "+offload"
        if workload.get("activation_checkpointing"):
            strategy += "+checkpointing"
        words = [
            str(workload.get("model")),
            f"{precision}{tf32}",
            str(workload.get("attention")),
            "compiled" if self.is_compiled else "",
            str(size),
            f"micro {self.micro_batch_size} x{workload.get('gradient_accumulation_steps', 1)}",
            strategy,
            f"{self.num_ranks} ranks" if self.num_ranks > 1 else "",
            f"within {workload['gpu_memory_gib']} GiB" if workload.get("gpu_memory_gib") else "",
        ]
        return " ".join(word for word in words if word)
