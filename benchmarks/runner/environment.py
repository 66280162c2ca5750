"""The software and hardware that a row was measured on."""

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import torch

from ..jobs import HARNESS_VERSION

_PACKAGES = ("torch", "transformers", "accelerate", "deepspeed", "triton", "bitsandbytes", "flash_attn", "mamba_ssm")
_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "OMP_NUM_THREADS", "NCCL_NVLS_ENABLE")
"""Environment variables that change time or memory."""


def software_stack(device: torch.device) -> dict[str, str]:
    """Versions and devices; names as keys, everything as text."""
    stack = {
        "harness": HARNESS_VERSION,
        "commit": _commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "num_cpu_cores": str(os.cpu_count()),
        "num_threads": str(torch.get_num_threads()),
    }
    for package in _PACKAGES:
        try:
            stack[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    # The distribution's version lacks the build; torch's own says +cu130 or +cpu.
    stack["torch"] = torch.__version__
    stack.update({name: value for name in _SETTINGS if (value := os.environ.get(name))})
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        stack |= {
            "gpu": properties.name,
            "gpu_memory_bytes": str(properties.total_memory),
            "compute_capability": f"{properties.major}.{properties.minor}",
            "cuda": str(torch.version.cuda),
            "cudnn": str(torch.backends.cudnn.version()),
            "driver": _driver_version(),
        }
        if torch.distributed.is_available() and torch.distributed.is_nccl_available():
            stack["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return stack


def _driver_version() -> str:
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:  # The driver's library may be missing or refuse; the row is worth keeping without it.
        return "unknown"
    return version.decode() if isinstance(version, bytes) else str(version)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """Of the harness, where it runs from a checkout."""
    if stated := os.environ.get("TRAINCAST_COMMIT"):
        return stated
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"],
            capture_output=True, text=True, timeout=10, check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return found.stdout.strip() or "unknown"
