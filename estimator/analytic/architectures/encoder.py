"""BERT and RoBERTa as transformers runs them: post-norm blocks, masked language modelling over every position."""

from ...specs.models.encoder import EncoderSpec
from ...specs.operations import TOKENS, OperationContext, OperationList, ParameterKind, ParameterTensor
from .attention import AttentionShape, attention
from .building_blocks import activation, add, cross_entropy, dropout, embedding, layer_norm, linear
from .forward_graph import INT64_BYTES, ForwardGraph, Tensor
from .lowering import operations_of
from .sample_blocks import block_edge, first_token, heads

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


def operation_list(spec: EncoderSpec, context: OperationContext) -> OperationList:
    """One micro batch of masked language modelling; the output layer runs over every position.

    Neglected: the padding mask (unpadded batches need none).
    Source: transformers 5.24, models/bert/modeling_bert.py and models/roberta/modeling_roberta.py.
    """
    graph = ForwardGraph(context)
    x = _embeddings(graph, spec)
    class_name = "BertLayer" if spec.model_type == "bert" else "RobertaLayer"
    x = block_edge(graph, "first_block_input", x)
    with graph.block(BLOCK, spec.num_hidden_layers, (x,), class_name=class_name):
        x = block_edge(graph, "block_output", _layer(graph, spec, graph.own(x)))
    x = graph.own(x)
    if spec.head == "pre_training":
        _next_sentence(graph, spec, x)
    _language_modelling(graph, spec, x)
    return OperationList(
        operations=operations_of(graph),
        blocks=tuple(graph.blocks),
        parameters=parameter_tensors(spec),
        input_bytes=TOKENS * (3 * INT64_BYTES),  # ids, attention mask, labels
    )


def _embeddings(graph: ForwardGraph, spec: EncoderSpec) -> Tensor:
    """Words, segments and positions; RoBERTa looks positions up for every sample, BERT once."""
    hidden = spec.hidden_size
    _position_ids(graph, spec)
    words = embedding(graph, "word_embeddings", spec.vocab_size, hidden)
    segments = embedding(graph, "token_type_embeddings", spec.type_vocab_size, hidden)
    positions = embedding(
        graph,
        "position_embeddings",
        spec.max_position_embeddings,
        hidden,
        positions=None if spec.model_type == "bert" else TOKENS,
    )
    x = add(graph, "embedding_sum", words, segments)
    x = add(graph, "embedding_sum", x, positions)
    x = layer_norm(graph, "embedding_norm", x, hidden)
    return dropout(graph, "embedding_dropout", x, spec.hidden_dropout)


def _position_ids(graph: ForwardGraph, spec: EncoderSpec) -> None:
    """RoBERTa numbers the tokens that are no padding: a comparison, casts and a running sum over 8-byte integers.
    BERT only gathers the segments of a sample."""
    kernels = 9 if spec.model_type == "roberta" else 1
    ids = graph.new(TOKENS, INT64_BYTES, requires_grad=False)
    graph.record("position_ids", (), ids, forward_bytes=ids.num_bytes * (2 * kernels), forward_kernels=float(kernels))


def _layer(graph: ForwardGraph, spec: EncoderSpec, x: Tensor) -> Tensor:
    """A post-norm block: the norm comes after each residual sum."""
    hidden, width = spec.hidden_size, spec.intermediate_size
    shape = AttentionShape(
        num_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_attention_heads,
        head_dim=spec.head_dim,
        is_causal=False,
        dropout=spec.attention_dropout,
        is_masked=False,
        has_fp32_softmax=False,
        casts_probabilities=False,
    )
    with graph.residual(x):
        query, key, value = (
            heads(graph, linear(graph, name, x, hidden, hidden, has_bias=True)) for name in ("query", "key", "value")
        )
        y = attention(graph, query, key, value, shape)
        y = linear(graph, "attention_output", y, hidden, hidden, has_bias=True)
        y = dropout(graph, "attention_output_dropout", y, spec.hidden_dropout)
    x = layer_norm(graph, "attention_norm", add(graph, "attention_residual", y, x), hidden)
    with graph.residual(x):
        y = linear(graph, "intermediate", x, hidden, width, has_bias=True)
        y = activation(graph, "activation", y, spec.activation)
        y = linear(graph, "output", y, width, hidden, has_bias=True)
        y = dropout(graph, "output_dropout", y, spec.hidden_dropout)
    return layer_norm(graph, "output_norm", add(graph, "output_residual", y, x), hidden)


def _language_modelling(graph: ForwardGraph, spec: EncoderSpec, x: Tensor) -> None:
    """Transform, decoder over the whole vocabulary, loss in the dtype of the logits (fp32 under autocast)."""
    hidden = spec.hidden_size
    function = spec.activation if spec.model_type == "bert" else "gelu"
    x = linear(graph, "head_transform", x, hidden, hidden, has_bias=True)
    x = activation(graph, "head_activation", x, function)
    x = layer_norm(graph, "head_norm", x, hidden)
    logits = linear(graph, "decoder", x, hidden, spec.vocab_size, has_bias=True)
    cross_entropy(graph, "loss", logits, spec.vocab_size)


def _next_sentence(graph: ForwardGraph, spec: EncoderSpec, x: Tensor) -> None:
    """BERT's second pre-training task, on the first token."""
    hidden = spec.hidden_size
    pooled = linear(graph, "pooler", first_token(graph, "first_token", x, hidden), hidden, hidden, has_bias=True)
    pooled = activation(graph, "pooler_activation", pooled, "tanh")
    cross_entropy(graph, "next_sentence_loss", linear(graph, "next_sentence", pooled, hidden, 2, has_bias=True), 2)
