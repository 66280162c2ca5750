"""transformers models without memory: fake CPU tensors of any size, and batches for them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig


def meta_model(model_class: type, config: dict[str, Any], *, attention: str | None = None) -> Any:
    """A model on the meta device: shapes only."""
    fields = dict(config)
    hf_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    if hasattr(hf_config, "use_cache"):
        hf_config.use_cache = False  # as Trainer sets it
    if attention is not None:
        hf_config._attn_implementation = attention
    with torch.device("meta"):
        return model_class(hf_config).to(torch.float32)


def num_parameters(model_class: type, config: dict[str, Any]) -> int:
    """transformers' own count."""
    return int(meta_model(model_class, config).num_parameters())


@contextmanager
def fake_model(
    model_class: type, config: dict[str, Any], *, attention: str | None = None, dtype: torch.dtype = torch.float32
) -> Iterator[Any]:
    """A model in training mode on fake CPU tensors; the body runs under its FakeTensorMode.

    Built on the meta device first: some models read values (``tolist``) while they are built.
    """
    model = meta_model(model_class, config, attention=attention).to(dtype)
    # Reads values to find that no sequences are packed, which fake tensors do not have; then SDPA needs no mask.
    unpacked = mock.patch("transformers.masking_utils.find_packed_sequence_indices", return_value=None)
    with unpacked, FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        model.tie_weights()
        model.train()
        yield model


def token_batch(micro_batch_size: int, sequence_length: int) -> dict[str, torch.Tensor]:
    """Ids and labels, no padding."""
    shape = (micro_batch_size, sequence_length)
    return {"input_ids": torch.zeros(shape, dtype=torch.long), "labels": torch.zeros(shape, dtype=torch.long)}


def image_batch(micro_batch_size: int, image_size: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Pixels and class labels."""
    return {
        "pixel_values": torch.zeros((micro_batch_size, 3, image_size, image_size), dtype=dtype),
        "labels": torch.zeros((micro_batch_size,), dtype=torch.long),
    }
