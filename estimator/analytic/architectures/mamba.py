"""Mamba language models as transformers runs them with the fused kernels (mamba-ssm, causal-conv1d)."""

from ...specs.models.mamba import MambaSpec
from ...specs.operations import (
    LENGTH,
    SAMPLES,
    TOKENS,
    ZERO,
    Component,
    OperationContext,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
    Size,
    as_size,
)
from .building_blocks import add, cast, copy, cross_entropy, embedding, linear, pointwise, rms_norm, scale
from .forward_graph import FP32_BYTES, INT64_BYTES, ForwardGraph, Tensor
from .lowering import operations_of
from .sample_blocks import block_edge

BLOCK = "block"


def parameter_tensors(spec: MambaSpec) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor; a tied output matrix once."""
    hidden, inner, layers = spec.hidden_size, spec.intermediate_size, spec.num_hidden_layers
    matrix, vector, norm, embedding = (
        ParameterKind.MATRIX, ParameterKind.VECTOR, ParameterKind.NORM, ParameterKind.EMBEDDING,
    )  # fmt: skip

    def per_layer(name: str, shape: tuple[int, ...], kind: ParameterKind) -> ParameterTensor:
        return ParameterTensor(name=name, shape=shape, kind=kind, block=BLOCK, repeats=layers)

    tensors = [
        ParameterTensor(
            name="embeddings", shape=(spec.vocab_size, hidden), kind=embedding, is_tied_matrix=spec.tie_word_embeddings
        ),
        per_layer("norm", (hidden,), norm),
        per_layer("in_proj", (2 * inner, hidden), matrix),
        per_layer("x_proj", (spec.time_step_rank + 2 * spec.state_size, inner), matrix),
        per_layer("dt_proj", (inner, spec.time_step_rank), matrix),
        # The fused kernel takes these in fp32 whatever the precision.
        per_layer("conv1d", (inner, 1, spec.conv_kernel), norm),
        per_layer("dt_proj_bias", (inner,), norm),
        per_layer("a_log", (inner, spec.state_size), norm),
        per_layer("d", (inner,), norm),
        per_layer("out_proj", (hidden, inner), matrix),
        ParameterTensor(name="final_norm", shape=(hidden,), kind=norm),
    ]
    if spec.has_conv_bias:
        tensors.append(per_layer("conv1d_bias", (inner,), norm))
    if spec.has_bias:
        tensors += [per_layer("in_proj_bias", (2 * inner,), vector), per_layer("out_proj_bias", (hidden,), vector)]
    if not spec.tie_word_embeddings:
        tensors.append(ParameterTensor(name="lm_head", shape=(spec.vocab_size, hidden), kind=matrix))
    return tuple(tensors)


SCAN_CHUNK = 2048
"""Positions that one thread block scans; the state between chunks is kept (mamba_ssm, selective_scan_fwd_kernel)."""


def operation_list(spec: MambaSpec, context: OperationContext) -> OperationList:
    """One micro batch of causal language modelling with the fused kernels.

    Source: transformers 5.24, models/mamba/modeling_mamba.py; ``MambaInnerFn`` of mamba_ssm (checkpoint level 1: its
    backward pass computes the convolution and the time steps again). The step-by-step code that transformers runs
    where those kernels are not installed is one to two orders slower and is not modelled.
    """
    graph = ForwardGraph(context)
    x = embedding(graph, "embeddings", spec.vocab_size, spec.hidden_size)
    # From the second block on the stream is fp32, unless the edge of a wrapped block narrows it again.
    is_wide = spec.residual_in_fp32 and not graph.is_autocast
    stream = graph.new(x.elements, FP32_BYTES if is_wide else x.width)
    with graph.block(BLOCK, spec.num_hidden_layers, (stream,), class_name="MambaBlock"):
        x = block_edge(graph, "block_output", _block(graph, spec, stream))
    x = rms_norm(graph, "final_norm", graph.own(x), spec.hidden_size)
    x = cast(graph, "head_cast", x, graph.parameter_width)
    logits = linear(graph, "lm_head", x, spec.hidden_size, spec.vocab_size, has_bias=False)
    logits = cast(graph, "logits_upcast", logits, FP32_BYTES, component=Component.LOGITS)
    cross_entropy(graph, "loss", logits, spec.vocab_size)
    return OperationList(
        operations=operations_of(graph),
        blocks=tuple(graph.blocks),
        parameters=parameter_tensors(spec),
        input_bytes=TOKENS * (2 * INT64_BYTES),  # ids, labels
    )


def _block(graph: ForwardGraph, spec: MambaSpec, x: Tensor) -> Tensor:
    """Norm of the stream in the dtype of the weights, mixer, sum with the stream in fp32."""
    residual = cast(graph, "residual_upcast", x, FP32_BYTES) if spec.residual_in_fp32 else x
    with graph.residual(residual):
        y = rms_norm(graph, "norm", cast(graph, "norm_cast", x, graph.parameter_width), spec.hidden_size)
        y = _mixer(graph, spec, y)
    return add(graph, "residual", y, residual)


def _mixer(graph: ForwardGraph, spec: MambaSpec, x: Tensor) -> Tensor:
    """in_proj, then one autograd function: convolution, x_proj, dt_proj, selective scan, out_proj.

    Per token and channel of the fused part (d channels, n states, r the rank of time steps): it keeps the two
    halves of in_proj's output, x_proj's output (r + 2 n), B and C laid out anew (2 n) and the scan's output (d).
    """
    inner, state, rank = spec.intermediate_size, spec.state_size, spec.time_step_rank
    tokens, channels = TOKENS, TOKENS * inner
    xz = linear(graph, "in_proj", x, spec.hidden_size, 2 * inner, has_bias=spec.has_bias)
    xz = copy(graph, "in_proj_layout", xz)
    decay = _decay(graph, spec)
    hidden = _convolution(graph, xz, channels)
    projected = _inner_product(graph, "x_proj", hidden, tokens, inner, rank + 2 * state)
    steps = _inner_product(graph, "dt_proj", projected, tokens, rank, inner)
    matrices = graph.new(tokens * (2 * state), projected.width)
    graph.record("scan_layout", (projected,), matrices, saved=(projected, matrices), forward_kernels=2.0)
    output = _scan(graph, spec, xz, hidden, steps, matrices, decay)
    gated = copy(graph, "out_proj_layout", output)
    result = _inner_product(graph, "out_proj", gated, tokens, inner, spec.hidden_size)
    if spec.has_bias:
        graph.nodes[-1].backward_bytes = graph.nodes[-1].backward_bytes + result.num_bytes
    return result


def _decay(graph: ForwardGraph, spec: MambaSpec) -> Tensor:
    """A = -exp(A_log) in fp32, once a block and step, whatever the batch."""
    size = as_size(spec.intermediate_size * spec.state_size)
    log = graph.resident(size, requires_grad=True)
    with graph.group("decay"):
        rate = pointwise(graph, "decay", cast(graph, "decay", log, FP32_BYTES), saves_output=True)
        return scale(graph, "decay", rate)


def _convolution(graph: ForwardGraph, xz: Tensor, channels: Size) -> Tensor:
    """causal-conv1d with its SiLU, one pass over memory; backward runs the forward again. Its few FLOPs (2 x window
    a value) are never the limit."""
    hidden = graph.new(channels, xz.width)
    graph.record(
        "conv1d",
        (xz,),
        hidden,
        saved=(xz,),
        forward_bytes=hidden.num_bytes * 2,
        backward_bytes=hidden.num_bytes * 5,
        backward_kernels=2.0,
        is_barrier=True,
    )
    return hidden


def _inner_product(graph: ForwardGraph, name: str, x: Tensor, rows: Size, k: int, n: int) -> Tensor:
    """A matrix product inside the fused function, which keeps its input itself or computes it again."""
    output = graph.new(rows * n, graph.compute_width)
    node = graph.record(
        name,
        (x, graph.resident(as_size(k * n), graph.compute_width, requires_grad=True)),
        output,
        forward_bytes=ZERO,
        backward_bytes=ZERO,
        backward_kernels=2.0,
        kind=OperationKind.MATRIX_PRODUCT,
    )
    node.m, node.k, node.n, node.has_weight = rows, as_size(k), as_size(n), True
    return output


def _scan(
    graph: ForwardGraph,
    spec: MambaSpec,
    xz: Tensor,
    hidden: Tensor,
    steps: Tensor,
    matrices: Tensor,
    decay: Tensor,
) -> Tensor:
    """The selective scan with its gate.

    Arithmetic limits it (about nine operations a state, and 16 states a channel), so no bytes are stated. Saved: the
    output, and two fp32 numbers a state, channel and chunk of 2,048 positions; a shorter last chunk counts by its
    length (at most 4 % of the block at 512 positions).
    """
    output = graph.new(hidden.elements, hidden.width)
    between_chunks = graph.new(hidden.elements * (2 * spec.state_size / SCAN_CHUNK), FP32_BYTES)
    node = graph.record(
        "selective_scan",
        (xz, hidden, steps, matrices, decay),
        output,
        saved=(xz, matrices, decay, output, between_chunks),
        forward_bytes=ZERO,
        backward_bytes=ZERO,
        backward_kernels=1.0,
        kind=OperationKind.SCAN,
    )
    node.m, node.n, node.k = SAMPLES * spec.intermediate_size, LENGTH, as_size(spec.state_size)
    return output
