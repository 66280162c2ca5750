"""ViT, DeiT and DINOv2 image classifiers as transformers runs them."""

from ...specs.models.vision import VisionTransformerSpec
from ...specs.operations import SAMPLES, OperationContext, OperationList, ParameterKind, ParameterTensor, as_size
from .attention import AttentionShape, attention
from .building_blocks import activation, add, cast, concatenate, convolution, dropout, layer_norm, linear, multiply
from .forward_graph import FP32_BYTES, ForwardGraph, Tensor
from .lowering import operations_of
from .sample_blocks import (
    classify,
    drop_path,
    first_token,
    heads,
    image_batch_bytes,
    layer_scale,
    mean_over_positions,
    pixels,
)

BLOCK = "layer"


def parameter_tensors(spec: VisionTransformerSpec) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor."""
    hidden, width, layers = spec.hidden_size, spec.intermediate_size, spec.num_hidden_layers
    matrix, vector, norm = ParameterKind.MATRIX, ParameterKind.VECTOR, ParameterKind.NORM

    def per_layer(name: str, shape: tuple[int, ...], kind: ParameterKind, count: int = 1) -> ParameterTensor:
        return ParameterTensor(name=name, shape=shape, kind=kind, block=BLOCK, repeats=count * layers)

    is_dinov2 = spec.model_type == "dinov2"
    num_up = 2 if spec.is_mlp_gated else 1
    tensors = [
        ParameterTensor(name="prefix_tokens", shape=(1, 1, hidden), kind=norm, repeats=spec.num_prefix_tokens),
        ParameterTensor(name="position_embeddings", shape=(1, spec.num_positions, hidden), kind=norm),
        ParameterTensor(
            name="patch_projection", shape=(hidden, spec.num_channels, spec.patch_size, spec.patch_size), kind=matrix
        ),
        ParameterTensor(name="patch_projection_bias", shape=(hidden,), kind=vector),
        per_layer("query_key_value_output", (hidden, hidden), matrix, 4),
        per_layer("query_key_value_output_bias", (hidden,), vector, 4 if spec.has_qkv_bias else 1),
        per_layer("up", (width, hidden), matrix, num_up),
        per_layer("up_bias", (width,), vector, num_up),
        per_layer("down", (hidden, width), matrix),
        per_layer("down_bias", (hidden,), vector),
        per_layer("norms", (hidden,), norm, 4),
        ParameterTensor(name="final_norm", shape=(hidden,), kind=norm, repeats=2),
        # DINOv2 classifies the class token beside the mean of the patches.
        ParameterTensor(name="classifier", shape=(spec.num_labels, hidden * (2 if is_dinov2 else 1)), kind=matrix),
        ParameterTensor(name="classifier_bias", shape=(spec.num_labels,), kind=vector),
    ]
    if spec.has_mask_token:
        tensors.append(ParameterTensor(name="mask_token", shape=(1, hidden), kind=norm))
    if spec.has_layer_scale:
        tensors.append(per_layer("layer_scales", (hidden,), norm, 2))
    return tuple(tensors)


def operation_list(spec: VisionTransformerSpec, context: OperationContext) -> OperationList:
    """One micro batch of image classification. The image size is part of the model, so sizes grow with samples only.

    Source: transformers 5.24, models/vit/modeling_vit.py, deit/modeling_deit.py, dinov2/modeling_dinov2.py.
    """
    graph = ForwardGraph(context)
    hidden = spec.hidden_size
    x = _embeddings(graph, spec)
    class_name = {"vit": "ViTLayer", "deit": "DeiTLayer", "dinov2": "Dinov2Layer"}[spec.model_type]
    with graph.block(BLOCK, spec.num_hidden_layers, (x,), class_name=class_name):
        x = _layer(graph, spec, graph.own(x))
    x = layer_norm(graph, "final_norm", graph.own(x), hidden)
    pooled = first_token(graph, "class_token", x, hidden)
    if spec.model_type == "dinov2":
        patches = graph.view(x, SAMPLES * (spec.num_patches * hidden))
        mean = mean_over_positions(graph, "patch_mean", patches, hidden)
        pooled = concatenate(graph, "class_and_mean", (pooled, mean))
        hidden *= 2
    classify(graph, pooled, hidden, spec.num_labels)
    return OperationList(
        operations=operations_of(graph),
        blocks=tuple(graph.blocks),
        parameters=parameter_tensors(spec),
        input_bytes=image_batch_bytes(spec.num_channels, spec.image_size),
    )


def _embeddings(graph: ForwardGraph, spec: VisionTransformerSpec) -> Tensor:
    """Patches by a convolution whose stride is its window, class token in front, learned positions added."""
    hidden = spec.hidden_size
    patches = convolution(
        graph,
        "patch_projection",
        pixels(graph, spec.num_channels, spec.image_size),
        outputs=SAMPLES * spec.num_patches,
        window=spec.patch_size**2,
        in_channels=spec.num_channels,
        out_channels=hidden,
    )
    prefix = graph.resident(SAMPLES * (spec.num_prefix_tokens * hidden), requires_grad=True)
    x = concatenate(graph, "prefix_tokens", (patches, prefix))
    x = add(graph, "positions", x, _positions(graph, spec))
    return dropout(graph, "embedding_dropout", x, spec.hidden_dropout)


def _positions(graph: ForwardGraph, spec: VisionTransformerSpec) -> Tensor:
    """The position table, or its bicubic interpolation (in fp32, once for the batch) to another image size."""
    table = graph.resident(as_size(spec.num_positions * spec.hidden_size), requires_grad=True)
    if spec.image_size == spec.position_image_size:
        return table
    positions = graph.new(as_size(spec.num_tokens * spec.hidden_size), FP32_BYTES)
    graph.record("interpolated_positions", (table,), positions, forward_kernels=3.0, backward_kernels=4.0)
    return cast(graph, "interpolated_positions", positions, graph.parameter_width)


def _layer(graph: ForwardGraph, spec: VisionTransformerSpec, x: Tensor) -> Tensor:
    """A pre-norm block."""
    hidden = spec.hidden_size
    shape = AttentionShape(
        num_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_attention_heads,
        head_dim=spec.head_dim,
        length=as_size(spec.num_tokens),
        is_causal=False,
        dropout=spec.attention_dropout,
        is_masked=False,
        has_fp32_softmax=spec.model_type != "dinov2",
        casts_probabilities=spec.model_type != "dinov2",
    )
    with graph.residual(x):
        y = layer_norm(graph, "attention_norm", x, hidden)
        query, key, value = (
            heads(graph, linear(graph, name, y, hidden, hidden, has_bias=spec.has_qkv_bias))
            for name in ("query", "key", "value")
        )
        y = attention(graph, query, key, value, shape)
        y = linear(graph, "attention_output", y, hidden, hidden, has_bias=True)
        y = _regularised(graph, spec, "attention", y)
    x = add(graph, "attention_residual", y, x)
    with graph.residual(x):
        y = _mlp(graph, spec, layer_norm(graph, "mlp_norm", x, hidden))
        y = _regularised(graph, spec, "mlp", y)
    return add(graph, "mlp_residual", y, x)


def _mlp(graph: ForwardGraph, spec: VisionTransformerSpec, x: Tensor) -> Tensor:
    """Up, activation, down; DINOv2-giant gates."""
    hidden, width = spec.hidden_size, spec.intermediate_size
    if spec.is_mlp_gated:
        gate = activation(graph, "activation", linear(graph, "gate", x, hidden, width, has_bias=True), "silu")
        y = multiply(graph, "gating", gate, linear(graph, "up", x, hidden, width, has_bias=True))
    else:
        y = activation(graph, "activation", linear(graph, "up", x, hidden, width, has_bias=True), spec.activation)
    return linear(graph, "down", y, width, hidden, has_bias=True)


def _regularised(graph: ForwardGraph, spec: VisionTransformerSpec, name: str, x: Tensor) -> Tensor:
    """What happens to the output of a branch before it joins the residual stream."""
    if spec.has_layer_scale:
        x = layer_scale(graph, f"{name}_layer_scale", x, spec.hidden_size)
        return drop_path(graph, f"{name}_drop_path", x, spec.drop_path_rate)
    return dropout(graph, f"{name}_dropout", x, spec.hidden_dropout)
