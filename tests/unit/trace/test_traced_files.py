"""The file of a traced model: round trip, and refusal of anything else."""

import json
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.operations import operation_list
from estimator.catalog.traced import decode_traced, encode_traced, is_traced, load_traced, save_traced
from estimator.specs.errors import SpecError
from estimator.specs.models.traced import TracedModel
from estimator.specs.operations import (
    SAMPLES,
    TOKENS,
    AttentionPath,
    BlockGroup,
    Component,
    Operation,
    OperationContext,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
    Size,
)


def _model() -> TracedModel:
    operations = (
        Operation(
            name="layer.*.mm", kind=OperationKind.MATRIX_PRODUCT, block="layer.*", repeats=12.0, m=TOKENS,
            k=Size((64.0, 0.0, 0.0, 0.0, 0.0, 0.0)), n=Size((0.0, 0.0, 0.0, 0.0, 1.0, 0.5)), has_weight=True,
            has_input_gradient=False, saved_bytes=TOKENS * 128, window=7, is_causal=True,
        ),
        Operation(name="loss", kind=OperationKind.MEMORY_BOUND, component=Component.LOGITS, backward_kernels=3.0),
    )  # fmt: skip
    listed = OperationList(
        operations=operations,
        blocks=(BlockGroup(name="layer.*", num_blocks=12, input_bytes=SAMPLES * 4, class_name="Layer"),),
        parameters=(
            ParameterTensor(name="w", shape=(64, 2), kind=ParameterKind.MATRIX, block="layer.*", repeats=12),
            ParameterTensor(name="e", shape=(9, 2), kind=ParameterKind.EMBEDDING, is_tied_matrix=True),
        ),
        input_bytes=TOKENS * 16,
    )
    return TracedModel(
        name="m", source="s", input_kind="tokens", variants={"autocast/flash": listed, "fp32/math": listed},
        max_position_embeddings=512, vocab_size=9, provenance={"torch": "2"},
    )  # fmt: skip


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    save_traced(_model(), path)
    assert is_traced(path.read_bytes())
    assert load_traced(path) == _model()


def test_a_config_is_no_traced_model() -> None:
    assert not is_traced(b'{"model_type": "gpt2"}')
    assert not is_traced(b"[1, 2")
    assert not is_traced(b"\xff\xfe")


def _changed(change: Any) -> bytes:
    record = json.loads(encode_traced(_model()))
    change(record)
    return json.dumps(record).encode()


BROKEN = {
    "another schema": (lambda r: r.update(schema=2), "schema is 2"),
    "another format": (lambda r: r.update(format="x"), "format is 'x'"),
    "no variants": (lambda r: r.update(variants={}), "variants is empty"),
    "unknown variant": (lambda r: r["variants"].update({"fp8/flash": r["variants"]["fp32/math"]}), "fp8/flash"),
    "unknown block": (lambda r: r["variants"]["fp32/math"].update(blocks=[]), "not among the blocks"),
    "five numbers": (
        lambda r: r["variants"]["fp32/math"]["operations"][0].update(m=[0, 0, 0, 1, 0]), "length 6.*operations"),
    "unknown kind": (lambda r: r["variants"]["fp32/math"]["operations"][0].update(kind="sort"), "sort.*operations"),
    "unknown field": (lambda r: r.update(code="import os"), "unknown field `code`"),
    "no repeats": (lambda r: r["variants"]["fp32/math"]["operations"][0].update(repeats=0), "must be positive"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_by_field(case: str) -> None:
    change, message = BROKEN[case]
    with pytest.raises(SpecError, match=message) as caught:
        decode_traced(_changed(change), source="m.json")
    assert str(caught.value).startswith("m.json: not a traced model")


def test_truncated_file_is_refused() -> None:
    with pytest.raises(SpecError, match="no JSON"):
        decode_traced(encode_traced(_model())[:-20], source="m.json")


def test_other_attention_kernels_fall_back_to_what_was_traced() -> None:
    model = _model()
    found = operation_list(model, OperationContext(numerics="autocast", attention=AttentionPath.CUDNN))
    assert found is model.variants["autocast/flash"]
