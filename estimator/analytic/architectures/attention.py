"""Attention as it really runs: fused kernels, transformers' eager code, or SDPA's math fallback."""

from collections.abc import Callable
from dataclasses import dataclass

from ...specs.operations import LENGTH, SAMPLES, ZERO, AttentionPath, OperationKind, Size, as_size
from .building_blocks import add, batched_product, cast, copy, dropout, operand, pointwise, scale, softmax
from .forward_graph import FP32_BYTES, ForwardGraph, Tensor

LOG_SUM_EXP_ALIGNMENT = 32
"""The memory-efficient kernel pads its row statistics to a multiple of this (PyTorch, kAlignLSE)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionShape:
    """What the attention of one layer computes."""

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    length: Size = LENGTH
    """Tokens per sample: queries and keys alike."""
    is_causal: bool = True
    dropout: float = 0.0
    is_masked: bool = True
    """Eager code adds a mask to the scores (causal models always, encoders only with padding)."""
    has_fp32_softmax: bool = True
    """Eager code asks for an fp32 softmax and casts back to the dtype of the queries."""
    casts_probabilities: bool = True
    """Eager code casts the softmax's result before dropout; BERT and DINOv2 leave that to autocast at the product."""
    has_fp32_scores: bool = False
    """Eager code casts queries and keys to fp32 before their product (GPT-J)."""
    has_position_bias: bool = False
    """ALiBi, added inside the product of queries and keys; there is no other code than the eager one (BLOOM)."""
    softcap: float | None = None
    """Gemma 2: cap * tanh(scores / cap), eager only."""
    window: int | None = None
    """Keys per query in sliding layers; None where every layer sees everything."""
    num_sliding_layers: float = 0.0
    """Layers with the window, of those recorded at once."""

    @property
    def scores(self) -> Size:
        """Elements of one layer's score matrix: samples x heads x queries x keys."""
        return SAMPLES * self.num_heads * self.length * self.length

    @property
    def batch(self) -> Size:
        """Independent attention problems."""
        return SAMPLES * self.num_heads

    @property
    def groups(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_key_value_heads


def attention(graph: ForwardGraph, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """The attention output, heads joined, ready for the output projection."""
    if graph.attention is AttentionPath.MATH or shape.softcap is not None or shape.has_position_bias:
        return _eager(graph, query, key, value, shape)
    if graph.attention is AttentionPath.SDPA_MATH:
        return _sdpa_math(graph, query, key, value, shape)
    return _fused(graph, query, key, value, shape)


def _fused(graph: ForwardGraph, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """One kernel forward; backward two small ones and a large one. Saves queries, keys, values, the output and
    log-sum-exp of each row (fp32). FLASH reads grouped keys as they are, EFFICIENT needs them repeated."""
    query, key, value = (operand(graph, "attention", x) for x in (query, key, value))
    if shape.groups > 1 and graph.attention is AttentionPath.EFFICIENT:
        key, value = (copy(graph, "repeat_key_value", x, query.elements) for x in (key, value))
    rows = shape.batch * shape.length
    if graph.attention is AttentionPath.EFFICIENT:
        rows = shape.batch * _aligned(shape.length)
    output = graph.new(query.elements, query.width)
    statistics = graph.new(rows, FP32_BYTES)
    node = graph.record(
        "attention",
        (query, key, value),
        output,
        saved=(query, key, value, output, statistics),
        forward_bytes=ZERO,
        backward_bytes=ZERO,
        backward_kernels=3.0,
        kind=OperationKind.ATTENTION,
    )
    node.batch, node.m, node.n, node.k = shape.batch, shape.length, shape.length, as_size(shape.head_dim)
    node.is_causal, node.key_value_groups = shape.is_causal, float(shape.groups)
    node.window, node.window_repeats = shape.window, shape.num_sliding_layers
    if graph.attention is AttentionPath.FLASH and query.is_contiguous:
        # Flash writes its output with the strides of the queries; head by head, the projection needs a copy.
        return copy(graph, "join_heads", output)
    return output


def _aligned(length: Size) -> Size:
    """A constant length padded as the kernel pads it; a variable one is taken as aligned already."""
    constant = length.coefficients[0]
    if length.coefficients[1:] != (0.0,) * 5:
        return length
    return as_size(-(-int(constant) // LOG_SUM_EXP_ALIGNMENT) * LOG_SUM_EXP_ALIGNMENT)


def _scores_product(graph: ForwardGraph, query: Tensor, key: Tensor, shape: AttentionShape) -> Tensor:
    return batched_product(
        graph, "attention_scores", query, key,
        batch=shape.batch, m=shape.length, k=as_size(shape.head_dim), n=shape.length, is_causal=shape.is_causal,
    )  # fmt: skip


def _values_product(graph: ForwardGraph, weights: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    return batched_product(
        graph, "attention_values", weights, value,
        batch=shape.batch, m=shape.length, k=shape.length, n=as_size(shape.head_dim), is_causal=shape.is_causal,
    )  # fmt: skip


def _eager(graph: ForwardGraph, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """matmul, scale, mask, softmax, cast, dropout, matmul, over all (query, key) pairs.

    matmul needs its operands as (samples x heads) contiguous matrices, but projections give (samples, length,
    heads): each operand is copied, and the copies are what is saved.
    """
    score_dtype = query.width
    if shape.groups > 1:
        # repeat_kv copies; the copy is contiguous already.
        key, value = (copy(graph, "repeat_key_value", x, query.elements) for x in (key, value))
    if shape.has_fp32_scores:
        query, key = (cast(graph, "attention_upcast", x, FP32_BYTES) for x in (query, key))
    scores = _scores_product(graph, _contiguous(graph, query), _contiguous(graph, key), shape)
    with graph.group("attention_softmax"):
        if not shape.has_position_bias:
            scores = scale(graph, "scale", scores)
        if shape.softcap is not None:
            capped = pointwise(graph, "softcap", scale(graph, "softcap", scores), saves_output=True)
            scores = scale(graph, "softcap", capped)
        if shape.is_masked:
            scores = add(graph, "mask", scores, _mask(graph, shape, graph.parameter_width))
        weights = softmax(graph, "softmax", scores, is_fp32=shape.has_fp32_softmax or graph.is_autocast)
        if shape.casts_probabilities:
            weights = cast(graph, "cast", weights, score_dtype if shape.has_fp32_softmax else value.width)
        weights = dropout(graph, "attention_dropout", weights, shape.dropout)
    output = _values_product(graph, weights, _contiguous(graph, value), shape)
    return copy(graph, "join_heads", output)


def _contiguous(graph: ForwardGraph, x: Tensor) -> Tensor:
    """The copy that matmul makes of a transposed operand (after autocast's cast, which keeps the strides)."""
    x = operand(graph, "attention_operand", x)
    return x if x.is_contiguous else copy(graph, "attention_operand", x)


def _mask(graph: ForwardGraph, shape: AttentionShape, width: int) -> Tensor:
    """The additive mask (1, 1, queries, keys), made once for all layers."""
    return graph.resident(shape.length * shape.length, width)


def _sdpa_math(graph: ForwardGraph, query: Tensor, key: Tensor, value: Tensor, shape: AttentionShape) -> Tensor:
    """``_scaled_dot_product_attention_math``: 16-bit inputs are computed in fp32, queries and keys are scaled
    first, a causal mask is built for each layer."""
    query, key, value = (operand(graph, "attention", x) for x in (query, key, value))
    dtype = query.width
    if shape.groups > 1:
        key, value = (copy(graph, "repeat_key_value", x, query.elements) for x in (key, value))
    query, key, value = (cast(graph, "attention_upcast", x, FP32_BYTES) for x in (query, key, value))
    query, key = (scale(graph, "attention_scale", x) for x in (query, key))
    query, key, value = (
        x if x.is_contiguous else copy(graph, "attention_operand", x) for x in (query, key, value)
    )
    scores = _unlisted(graph, _scores_product, query, key, shape)
    with graph.group("attention_softmax"):
        if shape.is_causal:
            scores = add(graph, "mask", scores, _mask(graph, shape, scores.width))
        weights = softmax(graph, "softmax", scores, is_fp32=False)
        weights = dropout(graph, "attention_dropout", weights, shape.dropout)
    output = _unlisted(graph, _values_product, weights, value, shape)
    return copy(graph, "join_heads", cast(graph, "attention_downcast", output, dtype))


def _unlisted(
    graph: ForwardGraph,
    product: Callable[[ForwardGraph, Tensor, Tensor, AttentionShape], Tensor],
    a: Tensor,
    b: Tensor,
    shape: AttentionShape,
) -> Tensor:
    """A product inside SDPA: autocast has done its work before and does not see it."""
    is_autocast, graph.is_autocast = graph.is_autocast, False
    output = product(graph, a, b, shape)
    graph.is_autocast = is_autocast
    return output
