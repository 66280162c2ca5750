"""Readers of config.json: what they accept, assume and refuse."""

import copy
import json
import random
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from estimator.catalog.families import convnext, encoder, mamba, vision
from estimator.specs.errors import SpecError

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
READERS = {"bert": encoder, "roberta": encoder, "vit": vision, "deit": vision, "dinov2": vision,
           "convnext": convnext, "convnextv2": convnext, "mamba": mamba}  # fmt: skip


def config(name: str, **overrides: object) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}


def problems(reader: ModuleType, values: dict[str, Any]) -> list[str]:
    with pytest.raises(SpecError) as caught:
        reader.read(values, name="m", source="test")
    return [problem.message for problem in caught.value.problems]


def test_absent_and_null_fields_take_defaults_named_in_one_note() -> None:
    values = {"model_type": "bert", "hidden_size": None, "architectures": ["BertForMaskedLM"]}
    spec, notes = encoder.read(values, name="m", source="test")
    assert (spec.hidden_size, spec.vocab_size, spec.hidden_dropout) == (768, 30522, 0.1)
    assert [note.code for note in notes] == ["config_defaults"]
    assert "hidden_size=768" in notes[0].message
    assert "tie_word_embeddings=true" in notes[0].message


def test_every_problem_is_reported_with_value_and_allowed_range() -> None:
    found = problems(encoder, config("bert-base-uncased", hidden_size="768", num_hidden_layers=0, vocab_size=True))
    assert len(found) == 3
    assert any("hidden_size is '768'; it must be a whole number from 1" in message for message in found)
    assert any("num_hidden_layers is 0" in message and "10,000" in message for message in found)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1 << 20_000, 7.5, [768], {"a": 1}, True], ids=type)
def test_a_hidden_size_that_is_no_size_is_refused(value: object) -> None:
    assert "hidden_size is" in problems(encoder, config("bert-base-uncased", hidden_size=value))[0]


def test_heads_that_do_not_divide_are_refused() -> None:
    assert "768 does not divide into 7 heads" in problems(encoder, config("roberta-base", num_attention_heads=7))[0]
    found = problems(vision, config("vit-base-patch16-224", num_attention_heads=7))
    assert "768 does not divide into 7 heads" in found[0]


def test_unknown_activation_is_refused_by_name() -> None:
    found = problems(encoder, config("bert-base-uncased", hidden_act="mish"))
    assert "'mish'" in found[0]
    assert "gelu" in found[0]


def test_bert_decoders_are_refused_with_a_way_out() -> None:
    assert "traincast trace" in problems(encoder, config("bert-base-uncased", is_decoder=True))[0]


def test_dropout_of_one_is_refused() -> None:
    assert "below 1" in problems(encoder, config("bert-base-uncased", hidden_dropout_prob=1.0))[0]


@pytest.mark.parametrize(
    ("name", "architectures", "head"),
    [
        ("bert-base-uncased", ["BertForPreTraining"], "pre_training"),
        ("bert-base-uncased", ["BertForMaskedLM"], "masked_lm"),
        ("bert-base-uncased", ["BertModel"], "masked_lm"),
        ("bert-base-uncased", None, "masked_lm"),
    ],
)
def test_architectures_decide_the_head(name: str, architectures: list[str] | None, head: str) -> None:
    spec, notes = encoder.read(config(name, architectures=architectures), name="m", source="test")
    assert spec.head == head
    is_assumed = architectures in (None, ["BertModel"])
    assert ("head_assumed" in [note.code for note in notes]) == is_assumed


def test_labels_come_from_id2label_and_an_explicit_number_wins() -> None:
    values = config("vit-base-patch16-224", id2label={str(i): "x" for i in range(10)})
    del values["num_labels"]
    assert vision.read(values, name="m", source="test")[0].num_labels == 10
    spec, notes = vision.read({**values, "num_labels": 5}, name="m", source="test")
    assert spec.num_labels == 5
    assert "num_labels" in [note.code for note in notes]
    assert "id2label" in problems(vision, {**values, "id2label": {}})[0]


def test_image_and_patch_sizes() -> None:
    spec, _ = vision.read(config("dinov2-base", image_size=[224, 224]), name="m", source="test")
    assert (spec.image_size, spec.num_tokens, spec.num_positions) == (224, 257, 257)
    assert "square" in problems(vision, config("dinov2-base", image_size=[224, 448]))[0]
    assert "no patch fits" in problems(vision, config("dinov2-base", image_size=8))[0]
    assert "leaves nothing" in problems(convnext, config("convnext-tiny-224", image_size=16))[0]


def test_convnext_stages_must_agree() -> None:
    found = problems(convnext, config("convnext-tiny-224", depths=[3, 3, 9]))
    assert "depths has 3 entries but there are 4 stages" in found[0]
    assert "list of whole numbers" in problems(convnext, config("convnext-tiny-224", depths=[3, 3, -9, 3]))[0]


def test_swiglu_width_of_dinov2_giant() -> None:
    spec, _ = vision.read(config("dinov2-giant"), name="m", source="test")
    assert (spec.is_mlp_gated, spec.intermediate_size) == (True, 4096)


def test_mamba_states_its_kernels_and_ignores_a_contradicting_width() -> None:
    spec, notes = mamba.read(config("mamba-130m", intermediate_size=999, time_step_rank="auto"), name="m", source="t")
    assert (spec.intermediate_size, spec.time_step_rank) == (1536, 48)
    codes = [note.code for note in notes]
    assert "mamba_fused_kernels" in codes
    assert "intermediate_size" in codes


MUTANTS: list[object] = [None, 0, -1, 2**80, 10**400, 0.5, float("nan"), float("inf"), True, False, "", "x", "768",
                         [], [1], [[]], {}, {"a": {}}, [None], ["gelu"], [1, 1], 1, 3, 10**6]  # fmt: skip


def test_mutated_configs_are_read_or_refused_but_never_crash() -> None:
    """1,500 seeded mutations: fields dropped, of another type, zero, negative, huge, nested."""
    chance = random.Random(20240610)
    originals = [json.loads(path.read_text()) for path in sorted(CONFIGS.glob("*.json"))]
    originals = [values for values in originals if values.get("model_type") in READERS]
    refused: list[SpecError] = []
    for _ in range(1500):
        original = chance.choice(originals)
        values = copy.deepcopy(original)
        for field in chance.sample(sorted(set(values) - {"model_type"}), chance.randint(1, 3)):
            if chance.random() < 0.2:
                del values[field]
            else:
                values[field] = copy.deepcopy(chance.choice(MUTANTS))
        try:
            spec, _ = READERS[original["model_type"]].read(values, name="m", source="test")
        except SpecError as error:
            refused.append(error)
        else:
            hash(spec)
    assert 300 < len(refused) < 1400
    assert all(len(problem.message) < 300 and problem.field for error in refused for problem in error.problems)
