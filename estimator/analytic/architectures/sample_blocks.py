"""Kernels that these families add to the shared building blocks: classification heads, edges of wrapped blocks."""

from ...specs.operations import SAMPLES, ZERO, Size, as_size
from .building_blocks import cast, cross_entropy, linear, multiply, scale
from .forward_graph import FP32_BYTES, INT64_BYTES, ForwardGraph, Tensor


def pixels(graph: ForwardGraph, num_channels: int, image_size: int) -> Tensor:
    """The batch of images: fp32, or what the weights are where nothing else casts (DeepSpeed's 16 bit)."""
    width = FP32_BYTES if graph.is_autocast else graph.parameter_width
    return graph.resident(SAMPLES * (num_channels * image_size**2), width)


def image_batch_bytes(num_channels: int, image_size: int) -> Size:
    """Images as loaded (fp32) and one label a sample."""
    return SAMPLES * (FP32_BYTES * num_channels * image_size**2 + INT64_BYTES)


def layer_scale(graph: ForwardGraph, name: str, x: Tensor, width: int) -> Tensor:
    """x times one learned factor a channel; fp32 factors promote the result under autocast."""
    return multiply(graph, name, x, graph.resident(as_size(width), requires_grad=True))


def drop_path(graph: ForwardGraph, name: str, x: Tensor, rate: float) -> Tensor:
    """Stochastic depth: x / keep, times a random 0 or 1 a sample that three tiny kernels draw."""
    if rate == 0:
        return x
    with graph.group(name):
        drawn = graph.new(SAMPLES, x.width, requires_grad=False)
        graph.record(name, (), drawn, forward_kernels=3.0)
        return multiply(graph, name, scale(graph, name, x), drawn)


def block_edge(graph: ForwardGraph, name: str, x: Tensor) -> Tensor:
    """What enters or leaves a block that FSDP2 wraps: its mixed precision policy, as accelerate sets it, casts inputs
    and outputs of every wrapped block to the dtype of the gathered weights. Nothing happens elsewhere."""
    is_narrowed = graph.is_autocast and graph.parameter_width < x.width
    return cast(graph, name, x, graph.parameter_width) if is_narrowed else x


def heads(graph: ForwardGraph, x: Tensor) -> Tensor:
    """A projection seen head by head: a transposed view."""
    return graph.view(x, is_contiguous=False)


def first_token(graph: ForwardGraph, name: str, x: Tensor, width: int) -> Tensor:
    """x[:, 0]: a view that keeps all of x alive; backward zeroes a whole gradient and copies into it."""
    view = graph.view(x, SAMPLES * width)
    graph.record(
        name,
        (x,),
        view,
        forward_bytes=ZERO,
        forward_kernels=0.0,
        backward_bytes=x.num_bytes + view.num_bytes * 2,
        backward_kernels=2.0,
        transient_bytes=x.num_bytes,
    )
    return view


def mean_over_positions(graph: ForwardGraph, name: str, x: Tensor, width: int) -> Tensor:
    """The mean over all positions of a sample; backward spreads the gradient over them."""
    output = graph.new(SAMPLES * width, x.width)
    graph.record(name, (x,), output, backward_kernels=2.0, is_reduction=True)
    return output


def classify(graph: ForwardGraph, x: Tensor, width: int, num_labels: int) -> None:
    """The classification head and its cross entropy."""
    logits = linear(graph, "classifier", x, width, num_labels, has_bias=True)
    cross_entropy(graph, "loss", logits, num_labels)
