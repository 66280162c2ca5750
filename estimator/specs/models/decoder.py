"""Decoder-only language models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureOfExperts:
    """Sparse MLP layers."""

    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int | None = None
    """One dense expert that every token passes (Qwen MoE); None without."""
    has_shared_expert_gate: bool = False
    has_normalised_scores: bool = True
    """norm_topk_prob: router weights of the chosen experts sum to one."""
    num_dense_layers: int = 0
    """Layers with a plain MLP instead of experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSpec:
    """A causal language model of the GPT / Llama kind. Hugging Face spellings; nothing inferred silently."""

    name: str
    model_type: str
    """Hugging Face ``model_type``: ``gpt_neox``, ``llama``, ..."""
    source: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int | None
    is_mlp_gated: bool
    activation: str
    """``gelu``, ``gelu_new`` (several kernels in eager), ``silu``, ``relu``."""
    norm: str
    """``layer_norm`` (weight and bias) or ``rms_norm`` (weight, computed in fp32 by several kernels in eager)."""
    has_norm_bias: bool
    norms_per_block: int
    """2 usually; 1 for Phi's shared norm; 4 for Gemma 2's sandwich."""
    has_norm_weight: bool = True
    """False for OLMo, whose norms have no parameters."""
    norm_placement: str = "pre"
    """``pre`` before each branch; ``post`` on each branch's output (OLMo 2); ``sandwich`` both (Gemma 2 and 3);
    ``after_residual`` (OPT-350M)."""
    is_residual_parallel: bool
    """GPT-NeoX and Phi: attention and MLP read the same residual and are added together."""
    has_qkv_bias: bool
    has_attention_output_bias: bool
    has_mlp_bias: bool
    is_qkv_fused: bool
    """One matrix product for queries, keys and values (GPT-2, GPT-NeoX, Phi-3)."""
    is_gate_up_fused: bool = False
    qk_norm: str | None = None
    """``head`` (Qwen 3, Gemma 3: over head_dim), ``full`` (OLMo 2: over all heads), None without."""
    has_qkv_clipping: bool = False
    """OLMo's clip_qkv."""
    position: str = "rope"
    """``rope``, ``learned`` or ``alibi`` (BLOOM)."""
    num_rope_layers: int | None = None
    """SmolLM 3 leaves some layers without positions; None for all."""
    is_embedding_scaled: bool = False
    """Gemma multiplies embeddings by sqrt(hidden_size)."""
    rotary_fraction: float = 1.0
    num_learned_positions: int | None = None
    """Rows of the learned table (OPT: 2 more than positions)."""
    tie_word_embeddings: bool = False
    has_lm_head_bias: bool = False
    embedding_size: int | None = None
    """OPT-350M's word_embed_proj_dim; None where equal to hidden_size."""
    has_final_norm: bool = True
    has_embedding_norm: bool = False
    """BLOOM."""
    attention_dropout: float = 0.0
    hidden_dropout: float = 0.0
    embedding_dropout: float = 0.0
    sliding_window: int | None = None
    num_sliding_layers: int = 0
    """Layers whose attention sees the window only; the others see everything."""
    logit_softcap: float | None = None
    attention_softcap: float | None = None
    """Gemma 2: needs eager attention, SDPA cannot do it."""
    moe: MixtureOfExperts | None = None

    @property
    def family(self) -> str:
        return "decoder" if self.moe is None else "moe"
