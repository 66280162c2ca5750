"""The runner on an NVIDIA GPU: clocks, caps and clean-up that the CPU cannot show."""

from pathlib import Path

import pytest

from tests.benchmarks.runner.running import job, results, run

pytestmark = pytest.mark.gpu

_SMALL_DECODER = {
    "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8,
    "intermediate_size": 2048, "max_position_embeddings": 2048,
}
_SIZES = {"sequence_length": 2048, "micro_batch_size": 4, "gradient_accumulation_steps": 2}


def test_rows_of_one_process_do_not_see_each_other(tmp_path: Path) -> None:
    jobs = [
        job(name, model_config=_SMALL_DECODER, **_SIZES, attention=attention)
        for name, attention in (("first", "sdpa"), ("between", "eager"), ("again", "sdpa"))
    ]
    measured = results(run(jobs, tmp_path, device="cuda"))
    assert {entry["status"] for entry in measured.values()} == {"ok"}
    assert measured["again"]["peak_allocated_bytes"] == measured["first"]["peak_allocated_bytes"]
    assert measured["between"]["peak_allocated_bytes"] > measured["first"]["peak_allocated_bytes"]
    for entry in measured.values():
        assert entry["peak_allocated_bytes"] <= entry["peak_reserved_bytes"] < entry["process_memory_bytes"]


def test_cap_turns_a_large_card_into_a_small_one(tmp_path: Path) -> None:
    large = job(model_config=_SMALL_DECODER, **(_SIZES | {"micro_batch_size": 16}), gpu_memory_gib=8)
    assert results(run([large], tmp_path, device="cuda"))["tiny"]["status"] == "oom"
    small = job(model_config=_SMALL_DECODER, **(_SIZES | {"micro_batch_size": 1}), gpu_memory_gib=8)
    measured = results(run([small], tmp_path, device="cuda"))["tiny"]
    assert measured["status"] == "ok", measured["reason"]
    assert measured["peak_reserved_bytes"] <= 8 * 2**30


def test_device_and_host_clock_agree(tmp_path: Path) -> None:
    measured = results(run([job(model_config=_SMALL_DECODER, **_SIZES)], tmp_path, device="cuda"))["tiny"]
    window = measured["details"]["window"]
    assert sum(measured["step_times_seconds"]) == pytest.approx(window["total_seconds"], rel=0.02, abs=1e-3)
