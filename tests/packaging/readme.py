"""The README's commands and captured output. ``python -m tests.packaging.readme`` captures the plan anew."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PLAN = ("plan", "--model", "pythia-1b", "--gpu", "a100-80gb", "--num-gpus", "4")
_CAPTURED = re.compile(r"(```text\n\$ traincast plan [^\n]*\n)(.*?)(```)", re.DOTALL)


def fresh_machine_commands() -> list[str]:
    """The commands of the section "On a fresh machine", one for each code block."""
    section = README.read_text(encoding="utf-8").split("## On a fresh machine", 1)[1].split("\n## ", 1)[0]
    return [block.strip() for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)]


def captured_plan() -> str:
    """What the README shows."""
    match = _CAPTURED.search(README.read_text(encoding="utf-8"))
    assert match is not None, "the README shows no captured plan"
    return match[2]


def printed_plan() -> str:
    """What the command prints at 80 columns, without the user's own files."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRAINCAST_")}
    command = [sys.executable, "-m", "estimator.app.cli", *PLAN]
    with TemporaryDirectory() as folder:
        environment |= {"COLUMNS": "80", "NO_COLOR": "1", "TRAINCAST_CONFIG_DIR": folder}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return result.stdout


def main() -> None:
    text = README.read_text(encoding="utf-8")
    README.write_text(_CAPTURED.sub(lambda match: match[1] + printed_plan() + match[3], text), encoding="utf-8")


if __name__ == "__main__":
    main()
