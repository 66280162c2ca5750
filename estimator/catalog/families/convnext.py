"""ConvNeXt and ConvNeXt V2 from a ``config.json``, with the defaults of transformers 5.24."""

from collections.abc import Mapping

from ...specs.errors import Note
from ...specs.models.convnext import ConvNextSpec
from .config_fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from .encoder import ACTIVATIONS

MODEL_TYPES = ("convnext", "convnextv2")
_HEADS = {f"{model}ForImageClassification": "classification" for model in ("ConvNext", "ConvNextV2")}


def read(config: Mapping[str, object], *, name: str, source: str) -> tuple[ConvNextSpec, tuple[Note, ...]]:
    """The image classifier that a config describes. Raises SpecError with every problem found."""
    fields = ConfigFields(config, name=name, source=source)
    model_type = fields.choice("model_type", "convnext", MODEL_TYPES)
    is_v2 = model_type == "convnextv2"
    fields.head(_HEADS, "classification", assumed="an image classifier on top")
    num_stages = fields.integer("num_stages", 4, maximum=16)
    spec = ConvNextSpec(
        name=name,
        model_type=model_type,
        source=source,
        image_size=fields.square("image_size", 224),
        num_channels=fields.integer("num_channels", 3, maximum=1024),
        patch_size=fields.square("patch_size", 4),
        hidden_sizes=fields.integers("hidden_sizes", (96, 192, 384, 768), maximum=MAX_WIDTH),
        depths=fields.integers("depths", (3, 3, 9, 3), maximum=MAX_LAYERS),
        num_labels=fields.num_labels(),
        activation=fields.choice("hidden_act", "gelu", ACTIVATIONS),
        has_layer_scale=not is_v2
        and fields.number("layer_scale_init_value", 1e-6, minimum=-1e6, maximum=1e6) > 0,
        has_global_response_norm=is_v2,
        drop_path_rate=fields.fraction("drop_path_rate", 0.0),
    )
    for field, value in (("hidden_sizes", spec.hidden_sizes), ("depths", spec.depths)):
        if fields.are_valid(field, "num_stages") and len(value) != num_stages:
            fields.refuse(
                field,
                f"{field} has {len(value)} entries but there are {num_stages} stages; give one entry a stage",
                code="contradiction",
            )
    if fields.are_valid("image_size", "patch_size", "depths") and spec.side_of_stage(len(spec.depths) - 1) < 1:
        fields.refuse(
            "image_size",
            f"image_size {spec.image_size} leaves nothing after a patch of {spec.patch_size} and "
            f"{len(spec.depths) - 1} halvings; use a larger one",
            code="contradiction",
        )
    return spec, fields.finish()
