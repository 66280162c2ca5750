"""Typed flag > environment > profile > the model's recipe or a default; --explain says which won."""

import pytest

ESTIMATE = ("estimate", "--model", "pythia-70m", "--gpu", "a100-80gb", "--format", "json")


@pytest.fixture
def _profile(config_directory):
    directory = config_directory / "profiles"
    directory.mkdir()
    (directory / "lab.toml").write_text('micro_batch_size = 4\nprecision = "fp16"\ncompile = false\n')


def _workload(outcome):
    assert outcome.code == 0, outcome.err + outcome.out
    return outcome.json["workload"]


def test_recipe_of_the_model_is_the_default(traincast):
    workload = _workload(traincast(*ESTIMATE))
    assert workload["global_batch_size"] == 1024
    assert workload["num_training_steps"] == 143_000
    assert workload["sequence_length"] == 2048


@pytest.mark.usefixtures("_profile")
def test_profile_beats_the_recipe(traincast):
    workload = _workload(traincast(*ESTIMATE, "--profile", "lab"))
    assert (workload["micro_batch_size"], workload["precision"], workload["compile"]) == (4, "fp16", False)


@pytest.mark.usefixtures("_profile")
def test_environment_beats_the_profile(traincast, monkeypatch):
    monkeypatch.setenv("TRAINCAST_MICRO_BATCH_SIZE", "8")
    monkeypatch.setenv("TRAINCAST_PROFILE", "lab")
    workload = _workload(traincast(*ESTIMATE))
    assert workload["micro_batch_size"] == 8
    assert workload["compile"] is False


@pytest.mark.usefixtures("_profile")
def test_typed_flag_beats_everything_and_explain_says_so(traincast, monkeypatch):
    monkeypatch.setenv("TRAINCAST_MICRO_BATCH_SIZE", "8")
    outcome = traincast(*ESTIMATE, "--profile", "lab", "--micro-batch-size", "16", "--explain")
    assert _workload(outcome)["micro_batch_size"] == 16
    line = next(line for line in outcome.err.splitlines() if line.startswith("micro_batch_size"))
    assert "16" in line
    assert "--micro-batch-size" in line
    assert "over 8 from TRAINCAST_MICRO_BATCH_SIZE" in line
    assert "over 4 from profile" in line
    assert "sequence_length = 2048 from the model's recipe" in outcome.err


def test_profile_named_default_is_read_without_asking(traincast, config_directory):
    (config_directory / "profiles").mkdir()
    (config_directory / "profiles" / "default.toml").write_text("micro_batch_size = 2\n")
    assert _workload(traincast(*ESTIMATE))["micro_batch_size"] == 2


def test_length_of_a_higher_layer_replaces_another_spelling_below(traincast, monkeypatch):
    monkeypatch.setenv("TRAINCAST_NUM_TRAINING_STEPS", "10")
    workload = _workload(traincast(*ESTIMATE, "--num-training-tokens", "300B"))
    assert workload["num_training_steps"] == -(-300 * 10**9 // (1024 * 2048))


def test_unknown_profile_is_refused_with_the_known_ones(traincast, config_directory):
    (config_directory / "profiles").mkdir()
    (config_directory / "profiles" / "lab.toml").write_text("")
    outcome = traincast(*ESTIMATE[:-2], "--profile", "lap")
    assert outcome.code == 2
    assert "lab" in outcome.err


def test_unknown_key_of_a_profile_is_refused_with_the_nearest(traincast, tmp_path):
    profile = tmp_path / "mine.toml"
    profile.write_text("micro_batch_sise = 4\n")
    outcome = traincast(*ESTIMATE[:-2], "--profile", profile)
    assert outcome.code == 2
    assert "micro_batch_size" in outcome.err
    assert "mine.toml" in outcome.err


def test_damaged_profile_is_no_traceback(traincast, tmp_path):
    profile = tmp_path / "mine.toml"
    profile.write_bytes(b"model = \xff")
    outcome = traincast(*ESTIMATE[:-2], "--profile", profile)
    assert outcome.code == 2
    assert "Traceback" not in outcome.err


def test_variable_that_names_no_option_is_reported(traincast, monkeypatch):
    monkeypatch.setenv("TRAINCAST_GPUS", "8")
    outcome = traincast(*ESTIMATE)
    assert "unknown_variable" in {note["code"] for note in outcome.json["warnings"]}


def test_bad_value_of_the_environment_names_the_variable(traincast, monkeypatch):
    monkeypatch.setenv("TRAINCAST_NUM_GPUS", "many")
    outcome = traincast(*ESTIMATE[:-2])
    assert outcome.code == 2
    assert "TRAINCAST_NUM_GPUS" in outcome.err


def test_strategy_of_a_profile_is_left_aside_by_plan_with_a_note(traincast, tmp_path):
    profile = tmp_path / "mine.toml"
    profile.write_text('strategy = "zero_1"\n')
    outcome = traincast("plan", *ESTIMATE[1:], "--profile", profile)
    assert outcome.code == 0
    assert "option_unused" in {note["code"] for note in outcome.json["warnings"]}
