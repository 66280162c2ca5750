"""Hugging Face models from a config: random weights, the class that pre-training uses."""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

_TASKS = (
    ("MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING", "AutoModelForImageClassification"),
    ("MODEL_FOR_MASKED_LM_MAPPING", "AutoModelForMaskedLM"),
    ("MODEL_FOR_CAUSAL_LM_MAPPING", "AutoModelForCausalLM"),
)
"""Encoders also have causal variants, so the masked head is looked up first."""
_POSITIONS_AFTER_PADDING = frozenset({"roberta", "xlm-roberta", "camembert", "longformer"})
"""Model types whose positions start behind the padding id."""


def build_config(
    fields: Mapping[str, Any], *, sequence_length: int | None, image_size: int | None
) -> tuple[PretrainedConfig, dict[str, Any]]:
    """The config with the workload's sizes, and what had to be changed for them."""
    values = dict(fields)
    model_type = values.pop("model_type", None)
    if model_type is None:
        raise ValueError("the model config has no model_type")
    for name in ("torch_dtype", "dtype", "transformers_version", "auto_map"):
        values.pop(name, None)
    config = AutoConfig.for_model(model_type, **values)
    changes: dict[str, Any] = {}
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if sequence_length is not None:
        positions = getattr(config, "max_position_embeddings", None)
        needed = sequence_length
        if model_type in _POSITIONS_AFTER_PADDING:
            needed += int(config.pad_token_id or 0) + 1
        if isinstance(positions, int) and positions < needed:
            config.max_position_embeddings = needed
            changes["max_position_embeddings"] = needed
    if image_size is not None and getattr(config, "image_size", image_size) != image_size:
        config.image_size = image_size
        changes["image_size"] = image_size
    return config, changes


def model_class(config: PretrainedConfig) -> type[PreTrainedModel]:
    """The class named by ``architectures`` where it trains one of our tasks, else the model type's own head."""
    mappings = [getattr(modeling_auto, mapping) for mapping, _ in _TASKS]
    trainable = [mapping[type(config)] for mapping in mappings if type(config) in mapping]
    for name in config.architectures or ():
        found = getattr(transformers, name, None)
        if found is not None and found in trainable:
            return found
    if not trainable:
        raise ValueError(f"transformers has no language-modelling or image-classification head for {config.model_type}")
    return trainable[0]


def has_attention(config: PretrainedConfig) -> bool:
    """False for convolutional and state-space models, which take no attention kernel."""
    return getattr(config, "num_attention_heads", None) is not None


def build_model(
    config: PretrainedConfig, *, attention: str, device: torch.device | None, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A model in training mode with random weights of ``dtype``, on ``device`` from the start (None: as the library
    places it). Says the dtype explicitly: ``from_config`` would follow a 16-bit config."""
    found = model_class(config)
    auto = next(
        getattr(transformers, auto_name)
        for mapping, auto_name in _TASKS
        if found is getattr(modeling_auto, mapping).get(type(config), None)
    )
    kernel = {"attn_implementation": attention} if has_attention(config) else {}
    if device is None:
        model = auto.from_config(config, dtype=dtype, **kernel)
    else:
        with device:
            model = auto.from_config(config, dtype=dtype, **kernel)
        model.to(device)
    model.train()
    return model


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Keep block inputs only, as the Trainer asks for it; the method was renamed within transformers 5."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def block_class_name(model: PreTrainedModel) -> str:
    """The class of the repeated block: FSDP shards and checkpoints by it.

    The library's default, everything that must not be split, also wraps embeddings (whose weight may be tied to
    the output layer, which then fails) and nested stages (which would be recomputed twice).
    """
    names = [name for name in model._no_split_modules or () if not name.endswith("Embeddings")]
    if not names:
        raise ValueError(f"transformers names no block of {type(model).__name__} to shard by")
    counts = dict.fromkeys(names, 0)
    for module in model.modules():
        if type(module).__name__ in counts:
            counts[type(module).__name__] += 1
    # Where two are equally frequent one holds the other, and modules() comes to the outer one first.
    most = max(counts.values())
    return next(
        name for name in (type(module).__name__ for module in model.modules()) if counts.get(name) == most
    )


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """What was built, for the record."""
    config = model.config
    facts: dict[str, Any] = {
        "model_class": type(model).__name__,
        "attention_kernel": getattr(config, "_attn_implementation", None) if has_attention(config) else None,
    }
    if config.model_type.startswith(("mamba", "falcon_mamba")):
        facts["fused_scan_kernels"] = _has_fused_scan()
    return facts


def _has_fused_scan() -> bool:
    """Whether the fused selective scan is there; without it transformers loops over the sequence in Python, one to
    two orders slower, and such a row says nothing about Mamba."""
    try:
        import causal_conv1d  # noqa: F401
        import mamba_ssm  # noqa: F401
    except ImportError:
        return False
    return True
