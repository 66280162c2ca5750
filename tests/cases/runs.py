"""Short ways to put a public case to the session, and to read its expectation."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from estimator.app.session.options import WorkloadOptions
from estimator.app.session.service import PlanAnswer, Session
from estimator.specs.estimate import Estimate
from estimator.specs.units import GIB

DATA = Path(__file__).parent.parent / "data"
GB = 1e9


@cache
def cases() -> dict[str, dict[str, Any]]:
    """All cases by id."""
    lines = (DATA / "cases.jsonl").read_text(encoding="utf-8").splitlines()
    return {case["id"]: case for case in map(json.loads, lines)}


def expected(case_id: str) -> dict[str, Any]:
    return cases()[case_id]["expect"]


def estimate(**options: Any) -> Estimate:
    """One workload; options as a batch line has them."""
    return Session().estimate(WorkloadOptions(**options)).estimate


def plan(**options: Any) -> PlanAnswer:
    return Session().plan(WorkloadOptions(**options))


def tokens_per_second_per_gpu(num_gpus: int, **options: Any) -> float:
    result = estimate(num_gpus=min(num_gpus, 8), num_nodes=max(1, num_gpus // 8), **options)
    assert result.fits != "no", f"needs {result.peak_reserved_bytes.expected / GIB:.1f} GiB"
    assert result.tokens_per_second is not None
    return result.tokens_per_second / num_gpus


def assert_within(value: float, band: list[float], what: str) -> None:
    low, high = band
    assert low <= value <= high, f"{what}: estimated {value:.4g}, accepted {low:.4g} to {high:.4g}"


def write_config(directory: Path, config: Mapping[str, object], name: str = "config.json") -> str:
    path = directory / name
    path.write_text(json.dumps(config))
    return str(path)


def mpt(directory: Path, *, hidden: int, layers: int, positions: int) -> str:
    """MPT as llm-foundry counts it: GPT-2's shape with MPT's vocabulary; the parameter counts agree to the last one."""
    return write_config(
        directory,
        {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": hidden // 128 if hidden >= 2048 else hidden // 64,
            "n_positions": positions,
            "vocab_size": 50368,
            "activation_function": "gelu",
            "tie_word_embeddings": True,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
        },
    )


def nanogpt(directory: Path) -> str:
    return write_config(
        directory,
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50304,
            "activation_function": "gelu",
            "tie_word_embeddings": True,
            "attn_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
        },
    )


def llama(
    directory: Path, *, hidden: int, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int, tied: bool
) -> str:
    return write_config(
        directory,
        {
            "model_type": "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "intermediate_size": ffn,
            "vocab_size": vocab,
            "tie_word_embeddings": tied,
            "max_position_embeddings": 4096,
        },
    )
