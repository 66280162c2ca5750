"""Encoder-only language models: BERT, RoBERTa."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """A masked language model with post-norm blocks. Hugging Face spellings."""

    name: str
    model_type: str
    """``bert`` or ``roberta``."""
    source: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    """Rows of the learned table (RoBERTa: 2 more than positions)."""
    type_vocab_size: int
    activation: str = "gelu"
    hidden_dropout: float = 0.1
    attention_dropout: float = 0.1
    tie_word_embeddings: bool = True
    head: str = "masked_lm"
    """``masked_lm``, or ``pre_training`` (BERT: with a pooler and next sentence prediction)."""

    @property
    def family(self) -> str:
        return "encoder"

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def max_sequence_length(self) -> int:
        """Longest sequence: RoBERTa numbers positions from padding_idx + 1 = 2."""
        return self.max_position_embeddings - (2 if self.model_type == "roberta" else 0)
