"""Decoder and mixture-of-experts configs: what they mean, assume and refuse, and that nothing crashes."""

import copy
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.operations import operation_list
from estimator.catalog.huggingface import model_from_config, parse_config
from estimator.specs.errors import Note, SpecError
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.operations import AttentionPath, OperationContext

CONFIGS = Path(__file__).parents[2] / "data" / "configs"


def config_of(name: str, **overrides: object) -> dict[str, Any]:
    values = {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}
    return {field: value for field, value in values.items() if value is not ...}


def read(values: dict[str, Any]) -> tuple[DecoderSpec, tuple[Note, ...]]:
    spec, notes = model_from_config(values, name="m", source="test")
    assert isinstance(spec, DecoderSpec)
    return spec, notes


def problem(values: dict[str, Any]) -> tuple[str, str | None]:
    with pytest.raises(SpecError) as caught:
        read(values)
    first = caught.value.problems[0]
    return first.message, first.field


def test_absent_and_null_fields_take_defaults_named_in_one_note() -> None:
    spec, notes = read({"model_type": "llama", "hidden_size": None})
    assert (spec.hidden_size, spec.num_hidden_layers, spec.vocab_size) == (4096, 32, 32000)
    defaults = [note.message for note in notes if note.code == "config_defaults"]
    assert len(defaults) == 1
    assert "hidden_size=4096" in defaults[0]
    assert "tie_word_embeddings=false" in defaults[0]


def test_heads_that_do_not_divide_are_explained() -> None:
    message, field = problem(config_of("gpt2-xl", n_head=48, n_layer=25))
    assert "n_embd 1600 / n_head 48 is not whole" in message
    assert "25 heads and 48 layers" in message
    assert "swapped?" in message
    assert field == "n_head"
    assert "give head_dim" in problem(config_of("llama-2-7b", num_attention_heads=48, num_hidden_layers=30))[0]


def test_an_explicit_head_dim_needs_no_division() -> None:
    spec, _ = read(config_of("qwen3-4b", num_attention_heads=30, num_key_value_heads=10))
    assert (spec.hidden_size, spec.num_attention_heads, spec.head_dim) == (2560, 30, 128)
    assert read(config_of("llama-3.2-1b", head_dim=None))[0].head_dim == 64


def test_key_value_heads_are_assumed_or_refused() -> None:
    spec, notes = read(config_of("llama-2-7b", num_key_value_heads=...))
    assert spec.num_key_value_heads == 32
    assert ["assuming 32 of 32 heads" in note.message for note in notes if note.code == "kv_heads_assumed"] == [True]
    message, field = problem(config_of("llama-2-7b", num_key_value_heads=6))
    assert "32 heads do not divide into groups over 6 key/value heads" in message
    assert field == "num_key_value_heads"


def test_mixtures_count_all_experts_for_memory_and_say_so() -> None:
    spec, notes = read(config_of("mixtral-8x7b"))
    assert spec.moe is not None
    assert spec.family == "moe"
    assert ["lower utilisation" in note.message for note in notes if note.code == "mixture_of_experts"] == [True]
    operations = operation_list(spec, OperationContext(numerics="fp32", attention=AttentionPath.MATH))
    # 46.7 billion parameters of which 12.9 billion are active: Mixtral's own figures.
    assert operations.active_parameter_fraction == pytest.approx(12.88e9 / 46.70e9, rel=0.001)
    assert "more than the 8 experts" in problem(config_of("mixtral-8x7b", num_experts_per_tok=9))[0]


def test_dense_layers_among_experts() -> None:
    spec, _ = read(config_of("qwen3-moe-small"))
    assert spec.moe is not None
    # decoder_sparse_step 2 makes layers 0, 2 and 4 dense, mlp_only_layers layer 3.
    assert spec.moe.num_dense_layers == 4


def test_sliding_windows() -> None:
    assert read(config_of("mistral-7b-v0.1"))[0].num_sliding_layers == 32
    assert read(config_of("mistral-nemo"))[0].sliding_window is None
    assert read(config_of("mistral-nemo", sliding_window=...))[0].sliding_window == 4096
    assert read(config_of("qwen2.5-7b"))[0].sliding_window is None
    switched = read(config_of("qwen2.5-7b", use_sliding_window=True, max_window_layers=20))[0]
    assert (switched.sliding_window, switched.num_sliding_layers) == (131072, 8)
    assert read(config_of("gemma-2-2b"))[0].num_sliding_layers == 13
    assert read(config_of("gemma-3-1b"))[0].num_sliding_layers == 22
    assert read(config_of("gemma-3-270m"))[0].num_sliding_layers == 15
    assert "layer_types" in problem(config_of("gemma-3-270m", layer_types=["full_attention"]))[0]


def test_windowed_and_full_layers_are_two_operations() -> None:
    spec, _ = read(config_of("gemma-3-1b"))
    listed = operation_list(spec, OperationContext(numerics="autocast", attention=AttentionPath.FLASH)).operations
    kernels = {(op.window, op.repeats) for op in listed if op.kind == "attention"}
    assert kernels == {(512, 22.0), (None, 4.0)}


@pytest.mark.parametrize(
    ("values", "words", "code"),
    [
        ({"model_type": "mobilevit"}, "not modelled: 'mobilevit'", "not_modelled"),
        ({"model_type": "lama"}, "Did you mean llama?", "not_modelled"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder", "not_modelled"),
        ({"peft_type": "LORA", "base_model_name_or_path": "x"}, "PEFT not modelled", "peft_not_modelled"),
        ({"hidden_size": 4}, "model_type is missing", "bad_config"),
        ({"model_type": ["llama"]}, "model_type is a list of 1 entries", "bad_config"),
        ({"model_type": "gemma3", "text_config": {"model_type": "martian"}}, "martian", "not_modelled"),
        ({"model_type": "phi", "qk_layernorm": True}, "qk_layernorm=true is not modelled", "not_modelled"),
    ],
)
def test_what_is_not_modelled_is_refused_by_name(values: dict[str, Any], words: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        model_from_config(values, name="m", source="test")
    assert words in caught.value.problems[0].message
    assert caught.value.problems[0].code == code


def test_the_language_part_of_a_multimodal_config_is_estimated_and_named() -> None:
    text = config_of("gemma-3-1b", model_type="gemma3_text")
    spec, notes = read({"model_type": "gemma3", "text_config": text, "vision_config": {"model_type": "siglip"}})
    assert spec.hidden_size == 1152
    assert ["text_config, gemma3_text" in note.message for note in notes if note.code == "multimodal_part"] == [True]


def test_quantised_weights_are_ignored_with_a_note() -> None:
    _, notes = read(config_of("llama-2-7b", quantization_config={"load_in_4bit": True}))
    assert [note.code for note in notes if note.code.startswith("peft")] == ["peft_not_modelled"]


def test_rotary_fractions() -> None:
    assert read(config_of("pythia-1b"))[0].rotary_fraction == 0.25
    assert read(config_of("pythia-1b", rotary_pct=..., rope_parameters={"partial_rotary_factor": 0.5}))[
        0
    ].rotary_fraction == 0.5
    message, field = problem(config_of("phi-2", rope_scaling={"partial_rotary_factor": "x"}))
    assert field == "rope_scaling.partial_rotary_factor"
    assert "'x'" in message


@pytest.mark.parametrize("text", ["", "{", '{"a": ', "[1]", "3", '{"a": ' + "9" * 5000 + "}", "[" * 100_000, "\x00"])
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_config(text, source="config.json")
    assert caught.value.problems[0].field == "model"
    assert caught.value.problems[0].message.startswith("config.json ")
    assert len(caught.value.problems[0].message) < 300


def test_no_config_executes_anything() -> None:
    values = config_of("llama-2-7b", auto_map={"AutoModel": "evil--Model"}, trust_remote_code=True)
    spec, _ = read({**values, "model_type": "llama", "hidden_act": "silu"})
    assert spec.hidden_size == 4096
    assert "__import__" in problem({**values, "hidden_act": "__import__('os').system('true')"})[0]


MUTANTS: tuple[object, ...] = (
    None, 0, -1, 1, 2, 3, 7, 13, 2**31, 2**80, -(2**80), 10**400, 0.5, 1.0, -0.0, 1e308, math.nan, math.inf, -math.inf,
    True, False, "", "x", "768", "silu", [], [1], [[]], [None], ["full_attention"], {}, {"a": {}}, {"rope_type": 3},
    {"partial_rotary_factor": -1}, {"partial_rotary_factor": 1e-9}, [0] * 100,
)  # fmt: skip
EXTRA_FIELDS = (
    "head_dim", "num_key_value_heads", "rope_scaling", "rope_parameters", "layer_types", "sliding_window",
    "use_sliding_window", "text_config", "quantization_config", "is_encoder_decoder", "intermediate_size", "n_inner",
    "no_rope_layers", "mlp_only_layers", "num_experts", "word_embed_proj_dim", "tie_word_embeddings", "clip_qkv",
)  # fmt: skip
VARIANTS = tuple(
    OperationContext(numerics=numerics, attention=attention, is_compiled=is_compiled)
    for numerics in ("fp32", "autocast", "autocast_cast_weights", "low_precision")
    for attention in AttentionPath
    for is_compiled in (False, True)
)


def _deep(chance: random.Random) -> object:
    value: object = chance.choice(MUTANTS)
    for _ in range(chance.randint(1, 50)):
        value = [value] if chance.random() < 0.5 else {"model_type": value}
    return value


def _mutated(original: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """A config with one to four fields dropped, replaced, contradicted, moved or nested."""
    values = copy.deepcopy(original)
    for _ in range(chance.randint(1, 4)):
        field = chance.choice([*values, *EXTRA_FIELDS])
        kind = chance.random()
        if kind < 0.15:
            values.pop(field, None)
        elif kind < 0.25:
            values[field] = _deep(chance)
        elif kind < 0.40 and isinstance(values.get(field), int):
            values[field] = values[field] + chance.choice((-1, 1, 7)) if chance.random() < 0.5 else values[field] * 3
        elif kind < 0.45:
            values[field] = str(values.get(field))
        elif kind < 0.50:
            values = {"model_type": chance.choice(("gemma3", "llava", "x", None)), "text_config": values}
        else:
            values[field] = copy.deepcopy(chance.choice(MUTANTS))
    return values


@pytest.mark.parametrize("seed", range(4))
def test_mutated_configs_are_read_or_refused_but_never_crash(seed: int) -> None:
    """4 x 1,500 seeded mutations: a spec whose operations are finite, or a SpecError with short, placed problems."""
    chance = random.Random(seed)
    originals = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))]
    num_read = 0
    refused: list[SpecError] = []
    for _ in range(1500):
        values = _mutated(chance.choice(originals), chance)
        text = json.dumps(values)
        if chance.random() < 0.1:
            text = text[: chance.randrange(len(text))]
        try:
            spec, notes = model_from_config(parse_config(text, source="c"), name="m", source="test")
        except SpecError as error:
            refused.append(error)
            continue
        num_read += 1
        assert all(len(note.message) < 3000 for note in notes)
        operations = operation_list(spec, chance.choice(VARIANTS))
        assert operations.num_parameters > 0
        for operation in operations.operations:
            sizes = [getattr(operation, f"{kind}_bytes") for kind in ("forward", "backward", "saved", "transient")]
            assert all(math.isfinite(size.at(2, 128)) and size.at(2, 128) >= 0 for size in sizes), operation.name
    assert num_read > 200
    assert len(refused) > 200
    assert all(error.problems for error in refused)
    found = [problem for error in refused for problem in error.problems]
    assert all(problem.field and len(problem.message) < 1000 for problem in found)
