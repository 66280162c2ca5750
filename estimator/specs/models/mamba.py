"""Mamba."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """A selective state space language model. Hugging Face spellings."""

    name: str
    model_type: str
    source: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    state_size: int
    intermediate_size: int
    """expand x hidden_size."""
    conv_kernel: int
    time_step_rank: int
    has_bias: bool = False
    has_conv_bias: bool = True
    tie_word_embeddings: bool = True
    residual_in_fp32: bool = True

    @property
    def family(self) -> str:
        return "mamba"
