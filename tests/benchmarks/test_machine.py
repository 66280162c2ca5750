"""Finding devices without the training software, from a stand-in for nvidia-smi."""

from pathlib import Path

import pytest

from benchmarks.machine import detect_machine, software_stack, visible_devices
from estimator.specs.errors import MeasurementError

_TWO = "NVIDIA H200, 143771, 3, 580.159.03, GPU-aaaa\\nNVIDIA H200, 143771, 3, 580.159.03, GPU-bbbb"


@pytest.fixture
def fake_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a script as nvidia-smi; nothing else of PATH remains."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


def test_devices_are_read_and_selected_as_cuda_does(fake_driver, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(f'printf "{_TWO}\\n"')
    devices = visible_devices()
    assert [device.uuid for device in devices] == ["GPU-aaaa", "GPU-bbbb"]
    assert devices[0].memory_bytes == 143771 * 2**20
    for selection, expected in (
        ("1", ["GPU-bbbb"]),
        ("GPU-bb,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("0,7,1", ["GPU-aaaa"]),
        ("", []),
    ):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", selection)
        assert [device.uuid for device in visible_devices()] == expected


def test_the_machine_carries_provenance_and_no_names(fake_driver) -> None:
    fake_driver(f'printf "{_TWO}\\n"')
    machine = detect_machine("auto", {"NVIDIA H200": "h200"}.get)
    assert (machine.device, machine.gpu, machine.num_devices) == ("cuda", "h200", 2)
    assert machine.stack["gpu"] == "NVIDIA H200"
    assert machine.stack["driver"] == "580.159.03"
    assert machine.memory_used_bytes == 3 * 2**20
    assert {"torch", "transformers", "accelerate", "deepspeed", "python", "harness", "machine"} <= machine.stack.keys()
    assert "GPU-aaaa" not in machine.stack.values()


def test_a_driver_that_fails_or_mixes_devices_is_refused_in_words(fake_driver) -> None:
    fake_driver("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    with pytest.raises(MeasurementError, match="version mismatch"):
        detect_machine("auto", lambda name: None)
    fake_driver('printf "NVIDIA H200, 1, 0, 5, GPU-a\\nNVIDIA L4, 1, 0, 5, GPU-b\\n"')
    with pytest.raises(MeasurementError, match="differ"):
        detect_machine("cuda", lambda name: None)


def test_without_a_driver_auto_is_the_cpu_and_cuda_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert detect_machine("auto", lambda name: None).device == "cpu"
    with pytest.raises(MeasurementError, match="--device cpu"):
        detect_machine("cuda", lambda name: None)


def test_the_commit_can_be_stated_where_there_is_no_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINCAST_COMMIT", "abc123")
    assert software_stack()["commit"] == "abc123"
