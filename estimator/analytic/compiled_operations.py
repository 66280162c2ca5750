"""An operation list as matrices, so that many (micro batch, length) pairs are one product each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ..specs.model import ModelSpec
from ..specs.operations import (
    MONOMIALS,
    ZERO,
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
from .operations import operation_list

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


def monomials(micro_batch_size: Array, sequence_length: Array) -> Array:
    """The columns of ``MONOMIALS`` for each workload: shape [workloads, 6]."""
    b, s = micro_batch_size, sequence_length
    return np.stack((np.ones_like(b), b, s, b * s, s * s, b * s * s), axis=1)


def _matrix(sizes: Sequence[Size]) -> Array:
    """Coefficients of sizes, shape [6, sizes]."""
    return np.array([size.coefficients for size in sizes], dtype=np.float64).reshape(-1, len(MONOMIALS)).T


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedOperations:
    """Operations of one kind that have shapes; ``m`` and the like are [6, operations]."""

    batch: Array
    m: Array
    k: Array
    n: Array
    repeats: Array
    in_block: Array
    """1.0 where activation checkpointing runs the operation again."""
    is_causal: Array
    window: Array
    """Infinity without."""
    key_value_groups: Array
    has_weight: Array
    has_input_gradient: Array
    is_fp32: Flags
    is_depthwise: Flags

    @property
    def count(self) -> int:
        return len(self.repeats)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTotals:
    """Elements and tensors of a model, by what happens to them."""

    num_parameters: float
    num_tensors: float
    num_cast: float
    """Elements that autocast copies to 16 bit (matrices, their biases, tied embeddings)."""
    num_cast_tensors: float
    num_cast_in_blocks: float
    num_cast_tensors_in_blocks: float
    num_outside_blocks: float
    largest_block: float
    """Elements of the largest single block; of everything where no block exists."""
    largest_tensor: float
    num_blocks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledOperations:
    """Everything about an ``OperationList`` that time and memory need, as arrays over its operations."""

    matrix_products: ShapedOperations
    attentions: ShapedOperations
    convolutions: ShapedOperations
    scans: ShapedOperations
    totals: Array
    """[6, columns] of ``TOTALS``: sums over all operations, weighted by repeats."""
    transients: Array
    """[6, operations]: largest at the peak, so evaluated one by one."""
    transient_is_logits: Flags
    transient_in_block: Flags
    block_saved: Array
    """[6, groups]: saved bytes of one block of each group."""
    block_inputs: Array
    """[6, groups]: checkpointed inputs of all blocks of each group."""
    forward_kernels: float
    backward_kernels: float
    forward_kernels_in_blocks: float
    parameters: ParameterTotals
    active_parameter_fraction: float


TOTALS = (
    "forward_bytes",
    "backward_bytes",
    "forward_bytes_in_blocks",
    "activation_bytes",
    "activation_bytes_outside_blocks",
    "logits_bytes",
    "input_bytes",
)
"""Columns of ``CompiledOperations.totals``."""


def _shaped(operations: Sequence[Operation]) -> ShapedOperations:
    def numbers(values: Sequence[float | bool]) -> Array:
        return np.array(values, dtype=np.float64)

    return ShapedOperations(
        batch=_matrix([o.batch for o in operations]),
        m=_matrix([o.m for o in operations]),
        k=_matrix([o.k for o in operations]),
        n=_matrix([o.n for o in operations]),
        repeats=numbers([o.repeats for o in operations]),
        in_block=numbers([o.block is not None for o in operations]),
        is_causal=numbers([o.is_causal for o in operations]),
        window=numbers([np.inf if o.window is None else o.window for o in operations]),
        key_value_groups=numbers([o.key_value_groups for o in operations]),
        has_weight=numbers([o.has_weight for o in operations]),
        has_input_gradient=numbers([o.has_input_gradient for o in operations]),
        is_fp32=np.array([o.is_fp32 for o in operations], dtype=bool),
        # One channel in and out per group: a depthwise convolution.
        is_depthwise=np.array(
            [o.kind is OperationKind.CONVOLUTION and o.n.at(1, 1) <= 1 and o.batch.at(1, 1) > 1 for o in operations],
            dtype=bool,
        ),
    )


def _parameter_totals(tensors: Sequence[ParameterTensor], blocks: Sequence[BlockGroup]) -> ParameterTotals:
    def is_cast(tensor: ParameterTensor) -> bool:
        return tensor.kind in (ParameterKind.MATRIX, ParameterKind.VECTOR) or tensor.is_tied_matrix

    def elements(chosen: Sequence[ParameterTensor]) -> float:
        return float(sum(t.num_elements * t.repeats for t in chosen))

    cast = [t for t in tensors if is_cast(t)]
    num_blocks = {group.name: max(1, group.num_blocks) for group in blocks}
    per_block = [elements([t for t in tensors if t.block == name]) / count for name, count in num_blocks.items()]
    return ParameterTotals(
        num_parameters=elements(tensors),
        num_tensors=float(sum(t.repeats for t in tensors)),
        num_cast=elements(cast),
        num_cast_tensors=float(sum(t.repeats for t in cast)),
        num_cast_in_blocks=elements([t for t in cast if t.block is not None]),
        num_cast_tensors_in_blocks=float(sum(t.repeats for t in cast if t.block is not None)),
        num_outside_blocks=elements([t for t in tensors if t.block is None]),
        largest_block=max(per_block, default=elements(tensors)),
        largest_tensor=float(max((t.num_elements for t in tensors), default=0)),
        num_blocks=float(sum(num_blocks.values())) or 1.0,
    )


def compile_operations(listing: OperationList) -> CompiledOperations:
    """Arrays over the operations of one list."""
    operations = listing.operations
    by_kind = {kind: [o for o in operations if o.kind is kind] for kind in OperationKind}

    def total(attribute: str, chosen: Sequence[Operation]) -> Size:
        result = ZERO
        for operation in chosen:
            result = result + getattr(operation, attribute) * operation.repeats
        return result

    in_blocks = [o for o in operations if o.block is not None]
    logits = [o for o in operations if o.component is Component.LOGITS]
    activations = [o for o in operations if o.component is not Component.LOGITS]
    block_saved, block_inputs = [], []
    for group in listing.blocks:
        saved = total("saved_bytes", [o for o in operations if o.block == group.name])
        block_saved.append(saved * (1.0 / max(1, group.num_blocks)))
        block_inputs.append(group.input_bytes * float(group.num_blocks))
    with_transient = [o for o in operations if any(o.transient_bytes.coefficients)]
    return CompiledOperations(
        matrix_products=_shaped(by_kind[OperationKind.MATRIX_PRODUCT]),
        attentions=_shaped(by_kind[OperationKind.ATTENTION]),
        convolutions=_shaped(by_kind[OperationKind.CONVOLUTION]),
        scans=_shaped(by_kind[OperationKind.SCAN]),
        totals=_matrix(
            [
                total("forward_bytes", operations),
                total("backward_bytes", operations),
                total("forward_bytes", in_blocks),
                total("saved_bytes", activations),
                total("saved_bytes", [o for o in activations if o.block is None]),
                total("saved_bytes", logits),
                listing.input_bytes,
            ]
        ),
        transients=_matrix([o.transient_bytes for o in with_transient]),
        transient_is_logits=np.array([o.component is Component.LOGITS for o in with_transient], dtype=bool),
        transient_in_block=np.array([o.block is not None for o in with_transient], dtype=bool),
        block_saved=_matrix(block_saved),
        block_inputs=_matrix(block_inputs),
        forward_kernels=sum(o.repeats * o.forward_kernels for o in operations),
        backward_kernels=sum(o.repeats * o.backward_kernels for o in operations),
        forward_kernels_in_blocks=sum(o.repeats * o.forward_kernels for o in in_blocks),
        parameters=_parameter_totals(listing.parameters, listing.blocks),
        active_parameter_fraction=listing.active_parameter_fraction,
    )


@lru_cache(maxsize=512)
def compiled_operations(model: ModelSpec, context: OperationContext) -> CompiledOperations:
    """The arrays of one model in one variant, kept for later batches."""
    return compile_operations(operation_list(model, context))
