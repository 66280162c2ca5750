"""Decoder-only language models, dense and with experts, as transformers 5.24 runs them in training.

One forward pass over b samples of s tokens with labels, no padding, no key/value cache. What differs between
model types beyond sizes (how queries, keys and values are cut, where dropout stands, what is cast) follows the
``modeling_*.py`` of each.
"""

from ...specs.models.decoder import DecoderSpec
from ...specs.operations import TOKENS, Component, OperationContext, OperationList
from .building_blocks import (
    activation,
    add,
    cast,
    cross_entropy,
    dropout,
    embedding,
    layer_norm,
    linear,
    rms_norm,
    scale,
)
from .decoder_attention import attention_branch, rotary_tables, scales_norm_in_fp32
from .decoder_parameters import BLOCK, DENSE_BLOCK, active_parameter_fraction, parameter_tensors
from .feed_forward import experts_branch, mlp
from .forward_graph import FP32_BYTES, INT64_BYTES, ForwardGraph, Tensor
from .lowering import operations_of

LAYER_CLASSES = {
    "gpt2": "GPT2Block", "gpt_neox": "GPTNeoXLayer", "opt": "OPTDecoderLayer", "llama": "LlamaDecoderLayer",
    "mistral": "MistralDecoderLayer", "qwen2": "Qwen2DecoderLayer", "qwen3": "Qwen3DecoderLayer",
    "gemma": "GemmaDecoderLayer", "gemma2": "Gemma2DecoderLayer", "gemma3_text": "Gemma3DecoderLayer",
    "phi": "PhiDecoderLayer", "phi3": "Phi3DecoderLayer", "gptj": "GPTJBlock", "bloom": "BloomBlock",
    "olmo": "OlmoDecoderLayer", "olmo2": "Olmo2DecoderLayer", "smollm3": "SmolLM3DecoderLayer",
    "stablelm": "StableLmDecoderLayer", "starcoder2": "Starcoder2DecoderLayer",
    "mixtral": "MixtralDecoderLayer", "qwen2_moe": "Qwen2MoeDecoderLayer", "qwen3_moe": "Qwen3MoeDecoderLayer",
}  # fmt: skip
"""transformers' class of one layer, by model type."""

__all__ = ["LAYER_CLASSES", "operation_list", "parameter_tensors"]


def operation_list(spec: DecoderSpec, context: OperationContext) -> OperationList:
    """The operations of one micro batch."""
    graph = ForwardGraph(context)
    _record(graph, spec)
    return OperationList(
        operations=operations_of(graph),
        blocks=tuple(graph.blocks),
        parameters=parameter_tensors(spec),
        input_bytes=TOKENS * (2 * INT64_BYTES),
        active_parameter_fraction=active_parameter_fraction(spec),
    )


def _record(graph: ForwardGraph, spec: DecoderSpec) -> None:
    hidden = _embedded(graph, spec)
    tables = rotary_tables(graph, spec)
    num_dense = 0 if spec.moe is None else spec.moe.num_dense_layers
    for name, num_blocks in ((DENSE_BLOCK, num_dense), (BLOCK, spec.num_hidden_layers - num_dense)):
        if num_blocks == 0:
            continue
        hidden = graph.own(hidden)
        with graph.block(name, num_blocks, (hidden,), class_name=LAYER_CLASSES.get(spec.model_type)):
            hidden = _block(graph, spec, hidden, tables, num_blocks, has_experts=spec.moe is not None and name == BLOCK)
    hidden = graph.own(hidden)
    if spec.has_final_norm:
        hidden = norm(graph, spec, "final_norm", hidden)
    _head(graph, spec, hidden)


def _embedded(graph: ForwardGraph, spec: DecoderSpec) -> Tensor:
    """Token (and position) embeddings up to the first block."""
    width = spec.embedding_size or spec.hidden_size
    hidden = embedding(graph, "embedding", spec.vocab_size, width)
    if spec.is_embedding_scaled:
        hidden = scale(graph, "embedding_scale", hidden)
    if width != spec.hidden_size:
        hidden = linear(graph, "project_in", hidden, width, spec.hidden_size, has_bias=False)
    if spec.position == "learned":
        rows = spec.num_learned_positions or 0
        # OPT numbers positions for each sample; GPT-2 looks one row up for all of them.
        positions = TOKENS if spec.model_type == "opt" else None
        table = embedding(graph, "position_embedding", rows, spec.hidden_size, positions)
        hidden = add(graph, "embedding_add", hidden, table)
    if spec.has_embedding_norm:
        hidden = norm(graph, spec, "embedding_norm", hidden)
    return dropout(graph, "embedding_dropout", hidden, spec.embedding_dropout)


def norm(graph: ForwardGraph, spec: DecoderSpec, name: str, x: Tensor) -> Tensor:
    """The model's norm over the hidden size."""
    if spec.norm == "layer_norm":
        if spec.has_norm_weight:
            return layer_norm(graph, name, x, spec.hidden_size)
        # OLMo: explicitly in fp32, then back.
        with graph.group(name):
            wide = layer_norm(graph, name, cast(graph, name, x, FP32_BYTES), spec.hidden_size, has_weight=False)
            return cast(graph, name, wide, x.width)
    return rms_norm(graph, name, x, spec.hidden_size, scales_in_fp32=scales_norm_in_fp32(spec))


def _block(
    graph: ForwardGraph,
    spec: DecoderSpec,
    x: Tensor,
    tables: tuple[Tensor, Tensor] | None,
    num_blocks: int,
    *,
    has_experts: bool,
) -> Tensor:
    """One transformer layer around its residual stream x."""
    is_before = spec.norm_placement in ("pre", "sandwich")
    is_on_output = spec.norm_placement in ("post", "sandwich")
    with graph.residual(x):
        inner = norm(graph, spec, "attention_norm", x) if is_before else x
        branch = attention_branch(graph, spec, inner, tables, num_blocks)
        if is_on_output:
            branch = norm(graph, spec, "attention_output_norm", branch)
        if spec.is_residual_parallel:
            if spec.norms_per_block == 2:
                inner = norm(graph, spec, "mlp_norm", x)
            return _parallel_sum(graph, spec, x, branch, _feed_forward(graph, spec, inner, has_experts))
    x = add(graph, "attention_residual", x, branch)
    if spec.norm_placement == "after_residual":
        x = norm(graph, spec, "attention_norm", x)
    with graph.residual(x):
        inner = norm(graph, spec, "mlp_norm", x) if is_before else x
        branch = _feed_forward(graph, spec, inner, has_experts)
        if is_on_output:
            branch = norm(graph, spec, "mlp_output_norm", branch)
    x = add(graph, "mlp_residual", x, branch)
    return norm(graph, spec, "mlp_norm", x) if spec.norm_placement == "after_residual" else x


def _parallel_sum(graph: ForwardGraph, spec: DecoderSpec, x: Tensor, attention: Tensor, mlp_output: Tensor) -> Tensor:
    """attention + MLP + residual; StableLM adds the residual first."""
    if spec.model_type == "stablelm":
        return add(graph, "residual", add(graph, "residual", x, attention), mlp_output)
    return add(graph, "residual", x, add(graph, "residual", attention, mlp_output))


def _feed_forward(graph: ForwardGraph, spec: DecoderSpec, x: Tensor, has_experts: bool) -> Tensor:
    if has_experts:
        return experts_branch(graph, spec, x)
    output = mlp(graph, spec, x, spec.intermediate_size)
    return dropout(graph, "mlp_dropout", output, spec.hidden_dropout)


def _head(graph: ForwardGraph, spec: DecoderSpec, hidden: Tensor) -> None:
    """Logits of every position and transformers' causal loss: logits.float(), then cross entropy. The labels are
    shifted, the logits are not copied."""
    width = spec.embedding_size or spec.hidden_size
    if width != spec.hidden_size:
        hidden = linear(graph, "project_out", hidden, spec.hidden_size, width, has_bias=False)
    logits = linear(graph, "lm_head", hidden, width, spec.vocab_size, has_bias=spec.has_lm_head_bias)
    # Where the logits themselves are kept (compiled), they are counted with their producer.
    graph.nodes[-1].component = Component.LOGITS
    if spec.logit_softcap is not None:
        with graph.group("logit_softcap"):
            logits = scale(graph, "softcap", logits)
            logits = activation(graph, "softcap", logits, "tanh")
            logits = scale(graph, "softcap", logits)
    wide = cast(graph, "logits_cast", logits, FP32_BYTES, component=Component.LOGITS)
    cross_entropy(graph, "loss", wide, spec.vocab_size)
