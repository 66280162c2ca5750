"""ConvNeXt (V1 and V2) image classifiers as transformers runs them."""

from ...specs.models.convnext import ConvNextSpec
from ...specs.operations import ParameterKind, ParameterTensor

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
