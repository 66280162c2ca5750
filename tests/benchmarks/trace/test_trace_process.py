"""The process that traces, started as the command starts it, and its file in a process without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trace import TraceRequest, trace
from estimator.specs.errors import MeasurementError, SpecError

from .tracing import CONFIGS

pytestmark = pytest.mark.slow

ESTIMATE_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing them would fail
from pathlib import Path
from estimator.app.cli.main import run
code = run(["estimate", "--model", sys.argv[1], "--gpu", "a100-80gb", "--micro-batch-size", "4", "--global-batch-size",
            "64", "--sequence-length", "512", "--precision", "bf16", "--format", "json", *sys.argv[2:]])
assert sys.modules["torch"] is None
sys.exit(code)
"""


def _request(name: str, **changes: object) -> TraceRequest:
    config = {**CONFIGS[name], **changes}
    return TraceRequest(name=name, source="test", config=config, attentions=("sdpa",))


@pytest.fixture(scope="module")
def t5_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("traces") / "t5.json"
    trace(_request("t5"), out)
    return out


@pytest.mark.parametrize("strategy", ["none", "zero_2", "fsdp_full_shard"])
def test_file_estimates_in_a_process_without_torch(t5_file: Path, strategy: str) -> None:
    command = [sys.executable, "-c", ESTIMATE_WITHOUT_TORCH, str(t5_file), "--strategy", strategy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    estimate = json.loads(done.stdout)
    assert estimate["parameters"] == json.loads(_count_of(t5_file))
    assert estimate["step_time_seconds"]["expected"] > 0
    assert estimate["memory_components_bytes"]["activations"] > 0


def _count_of(path: Path) -> str:
    record = json.loads(path.read_text())
    total = 0
    for tensor in record["parameters"]:
        count = tensor.get("repeats", 1)
        for size in tensor["shape"]:
            count *= size
        total += count
    return str(total)


def test_custom_code_of_a_config_is_never_run(tmp_path: Path) -> None:
    """A folder with a module that ``auto_map`` names: it would leave a file behind."""
    witness = tmp_path / "executed"
    (tmp_path / "custom.py").write_text(f"open({str(witness)!r}, 'w').close()\n")
    names = {"AutoConfig": "custom.Config", "AutoModelForSeq2SeqLM": "custom.Model"}
    model = trace(_request("t5", auto_map=names, _name_or_path=str(tmp_path)), tmp_path / "out.json")
    assert not witness.exists()
    assert "custom code is never executed" in model.provenance["notes"]
    with pytest.raises(SpecError, match=r"Custom code \(auto_map\) is never executed"):
        trace(
            TraceRequest(name="x", source="test", config={"model_type": "custom_thing", "auto_map": names}),
            tmp_path / "other.json",
        )
    assert not witness.exists()
    assert not (tmp_path / "other.json").exists()


CALLABLE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=5, enable_nested_tensor=False)
        self.head = nn.Linear(32, 100)

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(self.encoder(self.embedding(ids))).flatten(0, 1), ids.flatten())

def make(batch_size, sequence_length):
    import torch
    return Net(), {"ids": torch.zeros((batch_size, sequence_length), dtype=torch.long)}

def make_without_sizes():
    return Net(), {}
"""


def test_callable_of_the_users_own_code(tmp_path: Path) -> None:
    (tmp_path / "own_model.py").write_text(CALLABLE)

    def request(name: str) -> TraceRequest:
        return TraceRequest(
            name="own", source=name, callable=f"own_model:{name}", search_path=str(tmp_path), attentions=("sdpa",)
        )

    listed = trace(request("make"), tmp_path / "own.json").variants["autocast/flash"]
    layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 4 * 32
    assert listed.num_parameters == 100 * 32 + 5 * layer + 32 * 100 + 100
    assert [(block.num_blocks, block.class_name) for block in listed.blocks] == [(5, "TransformerEncoderLayer")]
    attention = [operation for operation in listed.operations if operation.kind == "attention"]
    assert sum(operation.repeats for operation in attention) == 5
    with pytest.raises(SpecError, match="must take batch_size"):
        trace(request("make_without_sizes"), tmp_path / "none.json")
    with pytest.raises(SpecError, match="cannot be imported: AttributeError"):
        trace(request("missing"), tmp_path / "none.json")


def test_too_slow_a_trace_is_ended(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match=r"longer than 0\.5 seconds"):
        trace(_request("t5"), tmp_path / "out.json", time_limit_seconds=0.5)
    assert not (tmp_path / "out.json").exists()
