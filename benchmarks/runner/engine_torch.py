"""Training with accelerate as the Trainer drives it: one process, DistributedDataParallel, FSDP2."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin, TorchDynamoPlugin
from transformers import PreTrainedModel

from .models import block_class_name, checkpoint_activations
from .optimizers import build_optimizer
from .protocol import Job

_MIXED_PRECISION = {"bf16": "bf16", "fp16": "fp16", "fp32": "no"}


class TorchEngine:
    """fp32 master weights under autocast (``none``), or fp32 shards computed in 16 bit (FSDP2)."""

    def __init__(self, job: Job, model: PreTrainedModel, device: torch.device) -> None:
        self._accumulation = job.gradient_accumulation_steps
        self.loss_divisor = self._accumulation
        self._max_grad_norm = job.max_grad_norm
        self._is_fsdp = job.strategy.startswith("fsdp_")
        if job.precision == "fp16" and device.type == "cpu":
            raise ValueError("accelerate applies no fp16 autocast on the CPU: the run would silently be fp32")
        if job.flag("activation_checkpointing") and not self._is_fsdp:
            checkpoint_activations(model)
        self._accelerator = self._build_accelerator(job, model, device)
        # accelerate switches TF32 on for compiled fp32 runs: what the workload says comes last.
        set_tf32(job.flag("tf32"))
        optimizer = build_optimizer(str(job.workload["optimizer"]), model)
        self._model, self._optimizer = self._accelerator.prepare(model, optimizer)
        self.num_skipped_steps = 0
        self.last_loss: torch.Tensor | None = None
        # The optimizer wrapper counts accumulation only through its state; every step below is a real one.
        self._accelerator.gradient_state._set_sync_gradients(True)

    def _build_accelerator(self, job: Job, model: PreTrainedModel, device: torch.device) -> Accelerator:
        plugin = None
        if self._is_fsdp:
            plugin = FullyShardedDataParallelPlugin(
                fsdp_version=2,
                reshard_after_forward=job.strategy == "fsdp_full_shard",
                cpu_offload=job.flag("offload"),
                auto_wrap_policy="transformer_based_wrap",
                transformer_cls_names_to_wrap=[block_class_name(model)],
                activation_checkpointing=job.flag("activation_checkpointing"),
                state_dict_type="SHARDED_STATE_DICT",
                cpu_ram_efficient_loading=False,
            )
        compiler = TorchDynamoPlugin(backend="inductor") if job.flag("compile") else None
        accelerator = Accelerator(
            mixed_precision=_MIXED_PRECISION[job.precision],
            cpu=device.type == "cpu",
            fsdp_plugin=plugin,
            dynamo_plugin=compiler,
        )
        if plugin is not None and device.type == "cpu":
            # accelerate selects FSDP for GPUs only, though all that it then does works with gloo.
            if accelerator.mixed_precision != "no":
                plugin.set_mixed_precision(accelerator.mixed_precision)
            if job.flag("offload"):
                # Nothing to pin for without a GPU.
                plugin.cpu_offload = torch.distributed.fsdp.CPUOffloadPolicy(pin_memory=False)
            accelerator.state.distributed_type = DistributedType.FSDP
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP
            accelerator.state.fsdp_plugin = plugin
        return accelerator

    def micro_step(self, batch: dict[str, torch.Tensor], *, is_last: bool, mark: Callable[[], None]) -> None:
        """Forward and backward of one micro batch; gradients are reduced over ranks in the last one only."""
        synchronisation = contextlib.nullcontext() if is_last else self._accelerator.no_sync(self._model)
        with synchronisation:
            loss = self._model(**batch).loss / self._accumulation
            mark()
            self._accelerator.backward(loss)
        self.last_loss = loss.detach()

    def optimizer_step(self, mark: Callable[[], None]) -> None:
        """Clip (unscaling first under fp16), update, drop the gradients."""
        if self._max_grad_norm is not None:
            self._accelerator.clip_grad_norm_(self._model.parameters(), self._max_grad_norm)
        mark()
        self._optimizer.step()
        self.num_skipped_steps += int(self._accelerator.optimizer_step_was_skipped)
        self._optimizer.zero_grad()

    def plain_loop(self, take_batch: Callable[[], dict[str, torch.Tensor]], num_steps: int) -> None:
        """Training as a user writes it, without our clock: what the clock is compared with."""
        for _ in range(num_steps):
            for index in range(self._accumulation):
                if index < self._accumulation - 1:
                    with self._accelerator.no_sync(self._model):
                        loss = self._model(**take_batch()).loss / self._accumulation
                        self._accelerator.backward(loss)
                else:
                    loss = self._model(**take_batch()).loss / self._accumulation
                    self._accelerator.backward(loss)
            if self._max_grad_norm is not None:
                self._accelerator.clip_grad_norm_(self._model.parameters(), self._max_grad_norm)
            self._optimizer.step()
            self._optimizer.zero_grad()

    def facts(self) -> dict[str, Any]:
        """What was run, for the record."""
        facts: dict[str, Any] = {"engine": f"accelerate, {self._accelerator.distributed_type.value}"}
        if self._is_fsdp:
            from torch.distributed.fsdp import FSDPModule

            facts["num_sharded_modules"] = sum(isinstance(module, FSDPModule) for module in self._model.modules())
        return facts

    def close(self) -> None:
        """Forget the process-wide state that accelerate keeps, so that another configuration may follow."""
        self._accelerator.free_memory()
        AcceleratorState._reset_state(True)
        GradientState._reset_state()


def set_tf32(is_on: bool) -> None:
    """TF32 for matrix products and convolutions that run in fp32 (one switch, as in the Trainer).

    Through the older interface: torch forbids mixing it with the newer one, and accelerate uses it.
    """
    torch.set_float32_matmul_precision("high" if is_on else "highest")
    torch.backends.cuda.matmul.allow_tf32 = is_on
    torch.backends.cudnn.allow_tf32 = is_on
