"""ViT, DeiT and DINOv2 image classifiers as transformers runs them."""

from ...specs.models.vision import VisionTransformerSpec
from ...specs.operations import ParameterKind, ParameterTensor

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
