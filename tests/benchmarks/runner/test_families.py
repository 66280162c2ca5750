"""Every family of model that the estimator knows trains in the runner, eager and SDPA, compiled where it says so."""

from pathlib import Path
from typing import Any

import pytest

from .running import TINY_DECODER, job, results, run

pytestmark = pytest.mark.slow

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
_FAMILIES: dict[str, tuple[dict[str, Any], str]] = {
    "roberta": (
        {"model_type": "roberta", "vocab_size": 256, "max_position_embeddings": 20, "pad_token_id": 1} | _SMALL,
        "RobertaForMaskedLM",
    ),
    "gpt2": (
        {"model_type": "gpt2", "vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16},
        "GPT2LMHeadModel",
    ),
    "llama": (
        {"model_type": "llama", "vocab_size": 256, "num_key_value_heads": 2, "torch_dtype": "bfloat16"} | _SMALL,
        "LlamaForCausalLM",
    ),
    "qwen3": (
        {"model_type": "qwen3", "vocab_size": 256, "num_key_value_heads": 2, "head_dim": 8} | _SMALL,
        "Qwen3ForCausalLM",
    ),
    "vit": ({"model_type": "vit", "image_size": 64, "num_labels": 21} | _SMALL, "ViTForImageClassification"),
    "convnext": (
        {"model_type": "convnext", "depths": [1, 1, 2, 1], "hidden_sizes": [8, 16, 32, 64], "num_labels": 10},
        "ConvNextForImageClassification",
    ),
    "mamba": (
        {"model_type": "mamba", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
        "MambaForCausalLM",
    ),
}


def _family_jobs(**workload: Any) -> list[dict[str, Any]]:
    jobs = []
    for name, (config, _) in _FAMILIES.items():
        is_image = name in ("vit", "convnext")
        sizes = {"sequence_length": None, "image_size": 32} if is_image else {"sequence_length": 32}
        jobs.append(job(name, model_config=config, **sizes, **workload))
    return jobs


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_families_train(attention: str, tmp_path: Path) -> None:
    measured = results(run(_family_jobs(attention=attention), tmp_path))
    for name, (_, model_class) in _FAMILIES.items():
        assert measured[name]["status"] == "ok", measured[name]["reason"]
        details = measured[name]["details"]
        assert details["model_class"] == model_class
        has_attention = name not in ("convnext", "mamba")
        assert details["attention_kernel"] == (attention if has_attention else None)
    # Made to fit the workload, and said so.
    assert measured["roberta"]["details"]["config_changes"] == {"max_position_embeddings": 32 + 2}
    assert measured["gpt2"]["details"]["config_changes"] == {"max_position_embeddings": 32}
    assert measured["vit"]["details"]["config_changes"] == {"image_size": 32}
    # Without the fused scan a Mamba row says nothing about Mamba, so the row says which it was.
    assert measured["mamba"]["details"]["fused_scan_kernels"] in (True, False)


def test_compiled_model_trains(tmp_path: Path) -> None:
    measured = results(run([job(compile=True, options={"num_warmup_steps": 2})], tmp_path))["tiny"]
    assert measured["status"] == "ok", measured["reason"]
    first, *others = measured["details"]["warmup_step_seconds"]
    assert first > 10 * min(others), "the first step holds the compilation"
    # Asked for two; a third, because the second was so much faster than the first.
    assert len(others) >= 2


def test_failed_compile_is_an_error(tmp_path: Path) -> None:
    measured = results(run([job(compile=True)], tmp_path, environment={"CXX": "/nonexistent-compiler"}))["tiny"]
    assert measured["status"] == "error"
    assert measured.get("step_time_seconds") is None


def test_head_named_by_the_config_is_taken(tmp_path: Path) -> None:
    head = {"is_decoder": True, "architectures": ["BertLMHeadModel"]}
    config = {"model_type": "bert", "vocab_size": 256} | head | _SMALL
    measured = results(run([job(model_config=config)], tmp_path))["tiny"]
    assert measured["details"]["model_class"] == "BertLMHeadModel"


def test_linear_check_and_plain_loop_are_recorded(tmp_path: Path) -> None:
    asked = job(
        model_config=TINY_DECODER, options={"linear_check": True, "compare_plain_loop": True, "num_steps": 3}
    )
    measured = results(run([asked], tmp_path))["tiny"]
    # On a busy machine the check may refuse; that it was made, and how, is what counts here.
    assert measured["status"] in ("ok", "refused")
    check = measured["details"]["linear_check"]
    assert check["extra_seconds"] == pytest.approx(
        check["doubled_step_seconds"] - measured["step_time_seconds"], abs=1e-12
    )
    assert (check["status"] == "ok") == (
        abs(check["extra_seconds"] - check["expected_extra_seconds"]) <= check["tolerance_seconds"]
    )
    assert len(measured["details"]["plain_loop"]["plain_step_seconds"]) == 5
