"""A Hugging Face ``config.json`` as a model, without transformers. A config is data: nothing in it is executed."""

import json
from collections.abc import Callable, Mapping

from ..specs.errors import Note, SpecError
from ..specs.model import ModelSpec
from .families import convnext, decoder, encoder, mamba, moe, vision
from .families.config_fields import shown
from .spelling import nearest_names

Reader = Callable[..., tuple[ModelSpec, tuple[Note, ...]]]
READERS: dict[str, Reader] = {
    model_type: family.read
    for family in (decoder, moe, encoder, vision, convnext, mamba)
    for model_type in family.MODEL_TYPES
}
"""Reader by ``model_type``: the families known by closed form."""
_TEXT_PARTS = {"gemma3": "gemma3_text", "mistral3": "mistral", "llava": "llama", "llava_next": "llama"}
"""What ``text_config`` is where it does not say so itself."""
_PARTS = ("text_config", "llm_config", "language_config")
MAX_FIELDS = 20_000
TRACE_HINT = "traincast trace makes an operation list of any torch model, which --model then accepts"


def parse_config(text: str, *, source: str) -> dict[str, object]:
    """The object in a config file. Raises SpecError where the text is no JSON object."""
    try:
        config = json.loads(text)
    except RecursionError:
        raise SpecError.of(f"{source} is nested too deeply to be a config", code="bad_config", field="model") from None
    except ValueError as error:
        where = f" at line {error.lineno} column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
        message = f"{source} is no valid JSON{where}: {reason}; is the file complete?"
        raise SpecError.of(message, code="bad_config", field="model") from None
    if not isinstance(config, dict):
        message = f"{source} holds {shown(config)}; a config is an object of fields such as hidden_size"
        raise SpecError.of(message, code="bad_config", field="model")
    return config


def model_from_config(
    config: Mapping[str, object], *, name: str, source: str
) -> tuple[ModelSpec, tuple[Note, ...]]:
    """The model that a config describes, with a note on everything assumed.

    Raises SpecError with every problem found; a model type not known by closed form is refused by name.
    """
    _refuse_what_is_no_model(config, name)
    part, part_notes = _language_part(config, name)
    model_type = part.get("model_type")
    if not isinstance(model_type, str):
        given = "missing" if model_type is None else shown(model_type)
        raise SpecError.of(
            f"{name}: model_type is {given}; it must name an architecture such as llama or gpt2",
            code="bad_config",
            field="model_type",
        )
    reader = READERS.get(model_type)
    if reader is None:
        raise _not_modelled(name, model_type)
    spec, notes = reader(part, name=name, source=source)
    return spec, (*part_notes, *notes, *_ignored_parts(config, name))


def _not_modelled(name: str, model_type: str) -> SpecError:
    short = shown(model_type)
    near = nearest_names(model_type[:64], READERS, most=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    message = f"{name}: not modelled: {short}.{hint} Known by closed form: {', '.join(sorted(READERS))}. {TRACE_HINT}."
    return SpecError.of(message, code="not_modelled", field="model_type")


def _refuse_what_is_no_model(config: Mapping[str, object], name: str) -> None:
    """Adapters and encoder-decoders, by name."""
    if "peft_type" in config:
        message = (
            f"{name}: PEFT not modelled: this is a {shown(config['peft_type'])} adapter; full training of its base "
            f"model {shown(config.get('base_model_name_or_path'))} can be estimated instead"
        )
        raise SpecError.of(message, code="peft_not_modelled", field="peft_type")
    if config.get("is_encoder_decoder") is True:
        model_type = shown(config.get("model_type"))
        message = f"{name}: not modelled: {model_type} is an encoder-decoder. {TRACE_HINT}."
        raise SpecError.of(message, code="not_modelled", field="is_encoder_decoder")
    if len(config) > MAX_FIELDS:
        raise SpecError.of(f"{name}: {len(config)} fields; a config has a few dozen", code="bad_config", field=name)


def _language_part(config: Mapping[str, object], name: str) -> tuple[Mapping[str, object], tuple[Note, ...]]:
    """The language model inside a multimodal config, with a note that it is only a part; any other config whole."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in READERS:
        return config, ()
    for part in _PARTS:
        inner = config.get(part)
        if not isinstance(inner, dict):
            continue
        inner_type = inner.get("model_type") or (_TEXT_PARTS.get(model_type) if isinstance(model_type, str) else None)
        if not isinstance(inner_type, str) or inner_type not in READERS:
            raise _not_modelled(name, f"{model_type} with {part} {inner_type}"[:200])
        inherited = {
            field: config[field] for field in ("tie_word_embeddings",) if field in config and field not in inner
        }
        message = (
            f"{name}: {shown(model_type)} is multimodal; only its language model ({part}, {inner_type}) is estimated, "
            "not its other encoders"
        )
        return {**inherited, **inner, "model_type": inner_type}, (Note(code="multimodal_part", message=message),)
    return config, ()


def _ignored_parts(config: Mapping[str, object], name: str) -> tuple[Note, ...]:
    """Fields that change a run in ways that are not modelled, named."""
    if config.get("quantization_config") is None:
        return ()
    message = (
        f"{name}: quantization_config is ignored: quantised weights and PEFT are not modelled; "
        "the figures are for full training of unquantised weights"
    )
    return (Note(code="peft_not_modelled", message=message),)
