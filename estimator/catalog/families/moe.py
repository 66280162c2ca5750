"""Mixtures of experts from a ``config.json``, with the defaults of transformers 5.24."""

from collections.abc import Mapping

from ...specs.errors import Note
from ...specs.models.decoder import DecoderSpec, MixtureOfExperts
from .attention_fields import Traits, sliding_layers
from .config_fields import MAX_LAYERS, ConfigFields, shown
from .decoder import GATED, NO_BIASES, RMS_NORM, optional_window
from .decoder_fields import DefaultValues, Family, build, read_family

MAX_EXPERTS = 65_536


def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[DecoderSpec, tuple[Note, ...]]:
    """The mixture of experts that a config describes. Raises SpecError with every problem found.

    Memory counts every expert, FLOPs only those that a token passes, and a note says so.
    """
    model_type = str(config["model_type"])
    fields, values = read_family(FAMILIES[model_type], config, name=name, source=source)
    moe = _mixtral(fields, values) if model_type == "mixtral" else _qwen(fields, values, model_type)
    if fields.are_valid("num_experts_per_tok") and moe.num_experts_per_tok > moe.num_experts:
        fields.refuse(
            "num_experts_per_tok",
            f"num_experts_per_tok {moe.num_experts_per_tok} is more than the {moe.num_experts} experts there are",
            code="contradiction",
        )
    fields.note(
        "mixture_of_experts",
        f"memory counts all {moe.num_experts} experts, FLOPs the {moe.num_experts_per_tok} that each token passes, "
        "with even routing; expect a lower utilisation than a dense model's",
    )
    return build(fields, values, moe)


def _mixtral(fields: ConfigFields, values: Traits) -> MixtureOfExperts:
    if fields.number("router_jitter_noise", 0.0, minimum=0.0, maximum=1.0) > 0:
        fields.note("router_jitter_noise", "router_jitter_noise is not modelled; its cost is small")
    experts_field = "num_experts" if fields.is_given("num_experts") else "num_local_experts"
    return MixtureOfExperts(
        num_experts=fields.integer(experts_field, 8, maximum=MAX_EXPERTS),
        num_experts_per_tok=fields.integer("num_experts_per_tok", 2, maximum=MAX_EXPERTS),
        moe_intermediate_size=values["intermediate_size"],
    )


def _qwen(fields: ConfigFields, values: Traits, model_type: str) -> MixtureOfExperts:
    is_qwen2 = model_type == "qwen2_moe"
    experts_field = "num_local_experts" if fields.is_given("num_local_experts") and not is_qwen2 else "num_experts"
    return MixtureOfExperts(
        num_experts=fields.integer(experts_field, 60 if is_qwen2 else 128, maximum=MAX_EXPERTS),
        num_experts_per_tok=fields.integer("num_experts_per_tok", 4 if is_qwen2 else 8, maximum=MAX_EXPERTS),
        moe_intermediate_size=fields.integer("moe_intermediate_size", 1408 if is_qwen2 else 768),
        shared_expert_intermediate_size=fields.integer("shared_expert_intermediate_size", 5632) if is_qwen2 else None,
        has_shared_expert_gate=is_qwen2,
        has_normalised_scores=fields.boolean("norm_topk_prob", False),
        num_dense_layers=_num_dense_layers(fields, values["num_hidden_layers"]),
    )


def _num_dense_layers(fields: ConfigFields, num_layers: int) -> int:
    """Layers named by mlp_only_layers, and those that decoder_sparse_step skips."""
    step = fields.integer("decoder_sparse_step", 1, maximum=MAX_LAYERS)
    given = fields.config.get("mlp_only_layers")
    is_valid = given is None or (
        isinstance(given, (list, tuple))
        and len(given) <= MAX_LAYERS
        and all(isinstance(x, int) and not isinstance(x, bool) for x in given)
    )
    if not is_valid:
        fields.refuse("mlp_only_layers", f"mlp_only_layers is {shown(given)}; it must be a list of layer numbers")
        return 0
    dense = set(given) if isinstance(given, (list, tuple)) else set()
    return sum(layer in dense or (layer + 1) % step != 0 for layer in range(num_layers))


def _qwen2_moe(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("qkv_bias", True)
    window = sliding_layers(fields, values, default_type=lambda layer, limit: layer % 2 == 0 and layer < limit)
    return {"has_qkv_bias": has_bias, **window}


def _qwen3_moe(fields: ConfigFields, values: Traits) -> Traits:
    has_bias = fields.boolean("attention_bias", False)
    biases = {"has_qkv_bias": has_bias, "has_attention_output_bias": has_bias}
    if not fields.boolean("use_sliding_window", False):
        return biases
    return {**biases, **optional_window(fields, values)}


_COMMON: DefaultValues = {
    "num_hidden_layers": 24, "hidden_act": "silu", "tie_word_embeddings": False, "attention_dropout": 0.0,
    "vocab_size": 151936, "hidden_size": 2048, "max_position_embeddings": 32768,
}  # fmt: skip
FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        defaults={**_COMMON, "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
                  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": None,
                  "max_position_embeddings": 131072},
        traits={**GATED, **RMS_NORM, **NO_BIASES},
        details=optional_window,
    ),
    "qwen2_moe": Family(
        defaults={**_COMMON, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16,
                  "head_dim": None},
        traits={**GATED, **RMS_NORM, **NO_BIASES},
        details=_qwen2_moe,
    ),
    "qwen3_moe": Family(
        defaults={**_COMMON, "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
                  "head_dim": None},
        traits={**GATED, **RMS_NORM, **NO_BIASES, "qk_norm": "head"},
        details=_qwen3_moe,
    ),
}  # fmt: skip
MODEL_TYPES = tuple(FAMILIES)
