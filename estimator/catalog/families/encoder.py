"""BERT and RoBERTa from a ``config.json``, with the defaults of transformers 5.24."""

from collections.abc import Mapping

from ...specs.errors import Note
from ...specs.models.encoder import EncoderSpec
from .config_fields import MAX_LAYERS, MAX_LENGTH, MAX_VOCABULARY, ConfigFields

MODEL_TYPES = ("bert", "roberta")
_DEFAULT_VOCABULARY = {"bert": 30522, "roberta": 50265}
_HEADS = {"BertForMaskedLM": "masked_lm", "RobertaForMaskedLM": "masked_lm", "BertForPreTraining": "pre_training"}
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu")


def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[EncoderSpec, tuple[Note, ...]]:
    """The encoder that a config describes. Raises SpecError with every problem found."""
    fields = ConfigFields(config, name=name, source=source)
    model_type = fields.choice("model_type", "bert", MODEL_TYPES)
    head = fields.head(
        _HEADS, "masked_lm", assumed="masked language modelling over every position, as in pre-training"
    )
    spec = EncoderSpec(
        name=name,
        model_type=model_type,
        source=source,
        vocab_size=fields.integer("vocab_size", _DEFAULT_VOCABULARY[model_type], maximum=MAX_VOCABULARY),
        hidden_size=fields.integer("hidden_size", 768),
        num_hidden_layers=fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS),
        num_attention_heads=fields.integer("num_attention_heads", 12),
        intermediate_size=fields.integer("intermediate_size", 3072),
        max_position_embeddings=fields.integer("max_position_embeddings", 512, maximum=MAX_LENGTH),
        type_vocab_size=fields.integer("type_vocab_size", 2),
        activation=fields.choice("hidden_act", "gelu", ACTIVATIONS),
        hidden_dropout=fields.fraction("hidden_dropout_prob", 0.1),
        attention_dropout=fields.fraction("attention_probs_dropout_prob", 0.1),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        head=head,
    )
    refuse_indivisible_heads(fields, spec.hidden_size, spec.num_attention_heads)
    for flag in ("is_decoder", "add_cross_attention"):
        if fields.is_given(flag) and fields.boolean(flag, False):
            fields.refuse(flag, f"{flag}=true: a {model_type} decoder is not modelled; use traincast trace for it")
    return spec, fields.finish()


def refuse_indivisible_heads(fields: ConfigFields, hidden_size: int, num_attention_heads: int) -> None:
    """transformers splits hidden_size into equal heads."""
    if fields.are_valid("hidden_size", "num_attention_heads") and hidden_size % num_attention_heads:
        fields.refuse(
            "num_attention_heads",
            f"hidden_size {hidden_size} does not divide into {num_attention_heads} heads; "
            f"change num_attention_heads or hidden_size so that it does",
            code="contradiction",
        )
