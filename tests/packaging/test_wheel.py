"""The wheel ships exactly the three packages and their data, and no torch is needed to install it."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
    )
    (wheel,) = folder.glob("traincast-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.slow
def test_top_level_is_exactly_the_three_packages(wheel_names: list[str]) -> None:
    top = {name.split("/")[0] for name in wheel_names if ".dist-info" not in name}
    assert top == {"estimator", "calibration", "benchmarks"}


@pytest.mark.slow
def test_every_data_file_of_the_packages_is_shipped(wheel_names: list[str]) -> None:
    on_disk = {
        path.relative_to(ROOT).as_posix()
        for package in ("estimator/catalog/data", "calibration/data")
        for path in (ROOT / package).rglob("*")
        if path.suffix in {".toml", ".json", ".jsonl", ".csv"}
    }
    assert on_disk, "no data files found beside the packages"
    assert on_disk <= set(wheel_names)


def test_base_install_needs_no_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    base = {re.split(r"[><=\[ ;]", requirement)[0] for requirement in project["dependencies"]}
    assert base.isdisjoint({"torch", "transformers", "accelerate", "deepspeed"})
