"""Synthetic batches of the right shape, copied from host memory before every micro step as a loader does."""

from typing import Any

import torch
from transformers import PretrainedConfig

_POOL_SIZE = 4
"""Different batches, taken in turn."""
_MASKED_FRACTION = 0.15


class SyntheticBatches:
    """Random batches in (pinned) host memory.

    Stands for a loader that keeps up: tokenisation and decoding are not part of it. No attention mask: packed
    sequences of full length, as in pre-training.
    """

    def __init__(
        self, config: PretrainedConfig, *, micro_batch_size: int, sequence_length: int | None, image_size: int | None,
        is_masked_lm: bool, device: torch.device, seed: int,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._device = device
        self._next = 0
        self._pool: list[dict[str, torch.Tensor]] = []
        for _ in range(_POOL_SIZE):
            if image_size is not None:
                batch = _images(config, micro_batch_size, image_size, generator)
            elif sequence_length is not None:
                batch = _tokens(config, (micro_batch_size, sequence_length), generator, is_masked_lm=is_masked_lm)
            else:
                raise ValueError("a workload needs a sequence_length or an image_size")
            if device.type == "cuda":
                batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
            self._pool.append(batch)

    def take(self) -> dict[str, torch.Tensor]:
        """The next batch, on its way to the device."""
        batch = self._pool[self._next % _POOL_SIZE]
        self._next += 1
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in batch.items()}


def _tokens(
    config: Any, shape: tuple[int, int], generator: torch.Generator, *, is_masked_lm: bool
) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, config.vocab_size, shape, generator=generator)
    padding = getattr(config, "pad_token_id", None)
    if isinstance(padding, int):
        # Padding would shift positions and drop out of the loss.
        ids[ids == padding] = (padding + 1) % config.vocab_size
    labels = ids.clone()
    if is_masked_lm:
        labels[torch.rand(shape, generator=generator) >= _MASKED_FRACTION] = -100
    return {"input_ids": ids, "labels": labels}


def _images(config: Any, micro_batch_size: int, image_size: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    channels = getattr(config, "num_channels", 3)
    return {
        "pixel_values": torch.randn((micro_batch_size, channels, image_size, image_size), generator=generator),
        "labels": torch.randint(0, config.num_labels, (micro_batch_size,), generator=generator),
    }
