"""How a decoder's config is read, whatever its family: spellings, sizes, heads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...specs.errors import Note
from ...specs.models.decoder import DecoderSpec, MixtureOfExperts
from .attention_fields import HeadFields, Traits, rotary_fraction
from .config_fields import MAX_LAYERS, MAX_LENGTH, MAX_VOCABULARY, ConfigFields

ACTIVATIONS = (
    "gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "silu", "swish", "relu", "sigmoid", "tanh",
)  # fmt: skip
DefaultValues = dict[str, int | str | bool | float | None]
Defaults = Mapping[str, int | str | bool | float | None]
"""By our name; None means that the field is derived (see ``read_family``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How one ``model_type`` names its fields, what it assumes, and how it is built."""

    defaults: Defaults
    traits: Traits
    """What no field decides."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Our name -> the config's, where they differ."""
    details: Callable[[ConfigFields, Traits], Traits] | None = None
    """Fields of this family alone, given what was read so far."""


def native(family: Family, fields: ConfigFields, name: str) -> str:
    """The spelling that a config uses: the family's own, or transformers' common one (its attribute map)."""
    spelling = family.names.get(name, name)
    return name if not fields.is_given(spelling) and fields.is_given(name) else spelling


def read_sizes(family: Family, fields: ConfigFields) -> Traits:
    """Sizes, heads, activation, dropouts and tied embeddings, which every family has."""
    defaults = family.defaults

    def integer(name: str, maximum: int | None = None) -> int:
        default = defaults[name]
        limits = {} if maximum is None else {"maximum": maximum}
        assert default is None or isinstance(default, int)
        return fields.integer(native(family, fields, name), default, **limits)

    values: Traits = {
        "vocab_size": integer("vocab_size", MAX_VOCABULARY),
        "hidden_size": integer("hidden_size"),
        "num_hidden_layers": integer("num_hidden_layers", MAX_LAYERS),
        "num_attention_heads": integer("num_attention_heads"),
        "max_position_embeddings": integer("max_position_embeddings", MAX_LENGTH)
        if "max_position_embeddings" in defaults
        else None,
        "activation": fields.choice(
            native(family, fields, "hidden_act"), str(defaults["hidden_act"]), ACTIVATIONS
        )
        if "hidden_act" in defaults
        else "gelu",
        "tie_word_embeddings": fields.boolean("tie_word_embeddings", bool(defaults["tie_word_embeddings"])),
    }
    if defaults.get("intermediate_size") is None:
        spelling = native(family, fields, "intermediate_size")
        width = 4 * values["hidden_size"]
        values["intermediate_size"] = fields.integer(spelling, width) if fields.is_given(spelling) else width
    else:
        values["intermediate_size"] = integer("intermediate_size")
    for name in ("attention_dropout", "hidden_dropout", "embedding_dropout"):
        if name in family.names or name in defaults:
            default = float(defaults.get(name) or 0.0)
            values[name] = fields.fraction(native(family, fields, name), default)
    return values


def read_family(family: Family, config: Mapping[str, object], *, name: str, source: str) -> tuple[ConfigFields, Traits]:
    """Everything that is not about experts; problems stay in the fields."""
    fields = ConfigFields(config, name=name, source=source)
    values = {**family.traits, **read_sizes(family, fields)}
    values["model_type"] = str(config["model_type"])
    heads = HeadFields(
        hidden_size_field=native(family, fields, "hidden_size"),
        heads_field=native(family, fields, "num_attention_heads"),
        layers_field=native(family, fields, "num_hidden_layers"),
    )
    default_key_value_heads = family.defaults.get("num_key_value_heads")
    default_head_dim = family.defaults.get("head_dim")
    assert default_key_value_heads is None or isinstance(default_key_value_heads, int)
    assert default_head_dim is None or isinstance(default_head_dim, int)
    values["head_dim"] = heads.head_dim(
        fields, values, default=default_head_dim, is_configurable="head_dim" in family.defaults
    )
    values["num_key_value_heads"] = heads.num_key_value_heads(
        fields, values, default=default_key_value_heads, is_configurable="num_key_value_heads" in family.defaults
    )
    if values.get("position", "rope") == "rope" and "rotary_fraction" not in values:
        values["rotary_fraction"] = rotary_fraction(fields, values["head_dim"], family.defaults)
    if family.details is not None:
        values.update(family.details(fields, values))
    return fields, values


def build(
    fields: ConfigFields, values: Traits, moe: MixtureOfExperts | None = None
) -> tuple[DecoderSpec, tuple[Note, ...]]:
    """The spec, or one SpecError with every problem found."""
    notes = fields.finish()
    return DecoderSpec(name=fields.name, source=fields.source, moe=moe, **values), notes
