"""What this machine has, found without the training software: nvidia-smi, package metadata, the system."""

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from estimator.specs.errors import MeasurementError
from estimator.specs.units import KIB, MIB

from .jobs import HARNESS_VERSION

_QUERY = ("name", "memory.total", "memory.used", "driver_version", "uuid")
_DRIVER_PATIENCE_SECONDS = 30.0
_PACKAGES = ("torch", "transformers", "accelerate", "deepspeed")
_PACKAGES_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator as its driver names it."""

    name: str
    """``NVIDIA H200``."""
    memory_bytes: int
    memory_used_bytes: int
    """By whatever runs on it now."""
    driver: str
    uuid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a measurement runs."""

    device: str
    """``cuda`` or ``cpu``."""
    gpu: str
    """Catalogue name of the accelerator; the driver's name where the catalogue has none; ``cpu``."""
    num_devices: int
    memory_bytes: int | None
    """Of one device, as the driver tells."""
    memory_used_bytes: int = 0
    """Of the device used most, before we start."""
    stack: dict[str, str]
    """Provenance of every row: device, driver, packages, harness, commit."""


def visible_devices() -> tuple[Device, ...]:
    """NVIDIA devices that a process started now would see; empty where there is no driver.

    Raises MeasurementError where the driver is there and does not answer.
    """
    if shutil.which("nvidia-smi") is None:
        return ()
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_PATIENCE_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        message = f"the NVIDIA driver does not answer (nvidia-smi said nothing for {_DRIVER_PATIENCE_SECONDS:.0f} s)"
        raise MeasurementError.of(message, code="driver") from error
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr).strip() or "nothing"
        raise MeasurementError.of(f"the NVIDIA driver is not usable; nvidia-smi said: {said}", code="driver")
    return _selected(_parse_devices(answer.stdout), os.environ.get("CUDA_VISIBLE_DEVICES"))


def _parse_devices(text: str) -> tuple[Device, ...]:
    devices = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == len(_QUERY):
            name, total, used, driver, uuid = values
            total_bytes, used_bytes = (int(mib) * MIB if mib.isdigit() else 0 for mib in (total, used))
            devices.append(
                Device(name=name, memory_bytes=total_bytes, memory_used_bytes=used_bytes, driver=driver, uuid=uuid)
            )
    return tuple(devices)


def _selected(devices: tuple[Device, ...], selection: str | None) -> tuple[Device, ...]:
    """Apply ``CUDA_VISIBLE_DEVICES`` as CUDA does: in its order, ending at the first entry that names no device."""
    if selection is None:
        return devices
    chosen: list[Device] = []
    for entry in selection.split(","):
        word = entry.strip()
        if word.isdigit() and int(word) < len(devices):
            chosen.append(devices[int(word)])
            continue
        named = [device for device in devices if word and device.uuid.startswith(word)]
        if not named:
            break
        chosen.append(named[0])
    return tuple(chosen)


def detect_machine(device: str, catalogue_name: Callable[[str], str | None]) -> Machine:
    """The machine for ``--device`` cuda, cpu or auto; ``catalogue_name`` turns a driver's name into ours."""
    devices = visible_devices() if device != "cpu" else ()
    if device == "cuda" and not devices:
        raise MeasurementError.of(
            "no NVIDIA GPU is visible on this machine; use --device cpu to try the harness without one",
            code="no_device",
            field="device",
        )
    stack = software_stack()
    if not devices:
        identity = f"{platform.node()}"
        stack |= {"gpu": "cpu", "cpu": _cpu_name(), "machine": _anonymous(identity)}
        return Machine(device="cpu", gpu="cpu", num_devices=os.cpu_count() or 1, memory_bytes=None, stack=stack)
    first = devices[0]
    if any(other.name != first.name for other in devices):
        names = ", ".join(sorted({other.name for other in devices}))
        raise MeasurementError.of(
            f"the visible GPUs differ ({names}); choose equal ones with CUDA_VISIBLE_DEVICES",
            code="mixed_devices",
        )
    stack |= {"gpu": first.name, "driver": first.driver, "cpu": _cpu_name(), "machine": _anonymous(first.uuid)}
    return Machine(
        device="cuda",
        gpu=catalogue_name(first.name) or first.name,
        num_devices=len(devices),
        memory_bytes=first.memory_bytes or None,
        memory_used_bytes=max(other.memory_used_bytes for other in devices),
        stack=stack,
    )


def software_stack() -> dict[str, str]:
    """Versions of the training software, ours and Python's; an absent package is an absent key."""
    stack = {"python": platform.python_version(), "harness": HARNESS_VERSION}
    for package in _PACKAGES:
        try:
            stack[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    if commit := _commit():
        stack["commit"] = commit
    return stack


def host_memory_bytes() -> int | None:
    """Memory of the host, or of the container where that is less."""
    limits = []
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        limits.append(int(fields["MemTotal"].split()[0]) * KIB)
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        if limit.isdigit():
            limits.append(int(limit))
    except (OSError, KeyError, ValueError):
        pass
    return min(limits, default=None)


def _commit() -> str | None:
    """Commit of the checkout we run from; TRAINCAST_COMMIT where the code was copied without its history."""
    if stated := os.environ.get("TRAINCAST_COMMIT"):
        return stated
    command = ["git", "-C", str(_PACKAGES_ROOT), "describe", "--always", "--abbrev=12", "--dirty"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return f"{line.split(':', 1)[1].strip()} x{os.cpu_count()}"
    except OSError:
        pass
    return f"{platform.machine()} x{os.cpu_count()}"


def _anonymous(identity: str) -> str:
    """Tells machines apart without naming them."""
    return hashlib.sha256(identity.encode()).hexdigest()[:8]
