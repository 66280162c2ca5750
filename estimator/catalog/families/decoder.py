"""Decoder-only language models from a ``config.json``, with the defaults of transformers 5.24."""

from collections.abc import Callable, Mapping

from ...specs.errors import Note
from ...specs.models.decoder import DecoderSpec
from .attention_fields import Traits, sliding_layers
from .config_fields import MAX_LAYERS, MAX_LENGTH, ConfigFields
from .decoder_fields import DefaultValues, Family, build, read_family

LAYER_NORM = {"norm": "layer_norm", "has_norm_bias": True}
RMS_NORM = {"norm": "rms_norm", "has_norm_bias": False}
NO_BIASES = {"has_qkv_bias": False, "has_attention_output_bias": False, "has_mlp_bias": False}
ALL_BIASES = {"has_qkv_bias": True, "has_attention_output_bias": True, "has_mlp_bias": True}
PLAIN = {"is_mlp_gated": False, "is_residual_parallel": False, "is_qkv_fused": False, "norms_per_block": 2}
GATED = {**PLAIN, "is_mlp_gated": True}

def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[DecoderSpec, tuple[Note, ...]]:
    """The decoder that a config describes. Raises SpecError with every problem found."""
    fields, values = read_family(FAMILIES[str(config["model_type"])], config, name=name, source=source)
    return build(fields, values)


# What only one family has


def _gpt2(fields: ConfigFields, values: Traits) -> Traits:
    for flag in ("add_cross_attention", "reorder_and_upcast_attn"):
        refuse_flag(fields, flag)
    return {"num_learned_positions": values["max_position_embeddings"]}


def _gpt_neox(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("attention_bias", True)
    return {
        "is_residual_parallel": fields.boolean("use_parallel_residual", True),
        "has_qkv_bias": has_bias,
        "has_attention_output_bias": has_bias,
        "embedding_dropout": values["hidden_dropout"],
    }


def _opt(fields: ConfigFields, values: Traits) -> Traits:
    is_before = fields.boolean("do_layer_norm_before", True)
    is_removed = fields.is_given("_remove_final_layer_norm") and fields.boolean("_remove_final_layer_norm", False)
    has_bias = fields.boolean("enable_bias", True)
    if fields.fraction("layerdrop", 0.0) > 0:
        fields.note("layerdrop", "layerdrop skips layers at random; estimated as if none were skipped")
    return {
        "has_qkv_bias": has_bias,
        "has_attention_output_bias": has_bias,
        "has_mlp_bias": has_bias,
        "has_norm_weight": fields.boolean("layer_norm_elementwise_affine", True),
        "norm_placement": "pre" if is_before else "after_residual",
        "has_final_norm": is_before and not is_removed,
        "embedding_size": fields.integer("word_embed_proj_dim", values["hidden_size"]),
        "num_learned_positions": (values["max_position_embeddings"] or 0) + 2,
    }


def _llama(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("attention_bias", False)
    return {
        "has_qkv_bias": has_bias,
        "has_attention_output_bias": has_bias,
        "has_mlp_bias": fields.boolean("mlp_bias", False),
    }


def _attention_bias(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("attention_bias", False)
    return {"has_qkv_bias": has_bias, "has_attention_output_bias": has_bias}


def _window_everywhere(default: int | None) -> Callable[[ConfigFields, Traits], Traits]:
    """A window in every layer, which null switches off (Mistral, Phi-3, StarCoder 2, Mixtral)."""

    def details(fields: ConfigFields, values: Traits) -> Traits:
        if "sliding_window" in fields.config and fields.config["sliding_window"] is None:
            return {}
        if not fields.is_given("sliding_window") and default is None:
            return {}
        window = fields.integer("sliding_window", default, maximum=MAX_LENGTH)
        return {"sliding_window": window, "num_sliding_layers": values["num_hidden_layers"]}

    return details


mistral_window = _window_everywhere(4096)
optional_window = _window_everywhere(None)


def _starcoder2(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("use_bias", True)
    biases = dict.fromkeys(ALL_BIASES, has_bias)
    return {**biases, **optional_window(fields, values)}


def _qwen2(fields: ConfigFields, values: Traits) -> Traits:
    return sliding_layers(fields, values, default_type=lambda layer, first: layer >= first)


def _qwen3(fields: ConfigFields, values: Traits) -> Traits:
    return {**_attention_bias(fields, values), **_qwen2(fields, values)}


def _gemma(fields: ConfigFields, values: Traits) -> Traits:
    # "gelu" is a legacy value that means the tanh approximation.
    is_legacy = values["activation"] == "gelu"
    return {**_attention_bias(fields, values), "activation": "gelu_pytorch_tanh" if is_legacy else values["activation"]}


def _gemma2(fields: ConfigFields, values: Traits) -> Traits:
    return {
        **_attention_bias(fields, values),
        **sliding_layers(fields, values, default_type=lambda layer, _: layer % 2 == 0, is_switched=False),
        "logit_softcap": _softcap(fields, "final_logit_softcapping", 30.0),
        "attention_softcap": _softcap(fields, "attn_logit_softcapping", 50.0),
    }


def _gemma3(fields: ConfigFields, values: Traits) -> Traits:
    refuse_flag(fields, "use_bidirectional_attention")
    pattern = 6
    if fields.is_given("sliding_window_pattern"):
        pattern = fields.integer("sliding_window_pattern", 6, maximum=MAX_LAYERS)
    return {
        **_attention_bias(fields, values),
        **sliding_layers(fields, values, default_type=lambda layer, _: (layer + 1) % pattern != 0, is_switched=False),
        "logit_softcap": _softcap(fields, "final_logit_softcapping", None),
    }


def _softcap(fields: ConfigFields, name: str, default: float | None) -> float | None:
    """A cap on logits; null switches it off, absence means the family's default."""
    if not fields.is_given(name):
        return None if name in fields.config else default
    return fields.number(name, default or 1.0, minimum=1e-6, maximum=1e6)


def _phi(fields: ConfigFields, values: Traits) -> Traits:
    refuse_flag(fields, "qk_layernorm")
    return {}


def _stablelm(fields: ConfigFields, values: Traits) -> Traits:
    refuse_flag(fields, "qk_layernorm")
    is_parallel = fields.boolean("use_parallel_residual", False)
    return {
        "has_qkv_bias": fields.boolean("use_qkv_bias", False),
        "is_residual_parallel": is_parallel,
        "norms_per_block": 1 if is_parallel else 2,
    }


def _gptj(fields: ConfigFields, values: Traits) -> Traits:
    rotary_dim = fields.integer("rotary_dim", 64)
    if fields.are_valid("rotary_dim") and rotary_dim > values["head_dim"] and fields.are_valid("n_embd", "n_head"):
        fields.refuse(
            "rotary_dim",
            f"rotary_dim {rotary_dim} is larger than a head of {values['head_dim']} channels",
            code="contradiction",
        )
    return {"rotary_fraction": rotary_dim / max(values["head_dim"], 1)}


def _bloom(fields: ConfigFields, values: Traits) -> Traits:
    for flag in ("apply_residual_connection_post_layernorm", "slow_but_exact"):
        refuse_flag(fields, flag)
    return {}


def _olmo(fields: ConfigFields, values: Traits) -> Traits:
    is_clipped = fields.is_given("clip_qkv")
    if is_clipped:
        fields.number("clip_qkv", 1.0, minimum=1e-6, maximum=1e6)
    return {**_attention_bias(fields, values), "has_qkv_clipping": is_clipped}


def _smollm3(fields: ConfigFields, values: Traits) -> Traits:
    layers = values["num_hidden_layers"]
    if fields.is_given("no_rope_layers"):
        given = fields.config["no_rope_layers"]
        is_valid = isinstance(given, (list, tuple)) and len(given) == layers and all(x in (0, 1) for x in given)
        if not is_valid and fields.are_valid("num_hidden_layers"):
            fields.refuse("no_rope_layers", f"no_rope_layers must be a list of {layers} zeros and ones")
        rope_layers = [bool(x) for x in given] if is_valid and isinstance(given, (list, tuple)) else [True] * layers
    else:
        interval = fields.integer("no_rope_layer_interval", 4, maximum=MAX_LAYERS)
        rope_layers = [(layer + 1) % interval != 0 for layer in range(layers)]
    window = sliding_layers(
        fields, values, default_type=lambda layer, _: not rope_layers[layer], default_window=None
    )
    return {**_llama(fields, values), **window, "num_rope_layers": sum(rope_layers)}


def refuse_flag(fields: ConfigFields, flag: str) -> None:
    """Refuse an option that changes what runs and is not modelled."""
    if fields.is_given(flag) and fields.boolean(flag, False):
        fields.refuse(flag, f"{flag}=true is not modelled; use traincast trace for this model", code="not_modelled")


_SIZES_7B: DefaultValues = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "hidden_act": "silu", "tie_word_embeddings": False,
    "num_key_value_heads": None, "head_dim": None, "attention_dropout": 0.0,
}  # fmt: skip
_QWEN: DefaultValues = {
    **_SIZES_7B, "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768,
}  # fmt: skip
_GEMMA2: DefaultValues = {
    **_SIZES_7B, "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True, "max_position_embeddings": 8192,
}  # fmt: skip
_GPT = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "hidden_act": "activation_function",
    "attention_dropout": "attn_pdrop", "hidden_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop",
}  # fmt: skip
_SANDWICH = {"norms_per_block": 4, "norm_placement": "sandwich", "is_embedding_scaled": True}

FAMILIES: dict[str, Family] = {
    "gpt2": Family(
        names=_GPT,
        defaults={"vocab_size": 50257, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "max_position_embeddings": 1024, "hidden_act": "gelu_new", "tie_word_embeddings": True,
                  "attention_dropout": 0.1, "hidden_dropout": 0.1, "embedding_dropout": 0.1},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES, "is_qkv_fused": True, "position": "learned"},
        details=_gpt2,
    ),
    "gpt_neox": Family(
        defaults={"vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
                  "intermediate_size": 24576, "max_position_embeddings": 2048, "hidden_act": "gelu",
                  "tie_word_embeddings": False, "attention_dropout": 0.0, "hidden_dropout": 0.0,
                  "rotary_pct": 0.25},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES, "is_qkv_fused": True},
        details=_gpt_neox,
    ),
    "opt": Family(
        names={"intermediate_size": "ffn_dim", "hidden_act": "activation_function", "hidden_dropout": "dropout"},
        defaults={"vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
                  "intermediate_size": 3072, "max_position_embeddings": 2048, "hidden_act": "relu",
                  "tie_word_embeddings": True, "attention_dropout": 0.0, "hidden_dropout": 0.1},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES, "position": "learned"},
        details=_opt,
    ),
    "llama": Family(
        defaults={**_SIZES_7B, "max_position_embeddings": 2048}, traits={**GATED, **RMS_NORM, **NO_BIASES},
        details=_llama,
    ),
    "mistral": Family(
        defaults={**_SIZES_7B, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072},
        traits={**GATED, **RMS_NORM, **NO_BIASES},
        details=mistral_window,
    ),
    "qwen2": Family(
        defaults=_QWEN, traits={**GATED, **RMS_NORM, **NO_BIASES, "has_qkv_bias": True}, details=_qwen2
    ),
    "qwen3": Family(
        defaults={**_QWEN, "head_dim": 128}, traits={**GATED, **RMS_NORM, **NO_BIASES, "qk_norm": "head"},
        details=_qwen3,
    ),
    "gemma": Family(
        defaults={**_SIZES_7B, "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
                  "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
                  "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "max_position_embeddings": 8192},
        traits={**GATED, **RMS_NORM, **NO_BIASES, "is_embedding_scaled": True},
        details=_gemma,
    ),
    "gemma2": Family(
        names={"hidden_act": "hidden_activation"}, defaults=_GEMMA2,
        traits={**GATED, **RMS_NORM, **NO_BIASES, **_SANDWICH}, details=_gemma2,
    ),
    "gemma3_text": Family(
        names={"hidden_act": "hidden_activation"},
        defaults={**_GEMMA2, "vocab_size": 262208, "max_position_embeddings": 131072},
        traits={**GATED, **RMS_NORM, **NO_BIASES, **_SANDWICH, "qk_norm": "head"},
        details=_gemma3,
    ),
    "phi": Family(
        names={"hidden_dropout": "resid_pdrop", "embedding_dropout": "embd_pdrop"},
        defaults={**_SIZES_7B, "vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192,
                  "num_hidden_layers": 24, "hidden_act": "gelu_new", "max_position_embeddings": 2048,
                  "hidden_dropout": 0.0, "embedding_dropout": 0.0, "partial_rotary_factor": 0.5},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES, "is_residual_parallel": True, "norms_per_block": 1,
                "has_lm_head_bias": True},
        details=_phi,
    ),
    "phi3": Family(
        names={"hidden_dropout": "resid_pdrop"},
        defaults={**_SIZES_7B, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
                  "max_position_embeddings": 4096, "hidden_dropout": 0.0, "partial_rotary_factor": 1.0},
        traits={**GATED, **RMS_NORM, **NO_BIASES, "is_qkv_fused": True, "is_gate_up_fused": True},
        details=optional_window,
    ),
    "gptj": Family(
        names=_GPT,
        defaults={"vocab_size": 50400, "hidden_size": 4096, "num_hidden_layers": 28, "num_attention_heads": 16,
                  "max_position_embeddings": 2048, "hidden_act": "gelu_new", "tie_word_embeddings": False,
                  "attention_dropout": 0.0, "hidden_dropout": 0.0, "embedding_dropout": 0.0},
        traits={**PLAIN, **LAYER_NORM, **NO_BIASES, "has_mlp_bias": True, "is_residual_parallel": True,
                "norms_per_block": 1, "has_lm_head_bias": True, "rotary_fraction": 1.0},
        details=_gptj,
    ),
    "bloom": Family(
        names={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        defaults={"vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                  "tie_word_embeddings": True, "attention_dropout": 0.0, "hidden_dropout": 0.0},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES, "is_qkv_fused": True, "position": "alibi",
                "has_embedding_norm": True},
        details=_bloom,
    ),
    "olmo": Family(
        defaults={**_SIZES_7B, "vocab_size": 50304, "max_position_embeddings": 2048},
        traits={**GATED, **NO_BIASES, "norm": "layer_norm", "has_norm_bias": False, "has_norm_weight": False},
        details=_olmo,
    ),
    "olmo2": Family(
        defaults={**_SIZES_7B, "vocab_size": 50304, "max_position_embeddings": 2048},
        traits={**GATED, **RMS_NORM, **NO_BIASES, "qk_norm": "full", "norm_placement": "post"},
        details=_attention_bias,
    ),
    "smollm3": Family(
        defaults={**_SIZES_7B, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
                  "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
                  "tie_word_embeddings": True},
        traits={**GATED, **RMS_NORM, **NO_BIASES},
        details=_smollm3,
    ),
    "stablelm": Family(
        defaults={**_SIZES_7B, "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912,
                  "max_position_embeddings": 4096, "hidden_dropout": 0.0, "partial_rotary_factor": 0.25},
        traits={**GATED, **LAYER_NORM, **NO_BIASES},
        details=_stablelm,
    ),
    "starcoder2": Family(
        names={"hidden_dropout": "residual_dropout"},
        defaults={**_SIZES_7B, "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
                  "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
                  "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "tie_word_embeddings": True,
                  "hidden_dropout": 0.0, "embedding_dropout": 0.0},
        traits={**PLAIN, **LAYER_NORM, **ALL_BIASES},
        details=_starcoder2,
    ),
}  # fmt: skip
MODEL_TYPES = tuple(FAMILIES)
