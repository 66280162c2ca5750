"""Model shapes of public rows as specs, by the conventions of each family."""

from typing import Protocol

from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.models.encoder import EncoderSpec

_GPT2_VOCABULARY = 50257
_UNTIED = ("llama-3.1-8b", "llama-3.1-70b")


class Shape(Protocol):
    """The columns of a row that describe its model."""

    @property
    def id(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def hidden(self) -> int | None: ...
    @property
    def layers(self) -> int | None: ...
    @property
    def heads(self) -> int | None: ...
    @property
    def kv_heads(self) -> int | None: ...
    @property
    def ffn(self) -> int | None: ...
    @property
    def vocab(self) -> int | None: ...
    @property
    def seq_len(self) -> int | None: ...


def model_of_shape(shape: Shape) -> DecoderSpec | EncoderSpec:
    """The spec of a row that states its shape.

    BERT: 512 positions, masked language model. Llama 3: rotary positions, RMS norm, gated MLP, no biases. Everything
    else is of the GPT kind: learned positions as long as the sequence, layer norm, biases, GELU, tied output matrix
    (OPT: ReLU, separate projections; MPT: exact GELU, no dropout, as its published parameter counts require).
    """
    name = shape.model or ""
    assert shape.hidden
    assert shape.layers
    assert shape.heads
    assert shape.seq_len
    width = shape.ffn or 4 * shape.hidden
    if name.startswith("bert"):
        return EncoderSpec(
            name=name,
            model_type="bert",
            source=shape.id,
            vocab_size=shape.vocab or 30522,
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            intermediate_size=width,
            max_position_embeddings=512,
            type_vocab_size=2,
        )
    is_llama, is_opt, is_mpt = name.startswith("llama"), name.startswith("opt"), name.startswith("mpt")
    dropout = 0.0 if is_llama or is_mpt or name == "gpt2-124m" else 0.1
    activation = "silu" if is_llama else "relu" if is_opt else "gelu" if is_mpt else "gelu_new"
    return DecoderSpec(
        name=name,
        model_type="llama" if is_llama else "opt" if is_opt else "gpt2",
        source=shape.id.rsplit("-", 1)[0],
        vocab_size=shape.vocab or _GPT2_VOCABULARY,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads or shape.heads,
        head_dim=shape.hidden // shape.heads,
        intermediate_size=width,
        max_position_embeddings=shape.seq_len,
        is_mlp_gated=is_llama,
        activation=activation,
        norm="rms_norm" if is_llama else "layer_norm",
        has_norm_bias=not is_llama,
        norms_per_block=2,
        is_residual_parallel=False,
        has_qkv_bias=not is_llama,
        has_attention_output_bias=not is_llama,
        has_mlp_bias=not is_llama,
        is_qkv_fused=not (is_llama or is_opt),
        position="rope" if is_llama else "learned",
        num_learned_positions=None if is_llama else shape.seq_len,
        tie_word_embeddings=name not in _UNTIED,
        attention_dropout=0.0 if is_opt else dropout,
        hidden_dropout=dropout,
        embedding_dropout=0.0 if is_opt else dropout,
    )
