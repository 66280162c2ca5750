"""ConvNeXt (V1 and V2) image classifiers as transformers runs them."""

from ...specs.models.convnext import ConvNextSpec
from ...specs.operations import SAMPLES, OperationContext, OperationList, ParameterKind, ParameterTensor, Size, as_size
from .building_blocks import activation, add, convolution, layer_norm, linear, multiply, scale
from .forward_graph import FP32_BYTES, ForwardGraph, Tensor
from .lowering import operations_of
from .sample_blocks import (
    block_edge,
    classify,
    drop_path,
    image_batch_bytes,
    layer_scale,
    mean_over_positions,
    pixels,
)

KERNEL = 7
"""Side of the depthwise window."""
EXPANSION = 4


def block_name(stage: int) -> str:
    """Blocks of one stage are equal; those of different stages are not."""
    return f"stage{stage}"


def parameter_tensors(spec: ConvNextSpec) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor."""
    matrix, vector, norm = ParameterKind.MATRIX, ParameterKind.VECTOR, ParameterKind.NORM
    first, last = spec.hidden_sizes[0], spec.hidden_sizes[-1]
    patch = (first, spec.num_channels, spec.patch_size, spec.patch_size)
    tensors = [
        ParameterTensor(name="patch_embeddings", shape=patch, kind=matrix),
        ParameterTensor(name="patch_embeddings_bias", shape=(first,), kind=vector),
        ParameterTensor(name="embedding_norm", shape=(first,), kind=norm, repeats=2),
        ParameterTensor(name="final_norm", shape=(last,), kind=norm, repeats=2),
        ParameterTensor(name="classifier", shape=(spec.num_labels, last), kind=matrix),
        ParameterTensor(name="classifier_bias", shape=(spec.num_labels,), kind=vector),
    ]
    for stage, (width, depth) in enumerate(zip(spec.hidden_sizes, spec.depths, strict=True)):
        if stage > 0:
            tensors += _downsampling_tensors(stage, spec.hidden_sizes[stage - 1], width)
        tensors += _block_tensors(spec, stage, width, depth)
    return tuple(tensors)


def _downsampling_tensors(stage: int, before: int, width: int) -> list[ParameterTensor]:
    name = f"downsampling{stage}"
    return [
        ParameterTensor(name=f"{name}_norm", shape=(before,), kind=ParameterKind.NORM, repeats=2),
        ParameterTensor(name=name, shape=(width, before, 2, 2), kind=ParameterKind.MATRIX),
        ParameterTensor(name=f"{name}_bias", shape=(width,), kind=ParameterKind.VECTOR),
    ]


def _block_tensors(spec: ConvNextSpec, stage: int, width: int, depth: int) -> list[ParameterTensor]:
    block = block_name(stage)

    def per_block(name: str, shape: tuple[int, ...], kind: ParameterKind, count: int = 1) -> ParameterTensor:
        return ParameterTensor(name=f"{block}_{name}", shape=shape, kind=kind, block=block, repeats=count * depth)

    wide = EXPANSION * width
    tensors = [
        per_block("depthwise", (width, 1, KERNEL, KERNEL), ParameterKind.MATRIX),
        per_block("depthwise_bias", (width,), ParameterKind.VECTOR),
        per_block("norm", (width,), ParameterKind.NORM, 2),
        per_block("up", (wide, width), ParameterKind.MATRIX),
        per_block("up_bias", (wide,), ParameterKind.VECTOR),
        per_block("down", (width, wide), ParameterKind.MATRIX),
        per_block("down_bias", (width,), ParameterKind.VECTOR),
    ]
    if spec.has_layer_scale:
        tensors.append(per_block("layer_scale", (width,), ParameterKind.NORM))
    if spec.has_global_response_norm:
        tensors.append(per_block("global_response_norm", (1, 1, 1, wide), ParameterKind.NORM, 2))
    return tensors


def operation_list(spec: ConvNextSpec, context: OperationContext) -> OperationList:
    """One micro batch of image classification. The image size is part of the model, so sizes grow with samples only.

    After the stem everything lies channels-last: the norm's permuted output makes cuDNN choose that layout, so the
    permutations of later norms and linears move nothing. Neglected: cuDNN's layout changes of weights.
    Source: transformers 5.24, models/convnext/modeling_convnext.py and convnextv2/modeling_convnextv2.py.
    """
    graph = ForwardGraph(context)
    x = _stem(graph, spec)
    class_name = "ConvNextV2Layer" if spec.model_type == "convnextv2" else "ConvNextLayer"
    for stage, (width, depth) in enumerate(zip(spec.hidden_sizes, spec.depths, strict=True)):
        if stage > 0:
            x = _downsampling(graph, spec, stage, x)
        x = block_edge(graph, "stage_input", x)
        block_input = _stream(graph, spec, x, stage)
        with graph.block(block_name(stage), depth, (_mean_of(graph, x, block_input, depth),), class_name=class_name):
            x = graph.own(block_edge(graph, "block_output", _block(graph, spec, stage, width, block_input)))
    pooled = mean_over_positions(graph, "pooling", x, spec.hidden_sizes[-1])
    pooled = layer_norm(graph, "final_norm", pooled, spec.hidden_sizes[-1])
    classify(graph, pooled, spec.hidden_sizes[-1], spec.num_labels)
    return OperationList(
        operations=operations_of(graph),
        blocks=tuple(graph.blocks),
        parameters=parameter_tensors(spec),
        input_bytes=image_batch_bytes(spec.num_channels, spec.image_size),
    )


def _positions(spec: ConvNextSpec, stage: int) -> Size:
    """Pixels of the feature maps of the whole batch."""
    return SAMPLES * spec.side_of_stage(stage) ** 2


def _stem(graph: ForwardGraph, spec: ConvNextSpec) -> Tensor:
    """Patches, then a norm over channels of a channels-first map, which the kernel first makes contiguous."""
    width = spec.hidden_sizes[0]
    x = convolution(
        graph,
        "patch_embeddings",
        pixels(graph, spec.num_channels, spec.image_size),
        outputs=_positions(spec, 0),
        window=spec.patch_size**2,
        in_channels=spec.num_channels,
        out_channels=width,
    )
    x = layer_norm(graph, "embedding_norm", x, width)
    norm = graph.nodes[-1]
    norm.forward_bytes = norm.forward_bytes + x.num_bytes * 2
    norm.backward_bytes = norm.backward_bytes + x.num_bytes * 2
    return x


def _downsampling(graph: ForwardGraph, spec: ConvNextSpec, stage: int, x: Tensor) -> Tensor:
    """Norm, then a 2 x 2 convolution of stride 2."""
    before, width = spec.hidden_sizes[stage - 1], spec.hidden_sizes[stage]
    x = layer_norm(graph, f"downsampling{stage}_norm", x, before)
    return convolution(
        graph,
        f"downsampling{stage}",
        x,
        outputs=_positions(spec, stage),
        window=4,
        in_channels=before,
        out_channels=width,
    )


def _stream(graph: ForwardGraph, spec: ConvNextSpec, x: Tensor, stage: int) -> Tensor:
    """The residual stream as all but the first block of a stage find it: under autocast the fp32 layer scale
    promotes it, though a stage begins with the 16 bit of its convolution; the stem's norm starts in fp32."""
    is_promoted = spec.has_layer_scale or stage == 0
    return graph.new(x.elements, graph.parameter_width if is_promoted else x.width)


def _mean_of(graph: ForwardGraph, first: Tensor, later: Tensor, depth: int) -> Tensor:
    """An input of the mean size over the blocks of a stage."""
    share = (first.width + later.width * (depth - 1)) / (later.width * depth)
    return graph.new(later.elements * share, later.width)


def _block(graph: ForwardGraph, spec: ConvNextSpec, stage: int, width: int, x: Tensor) -> Tensor:
    """Depthwise convolution, norm, pointwise up, activation, pointwise down, layer scale, stochastic depth."""
    wide = EXPANSION * width
    with graph.residual(x):
        y = convolution(
            graph,
            "depthwise",
            x,
            outputs=_positions(spec, stage),
            window=KERNEL**2,
            in_channels=width,
            out_channels=width,
            groups=width,
        )
        y = layer_norm(graph, "norm", y, width)
        y = activation(graph, "activation", linear(graph, "up", y, width, wide, has_bias=True), spec.activation)
        if spec.has_global_response_norm:
            y = _global_response_norm(graph, y, wide)
        y = linear(graph, "down", y, wide, width, has_bias=True)
        if spec.has_layer_scale:
            y = layer_scale(graph, "layer_scale", y, width)
        with graph.repeated(_dropped_blocks(spec, stage)):
            y = drop_path(graph, "drop_path", y, spec.drop_path_rate)
    return add(graph, "residual", y, x)


def _dropped_blocks(spec: ConvNextSpec, stage: int) -> float:
    """The rate grows linearly from 0, so the very first block drops nothing."""
    return float(spec.depths[stage] - (1 if stage == 0 else 0))


def _global_response_norm(graph: ForwardGraph, x: Tensor, width: int) -> Tensor:
    """weight * (x * n) + bias + x, where n is each channel's norm over the image relative to the mean channel."""
    with graph.group("global_response_norm"):
        norms = graph.new(SAMPLES * width, FP32_BYTES if graph.is_autocast else x.width)
        graph.record("channel_norms", (x,), norms, saved=(x, norms), backward_kernels=3.0, is_reduction=True)
        relative = scale(graph, "relative_norms", norms)
        scaled = multiply(graph, "response", x, relative)
        weight = graph.resident(as_size(width), requires_grad=True)
        y = multiply(graph, "response", scaled, weight)
        y = add(graph, "response", y, graph.resident(as_size(width), requires_grad=True))
        return add(graph, "response", y, x)
