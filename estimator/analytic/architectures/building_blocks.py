"""Kernels that every family is made of, as PyTorch 2.13 and transformers 5.24 dispatch them on CUDA.

Each function records what runs in eager mode under the graph's numerics: casts of autocast (every use of an
activation casts it again; only weights are cached), upcasts that a model asks for, and what autograd saves.
"""

from collections.abc import Sequence

from ...specs.operations import LENGTH, TOKENS, ZERO, Component, OperationKind, Size, as_size
from .forward_graph import FP32_BYTES, ForwardGraph, Tensor


def embedding(graph: ForwardGraph, name: str, rows: int, width: int, positions: Size | None = TOKENS) -> Tensor:
    """Look up ``positions`` rows of a table (rows x width); None: one sample's positions for all samples.

    Forward reads and writes the rows looked up. Backward zeroes a dense gradient of the whole table, sorts the
    indices and adds the rows (aten/native/cuda/Embedding.cu: about eight small kernels).
    """
    output = graph.new((LENGTH if positions is None else positions) * width, graph.parameter_width)
    table = graph.resident(as_size(rows * width), requires_grad=True)
    graph.record(
        name,
        (table,),
        output,
        forward_bytes=output.num_bytes * 2,
        backward_bytes=table.num_bytes + output.num_bytes * 3,
        backward_kernels=8,
        transient_bytes=output.num_bytes,
        is_barrier=True,
    )
    return output


def cast(
    graph: ForwardGraph, name: str, x: Tensor, width: int, *, component: Component = Component.ACTIVATIONS
) -> Tensor:
    """Another dtype; nothing where it is that already."""
    if x.width == width:
        return x
    output = graph.like(x, width)
    graph.record(name, (x,), output, component=component)
    return output


def operand(graph: ForwardGraph, name: str, x: Tensor) -> Tensor:
    """An operand of a matrix product: autocast casts it to 16 bit on every use."""
    return cast(graph, f"{name}_cast", x, graph.compute_width) if graph.is_autocast else x


def fp32_operand(graph: ForwardGraph, name: str, x: Tensor) -> Tensor:
    """An operand of an operation on autocast's fp32 list (layer_norm, pow, cross_entropy, ...)."""
    return cast(graph, f"{name}_cast", x, FP32_BYTES) if graph.is_autocast else x


def linear(
    graph: ForwardGraph, name: str, x: Tensor, in_features: int, out_features: int, *, has_bias: bool
) -> Tensor:
    """y = x W^T + b over all rows of x. Saves its (cast) input. The bias is added in the product's epilogue; its
    gradient is a sum over rows in the backward pass."""
    x = operand(graph, name, x)
    rows = x.elements * (1 / in_features)
    output = graph.new(rows * out_features, graph.compute_width)
    weight = graph.resident(as_size(in_features * out_features), graph.compute_width, requires_grad=True)
    node = graph.record(
        name,
        (x, weight),
        output,
        saved=(x,),
        forward_bytes=ZERO,
        backward_bytes=output.num_bytes if has_bias else ZERO,
        backward_kernels=(2.0 if x.requires_grad else 1.0) + has_bias,
        kind=OperationKind.MATRIX_PRODUCT,
    )
    node.m, node.k, node.n = rows, as_size(in_features), as_size(out_features)
    node.has_weight, node.has_input_gradient = True, x.requires_grad
    return output


def convolution(
    graph: ForwardGraph,
    name: str,
    x: Tensor,
    *,
    outputs: Size,
    window: int,
    in_channels: int,
    out_channels: int,
    groups: int = 1,
    has_bias: bool = True,
) -> Tensor:
    """A convolution with ``outputs`` positions per channel over the whole batch and ``window`` taps per input
    channel. cuDNN adds the bias in a kernel of its own, and its gradient is a sum."""
    x = operand(graph, name, x)
    output = graph.new(outputs * out_channels, graph.compute_width)
    per_group = in_channels // groups * window
    weight = graph.resident(as_size(per_group * out_channels), graph.compute_width, requires_grad=True)
    node = graph.record(
        name,
        (x, weight),
        output,
        saved=(x,),
        forward_bytes=output.num_bytes * 2 if has_bias else ZERO,
        forward_kernels=1.0 + has_bias,
        backward_bytes=output.num_bytes if has_bias else ZERO,
        backward_kernels=(2.0 if x.requires_grad else 1.0) + has_bias,
        kind=OperationKind.CONVOLUTION,
    )
    node.batch, node.m = as_size(groups), outputs
    node.k, node.n = as_size(per_group), as_size(out_channels // groups)
    node.has_weight, node.has_input_gradient = True, x.requires_grad
    return output


def batched_product(
    graph: ForwardGraph,
    name: str,
    a: Tensor,
    b: Tensor,
    *,
    batch: Size,
    m: Size,
    k: Size,
    n: Size,
    is_causal: bool = False,
) -> Tensor:
    """``batch`` products (m x k)(k x n) of two activations; saves both. ``is_causal``: half of it is hidden by a
    mask later, which saves no time."""
    a, b = operand(graph, name, a), operand(graph, name, b)
    output = graph.new(batch * m * n, max(a.width, b.width))
    node = graph.record(
        name,
        (a, b),
        output,
        saved=(a, b),
        forward_bytes=ZERO,
        backward_bytes=ZERO,
        backward_kernels=2.0,
        kind=OperationKind.MATRIX_PRODUCT,
    )
    node.batch, node.m, node.k, node.n, node.is_causal = batch, m, k, n, is_causal
    return output


def add(graph: ForwardGraph, name: str, a: Tensor, b: Tensor) -> Tensor:
    """a + b in the wider dtype. Backward passes the gradient on: a cast where dtypes differ, a sum where ``b`` was
    broadcast."""
    output = graph.like(a, max(a.width, b.width))
    output.requires_grad = a.requires_grad or b.requires_grad
    backward_bytes, backward_kernels = _reduced_gradients(output, (a, b))
    graph.record(name, (a, b), output, backward_bytes=backward_bytes, backward_kernels=backward_kernels)
    return output


def multiply(graph: ForwardGraph, name: str, a: Tensor, b: Tensor) -> Tensor:
    """a * b in the wider dtype, ``b`` possibly broadcast. Saves each factor that the other's gradient needs."""
    output = graph.like(a, max(a.width, b.width))
    output.requires_grad = a.requires_grad or b.requires_grad
    backward_bytes, backward_kernels = _reduced_gradients(output, (a, b))
    saved = []
    for factor, other in ((a, b), (b, a)):
        if factor.requires_grad:
            saved.append(other)
            backward_bytes = backward_bytes + output.num_bytes * 2 + other.num_bytes
            backward_kernels += 1
    graph.record(name, (a, b), output, saved=saved, backward_bytes=backward_bytes, backward_kernels=backward_kernels)
    return output


def _reduced_gradients(output: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Size, float]:
    """Kernels that make a gradient of the output's shape and dtype fit an input that was broadcast or narrower."""
    moved, kernels = ZERO, 0.0
    for tensor in inputs:
        if tensor.requires_grad and (tensor.elements != output.elements or tensor.width != output.width):
            moved, kernels = moved + output.num_bytes + tensor.num_bytes, kernels + 1
    return moved, kernels


def scale(graph: ForwardGraph, name: str, x: Tensor) -> Tensor:
    """x times (or plus) a number that needs no gradient."""
    output = graph.like(x)
    graph.record(name, (x,), output)
    return output


def copy(graph: ForwardGraph, name: str, x: Tensor, elements: Size | None = None) -> Tensor:
    """Contiguous copy, possibly of a broadcast view with more elements (repeated keys and values)."""
    output = graph.new(x.elements if elements is None else elements, x.width, requires_grad=x.requires_grad)
    graph.record(name, (x,), output)
    return output


def pointwise(
    graph: ForwardGraph, name: str, x: Tensor, *, saves_input: bool = False, saves_output: bool = False
) -> Tensor:
    """One elementwise kernel forward and one backward."""
    output = graph.like(x)
    saved = (x,) * saves_input + (output,) * saves_output
    backward = output.num_bytes * 2 + x.num_bytes
    graph.record(name, (x,), output, saved=saved, backward_bytes=backward)
    return output


ONE_KERNEL_ACTIVATIONS = {"gelu", "gelu_pytorch_tanh", "silu", "swish", "relu", "sigmoid", "tanh"}


def activation(graph: ForwardGraph, name: str, x: Tensor, function: str) -> Tensor:
    """transformers' ACT2FN: one kernel, but for ``gelu_new`` (and its kin ``gelu_fast``), written in Python."""
    if function in ("gelu_new", "gelu_fast"):
        with graph.group(name):
            return _gelu_in_python(graph, name, x, has_power=function == "gelu_new")
    if function not in ONE_KERNEL_ACTIVATIONS:
        raise ValueError(f"activation {function!r} has no kernels here")
    saves_output = function in ("relu", "sigmoid", "tanh")
    return pointwise(graph, name, x, saves_input=not saves_output, saves_output=saves_output)


def _gelu_in_python(graph: ForwardGraph, name: str, x: Tensor, *, has_power: bool) -> Tensor:
    """0.5 x (1 + tanh(c (x + 0.044715 x^3))): eight kernels (autocast runs pow in fp32, and what it meets)."""
    if has_power:
        cube = pointwise(graph, name, fp32_operand(graph, name, x), saves_input=True)
        inner = scale(graph, name, add(graph, name, x, scale(graph, name, cube)))
    else:
        square = multiply(graph, name, scale(graph, name, x), x)
        inner = multiply(graph, name, scale(graph, name, x), scale(graph, name, square))
    shifted = scale(graph, name, pointwise(graph, name, inner, saves_output=True))
    return multiply(graph, name, scale(graph, name, x), shifted)


def split(
    graph: ForwardGraph, name: str, base: Tensor, parts: Sequence[Size], *, is_sliced: bool = False
) -> list[Tensor]:
    """Views of one tensor, the result of ``split`` or ``chunk``: free forward, joined by one kernel backward.

    ``is_sliced``: taken by indexing instead; each part's backward zeroes a whole gradient and copies into it, and
    the gradients are added up.
    """
    views = [graph.view(base, elements, is_contiguous=base.is_contiguous) for elements in parts]
    moved = base.num_bytes * 2
    if is_sliced:
        moved = base.num_bytes * (len(parts) + 3 * (len(parts) - 1))
        for view in views:
            moved = moved + view.num_bytes * 2
    graph.record(
        name,
        (base,),
        views[0],
        forward_bytes=ZERO,
        forward_kernels=0.0,
        backward_bytes=moved,
        backward_kernels=3.0 * len(parts) - 1 if is_sliced else 1.0,
        transient_bytes=base.num_bytes * 2,
    )
    return views


def concatenate(graph: ForwardGraph, name: str, parts: Sequence[Tensor]) -> Tensor:
    """``torch.cat``: one copy forward; its backward is slicing, copied where the pieces are used next."""
    elements, width = sum((part.elements for part in parts), ZERO), max(part.width for part in parts)
    output = graph.new(elements, width, requires_grad=any(part.requires_grad for part in parts))
    graph.record(name, parts, output, backward_bytes=ZERO, backward_kernels=0.0)
    return output


def layer_norm(graph: ForwardGraph, name: str, x: Tensor, width: int, *, has_weight: bool = True) -> Tensor:
    """One fused kernel; in fp32 under autocast. Saves its input and mean and 1/std of each row. Backward: the
    input's gradient, and two kernels for those of weight and bias."""
    with graph.group(name):
        x = fp32_operand(graph, name, x)
        output = graph.new(x.elements, x.width)
        statistics = graph.new(x.elements * (2 / width), FP32_BYTES)
        gradients = 1 + has_weight
        # FSDP's gathered 16-bit weight and bias are cast up on every use.
        casts = 2.0 if has_weight and graph.is_autocast and graph.parameter_width < x.width else 0.0
        graph.record(
            name,
            (x,),
            output,
            saved=(x, statistics),
            backward_bytes=(output.num_bytes + x.num_bytes) * gradients + x.num_bytes,
            forward_kernels=1.0 + casts,
            backward_kernels=(3.0 if has_weight else 1.0) + casts,
            is_reduction=True,
        )
    return output


def rms_norm(graph: ForwardGraph, name: str, x: Tensor, width: int, *, scales_in_fp32: bool = False) -> Tensor:
    """RMSNorm as transformers writes it: x.float(), pow(2), mean, + eps, rsqrt, multiply, cast back, times weight.

    ``scales_in_fp32``: times weight before the cast back (OLMo 2; Gemma, by 1 + weight).
    """
    rows = x.elements * (1 / width)
    weight = graph.resident(as_size(width), requires_grad=True)
    with graph.group(name):
        wide = cast(graph, name, x, FP32_BYTES)
        square = pointwise(graph, name, wide, saves_input=True)
        mean = graph.new(rows, FP32_BYTES)
        graph.record(name, (square,), mean, is_reduction=True)
        rsqrt = pointwise(graph, name, scale(graph, name, mean), saves_output=True)
        normalised = multiply(graph, name, wide, rsqrt)
        if scales_in_fp32:
            return cast(graph, name, multiply(graph, name, normalised, weight), x.width)
        return multiply(graph, name, cast(graph, name, normalised, x.width), weight)


def dropout(graph: ForwardGraph, name: str, x: Tensor, probability: float) -> Tensor:
    """Saves a mask of one byte an element; nothing runs at probability 0."""
    if probability == 0:
        return x
    output = graph.new(x.elements, x.width, requires_grad=x.requires_grad)
    mask = graph.new(x.elements, 1, requires_grad=False)
    graph.record(name, (x,), output, saved=(mask,), forward_bytes=(x.num_bytes + output.num_bytes + mask.num_bytes))
    return output


def softmax(graph: ForwardGraph, name: str, x: Tensor, *, is_fp32: bool) -> Tensor:
    """Softmax over the last dimension. Saves its result. Where fp32 is asked of bf16 a kernel casts first (ATen fuses
    the cast for fp16 alone: aten/src/ATen/native/SoftMax.cpp; that difference is neglected)."""
    x = cast(graph, name, x, FP32_BYTES) if is_fp32 else x
    output = graph.new(x.elements, x.width, requires_grad=x.requires_grad)
    backward = output.num_bytes * 2 + x.num_bytes
    graph.record(name, (x,), output, saved=(output,), backward_bytes=backward, is_reduction=True)
    return output


def cross_entropy(graph: ForwardGraph, name: str, logits: Tensor, num_classes: int) -> None:
    """Mean cross entropy of logits in their own dtype (fp32 under autocast): log_softmax, then nll_loss.

    log_softmax saves its result. In the backward pass that result, nll_loss's zero-filled gradient and
    log_softmax's gradient are alive at once: 12 bytes a logit in fp32, which is the peak of a causal language
    model whose blocks are checkpointed (about 12.5 bytes were measured on an H200 with everything else).
    """
    logits = fp32_operand(graph, name, logits)
    log_probabilities = graph.new(logits.elements, logits.width)
    graph.record(
        name,
        (logits,),
        log_probabilities,
        saved=(log_probabilities,),
        backward_bytes=log_probabilities.num_bytes * 2 + logits.num_bytes,
        component=Component.LOGITS,
        is_reduction=True,
    )
    loss = graph.new(logits.elements * (1 / num_classes), FP32_BYTES)
    graph.record(
        name,
        (log_probabilities,),
        loss,
        forward_bytes=loss.num_bytes * 2,
        backward_bytes=log_probabilities.num_bytes,
        backward_kernels=2,
        transient_bytes=ZERO,
        component=Component.LOGITS,
        is_reduction=True,
    )


