"""Parameter tensors of decoder-only language models, dense and with experts."""

from ...specs.models.decoder import DecoderSpec, MixtureOfExperts
from ...specs.operations import ParameterKind, ParameterTensor

BLOCK = "block"
"""Blocks with a plain MLP, or with experts where the model has any."""
DENSE_BLOCK = "dense_block"
"""Blocks with a plain MLP in a model whose other blocks have experts."""


class _Tensors:
    """Collects tensors of one kind of block (or of none)."""

    def __init__(self, block: str | None, num_blocks: int) -> None:
        self.block = block
        self.num_blocks = num_blocks
        self.tensors: list[ParameterTensor] = []

    def add(self, name: str, shape: tuple[int, ...], kind: ParameterKind, count: int = 1) -> None:
        repeats = count * self.num_blocks
        self.tensors.append(ParameterTensor(name=name, shape=shape, kind=kind, block=self.block, repeats=repeats))

    def add_linear(self, name: str, inputs: int, outputs: int, *, has_bias: bool, count: int = 1) -> None:
        self.add(name, (outputs, inputs), ParameterKind.MATRIX, count)
        if has_bias:
            self.add(f"{name}_bias", (outputs,), ParameterKind.VECTOR, count)

    def add_norm(self, name: str, width: int, spec: DecoderSpec, count: int = 1) -> None:
        if spec.has_norm_weight:
            self.add(name, (width,), ParameterKind.NORM, count * (1 + spec.has_norm_bias))


def parameter_tensors(spec: DecoderSpec) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor; a tied output matrix once."""
    outside = _Tensors(None, 1)
    embedding_size = spec.embedding_size or spec.hidden_size
    outside.tensors.append(
        ParameterTensor(
            name="embedding",
            shape=(spec.vocab_size, embedding_size),
            kind=ParameterKind.EMBEDDING,
            is_tied_matrix=spec.tie_word_embeddings,
        )
    )
    if spec.position == "learned":
        rows = spec.num_learned_positions or 0
        outside.add("position_embedding", (rows, spec.hidden_size), ParameterKind.EMBEDDING)
    if embedding_size != spec.hidden_size:
        outside.add_linear("project_in", embedding_size, spec.hidden_size, has_bias=False)
        outside.add_linear("project_out", spec.hidden_size, embedding_size, has_bias=False)
    if spec.has_embedding_norm:
        outside.add_norm("embedding_norm", spec.hidden_size, spec)
    if spec.has_final_norm:
        outside.add_norm("final_norm", spec.hidden_size, spec)
    if not spec.tie_word_embeddings:
        outside.add("lm_head", (spec.vocab_size, embedding_size), ParameterKind.MATRIX)
    if spec.has_lm_head_bias:
        outside.add("lm_head_bias", (spec.vocab_size,), ParameterKind.VECTOR)
    tensors = outside.tensors
    num_dense = 0 if spec.moe is None else spec.moe.num_dense_layers
    if num_dense:
        tensors += _block_tensors(spec, _Tensors(DENSE_BLOCK, num_dense), None)
    num_main = spec.num_hidden_layers - num_dense
    if num_main:
        tensors += _block_tensors(spec, _Tensors(BLOCK, num_main), spec.moe)
    return tuple(tensors)


def _block_tensors(spec: DecoderSpec, block: _Tensors, moe: MixtureOfExperts | None) -> list[ParameterTensor]:
    hidden = spec.hidden_size
    query = spec.num_attention_heads * spec.head_dim
    key = spec.num_key_value_heads * spec.head_dim
    block.add_norm("norm", hidden, spec, spec.norms_per_block)
    if spec.is_qkv_fused:
        block.add_linear("query_key_value", hidden, query + 2 * key, has_bias=spec.has_qkv_bias)
    else:
        block.add_linear("query", hidden, query, has_bias=spec.has_qkv_bias)
        block.add_linear("key_value", hidden, key, has_bias=spec.has_qkv_bias, count=2)
    if spec.qk_norm == "head":
        block.add("qk_norm", (spec.head_dim,), ParameterKind.NORM, 2)
    elif spec.qk_norm == "full":
        block.add("query_norm", (query,), ParameterKind.NORM)
        block.add("key_norm", (key,), ParameterKind.NORM)
    block.add_linear("attention_output", query, hidden, has_bias=spec.has_attention_output_bias)
    if moe is None:
        _add_mlp(spec, block, "", spec.intermediate_size)
        return block.tensors
    block.add("router", (moe.num_experts, hidden), ParameterKind.MATRIX)
    block.add("experts_gate_up", (moe.num_experts, 2 * moe.moe_intermediate_size, hidden), ParameterKind.MATRIX)
    block.add("experts_down", (moe.num_experts, hidden, moe.moe_intermediate_size), ParameterKind.MATRIX)
    if moe.shared_expert_intermediate_size is not None:
        _add_mlp(spec, block, "shared_expert_", moe.shared_expert_intermediate_size)
    if moe.has_shared_expert_gate:
        block.add("shared_expert_gate", (1, hidden), ParameterKind.MATRIX)
    return block.tensors


def _add_mlp(spec: DecoderSpec, block: _Tensors, prefix: str, width: int) -> None:
    hidden, has_bias = spec.hidden_size, spec.has_mlp_bias
    if spec.is_mlp_gated and spec.is_gate_up_fused:
        block.add_linear(f"{prefix}gate_up", hidden, 2 * width, has_bias=has_bias)
    else:
        block.add_linear(f"{prefix}up", hidden, width, has_bias=has_bias, count=2 if spec.is_mlp_gated else 1)
    block.add_linear(f"{prefix}down", width, hidden, has_bias=has_bias)


def active_parameter_fraction(spec: DecoderSpec) -> float:
    """Share of the parameters that one token passes through: experts_per_token / experts of the expert weights,
    everything else whole."""
    if spec.moe is None:
        return 1.0
    total = active = 0.0
    for tensor in parameter_tensors(spec):
        elements = tensor.num_elements * tensor.repeats
        total += elements
        is_expert = tensor.name.startswith("experts_")
        active += elements * (spec.moe.num_experts_per_tok / spec.moe.num_experts if is_expert else 1.0)
    return active / total
