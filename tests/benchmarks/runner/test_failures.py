"""What goes wrong in a job is a result of that job, agreed by all ranks, and costs the others nothing."""

from pathlib import Path

import pytest

from .running import job, results, run

pytestmark = pytest.mark.slow

_OUT_OF_MEMORY_RANK = str(Path(__file__).parent / "out_of_memory_rank.py")


def test_plain_jobs_share_a_process_and_an_error_does_not_end_it(tmp_path: Path) -> None:
    events = run(
        [job("first"), job("unknown", optimizer="sophia"), job("absent", optimizer="adamw_8bit"), job("last")], tmp_path
    )
    measured = results(events)
    assert [measured[name]["status"] for name in ("first", "unknown", "absent", "last")] == [
        "ok", "error", "error", "ok",
    ]
    assert "sophia" in measured["unknown"]["reason"]
    assert "bitsandbytes" in measured["absent"]["reason"]
    assert events[-1] == {"event": "finished", "id": None}
    assert measured["first"]["stack"]["transformers"]
    assert measured["first"]["stack"]["harness"]


def test_sharded_job_ends_its_process(tmp_path: Path) -> None:
    events = run([job("sharded", strategy="fsdp_full_shard"), job("next")], tmp_path)
    assert set(results(events)) == {"sharded"}
    assert events[-1]["event"] == "finished"
    assert events[-1]["id"] == "sharded"
    assert "leaves memory behind" in events[-1]["stopped"]


@pytest.mark.parametrize("strategy", ["none", "fsdp_full_shard"])
@pytest.mark.parametrize("failing_rank", [0, 1])
def test_one_rank_out_of_memory_is_the_result_of_all(failing_rank: int, strategy: str, tmp_path: Path) -> None:
    # The other rank hangs in the collective that the failed one never joins: only the agreement ends it in time.
    events = run(
        [job("large", strategy=strategy), job("next")], tmp_path, num_ranks=2, runner=(_OUT_OF_MEMORY_RANK,),
        environment={"FAILING_RANK": str(failing_rank)},
    )
    measured = results(events)
    assert set(measured) == {"large"}
    assert measured["large"]["status"] == "oom"
    assert measured["large"]["details"]["failed_rank"] == failing_rank


def test_out_of_memory_ends_the_process(tmp_path: Path) -> None:
    events = run(
        [job("large"), job("next")], tmp_path, runner=(_OUT_OF_MEMORY_RANK,), environment={"FAILING_RANK": "0"}
    )
    assert results(events)["large"]["status"] == "oom"
    assert events[-1]["stopped"] == "memory ran out"


def test_impossible_speed_is_refused(tmp_path: Path) -> None:
    asked = job(options={"model_flops_per_step": 1e15, "peak_flop_per_second": 1e12})
    measured = results(run([asked], tmp_path))["tiny"]
    assert measured["status"] == "refused"
    assert "dense peak" in measured["reason"]
    assert measured["step_times_seconds"]


def test_memory_cap_needs_a_gpu(tmp_path: Path) -> None:
    measured = results(run([job(gpu_memory_gib=16)], tmp_path))["tiny"]
    assert measured["status"] == "error"
    assert "gpu_memory_gib" in measured["reason"]
