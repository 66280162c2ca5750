"""Typical bad inputs: what has one sensible reading is taken with a note, what has none is refused with the way out."""

import json

import pytest

LLAMA = {
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


@pytest.fixture
def config(tmp_path):
    def write(**changes):
        path = tmp_path / "config.json"
        path.write_text(json.dumps({key: value for key, value in {**LLAMA, **changes}.items() if value != "left out"}))
        return path

    return write


@pytest.fixture
def refused(traincast):
    def call(*arguments):
        outcome = traincast(*arguments)
        assert outcome.code == 2, outcome.out
        assert outcome.out == ""
        assert "Traceback" not in outcome.err
        return outcome.err

    return call


@pytest.fixture
def estimated(traincast):
    """(document, {code: message} of warnings and assumptions)"""

    def call(*arguments, code=0):
        outcome = traincast("estimate", *arguments, "--format", "json")
        assert outcome.code == code, outcome.out
        document = outcome.json
        return document, {note["code"]: note["message"] for note in (*document["assumptions"], *document["warnings"])}

    return call


def gpu(name="a100-80gb", model="pythia-70m"):
    return ("--model", model, "--gpu", name)


# GPUs


def test_unknown_gpu_gets_the_nearest_and_the_way_to_describe_one(refused):
    message = refused("plan", *gpu("A1000"))
    assert "Unknown GPU 'A1000'" in message
    assert "a100-80gb" in message
    assert "memory_bandwidth_bytes_per_second" in message


def test_plain_h100_is_sxm_and_says_so(estimated):
    document, notes = estimated(*gpu("H100"))
    assert document["workload"]["gpu"] == "h100-sxm"
    assert "PCIe" in notes["gpu_assumed"]


@pytest.mark.parametrize("spelling", ["4090", "rtx-4090", "RTX 4090", "GeForce RTX 4090", "rtx4090"])
def test_everyday_spellings(estimated, spelling):
    assert estimated(*gpu(spelling))[0]["workload"]["gpu"] == "rtx-4090"


def test_tpu_is_refused_by_name(refused):
    assert "GPUs only" in refused("plan", *gpu("tpu-v4"))


# Batches


def test_micro_batch_that_does_not_divide_is_refused_with_the_nearest(refused):
    message = refused("estimate", *gpu(), "--num-gpus", "8", "--global-batch-size", "1024", "--micro-batch-size", "12")
    assert "1024 is not micro batch 12 x 8 GPUs" in message
    assert "micro 16 x 8 accumulation" in message
    assert "global 1056 with 11" in message


def test_gpu_count_that_does_not_divide_plans_the_nearest_batch(traincast):
    plan = traincast("plan", *gpu(), "--num-gpus", "6", "--format", "json").json
    assert plan["workload"]["global_batch_size"] == 1026
    assert "1026" in next(note["message"] for note in plan["warnings"] if note["code"] == "global_batch_adjusted")
    for row in plan["strategies"]:
        assert row["micro_batch_size"] * row["gradient_accumulation_steps"] * 6 == 1026


@pytest.mark.parametrize("option", ["--gpu-memory-gib", "--overhead-fraction", "--usd-per-gpu-hour"])
@pytest.mark.parametrize("value", ["inf", "1e300"])
def test_too_large_a_number_is_refused_with_the_largest_allowed(refused, option, value):
    assert f"{option} is '{value}'; it must be at most 1e12." in refused("estimate", *gpu(), option, value)


@pytest.mark.parametrize("content", ["", "[1]", "{", "[" * 100_000])
def test_error_in_a_config_file_names_the_option_as_its_field(traincast, tmp_path, content):
    path = tmp_path / "broken.json"
    path.write_text(content)
    outcome = traincast("estimate", "--model", path, "--gpu", "t4", "--format", "json")
    assert outcome.code == 2
    assert outcome.json["error"]["field"] == "model"
    assert str(path) in outcome.json["error"]["message"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--micro-batch-size", "0"),
        ("--num-training-tokens", "-5"),
        ("--num-training-tokens", "many"),
        ("--num-gpus", "1.5"),
        ("--sequence-length", "1e400"),
        ("--num-nodes", ""),
        ("--global-batch-size", "nan"),
        ("--gpu-memory-gib", "0"),
        ("--cpu-memory-gib", "-1"),
        ("--network-gbit", "inf"),
        ("--overhead-fraction", "ten"),
        ("--usd-per-gpu-hour", "-1"),
        ("--image-size", "0"),
        ("--precision", "fp17"),
        ("--attention", "flush"),
        ("--optimizer", "adamm"),
        ("--strategy", "zero_4"),
        ("--num-gpus", "10000000"),
        ("--global-batch-size", "1T"),
        ("--interconnect", "carrier-pigeon"),
        ("--set", "novalue"),
    ],
)
def test_value_without_a_meaning_is_refused_with_its_name_and_value(traincast, option, value):
    outcome = traincast("estimate", *gpu(), option, value, "--format", "json")
    assert outcome.code == 2
    error = outcome.json["error"]
    assert error["field"] == option[2:].replace("-", "_")
    assert repr(value)[1:-1] in error["message"] or value == "1T" or value == "10000000"
    assert len(error["message"]) > len(option) + len(value) + 15


@pytest.mark.parametrize("text", ["1T", "1e12", "1000B", "1_000_000_000_000", "1,000,000,000,000"])
def test_counts_as_people_write_them(estimated, text):
    document, _ = estimated(*gpu(), "--num-training-tokens", text)
    assert document["workload"]["num_training_steps"] == -(-(10**12) // (1024 * 2048))


def test_length_given_twice_is_refused_where_it_contradicts(refused):
    message = refused("estimate", *gpu(), "--num-training-tokens", "300B", "--num-training-steps", "10")
    assert "--num-training-tokens makes 143,052 steps" in message


def test_run_length_that_changes_with_the_batch_is_said(estimated):
    _, notes = estimated(*gpu(), "--global-batch-size", "512")
    assert "150B tokens instead of 300B" in notes["run_length_changed"]


# Precision and kernels


@pytest.mark.parametrize("name", ["v100-32gb", "t4", "rtx-2080-ti"])
def test_bf16_without_hardware_becomes_fp16(estimated, name):
    document, notes = estimated(*gpu(name), "--precision", "bf16", "--attention", "flash_attention_2")
    assert document["workload"]["precision"] == "fp16"
    assert "no bf16 tensor cores" in notes["bf16_unsupported"]
    assert "compute 7." in notes["bf16_unsupported"]
    assert document["workload"]["attention"] == "sdpa"
    assert "Ampere" in notes["flash_attention_unavailable"]


def test_fp16_without_matrix_units_becomes_fp32(estimated):
    document, notes = estimated(*gpu("gtx-1080-ti"), "--precision", "fp16")
    assert document["workload"]["precision"] == "fp32"
    assert "fp16_unsupported" in notes


def test_flash_attention_of_fp32_becomes_sdpa(estimated):
    document, notes = estimated(*gpu(), "--precision", "fp32", "--attention", "flash_attention_2")
    assert document["workload"]["attention"] == "sdpa"
    assert "bf16 or fp16" in notes["flash_attention_unavailable"]


def test_tf32_before_ampere_is_reported(estimated):
    document, notes = estimated(*gpu("v100-32gb"), "--precision", "fp32", "--tf32")
    assert document["workload"]["tf32"] is False
    assert "tf32_unsupported" in notes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--precision", "fp8"), ("fp8", "Hopper")),
        (("--precision", "pure-bf16"), ("fp32 master weights",)),
        (("--lora",), ("LoRA", "full fine-tuning")),
        (("--qlora", "true"), ("LoRA", "not modelled")),
        (("--load-in-4bit",), ("not modelled",)),
        (("--tensor-parallel-size", "2"), ("tensor", "not modelled")),
        (("--strategy", "tensor_parallel"), ("tensor", "not modelled")),
        (("--strategy", "hybrid_shard"), ("HSDP", "fsdp_full_shard")),
        (("--activation-checkpointing", "selective"), ("selective", "not modelled")),
        (("--activation-checkpointing=selective",), ("selective", "not modelled")),
        (("--strategy", "zero_infinity"), ("NVMe",)),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(refused, arguments, words):
    message = refused("estimate", *gpu(), *arguments)
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("--per-device-train-batch-size", "--micro-batch-size"),
        ("--gradient-accumulation-steps", "--global-batch-size"),
        ("--seq-len", "--sequence-length"),
        ("--gradient-checkpointing", "--activation-checkpointing"),
        ("--bf16", "--precision"),
        ("--num-gpu", "--num-gpus"),
        ("--optim", "--optimizer"),
        ("--epochs", "--num-training-samples"),
        ("--modle", "--model"),
    ],
)
def test_names_of_other_tools_and_slips_point_to_ours(refused, name, ours):
    assert ours in refused("estimate", *gpu(), name, "4")


def test_options_of_other_commands_point_there(refused):
    assert "traincast estimate" in refused("plan", *gpu(), "--micro-batch-size", "4")
    assert "--hardware" in refused("compare", *gpu())


def test_options_given_twice_are_refused(refused):
    assert "--gpu is given twice" in refused("plan", *gpu(), "--gpu", "h100")
    assert "--tf32 is given twice" in refused("plan", *gpu(), "--tf32", "--no-tf32")


# Model configs


def test_swapped_layers_and_heads_are_noticed(refused, config):
    path = config(model_type="gpt2", n_embd=1600, n_head=48, n_layer=25, n_positions=1024, vocab_size=50257)
    message = refused("plan", "--model", path, "--gpu", "a100-80gb")
    assert "1600" in message
    assert "48" in message
    assert "swapped" in message


def test_head_dim_of_its_own_is_accepted(estimated, config):
    document, _ = estimated("--model", config(hidden_size=2560, head_dim=128), "--gpu", "a100-80gb")
    assert document["parameters"] > 0


def test_missing_kv_heads_equal_the_heads_and_that_is_said(estimated, config):
    document, notes = estimated("--model", config(num_key_value_heads="left out"), "--gpu", "a100-80gb")
    assert (
        document["parameters"]
        == estimated("--model", config(num_key_value_heads=32), "--gpu", "a100-80gb")[0]["parameters"]
    )
    assert any("num_key_value_heads" in message for message in notes.values())


def test_kv_heads_that_do_not_divide_are_refused(refused, config):
    message = refused("plan", "--model", config(num_key_value_heads=6), "--gpu", "a100-80gb")
    assert "32" in message
    assert "6" in message


def test_null_is_missing(estimated, config):
    with_null, _ = estimated(
        "--model", config(head_dim=None, sliding_window=None, torch_dtype=None), "--gpu", "a100-80gb"
    )
    without, _ = estimated("--model", config(), "--gpu", "a100-80gb")
    assert with_null["parameters"] == without["parameters"]


@pytest.mark.parametrize("model_type", ["t5", "mobilevit", "idefics2", "resnet", "encoder-decoder"])
def test_families_without_a_model_are_refused_by_name(refused, config, model_type):
    message = refused("plan", "--model", config(model_type=model_type), "--gpu", "a100-80gb")
    assert model_type in message
    assert "trace" in message


def test_mixture_of_experts_counts_all_for_memory_and_active_for_flops(estimated):
    document, notes = estimated(
        *gpu("h200", "mixtral-8x7b"),
        "--num-gpus",
        "8",
        "--strategy",
        "zero_3",
        "--micro-batch-size",
        "1",
        "--activation-checkpointing",
    )
    assert 46e9 < document["parameters"] < 47e9
    tokens = document["workload"]["global_batch_size"] * document["workload"]["sequence_length"]
    assert document["model_flops_per_step"] < 6 * 20e9 * tokens
    assert "mixture_of_experts" in notes


@pytest.mark.parametrize("text", ["meta-llama/Lama-2-7b", "no-such-model", "./nowhere/config.json"])
def test_model_that_cannot_be_found_says_what_to_do(refused, text):
    message = refused("plan", "--model", text, "--gpu", "a100-80gb")
    assert text in message
    assert "config.json" in message or "Did you mean" in message or "catalog models" in message


def test_config_that_is_no_json_is_no_traceback(refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", ')
    assert "config.json" in refused("plan", "--model", path, "--gpu", "a100-80gb")


def test_sequence_longer_than_the_model_is_allowed_with_a_warning(estimated):
    document, notes = estimated(*gpu(), "--sequence-length", "8192")
    assert document["workload"]["sequence_length"] == 8192
    assert "2048" in notes["length_beyond_positions"].replace(",", "")


# Strategies


def test_sharding_on_one_gpu_is_rejected_by_plan_with_that_reason_and_taken_by_estimate(traincast, estimated):
    plan = traincast("plan", *gpu(), "--cpu-memory-gib", "256", "--format", "json").json
    assert len(plan["strategies"]) == 12
    assert len(plan["rejected"]) == 10
    assert all(
        "one GPU" in row["reason"] and not row["offload"] and row["strategy"] != "none" for row in plan["rejected"]
    )
    document, notes = estimated(*gpu(), "--strategy", "zero_3")
    assert document["fits"] == "yes"
    assert "sharding_on_one_gpu" in notes


def test_offload_without_host_memory_says_how_much_it_wants(estimated):
    document, notes = estimated(*gpu(), "--strategy", "zero_1", "--offload")
    gib = document["host_memory_bytes"] / 2**30
    assert f"about {gib:.0f} GiB" in notes["offload_without_cpu_memory"]


def test_offload_of_a_plain_optimizer_is_refused(refused):
    assert "zero_1" in refused("estimate", *gpu(), "--offload")


def test_too_little_host_memory_rejects_offload(traincast):
    plan = traincast(
        "plan", *gpu(model="pythia-12b"), "--num-gpus", "8", "--cpu-memory-gib", "64", "--format", "json"
    ).json
    reasons = {(row["strategy"], row["reason"]) for row in plan["rejected"] if row["offload"]}
    assert any("host memory" in reason for _, reason in reasons)
    assert not any(row["offload"] for row in plan["strategies"])


def test_compile_under_deepspeed_names_the_versions(estimated):
    _, notes = estimated(*gpu(), "--num-gpus", "2", "--strategy", "zero_3", "--compile")
    assert "torch 2.6" in notes["compile_with_deepspeed"]
    assert "compile_with_deepspeed" not in estimated(*gpu(), "--num-gpus", "2", "--compile")[1]


# Every knob is used or reported


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((*gpu(), "--image-size", "224"), "--image-size"),
        ((*gpu(model="vit-large-16-21k"), "--sequence-length", "512"), "--sequence-length"),
        ((*gpu(model="mamba-2.8b"), "--attention", "eager"), "--attention"),
        ((*gpu(), "--network-gbit", "100"), "--network-gbit"),
        ((*gpu(), "--interconnect", "pcie"), "--interconnect"),
    ],
)
def test_option_without_effect_is_reported(estimated, arguments, name):
    document, _ = estimated(*arguments)
    assert any(note["code"] == "option_unused" and name in note["message"] for note in document["warnings"])


def test_tokens_of_an_image_model_are_refused(refused):
    assert "--num-training-samples" in refused("plan", *gpu(model="vit-large-16-21k"), "--num-training-tokens", "1B")


def test_problems_of_model_and_gpu_are_listed_together(traincast):
    problems = traincast("plan", *gpu("A1000", "no-such-model"), "--format", "json").json["error"]["problems"]
    assert [problem["field"] for problem in problems] == ["model", "gpu"]


def test_missing_model_and_gpu_say_what_they_want(refused):
    assert "catalog models" in refused("plan", "--gpu", "h100")
    assert "catalog gpus" in refused("plan", "--model", "pythia-70m")


def test_objects_nested_too_deeply_are_refused(capsys, tmp_path):
    from estimator.app.cli.main import run

    config = tmp_path / "config.json"
    config.write_text('{"a":' * 50_000 + "1" + "}" * 50_000)
    assert run(["plan", "--model", str(config), "--gpu", "h100"]) == 2
    assert "nested too deeply" in capsys.readouterr().err
