"""BERT and RoBERTa as transformers runs them: post-norm blocks, masked language modelling over every position."""

from ...specs.models.encoder import EncoderSpec
from ...specs.operations import ParameterKind, ParameterTensor

BLOCK = "layer"


def parameter_tensors(spec: EncoderSpec) -> tuple[ParameterTensor, ...]:
    """Every parameter tensor; a tied decoder matrix and its bias once."""
    hidden, width, layers = spec.hidden_size, spec.intermediate_size, spec.num_hidden_layers
    matrix, vector, norm, embedding = (
        ParameterKind.MATRIX, ParameterKind.VECTOR, ParameterKind.NORM, ParameterKind.EMBEDDING,
    )  # fmt: skip

    def per_layer(name: str, shape: tuple[int, ...], kind: ParameterKind, count: int = 1) -> ParameterTensor:
        return ParameterTensor(name=name, shape=shape, kind=kind, block=BLOCK, repeats=count * layers)

    tensors = [
        ParameterTensor(
            name="word_embeddings",
            shape=(spec.vocab_size, hidden),
            kind=embedding,
            is_tied_matrix=spec.tie_word_embeddings,
        ),
        ParameterTensor(name="position_embeddings", shape=(spec.max_position_embeddings, hidden), kind=embedding),
        ParameterTensor(name="token_type_embeddings", shape=(spec.type_vocab_size, hidden), kind=embedding),
        ParameterTensor(name="embedding_norm", shape=(hidden,), kind=norm, repeats=2),
        per_layer("query_key_value_output", (hidden, hidden), matrix, 4),
        per_layer("query_key_value_output_bias", (hidden,), vector, 4),
        per_layer("intermediate", (width, hidden), matrix),
        per_layer("intermediate_bias", (width,), vector),
        per_layer("output", (hidden, width), matrix),
        per_layer("output_bias", (hidden,), vector),
        per_layer("norms", (hidden,), norm, 4),
        ParameterTensor(name="head_transform", shape=(hidden, hidden), kind=matrix),
        ParameterTensor(name="head_transform_bias", shape=(hidden,), kind=vector),
        ParameterTensor(name="head_norm", shape=(hidden,), kind=norm, repeats=2),
        ParameterTensor(name="decoder_bias", shape=(spec.vocab_size,), kind=vector),
    ]
    if not spec.tie_word_embeddings:
        # transformers then keeps the head's own bias beside the decoder's.
        tensors.append(ParameterTensor(name="decoder", shape=(spec.vocab_size, hidden), kind=matrix))
        tensors.append(ParameterTensor(name="head_bias", shape=(spec.vocab_size,), kind=vector))
    if spec.head == "pre_training":
        tensors += [
            ParameterTensor(name="pooler", shape=(hidden, hidden), kind=matrix),
            ParameterTensor(name="pooler_bias", shape=(hidden,), kind=vector),
            ParameterTensor(name="next_sentence", shape=(2, hidden), kind=matrix),
            ParameterTensor(name="next_sentence_bias", shape=(2,), kind=vector),
        ]
    return tuple(tensors)
