"""Fields about attention that decoder families share: heads, rotary positions, sliding windows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .config_fields import MAX_LAYERS, MAX_LENGTH, ConfigFields, shown

Traits = dict[str, Any]
LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFields:
    """How a config spells what heads depend on."""

    hidden_size_field: str
    heads_field: str
    layers_field: str

    def head_dim(self, fields: ConfigFields, values: Traits, *, default: int | None, is_configurable: bool) -> int:
        """Channels of a head: ``head_dim``, else hidden_size / heads, which must be whole then."""
        hidden: int = values["hidden_size"]
        heads: int = values["num_attention_heads"]
        if is_configurable and (fields.is_given("head_dim") or default is not None):
            return fields.integer("head_dim", default)
        if fields.are_valid(self.hidden_size_field, self.heads_field) and hidden % heads:
            layers = values["num_hidden_layers"]
            hint = "give head_dim, or correct one of them" if is_configurable else "correct one of them"
            if fields.are_valid(self.layers_field) and hidden % layers == 0:
                hint = (
                    f"it would be with {layers} heads and {heads} layers: "
                    f"{self.layers_field} and {self.heads_field} swapped?"
                )
            fields.refuse(
                self.heads_field,
                f"{self.hidden_size_field} {hidden} / {self.heads_field} {heads} is not whole; {hint}",
                code="contradiction",
            )
        return max(hidden // heads, 1)

    def num_key_value_heads(
        self, fields: ConfigFields, values: Traits, *, default: int | None, is_configurable: bool
    ) -> int:
        """Key and value heads: must divide the query heads; where missing, transformers' default or all heads."""
        heads: int = values["num_attention_heads"]
        if not is_configurable:
            return heads
        is_missing = not fields.is_given("num_key_value_heads")
        number = fields.integer("num_key_value_heads", heads if default is None else default)
        if is_missing:
            fields.note("kv_heads_assumed", f"num_key_value_heads is missing; assuming {number} of {heads} heads")
        if fields.are_valid("num_key_value_heads", self.heads_field) and heads % number:
            divisors = [str(d) for d in range(1, min(heads, 512) + 1) if heads % d == 0]
            fields.refuse(
                "num_key_value_heads",
                f"{heads} heads do not divide into groups over {number} key/value heads; "
                f"num_key_value_heads must divide {heads}: {', '.join(divisors[:12])}",
                code="contradiction",
            )
        return number


def rotary_fraction(fields: ConfigFields, head_dim: int, defaults: Mapping[str, object]) -> float:
    """Share of a head's channels that turn: inside ``rope_parameters`` (or ``rope_scaling``), else the family's
    own field, else its default. At least two channels turn."""
    name = "rotary_pct" if "rotary_pct" in defaults else "partial_rotary_factor"
    for container in ("rope_parameters", "rope_scaling"):
        parameters = fields.config.get(container)
        if parameters is None:
            continue
        if not isinstance(parameters, dict):
            fields.refuse(container, f"{container} is {shown(parameters)}; it must be an object")
            continue
        if parameters.get("partial_rotary_factor") is not None:
            inner = ConfigFields(parameters, name=fields.name, source=fields.source)
            fraction = inner.number("partial_rotary_factor", 1.0, minimum=0.0, maximum=1.0)
            for problem in inner.problems:
                fields.refuse(f"{container}.{problem.field}", problem.message)
            return _at_least_two_channels(fields, container, fraction, head_dim)
    default = defaults.get(name)
    if default is None:
        return 1.0
    assert isinstance(default, float)
    return _at_least_two_channels(fields, name, fields.number(name, default, minimum=0.0, maximum=1.0), head_dim)


def _at_least_two_channels(fields: ConfigFields, name: str, fraction: float, head_dim: int) -> float:
    if int(head_dim * fraction) < 2 and not fields.has_problems:
        fields.refuse(
            name, f"{name} {fraction:g} of a head of {head_dim} channels leaves less than two that turn with position"
        )
    return fraction


def sliding_layers(
    fields: ConfigFields,
    values: Traits,
    *,
    default_type: Callable[[int, int], bool],
    is_switched: bool = True,
    default_window: int | None = 4096,
) -> Traits:
    """Which layers see a window only: ``layer_types``, else ``default_type(layer, max_window_layers)``.

    ``is_switched``: only where ``use_sliding_window`` is true (Qwen, SmolLM 3).
    """
    layers = values["num_hidden_layers"]
    if is_switched and not fields.boolean("use_sliding_window", False):
        return {}
    if not fields.is_given("sliding_window") and ("sliding_window" in fields.config or default_window is None):
        return {}
    window = fields.integer("sliding_window", default_window, maximum=MAX_LENGTH)
    given = fields.config.get("layer_types")
    if given is None:
        first = 0
        if is_switched and default_window is not None:
            first = fields.integer("max_window_layers", 28, minimum=0, maximum=MAX_LAYERS)
        number = sum(default_type(layer, first) for layer in range(layers))
    elif (
        not isinstance(given, (list, tuple))
        or len(given) != layers
        or not all(isinstance(kind, str) and kind in LAYER_TYPES for kind in given)
    ):
        if fields.are_valid("num_hidden_layers"):
            fields.refuse(
                "layer_types",
                f"layer_types is {shown(given)}; it must be a list of {layers} words out of {', '.join(LAYER_TYPES)}",
            )
        return {}
    else:
        number = sum(kind == "sliding_attention" for kind in given)
    return {"sliding_window": window, "num_sliding_layers": number} if number else {}
