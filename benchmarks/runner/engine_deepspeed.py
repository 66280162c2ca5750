"""Training with DeepSpeed ZeRO from the JSON that the Trainer would pass on."""

from collections.abc import Callable, Mapping
from typing import Any

import deepspeed
import torch
from transformers import PretrainedConfig, PreTrainedModel
from transformers.integrations import HfDeepSpeedConfig

from .engine_torch import set_tf32
from .models import build_model, checkpoint_activations
from .optimizers import (
    BETAS,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    build_optimizer,
    canonical_optimizer,
    parameter_groups,
)
from .protocol import Job

_COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def deepspeed_config(job: Job, config: PretrainedConfig, *, world_size: int, is_cpu: bool) -> dict[str, Any]:
    """The JSON of a ZeRO run. Bucket sizes are what ``auto`` stands for in the Trainer: from the hidden size."""
    stage = int(job.strategy.removeprefix("zero_"))
    hidden_size = _hidden_size(config)
    zero: dict[str, Any] = {
        "stage": stage,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "reduce_bucket_size": hidden_size * hidden_size,
    }
    if stage == 3:
        zero |= {
            "stage3_prefetch_bucket_size": int(0.9 * hidden_size * hidden_size),
            "stage3_param_persistence_threshold": 10 * hidden_size,
            "stage3_max_live_parameters": 1_000_000_000,
            "stage3_max_reuse_distance": 1_000_000_000,
            "sub_group_size": 1_000_000_000,
        }
    if job.flag("offload"):
        # Nothing to pin for without a GPU.
        target = {"device": "cpu", "pin_memory": not is_cpu}
        zero["offload_optimizer"] = dict(target)
        if stage == 3:
            zero["offload_param"] = dict(target)
    content: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": job.micro_batch_size,
        "gradient_accumulation_steps": job.gradient_accumulation_steps,
        "train_batch_size": job.micro_batch_size * job.gradient_accumulation_steps * world_size,
        "gradient_clipping": job.max_grad_norm or 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
        "wall_clock_breakdown": False,
    }
    if job.precision == "bf16":
        content["bf16"] = {"enabled": True}
    elif job.precision == "fp16":
        content["fp16"] = {
            "enabled": True, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
            "min_loss_scale": 1,
        }
    if _uses_deepspeed_adam(job):
        parameters = {"lr": LEARNING_RATE, "betas": list(BETAS), "eps": EPSILON, "weight_decay": WEIGHT_DECAY}
        # DeepSpeed's own Adam needs a CUDA compiler (or, offloaded, vector instructions) at first use.
        content["optimizer"] = {"type": "AdamW", "params": parameters | ({"torch_adam": True} if is_cpu else {})}
    else:
        content["zero_force_ds_cpu_optimizer"] = False
    return _merged(content, job.deepspeed_config or {})


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in over.items():
        inner = merged.get(name)
        merged[name] = _merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return merged


def _hidden_size(config: PretrainedConfig) -> int:
    hidden = getattr(config, "hidden_size", None)
    if isinstance(hidden, int):
        return hidden
    return int(max(config.hidden_sizes))


def _uses_deepspeed_adam(job: Job) -> bool:
    return canonical_optimizer(str(job.workload["optimizer"])) in ("adamw_torch", "adamw_torch_fused")


class DeepSpeedEngine:
    """16-bit weights, fp32 master copies and states in the (sharded, perhaps offloaded) optimizer."""

    loss_divisor = 1

    def __init__(
        self, job: Job, config: PretrainedConfig, device: torch.device, *, world_size: int,
        before_initialize: Callable[[PreTrainedModel], None],
    ) -> None:
        set_tf32(job.flag("tf32"))
        self._dtype = _COMPUTE_DTYPES[job.precision]
        self.configuration = deepspeed_config(job, config, world_size=world_size, is_cpu=device.type == "cpu")
        deepspeed.init_distributed(dist_backend="nccl" if device.type == "cuda" else "gloo")
        attention = str(job.workload.get("attention", "sdpa"))
        if job.strategy == "zero_3":
            # transformers partitions the weights while it builds the model as long as this object lives.
            self._transformers_hook = HfDeepSpeedConfig(self.configuration)
            model = build_model(config, attention=attention, device=None)
        else:
            # The engine would cast and move the model: built as it will be, nothing has to be held twice.
            model = build_model(config, attention=attention, device=device, dtype=self._dtype)
        self.model = model
        if job.flag("activation_checkpointing"):
            checkpoint_activations(model)
        before_initialize(model)
        own = {} if _uses_deepspeed_adam(job) else {"optimizer": build_optimizer(str(job.workload["optimizer"]), model)}
        self._engine, *_ = deepspeed.initialize(
            model=model, model_parameters=None if own else parameter_groups(model.parameters()),
            config=self.configuration, **own,
        )
        if job.flag("compile"):
            self._engine.compile(backend="inductor")
        self.last_loss: torch.Tensor | None = None

    @property
    def num_skipped_steps(self) -> int:
        return int(self._engine.skipped_steps)

    def micro_step(self, batch: dict[str, torch.Tensor], *, is_last: bool, mark: Callable[[], None]) -> None:
        """Forward and backward; the boundary is set as accelerate sets it."""
        inputs = {
            name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in batch.items()
        }
        self._engine.set_gradient_accumulation_boundary(is_boundary=is_last)
        loss = self._engine(**inputs).loss
        mark()
        self._engine.backward(loss)
        self.last_loss = loss.detach()

    def optimizer_step(self, mark: Callable[[], None]) -> None:
        """Clipping and update are one call in DeepSpeed."""
        mark()
        self._engine.step()

    def facts(self) -> dict[str, Any]:
        """What was run, for the record."""
        return {
            "engine": f"deepspeed, {type(self._engine.optimizer).__name__}",
            "deepspeed_optimizer": type(self._engine.basic_optimizer).__name__
            if hasattr(self._engine, "basic_optimizer") else None,
            "deepspeed_config": self.configuration,
        }

    def close(self) -> None:
        """Release what DeepSpeed lets go of; the process must end after this job all the same."""
        self._engine.destroy()
