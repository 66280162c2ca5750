"""Bytes that autograd keeps for the backward pass, counted on fake CPU tensors."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.runner.cuda_autocast import CudaAutocast

from .fake_models import fake_model


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One storage that autograd keeps, by the first tensor that was saved in it."""

    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    node: str
    """Innermost module whose forward pass saved it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedActivations:
    """What is alive between forward and backward, without parameters, buffers and the batch."""

    tensors: tuple[SavedTensor, ...]
    weight_copy_bytes: int
    """16-bit copies of fp32 weights that the graph keeps (autocast)."""

    @property
    def activation_bytes(self) -> int:
        """Every storage once."""
        return sum(tensor.num_bytes for tensor in self.tensors)


class _Recorder:
    """Hooks of ``saved_tensors_hooks`` that note every new storage."""

    def __init__(self, ignored: set[int], autocast: CudaAutocast) -> None:
        self.ignored = ignored
        self.autocast = autocast
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.tensors: list[SavedTensor] = []
        self.weight_copy_bytes = 0
        self.modules: list[str] = [""]

    def enter(self, module: str) -> None:
        self.modules.append(module)

    def leave(self) -> None:
        self.modules.pop()

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.ignored or key in self.storages:
            return tensor
        self.storages[key] = storage  # held, so that no later storage gets the same address
        if self.autocast.is_weight_copy(tensor):
            self.weight_copy_bytes += storage.nbytes()
            return tensor
        self.tensors.append(
            SavedTensor(
                shape=tuple(tensor.shape), dtype=str(tensor.dtype), num_bytes=storage.nbytes(), node=self.modules[-1]
            )
        )
        return tensor


def _enable_checkpointing(model: Any) -> None:
    """Checkpoint every block; models that transformers cannot checkpoint (ConvNeXt) get torch's wrapper."""
    if model.supports_gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        return
    apply_activation_checkpointing(model, check_fn=lambda module: type(module).__name__.endswith("Layer"))


def saved_activations(
    model_class: type,
    config: dict[str, Any],
    batch: Callable[[], dict[str, torch.Tensor]],
    *,
    numerics: str = "fp32",
    attention: str | None = None,
    kernel: str | None = None,
    checkpointing: bool = False,
) -> SavedActivations:
    """Run one forward pass and list what autograd keeps.

    ``numerics``: ``fp32``; ``autocast`` (CUDA's lists over fp32 weights, bf16); ``low_precision`` (bf16 weights, no
    autocast). ``kernel``: what SDPA takes on the GPU (``flash``, ``efficient``); None is its math decomposition.
    With checkpointing only block inputs and what lies outside blocks remain.
    """
    dtype = torch.bfloat16 if numerics == "low_precision" else torch.float32
    autocast = CudaAutocast(torch.bfloat16 if numerics == "autocast" else None, attention=kernel)
    with ExitStack() as stack:
        model = stack.enter_context(fake_model(model_class, config, attention=attention, dtype=dtype))
        inputs = batch()
        if dtype is torch.bfloat16:
            inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in inputs.items()}
        if checkpointing:
            _enable_checkpointing(model)
        known = (*model.parameters(), *model.buffers(), *inputs.values())
        recorder = _Recorder({tensor.untyped_storage()._cdata for tensor in known}, autocast)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(lambda *_, name=name: recorder.enter(name))
            module.register_forward_hook(lambda *_: recorder.leave())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(autocast)
        with torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor):
            output = model(**inputs)
        if output.loss is None:
            raise AssertionError("the batch must hold labels")
    return SavedActivations(tensors=tuple(recorder.tensors), weight_copy_bytes=recorder.weight_copy_bytes)
