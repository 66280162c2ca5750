"""The model to trace: a Hugging Face config (data only, no code of its own) or the user's own callable."""

import copy
import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from estimator.catalog.lookup import nearest_names

from .failures import InputError, TraceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model with everything needed to run it at any size."""

    name: str
    class_name: str
    input_kind: str
    """``tokens`` or ``images``."""
    build: Callable[[str], nn.Module]
    """Module for ``sdpa`` or ``eager`` attention, without memory where possible."""
    inputs: Callable[[int, int], dict[str, Any]]
    """Keyword arguments of forward for (micro batch, length)."""
    loss: Callable[[nn.Module, dict[str, Any]], torch.Tensor]
    vocab_size: int | None = None
    max_position_embeddings: int | None = None
    image_size: int | None = None
    longest_length: int | None = None
    """Longest length that the model can run."""
    sliding_window: int | None = None
    """Lengths from here on need a mask that shorter ones do not."""
    notes: tuple[str, ...] = ()


_TASKS = (
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "images"),
    ("MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING", "speech"),
    ("MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING", "sequence_to_sequence"),
    ("MODEL_FOR_MASKED_LM_MAPPING", "tokens"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING", "tokens"),
)
"""In this order: many encoders also have a causal variant that nobody pre-trains, encoder-decoders a masked one."""
_IGNORED_FIELDS = ("torch_dtype", "dtype", "transformers_version", "auto_map", "_name_or_path", "quantization_config")


def subject_from_config(fields: Mapping[str, Any], *, name: str, image_size: int | None) -> Subject:
    """Randomly initialised model of a Hugging Face config. Custom code (``auto_map``) is never looked at."""
    from transformers import AutoConfig
    from transformers.models.auto import modeling_auto

    values = {key: value for key, value in fields.items() if key not in _IGNORED_FIELDS}
    model_type = values.pop("model_type", None)
    notes = []
    if not isinstance(model_type, str):
        raise InputError(f"model_type: {model_type!r} is no text; a Hugging Face config names its model_type")
    _require_known(model_type, has_custom_code="auto_map" in fields)
    try:
        config = AutoConfig.for_model(model_type, **values)
    except Exception as error:
        raise InputError(f"transformers refuses the config: {type(error).__name__}: {error}") from error
    if "auto_map" in fields:
        notes.append("auto_map ignored: custom code is never executed; transformers' own class is traced")
    trainable = [
        (mapping[type(config)], task)
        for attribute, task in _TASKS
        if type(config) in (mapping := getattr(modeling_auto, attribute))
    ]
    if not trainable:
        raise InputError(
            f"transformers has no head for language modelling, sequence to sequence, speech recognition or image "
            f"classification for model_type {model_type!r}; give module:callable instead"
        )
    named = [entry for entry in trainable if entry[0].__name__ in (config.architectures or ())]
    model_class, task = (named or trainable)[0]
    notes += _prepare(config, image_size if task == "images" else None)
    if getattr(config, "decoder_start_token_id", 0) is None or not hasattr(config, "decoder_start_token_id"):
        # Encoder-decoders shift labels by it; which token it is costs nothing.
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0
    text = config.get_text_config()
    vocab_size = getattr(text, "vocab_size", None)
    positions = getattr(text, "max_position_embeddings", None) or getattr(text, "max_target_positions", None)
    if task == "sequence_to_sequence":
        notes.append("encoder and decoder are traced at the same length")
    return Subject(
        name=name,
        class_name=model_class.__name__,
        input_kind="images" if task == "images" else "tokens",
        build=lambda attention: _build(model_class, config, attention),
        inputs=lambda b, s: _batch(task, config, b, s),
        loss=lambda model, batch: model(**batch).loss,
        vocab_size=vocab_size if task != "images" else None,
        max_position_embeddings=positions,
        image_size=_side(config) if task == "images" else None,
        longest_length=positions,
        sliding_window=getattr(text, "sliding_window", None),
        notes=tuple(notes),
    )


def _require_known(model_type: str, *, has_custom_code: bool) -> None:
    from transformers import CONFIG_MAPPING, __version__

    if model_type in CONFIG_MAPPING:
        return
    known = tuple(CONFIG_MAPPING.keys())
    near = nearest_names(model_type, known)
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    custom = " Custom code (auto_map) is never executed." if has_custom_code else ""
    raise InputError(
        f"model_type {model_type!r} is none of the {len(known)} that transformers {__version__} builds{hint}."
        f"{custom} For a model of your own give module:callable."
    )


def _prepare(config: Any, image_size: int | None) -> list[str]:
    """Settings of a training step; what was changed."""
    notes = []
    for part in {id(part): part for part in (config, config.get_text_config())}.values():
        if hasattr(part, "use_cache"):
            part.use_cache = False
    if image_size is not None and _side(config) != image_size:
        notes.append(f"image_size: {_side(config)} of the config is traced at {image_size}")
        config.image_size = image_size
    dropped = [name for name in vars(config) if name.endswith("layerdrop") and getattr(config, name)]
    notes += [f"{name}: {getattr(config, name)}: no layer is dropped in the trace" for name in dropped]
    if hasattr(config, "use_mamba_kernels") or hasattr(config, "use_mambapy"):
        notes.append("state-space layers are traced as transformers' slow path, not as the fused scan kernel")
    return notes


def _side(config: Any) -> int:
    side = getattr(config, "image_size", None)
    return int(side[0] if isinstance(side, (tuple, list)) else side or 224)


def _build(model_class: type, config: Any, attention: str) -> nn.Module:
    """On the meta device: shapes only. fp32, whatever the config says."""
    own = copy.deepcopy(config)
    for kernel in dict.fromkeys((attention, "eager")):
        try:
            with torch.device("meta"):
                return model_class._from_config(own, attn_implementation=kernel, dtype=torch.float32)
        except ValueError as error:
            # Some models know no SDPA: eager is then what they train with.
            if kernel == "eager" or "scaled_dot_product_attention" not in str(error):
                raise InputError(f"transformers cannot build the model: {error}") from error
        except Exception as error:
            raise InputError(f"transformers cannot build the model: {type(error).__name__}: {error}") from error
    raise AssertionError("eager attention either builds or raises")


def _batch(task: str, config: Any, micro_batch_size: int, sequence_length: int) -> dict[str, Any]:
    ids = torch.zeros((micro_batch_size, sequence_length), dtype=torch.long)
    if task == "images":
        side, channels = _side(config), getattr(config, "num_channels", 3)
        pixels = torch.zeros((micro_batch_size, channels, side, side))
        return {"pixel_values": pixels, "labels": torch.zeros((micro_batch_size,), dtype=torch.long)}
    if task == "speech":
        frames = 2 * getattr(config, "max_source_positions", 1500)
        features = torch.zeros((micro_batch_size, getattr(config, "num_mel_bins", 80), frames))
        return {"input_features": features, "labels": ids}
    return {"input_ids": ids, "labels": ids.clone()}


def subject_from_callable(target: str, *, search_path: str) -> Subject:
    """``module:callable`` of the user's own code.

    The callable takes ``batch_size`` and, for models over sequences, ``sequence_length``, and returns the module and
    its inputs (a tensor, a tuple or a dict of keyword arguments). Forward returns a loss, something with ``.loss``, or
    tensors whose sum is then the loss.
    """
    module_name, _, attribute = target.partition(":")
    sys.path.append(search_path)
    try:
        made = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:
        raise InputError(f"{target}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(made):
        raise InputError(f"{target}: is a {type(made).__name__}, not a callable")
    names = inspect.signature(made).parameters
    has_length = "sequence_length" in names
    if "batch_size" not in names:
        raise InputError(
            f"{target}: takes ({', '.join(names)}); it must take batch_size and, for models over sequences, "
            "sequence_length"
        )

    def call(b: int, s: int) -> tuple[nn.Module, Any]:
        sizes = {"batch_size": b, "sequence_length": s} if has_length else {"batch_size": b}
        try:
            with torch.device("meta"):
                result = made(**sizes)
        except Exception:
            # Code that reads values while it builds cannot run without memory.
            result = made(**sizes)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], nn.Module)):
            raise InputError(f"{target}: returned {type(result).__name__}; it must return (module, inputs)")
        return result

    try:
        example = call(2, 64)[0]
    except TraceError:
        raise
    except Exception as error:
        raise InputError(f"{target}: fails: {type(error).__name__}: {error}") from error
    return Subject(
        name=target,
        class_name=type(example).__name__,
        input_kind="tokens" if has_length else "images",
        build=lambda attention: call(2, 64)[0],
        inputs=lambda b, s: _named_inputs(call(b, s)[1]),
        loss=_loss_of_any,
    )


_POSITIONAL = "_positional"


def _named_inputs(inputs: Any) -> dict[str, Any]:
    """Fresh tensors like the user's, so that none lies on another device."""

    def like(value: Any) -> Any:
        return torch.zeros(value.shape, dtype=value.dtype, device="cpu") if isinstance(value, torch.Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: like(value) for name, value in inputs.items()}
    positional = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    return {f"{_POSITIONAL}{number}": like(value) for number, value in enumerate(positional)}


def _loss_of_any(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    positional = [value for name, value in batch.items() if name.startswith(_POSITIONAL)]
    named = {name: value for name, value in batch.items() if not name.startswith(_POSITIONAL)}
    output = model(*positional, **named)
    output = getattr(output, "loss", None) if getattr(output, "loss", None) is not None else output
    if isinstance(output, Mapping):
        output = output.get("loss", tuple(output.values()))
    parts = [part for part in (output if isinstance(output, (tuple, list)) else (output,)) if _has_gradient(part)]
    if not parts:
        raise TraceError("forward returned no tensor with a gradient: nothing to train")
    total = parts[0] if parts[0].dim() == 0 else parts[0].sum()
    return total if parts[0].dim() == 0 else sum((part.sum() for part in parts[1:]), total)


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
