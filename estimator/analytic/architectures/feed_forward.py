"""The MLP of a decoder block, and the experts that stand in its place."""

from ...specs.models.decoder import DecoderSpec
from ...specs.operations import TOKENS, ZERO, OperationKind, Size, as_size
from .building_blocks import activation, add, cast, linear, multiply, softmax, split
from .forward_graph import FP32_BYTES, INT64_BYTES, ForwardGraph, Tensor


def mlp(graph: ForwardGraph, spec: DecoderSpec, x: Tensor, width: int, prefix: str = "") -> Tensor:
    """down(act(gate(x)) * up(x)), or down(act(up(x)))."""
    hidden, has_bias = spec.hidden_size, spec.has_mlp_bias
    if not spec.is_mlp_gated:
        inner = linear(graph, f"{prefix}up", x, hidden, width, has_bias=has_bias)
        inner = bloom_gelu(graph, inner) if spec.model_type == "bloom" else _activated(graph, spec, prefix, inner)
        return linear(graph, f"{prefix}down", inner, width, hidden, has_bias=has_bias)
    if spec.is_gate_up_fused:
        fused = linear(graph, f"{prefix}gate_up", x, hidden, 2 * width, has_bias=has_bias)
        gate, up = split(graph, f"{prefix}gate_up_split", fused, [fused.elements * 0.5] * 2)
        inner = multiply(graph, f"{prefix}gating", up, _activated(graph, spec, prefix, gate))
    else:
        gate = _activated(graph, spec, prefix, linear(graph, f"{prefix}gate", x, hidden, width, has_bias=has_bias))
        up = linear(graph, f"{prefix}up", x, hidden, width, has_bias=has_bias)
        inner = multiply(graph, f"{prefix}gating", gate, up)
    return linear(graph, f"{prefix}down", inner, width, hidden, has_bias=has_bias)


def _activated(graph: ForwardGraph, spec: DecoderSpec, prefix: str, x: Tensor) -> Tensor:
    return activation(graph, f"{prefix}activation", x, spec.activation)


def bloom_gelu(graph: ForwardGraph, x: Tensor) -> Tensor:
    """BLOOM's own autograd function: nine elementwise kernels forward, 22 backward, saving the input only."""
    output = graph.like(x)
    graph.record(
        "activation",
        (x,),
        output,
        saved=(x,),
        forward_bytes=x.num_bytes * 21,
        forward_kernels=9.0,
        backward_bytes=x.num_bytes * 52,
        backward_kernels=22.0,
        transient_bytes=x.num_bytes * 5,
    )
    return output


def experts_branch(graph: ForwardGraph, spec: DecoderSpec, x: Tensor) -> Tensor:
    """Router, experts by grouped products (transformers' ``grouped_mm``), and the shared expert.

    b s tokens go to k experts each: S = b s k rows, sorted by expert, gathered, multiplied by one grouped kernel
    per weight (m = S / experts rows on average, as if the routing were even), weighted, put back in order, summed
    over k.
    """
    assert spec.moe is not None
    moe, hidden = spec.moe, spec.hidden_size
    shared = None
    if moe.shared_expert_intermediate_size is not None:
        shared = mlp(graph, spec, x, moe.shared_expert_intermediate_size, "shared_expert_")
    scores = _routed(graph, spec, x)
    output = _experts(graph, spec, x, scores)
    if shared is None:
        return output
    if moe.has_shared_expert_gate:
        gate = linear(graph, "shared_expert_gate", x, hidden, 1, has_bias=False)
        shared = multiply(
            graph, "shared_expert_gating", shared, activation(graph, "shared_expert_gating", gate, "sigmoid")
        )
    return add(graph, "shared_expert_add", output, shared)


def _routed(graph: ForwardGraph, spec: DecoderSpec, x: Tensor) -> Tensor:
    """Router weights of the chosen experts: linear, fp32 softmax over all experts, top-k, normalised."""
    assert spec.moe is not None
    moe, chosen = spec.moe, TOKENS * spec.moe.num_experts_per_tok
    logits = linear(graph, "router", x, spec.hidden_size, moe.num_experts, has_bias=False)
    with graph.group("routing"):
        if spec.model_type == "mixtral":
            logits = cast(graph, "routing", logits, FP32_BYTES)
        probabilities = softmax(graph, "routing", logits, is_fp32=True)
        scores = graph.new(chosen, FP32_BYTES)
        indices = graph.new(chosen, INT64_BYTES, requires_grad=False)
        graph.record("routing", (probabilities,), scores, saved=(indices,), is_reduction=True, is_barrier=True)
        if moe.has_normalised_scores:
            total = graph.new(TOKENS, FP32_BYTES)
            graph.record("routing", (scores,), total, is_reduction=True)
            # Divided in place: the result lies in the same memory and is what is saved.
            scores = multiply(graph, "routing", scores, total)
        return scores if spec.model_type == "mixtral" else cast(graph, "routing", scores, graph.compute_width)


def _experts(graph: ForwardGraph, spec: DecoderSpec, x: Tensor, scores: Tensor) -> Tensor:
    assert spec.moe is not None
    moe, hidden, width = spec.moe, spec.hidden_size, spec.moe.moe_intermediate_size
    rows = TOKENS * moe.num_experts_per_tok
    with graph.group("dispatch"):
        order = graph.new(rows, INT64_BYTES, requires_grad=False)
        # sort, histogram, running sum, inverse permutation of S indices
        graph.record("dispatch", (), order, forward_bytes=rows * (8 * INT64_BYTES), forward_kernels=8.0)
        gathered = _gathered(graph, x, rows * hidden, order)
        weights = _gathered(graph, scores, rows, order)
    inner = _grouped(graph, "experts_gate_up", gathered, rows, hidden, 2 * width, moe.num_experts)
    gate, up = split(graph, "experts_gating", inner, [rows * width] * 2)
    inner = multiply(graph, "experts_gating", activation(graph, "experts_gating", gate, spec.activation), up)
    output = _grouped(graph, "experts_down", inner, rows, width, hidden, moe.num_experts)
    with graph.group("combine"):
        weighted = multiply(graph, "combine", output, weights)
        ordered = _gathered(graph, weighted, weighted.elements, order)
        summed = graph.new(TOKENS * hidden, ordered.width)
        graph.record("combine", (ordered,), summed, is_reduction=True)
        return cast(graph, "combine", summed, x.width)


def _gathered(graph: ForwardGraph, x: Tensor, elements: Size, order: Tensor) -> Tensor:
    """x[order]; backward adds rows into a zeroed gradient (index_put with accumulation sorts its indices)."""
    output = graph.new(elements, x.width)
    backward = output.num_bytes * 2 + x.num_bytes * 2
    graph.record("gather", (x, order), output, saved=(order,), backward_bytes=backward, backward_kernels=8.0)
    return output


def _grouped(
    graph: ForwardGraph, name: str, x: Tensor, rows: Size, inputs: int, outputs: int, num_experts: int
) -> Tensor:
    """One grouped product. transformers casts its input to the dtype of the weights, then autocast casts both down.

    One kernel in bf16 on Hopper and newer; elsewhere (and in fp32) PyTorch loops over the experts, which only fp32
    is charged for here.
    """
    if graph.is_autocast:
        x = cast(graph, f"{name}_cast", cast(graph, f"{name}_cast", x, graph.parameter_width), graph.compute_width)
    num_kernels = float(num_experts) if graph.compute_width == FP32_BYTES else 1.0
    output = graph.new(rows * outputs, x.width)
    weight = graph.resident(as_size(num_experts * inputs * outputs), graph.compute_width, requires_grad=True)
    node = graph.record(
        name,
        (x, weight),
        output,
        saved=(x,),
        forward_bytes=ZERO,
        forward_kernels=num_kernels,
        backward_bytes=ZERO,
        backward_kernels=2.0 * num_kernels,
        kind=OperationKind.MATRIX_PRODUCT,
    )
    node.batch, node.m = as_size(num_experts), rows * (1 / num_experts)
    node.k, node.n, node.has_weight = as_size(inputs), as_size(outputs), True
    return output


