"""ViT, DeiT and DINOv2 from a ``config.json``, with the defaults of transformers 5.24."""

from collections.abc import Mapping

from ...specs.errors import Note
from ...specs.models.vision import VisionTransformerSpec
from .config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from .encoder import ACTIVATIONS, refuse_indivisible_heads

MODEL_TYPES = ("vit", "deit", "dinov2")
_HEADS = {f"{model}ForImageClassification": "classification" for model in ("ViT", "DeiT", "Dinov2")}
_DEFAULT_PATCH = {"vit": 16, "deit": 16, "dinov2": 14}


def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[VisionTransformerSpec, tuple[Note, ...]]:
    """The image classifier that a config describes. Raises SpecError with every problem found.

    ``image_size`` is what the position table was made for; a caller that trains on another size replaces
    ``image_size`` of the spec, and positions are interpolated.
    """
    fields = ConfigFields(config, name=name, source=source)
    model_type = fields.choice("model_type", "vit", MODEL_TYPES)
    is_dinov2 = model_type == "dinov2"
    fields.head(_HEADS, "classification", assumed="an image classifier on top")
    image_size = fields.square("image_size", 224)
    patch_size = fields.square("patch_size", _DEFAULT_PATCH[model_type])
    hidden_size = fields.integer("hidden_size", 768)
    is_mlp_gated = fields.boolean("use_swiglu_ffn", False) if is_dinov2 else False
    spec = VisionTransformerSpec(
        name=name,
        model_type=model_type,
        source=source,
        image_size=image_size,
        position_image_size=image_size,
        patch_size=patch_size,
        num_channels=fields.integer("num_channels", 3, maximum=1024),
        hidden_size=hidden_size,
        num_hidden_layers=fields.integer("num_hidden_layers", 12, maximum=MAX_LAYERS),
        num_attention_heads=fields.integer("num_attention_heads", 12),
        intermediate_size=_intermediate_size(fields, hidden_size, is_dinov2=is_dinov2, is_mlp_gated=is_mlp_gated),
        num_labels=fields.num_labels(),
        has_qkv_bias=fields.boolean("qkv_bias", True),
        activation=fields.choice("hidden_act", "gelu", ACTIVATIONS),
        is_mlp_gated=is_mlp_gated,
        has_layer_scale=is_dinov2,
        has_mask_token=fields.boolean("use_mask_token", True) if is_dinov2 else False,
        num_prefix_tokens=2 if model_type == "deit" else 1,
        hidden_dropout=fields.fraction("hidden_dropout_prob", 0.0),
        attention_dropout=fields.fraction("attention_probs_dropout_prob", 0.0),
        drop_path_rate=fields.fraction("drop_path_rate", 0.0) if is_dinov2 else 0.0,
    )
    refuse_indivisible_heads(fields, hidden_size, spec.num_attention_heads)
    if fields.are_valid("patch_size", "image_size") and patch_size > image_size:
        fields.refuse(
            "patch_size",
            f"patch_size {patch_size} is larger than image_size {image_size}; no patch fits into an image",
            code="contradiction",
        )
    return spec, fields.finish()


def _intermediate_size(fields: ConfigFields, hidden_size: int, *, is_dinov2: bool, is_mlp_gated: bool) -> int:
    """DINOv2 states a ratio; its SwiGLU keeps two thirds of it, rounded up to a multiple of 8."""
    if not is_dinov2:
        return fields.integer("intermediate_size", 3072)
    width = int(hidden_size * fields.number("mlp_ratio", 4, minimum=0.01, maximum=MAX_WIDTH))
    return (int(width * 2 / 3) + 7) // 8 * 8 if is_mlp_gated else width
