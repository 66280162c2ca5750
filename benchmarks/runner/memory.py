"""Memory: the cap, the peaks, what the driver charges, what the host holds."""

import gc
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch

from estimator.specs.units import GIB

_BASELINE_SLACK_BYTES = 4 * 2**20
_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|not enough memory|failed to allocate|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|cannot allocate memory|bad_alloc", re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this, or what caused it, is memory running out, on the device or the host."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(seen, (RuntimeError, OSError)) and _OUT_OF_MEMORY.search(str(seen)):
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


class DeviceMemory:
    """Memory of one device, as the caching allocator and the driver see it; nothing where the device is the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._baseline_bytes = 0

    def set_cap(self, cap_gib: float | None) -> None:
        """Limit what the caching allocator may reserve; the context comes on top of it.

        The cap is the one of ``--gpu-memory-gib``: a large card answers for a smaller one.
        """
        if cap_gib is None:
            return
        if not self._is_cuda:
            raise ValueError("gpu_memory_gib limits a GPU's memory; this run is on the CPU")
        total = torch.cuda.get_device_properties(self._device).total_memory
        if cap_gib * GIB > total:
            raise ValueError(f"gpu_memory_gib {cap_gib} is more than the {total / GIB:.1f} GiB of this device")
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(cap_gib * GIB / total, self._device)
        allocated = torch.cuda.memory_allocated(self._device)
        if allocated > cap_gib * GIB:
            raise torch.OutOfMemoryError(
                f"out of memory: the model states alone take {allocated} bytes, above the cap of {cap_gib} GiB"
            )

    def lift_cap(self) -> None:
        if self._is_cuda:
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def reset_peaks(self) -> None:
        """Peaks count from here."""
        if self._is_cuda:
            torch.cuda.reset_peak_memory_stats(self._device)
            if hasattr(torch.cuda, "reset_peak_host_memory_stats"):
                torch.cuda.reset_peak_host_memory_stats()

    def peaks(self) -> dict[str, int]:
        """Since the last reset: allocated, reserved and pinned host bytes, allocator retries."""
        if not self._is_cuda:
            return {}
        statistics = torch.cuda.memory_stats(self._device)
        found = {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(self._device),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(self._device),
            "num_allocator_retries": int(statistics.get("num_alloc_retries", 0)),
        }
        if hasattr(torch.cuda, "host_memory_stats"):
            found["pinned_host_bytes"] = int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0))
        return found

    def driver_bytes(self) -> dict[str, Any]:
        """What the driver charges to this process (reserved + context), and where that number comes from.

        In a container the driver may list no process, or foreign ids; then what the device has in use altogether
        stands in for it, true as long as nothing else runs there.
        """
        if not self._is_cuda:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        used_by_process = _nvml_process_bytes(self._device)
        if used_by_process is not None:
            return {"process_memory_bytes": used_by_process, "process_memory_source": "driver, this process"}
        return {"process_memory_bytes": total - free, "process_memory_source": "driver, whole device"}

    def note_baseline(self) -> None:
        """What is allocated while no job runs."""
        if self._is_cuda:
            self._baseline_bytes = torch.cuda.memory_allocated(self._device)

    def clean_up(self) -> int:
        """Give everything back; returns the bytes that are still allocated beyond the baseline."""
        gc.collect()
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        if not self._is_cuda:
            return 0
        torch.cuda.synchronize(self._device)
        torch._C._cuda_clearCublasWorkspaces()
        gc.collect()
        torch.cuda.empty_cache()
        if hasattr(torch._C, "_host_emptyCache"):
            torch._C._host_emptyCache()
        self.lift_cap()
        left = torch.cuda.memory_allocated(self._device) - self._baseline_bytes
        return left if left > _BASELINE_SLACK_BYTES else 0


def _nvml_process_bytes(device: torch.device) -> int | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
            if process.pid == os.getpid() and process.usedGpuMemory:
                return int(process.usedGpuMemory)
    except Exception:  # NVML is a courtesy: absent, old or shut away it costs only this field.
        return None
    return None


class HostMemory:
    """Peak resident set of this process since the last reset, and of its children while it was looked at."""

    def __init__(self) -> None:
        self._peak_children_bytes = 0

    def reset(self) -> None:
        self._peak_children_bytes = 0
        try:
            # Linux: resets VmHWM to what is resident now.
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return

    def sample(self) -> None:
        """Look at the children (workers of the compiler)."""
        import psutil

        total = 0
        for child in psutil.Process().children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.Error:
                continue
        self._peak_children_bytes = max(self._peak_children_bytes, total)

    def peak_bytes(self) -> int:
        self.sample()
        return _own_peak_bytes() + self._peak_children_bytes


def _own_peak_bytes() -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        status = ""
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    if found:
        return int(found.group(1)) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
