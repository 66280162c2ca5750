"""The attention branch of a decoder block: projections, norms of queries and keys, rotary positions, kernel."""

from ...specs.models.decoder import DecoderSpec
from ...specs.operations import LENGTH, TOKENS
from .attention import AttentionShape, attention
from .building_blocks import add, cast, concatenate, copy, dropout, linear, multiply, rms_norm, scale, split
from .forward_graph import FP32_BYTES, ForwardGraph, Tensor


def rotary_size(spec: DecoderSpec) -> int:
    """Channels of a head that turn with position: int(head_dim x fraction)."""
    return int(spec.head_dim * spec.rotary_fraction)


def scales_norm_in_fp32(spec: DecoderSpec) -> bool:
    """Whether RMSNorm multiplies by its weight before it casts back."""
    return spec.model_type in ("olmo2", "gemma", "gemma2", "gemma3_text")


def rotary_tables(graph: ForwardGraph, spec: DecoderSpec) -> tuple[Tensor, Tensor] | None:
    """cos and sin of one sample (they do not depend on the batch), made once and kept by every block."""
    if spec.position != "rope":
        return None
    # OLMo keeps the tables in fp32; GPT-J looks half as many columns up and repeats them in each block.
    width = FP32_BYTES if spec.model_type in ("olmo", "olmo2") else graph.parameter_width
    columns = rotary_size(spec) // 2 if spec.model_type == "gptj" else rotary_size(spec)
    cos = graph.new(LENGTH * columns, width, requires_grad=False)
    sin = graph.new(LENGTH * columns, width, requires_grad=False)
    num_kinds = 2 if spec.model_type == "gemma3_text" and 0 < spec.num_sliding_layers < spec.num_hidden_layers else 1
    moved = LENGTH * (columns * num_kinds * (8 * FP32_BYTES + 2 * width))
    node = graph.record("rotary_tables", (), cos, forward_bytes=moved, forward_kernels=9.0 * num_kinds)
    if spec.model_type != "gptj":
        # Saved by the multiplications inside blocks, which all share them.
        node.saved = (cos, sin) if num_kinds == 1 else (cos, sin, graph.like(cos), graph.like(sin))
    return cos, sin


def attention_branch(
    graph: ForwardGraph, spec: DecoderSpec, x: Tensor, tables: tuple[Tensor, Tensor] | None, num_blocks: int
) -> Tensor:
    """From the block's (normalised) input to what is added to the residual stream."""
    query, key, value = _projected(graph, spec, x)
    if spec.model_type == "opt":
        query = scale(graph, "query_scale", query)
    if tables is not None:
        num_rotary = spec.num_hidden_layers if spec.num_rope_layers is None else spec.num_rope_layers
        share = num_rotary / spec.num_hidden_layers
        with graph.repeated(num_blocks * share):
            query = _rotated(graph, spec, "query_rotary", query, tables, spec.num_attention_heads)
            key = _rotated(graph, spec, "key_rotary", key, tables, spec.num_key_value_heads)
    output = attention(graph, query, key, value, attention_shape(spec, num_blocks))
    width = spec.num_attention_heads * spec.head_dim
    output = linear(
        graph, "attention_output", output, width, spec.hidden_size, has_bias=spec.has_attention_output_bias
    )
    # StableLM drops the MLP's output only.
    probability = 0.0 if spec.model_type == "stablelm" else spec.hidden_dropout
    return dropout(graph, "attention_output_dropout", output, probability)


def attention_shape(spec: DecoderSpec, num_blocks: int) -> AttentionShape:
    """What the attention kernel of ``num_blocks`` blocks computes."""
    return AttentionShape(
        num_heads=spec.num_attention_heads,
        num_key_value_heads=spec.num_key_value_heads,
        head_dim=spec.head_dim,
        dropout=spec.attention_dropout,
        has_fp32_softmax=spec.model_type not in ("gpt2", "gptj"),
        has_fp32_scores=spec.model_type == "gptj",
        has_position_bias=spec.position == "alibi",
        softcap=spec.attention_softcap,
        window=spec.sliding_window,
        num_sliding_layers=num_blocks * spec.num_sliding_layers / spec.num_hidden_layers,
    )


def _projected(graph: ForwardGraph, spec: DecoderSpec, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values seen head by head (transposed views)."""
    hidden, dim = spec.hidden_size, spec.head_dim
    widths = [heads * dim for heads in (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)]
    if spec.is_qkv_fused:
        fused = linear(graph, "query_key_value", x, hidden, sum(widths), has_bias=spec.has_qkv_bias)
        fused.is_contiguous = False
        is_sliced = spec.model_type in ("phi3", "bloom")
        query, key, value = split(
            graph, "query_key_value_split", fused, [TOKENS * width for width in widths], is_sliced=is_sliced
        )
        return query, key, value
    names = ("query", "key", "value")
    projected = [
        linear(graph, name, x, hidden, width, has_bias=spec.has_qkv_bias)
        for name, width in zip(names, widths, strict=True)
    ]
    if spec.has_qkv_clipping:
        projected = [_clamped(graph, name, y) for name, y in zip(names, projected, strict=True)]
    if spec.qk_norm is not None:
        sizes = [dim, dim] if spec.qk_norm == "head" else widths[:2]
        for index, size in enumerate(sizes):
            projected[index] = rms_norm(
                graph, f"{names[index]}_norm", projected[index], size, scales_in_fp32=scales_norm_in_fp32(spec)
            )
    for tensor in projected:
        tensor.is_contiguous = False
    return projected[0], projected[1], projected[2]


def _clamped(graph: ForwardGraph, name: str, x: Tensor) -> Tensor:
    """clamp_ in place: its backward needs the values before, of which a copy is kept."""
    before = graph.like(x)
    output = graph.view(x)
    graph.record(f"{name}_clip", (x,), output, saved=(before,), forward_bytes=x.num_bytes * 4, forward_kernels=2.0)
    return output


_JOINING = ("gpt_neox", "phi", "phi3", "stablelm", "gptj")
"""Cut every head into turning and passing channels and join them again, even where all of them turn."""


def _rotated(
    graph: ForwardGraph, spec: DecoderSpec, name: str, x: Tensor, tables: tuple[Tensor, Tensor], num_heads: int
) -> Tensor:
    """x cos + rotate_half(x) sin over the turning channels; the others are joined on again."""
    size = rotary_size(spec)
    with graph.group(name):
        turning, passing = x, None
        if spec.model_type in _JOINING:
            parts = [TOKENS * (num_heads * size), TOKENS * (num_heads * (spec.head_dim - size))]
            turning, passing = split(graph, name, x, parts, is_sliced=True)
        cos, sin = tables
        if spec.model_type == "gptj":
            cos, sin = (copy(graph, name, table, table.elements * 2) for table in tables)
        halves = [turning.elements * 0.5] * 2
        first, second = split(graph, name, turning, halves, is_sliced=True)
        rotated = concatenate(graph, name, (scale(graph, name, second), first))
        straight = multiply(graph, name, turning, cos)
        rotated = multiply(graph, name, rotated, sin)
        output = add(graph, name, straight, rotated)
        if spec.model_type in ("olmo", "olmo2"):
            output = cast(graph, name, output, x.width)
        if passing is not None:
            output = concatenate(graph, name, (output, passing))
            # GPT-J turns before it transposes.
            output.is_contiguous = spec.model_type != "gptj"
    return output


