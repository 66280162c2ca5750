"""All ways to name a model lead to the same one; ``--set`` changes it or is refused."""

import json
from pathlib import Path

import pytest

from estimator.catalog.bundled import find_model_entry, load_bundled_model
from estimator.catalog.resolve import parse_override, resolve_config, resolve_model
from estimator.catalog.traced import save_traced
from estimator.specs.errors import SpecError
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.models.traced import TracedModel
from estimator.specs.operations import (
    BlockGroup,
    Operation,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
    Size,
)


def refusal(text: str, **overrides: object) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        resolve_model(text, overrides=overrides)
    return caught.value.problems[0].code, str(caught.value)


def write_config(path: Path, name: str = "pythia-1b") -> Path:
    entry = find_model_entry(name)
    assert entry is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(entry.config))
    return path


def shape(spec: object) -> tuple[object, ...]:
    assert isinstance(spec, DecoderSpec)
    return spec.vocab_size, spec.hidden_size, spec.num_hidden_layers, spec.num_attention_heads, spec.intermediate_size


def test_name_alias_file_and_folder_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_config(tmp_path / "models" / "my-pythia" / "config.json")
    monkeypatch.chdir(tmp_path)
    routes = (
        "pythia-1b",
        "Pythia 1B",
        "EleutherAI/pythia-1b",
        str(file),
        str(file.parent),
        "models/my-pythia",
        "./models/my-pythia/",
    )
    resolved = [resolve_model(text, overrides={}) for text in routes]
    assert len({shape(model.spec) for model in resolved}) == 1
    assert [model.spec.name for model in resolved] == ["pythia-1b"] * 3 + ["my-pythia"] * 4
    assert [model.recipe is not None for model in resolved] == [True] * 3 + [False] * 4


def test_a_folder_of_the_same_name_does_not_hide_a_bundled_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path / "pythia-1b" / "config.json", "gpt2")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("pythia-1b", overrides={}).spec == load_bundled_model("pythia-1b").spec
    assert resolve_model("./pythia-1b", overrides={}).spec.model_type == "gpt2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("24", 24),
        ("1.5", 1.5),
        ("1e-5", 1e-5),
        ("true", True),
        ("True", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ("gelu", "gelu"),
        (" 7 ", 7),
        (24, 24),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_values_of_set_are_typed(text: object, value: object) -> None:
    assert parse_override(text) == value


def test_set_changes_the_model_and_keeps_the_recipe() -> None:
    resolved = resolve_model("pythia-1b", overrides={"num_hidden_layers": "24", "tie_word_embeddings": "true"})
    assert isinstance(resolved.spec, DecoderSpec)
    assert (resolved.spec.num_hidden_layers, resolved.spec.tie_word_embeddings) == (24, True)
    assert resolved.recipe is not None


def test_set_takes_fields_that_the_config_leaves_out_and_common_spellings() -> None:
    grouped = resolve_model("gpt2", overrides={"num_hidden_layers": 6, "n_inner": 1024}).spec
    assert isinstance(grouped, DecoderSpec)
    assert (grouped.num_hidden_layers, grouped.intermediate_size) == (6, 1024)
    headed = resolve_model("llama-2-7b", overrides={"head_dim": 64}).spec
    assert isinstance(headed, DecoderSpec)
    assert headed.head_dim == 64


def test_set_refuses_what_would_change_nothing_and_what_is_wrong() -> None:
    code, message = refusal("pythia-1b", num_hiden_layers=24)
    assert code == "unknown_config_field"
    assert "did you mean num_hidden_layers" in message
    code, message = refusal("pythia-1b", hidden_size="wide")
    assert code == "bad_config"
    assert "'wide'" in message
    with pytest.raises(SpecError) as caught:
        resolve_model("pythia-1b", overrides={"foo": 1, "bar": 2})
    assert [problem.field for problem in caught.value.problems] == ["set.foo", "set.bar"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert refusal("pythia-1bn")[0] == "unknown_model"
    assert "pythia-1b" in refusal("pythia-1bn")[1]
    assert refusal("no such model at all")[0] == "unknown_model"
    assert refusal(str(tmp_path / "absent.json"))[0] == "file_not_found"
    assert "no config.json" in refusal(str(tmp_path))[1]
    assert refusal("")[0] == "unknown_model"
    assert refusal("a/b/c\x00")[0] == "unknown_model"
    assert refusal("x" * 5000)[0] == "unknown_model"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no valid JSON"),
        (b"{", "no valid JSON"),
        (b"[]", "an object of fields"),
        (b"\xff\xfe", "no UTF-8"),
        (b'{"model_type": "t5", "is_encoder_decoder": true}', "not modelled"),
        (b"{}", "model_type is missing"),
    ],
)
def test_broken_files_are_refused_by_name(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    message = refusal(str(file))[1]
    assert words in message


def traced_model() -> TracedModel:
    tensor = ParameterTensor(name="weight", shape=(4, 8), kind=ParameterKind.MATRIX, block="layers", repeats=2)
    product = Operation(
        name="linear",
        kind=OperationKind.MATRIX_PRODUCT,
        block="layers",
        repeats=2.0,
        m=Size((0, 0, 0, 1, 0, 0)),
        k=Size((8, 0, 0, 0, 0, 0)),
        n=Size((4, 0, 0, 0, 0, 0)),
        has_weight=True,
        saved_bytes=Size((0, 0, 0, 32, 0, 0)),
    )
    listed = OperationList(
        operations=(product,),
        parameters=(tensor,),
        blocks=(BlockGroup(name="layers", num_blocks=2, input_bytes=Size((0, 0, 0, 32, 0, 0))),),
    )
    return TracedModel(name="mine", source="trace", input_kind="tokens", variants={"autocast/flash": listed})


def test_a_traced_file_is_a_model_without_config(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    save_traced(traced_model(), file)
    resolved = resolve_model(str(file), overrides={})
    assert isinstance(resolved.spec, TracedModel)
    assert resolved.spec.variants == traced_model().variants
    assert refusal(str(file), hidden_size=8)[0] == "unused_override"
    with pytest.raises(SpecError, match="is a traced model"):
        resolve_config(str(file), overrides={})


def test_the_config_behind_a_name_with_overrides() -> None:
    resolved = resolve_config("gpt2", overrides={"num_hidden_layers": "3"})
    assert resolved.is_bundled
    assert resolved.config["n_layer"] == 3
    assert "num_hidden_layers" not in resolved.config
    assert resolve_config("mistral-nemo-12b", overrides={}).config["sliding_window"] is None


def test_a_folder_or_file_is_found_by_its_bare_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "my-model" / "config.json")
    write_config(tmp_path / "plain")
    named = shape(resolve_model("pythia-1b", overrides={}).spec)
    assert shape(resolve_model("my-model", overrides={}).spec) == named
    assert shape(resolve_model("plain", overrides={}).spec) == named


def test_a_bundled_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_config(tmp_path / "pythia-1b" / "config.json", name="gpt2")
    chosen = resolve_model("pythia-1b", overrides={})
    assert chosen.recipe is not None
    assert shape(chosen.spec) != shape(resolve_model("./pythia-1b", overrides={}).spec)


def test_a_folder_without_config_is_refused_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no-config").mkdir()
    code, message = refusal("no-config")
    assert code == "file_not_found"
    assert "the folder has no config.json" in message


def test_a_device_or_pipe_is_refused_as_such() -> None:
    code, message = refusal("/dev/null")
    assert code == "file_not_read"
    assert "no regular file" in message
