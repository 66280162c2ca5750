"""Reading and writing traced models: JSON, versioned, checked field by field; nothing in it is executed."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..specs.errors import SpecError
from ..specs.models.traced import TracedModel
from ..specs.numerics import Numerics
from ..specs.operations import (
    AttentionPath,
    BlockGroup,
    Component,
    Operation,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
    Size,
)

FORMAT = "traincast-trace"
SCHEMA = 1

_Numbers = tuple[float, float, float, float, float, float]
"""Coefficients over ``MONOMIALS``."""
_ZERO: _Numbers = (0.0,) * 6
_ONE: _Numbers = (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class _Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of what lies in the file."""


class _OperationRecord(_Record, frozen=True):
    name: str
    kind: OperationKind
    block: str | None = None
    repeats: float = 1.0
    batch: _Numbers = _ONE
    m: _Numbers = _ZERO
    k: _Numbers = _ZERO
    n: _Numbers = _ZERO
    is_causal: bool = False
    window: int | None = None
    key_value_groups: float = 1.0
    has_weight: bool = False
    has_input_gradient: bool = True
    is_fp32: bool = False
    forward_bytes: _Numbers = _ZERO
    backward_bytes: _Numbers = _ZERO
    forward_kernels: float = 1.0
    backward_kernels: float = 1.0
    saved_bytes: _Numbers = _ZERO
    transient_bytes: _Numbers = _ZERO
    component: Component = Component.ACTIVATIONS


class _BlockRecord(_Record, frozen=True):
    name: str
    num_blocks: int
    input_bytes: _Numbers
    class_name: str | None = None


class _ParameterRecord(_Record, frozen=True):
    name: str
    shape: tuple[int, ...]
    kind: ParameterKind
    block: str | None = None
    repeats: int = 1
    is_tied_matrix: bool = False


class _ListRecord(_Record, frozen=True):
    operations: tuple[_OperationRecord, ...]
    blocks: tuple[_BlockRecord, ...]
    input_bytes: _Numbers = _ZERO
    active_parameter_fraction: float = 1.0


class _FileRecord(_Record, frozen=True, omit_defaults=False):
    format: str
    schema: int
    name: str
    source: str
    input_kind: str
    parameters: tuple[_ParameterRecord, ...]
    """The same in every variant."""
    variants: dict[str, _ListRecord]
    max_position_embeddings: int | None = None
    image_size: int | None = None
    vocab_size: int | None = None
    provenance: dict[str, str] = {}


class _Marker(msgspec.Struct):
    format: str | None = None


def is_traced(content: bytes) -> bool:
    """Whether a file's content says that it is a traced model."""
    try:
        return msgspec.json.decode(content, type=_Marker).format == FORMAT
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return False


def encode_traced(model: TracedModel) -> bytes:
    """The file's content. Every variant must have the same parameters."""
    parameters = {operation_list.parameters for operation_list in model.variants.values()}
    if len(parameters) != 1:
        raise AssertionError("variants of one model have one list of parameters")
    record = _FileRecord(
        format=FORMAT,
        schema=SCHEMA,
        name=model.name,
        source=model.source,
        input_kind=model.input_kind,
        parameters=tuple(_to_record(tensor, _ParameterRecord) for tensor in parameters.pop()),
        variants={
            key: _ListRecord(
                operations=tuple(_to_record(operation, _OperationRecord) for operation in listed.operations),
                blocks=tuple(_to_record(block, _BlockRecord) for block in listed.blocks),
                input_bytes=listed.input_bytes.coefficients,
                active_parameter_fraction=listed.active_parameter_fraction,
            )
            for key, listed in model.variants.items()
        },
        max_position_embeddings=model.max_position_embeddings,
        image_size=model.image_size,
        vocab_size=model.vocab_size,
        provenance=dict(model.provenance),
    )
    return msgspec.json.encode(record)


def save_traced(model: TracedModel, path: Path) -> None:
    """Write the file."""
    path.write_bytes(encode_traced(model))


def load_traced(path: Path) -> TracedModel:
    """Read the file; SpecError names the file and the field that is wrong."""
    return decode_traced(path.read_bytes(), source=str(path))


def decode_traced(content: bytes, *, source: str) -> TracedModel:
    """The model in a file's content."""
    try:
        record = msgspec.json.decode(content, type=_FileRecord)
    except msgspec.ValidationError as error:
        raise _refusal(source, str(error)) from None
    except msgspec.DecodeError as error:
        raise _refusal(source, f"no JSON: {error}") from None
    _check(record, source)
    parameters = tuple(_from_record(tensor, ParameterTensor) for tensor in record.parameters)
    return TracedModel(
        name=record.name,
        source=record.source,
        input_kind=record.input_kind,
        variants={
            key: OperationList(
                operations=tuple(_from_record(operation, Operation) for operation in listed.operations),
                blocks=tuple(_from_record(block, BlockGroup) for block in listed.blocks),
                parameters=parameters,
                input_bytes=Size(listed.input_bytes),
                active_parameter_fraction=listed.active_parameter_fraction,
            )
            for key, listed in record.variants.items()
        },
        max_position_embeddings=record.max_position_embeddings,
        image_size=record.image_size,
        vocab_size=record.vocab_size,
        provenance=record.provenance,
    )


def _refusal(source: str, reason: str) -> SpecError:
    return SpecError.of(
        f"{source}: not a traced model: {reason}; make the file again with `traincast trace`",
        code="bad_trace",
        field="model",
    )


def _check(record: _FileRecord, source: str) -> None:
    if record.format != FORMAT:
        raise _refusal(source, f"format is {record.format!r}, not {FORMAT!r}")
    if record.schema != SCHEMA:
        raise _refusal(source, f"schema is {record.schema}, this version reads {SCHEMA}")
    if record.input_kind not in ("tokens", "images"):
        raise _refusal(source, f"input_kind is {record.input_kind!r}; it is tokens or images")
    if not record.variants:
        raise _refusal(source, "variants is empty")
    for key, listed in record.variants.items():
        numerics, attention, *rest = (*key.split("/"), "")
        if numerics not in set(Numerics) or attention not in set(AttentionPath) or rest not in ([""], ["compiled", ""]):
            raise _refusal(source, f"variants.{key}: no such numerics/attention[/compiled]")
        groups = {block.name for block in listed.blocks}
        if any(block.num_blocks < 1 for block in listed.blocks):
            raise _refusal(source, f"variants.{key}.blocks: num_blocks must be at least 1")
        for index, operation in enumerate(listed.operations):
            place = f"variants.{key}.operations[{index}]"
            if operation.block is not None and operation.block not in groups:
                raise _refusal(source, f"{place}.block: {operation.block!r} is not among the blocks")
            if not (operation.repeats > 0 and math.isfinite(operation.repeats)):
                raise _refusal(source, f"{place}.repeats is {operation.repeats}; it must be positive")
    for index, tensor in enumerate(record.parameters):
        if tensor.repeats < 1 or any(size < 0 for size in tensor.shape):
            raise _refusal(source, f"parameters[{index}]: sizes and repeats must not be negative or zero")


_T = TypeVar("_T")
_R = TypeVar("_R", bound=_Record)


def _to_record(value: Any, record_type: type[_R]) -> _R:
    converted = {}
    for entry in fields(value):
        found = getattr(value, entry.name)
        converted[entry.name] = found.coefficients if isinstance(found, Size) else found
    return record_type(**converted)


def _from_record(record: _Record, target: type[_T]) -> _T:
    converted = {}
    for entry in fields(target):  # type: ignore[arg-type]
        found = getattr(record, entry.name)
        is_size = entry.type is Size or isinstance(entry.default, Size)
        converted[entry.name] = Size(found) if is_size else found
    return target(**converted)
