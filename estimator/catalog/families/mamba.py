"""Mamba from a ``config.json``, with the defaults of transformers 5.24."""

import math
from collections.abc import Mapping

from ...specs.errors import Note
from ...specs.models.mamba import MambaSpec
from .config_fields import MAX_LAYERS, MAX_VOCABULARY, MAX_WIDTH, ConfigFields

MODEL_TYPES = ("mamba",)
_HEADS = {"MambaForCausalLM": "causal_lm"}


def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[MambaSpec, tuple[Note, ...]]:
    """The language model that a config describes. Raises SpecError with every problem found."""
    fields = ConfigFields(config, name=name, source=source)
    fields.choice("model_type", "mamba", MODEL_TYPES)
    fields.head(_HEADS, "causal_lm", assumed="a causal language model")
    hidden_size = fields.integer("hidden_size", 768)
    intermediate_size = int(fields.number("expand", 2, minimum=0.01, maximum=1024) * hidden_size)
    if fields.is_given("intermediate_size"):
        given = fields.integer("intermediate_size", intermediate_size)
        if given != intermediate_size:
            fields.note(
                "intermediate_size",
                f"intermediate_size {given} ignored as transformers does: expand x hidden_size is {intermediate_size}",
            )
    fields.choice("hidden_act", "silu", ("silu", "swish"))
    spec = MambaSpec(
        name=name,
        model_type="mamba",
        source=source,
        vocab_size=fields.integer("vocab_size", 50280, maximum=MAX_VOCABULARY),
        hidden_size=hidden_size,
        num_hidden_layers=fields.integer("num_hidden_layers", 32, maximum=MAX_LAYERS),
        state_size=fields.integer("state_size", 16, maximum=65_536),
        intermediate_size=intermediate_size,
        conv_kernel=fields.integer("conv_kernel", 4, maximum=1024),
        time_step_rank=_time_step_rank(fields, hidden_size),
        has_bias=fields.boolean("use_bias", False),
        has_conv_bias=fields.boolean("use_conv_bias", True),
        tie_word_embeddings=fields.boolean("tie_word_embeddings", True),
        residual_in_fp32=fields.boolean("residual_in_fp32", True),
    )
    if fields.are_valid("expand", "hidden_size") and intermediate_size < 1:
        fields.refuse("expand", f"expand x hidden_size is {intermediate_size}; it must be at least 1")
    fields.note(
        "mamba_fused_kernels",
        "assuming the fused scan and convolution kernels (mamba-ssm, causal-conv1d); without them transformers "
        "loops over the sequence, one to two orders slower",
    )
    return spec, fields.finish()


def _time_step_rank(fields: ConfigFields, hidden_size: int) -> int:
    """``auto`` is hidden_size / 16, rounded up."""
    automatic = math.ceil(hidden_size / 16)
    if fields.config.get("time_step_rank") == "auto":
        return automatic
    return fields.integer("time_step_rank", automatic, maximum=MAX_WIDTH)
