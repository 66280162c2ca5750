"""Mamba language models as transformers runs them with the fused kernels (mamba-ssm, causal-conv1d)."""

from ...specs.models.mamba import MambaSpec
from ...specs.operations import ParameterKind, ParameterTensor

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
