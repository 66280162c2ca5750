"""How a model is trained: precision, kernels, batch, length, optimizer."""

from dataclasses import dataclass
from enum import StrEnum


class Precision(StrEnum):
    """Mixed precision as Hugging Face Trainer runs it (fp32 master weights), or plain fp32."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class AttentionKernel(StrEnum):
    """The ``attn_implementation`` of transformers."""

    SDPA = "sdpa"
    EAGER = "eager"
    FLASH_ATTENTION_2 = "flash_attention_2"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizationSettings:
    """Published hyperparameters that change no cost but belong into exported files."""

    learning_rate: float | None = None
    adam_beta1: float | None = None
    adam_beta2: float | None = None
    adam_epsilon: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None
    """Global gradient norm clipped to this; None means no clipping."""
    lr_schedule: str | None = None
    """``cosine``, ``linear`` or ``constant``."""
    min_lr_fraction: float | None = None
    warmup_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """What one optimizer step is made of, and how many there are."""

    precision: Precision
    tf32: bool = True
    """TF32 tensor cores for what runs in fp32 (Ampere and newer)."""
    attention: AttentionKernel = AttentionKernel.SDPA
    compile: bool = True
    """``torch.compile`` of the model."""
    optimizer: str = "adamw_torch"
    """Canonical optimizer name, see ``OPTIMIZERS``."""
    sequence_length: int | None = None
    """Tokens per sample; None for images."""
    image_size: int | None = None
    """Pixels per side; None for text."""
    global_batch_size: int = 1
    """Samples per optimizer step over all ranks."""
    micro_batch_size: int = 1
    """Samples per rank and forward pass."""
    num_training_steps: int | None = None
    """Optimizer steps of the whole run; None where no length is known."""
    overhead_fraction: float = 0.0
    """Share added to the training time for evaluation, saving and restarts."""
    optimization: OptimizationSettings = OptimizationSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What an optimizer keeps and moves per trainable parameter."""

    name: str
    state_bytes_per_parameter: float
    """Resident state on top of the master weight (Adam in fp32: two moments, 8 bytes)."""
    traffic_bytes_per_parameter: float
    """Bytes read and written per parameter in one update with fp32 master weights and gradients
    (Adam: read weight, gradient, two moments; write weight, two moments: 28)."""
    kernels_per_tensor: float
    """Kernels launched per parameter tensor by the multi-tensor (foreach) update, after grouping."""
    is_fused: bool = False


_ADAM_FOREACH: dict[str, float] = {
    "state_bytes_per_parameter": 8.0,
    "traffic_bytes_per_parameter": 76.0,
    "kernels_per_tensor": 0.35,
}
"""torch.optim.AdamW(foreach): one multi-tensor kernel per arithmetic step instead of one fused pass; each
step reads and writes full tensors (about 19 passes of 4 bytes)."""
_ADAM_FUSED: dict[str, float] = {
    "state_bytes_per_parameter": 8.0,
    "traffic_bytes_per_parameter": 28.0,
    "kernels_per_tensor": 0.03,
}

OPTIMIZERS: dict[str, OptimizerCost] = {
    cost.name: cost
    for cost in (
        OptimizerCost(name="adamw_torch", is_fused=False, **_ADAM_FOREACH),
        OptimizerCost(name="adamw_torch_fused", is_fused=True, **_ADAM_FUSED),
        OptimizerCost(
            name="adamw_8bit", state_bytes_per_parameter=2.03, traffic_bytes_per_parameter=16.1, kernels_per_tensor=1.0
        ),
        OptimizerCost(
            name="paged_adamw_32bit",
            state_bytes_per_parameter=8.0,
            traffic_bytes_per_parameter=28.0,
            kernels_per_tensor=1.0,
        ),
        OptimizerCost(
            name="adafactor", state_bytes_per_parameter=0.01, traffic_bytes_per_parameter=60.0, kernels_per_tensor=20.0
        ),
        OptimizerCost(
            name="sgd", state_bytes_per_parameter=0.0, traffic_bytes_per_parameter=12.0, kernels_per_tensor=0.05
        ),
    )
}
"""By canonical name. Sources: torch/optim/adamw.py (foreach and fused paths), bitsandbytes block-wise 8-bit
states (one byte each for two moments plus 2 x 4 bytes per 256-element block)."""

OPTIMIZER_ALIASES: dict[str, str] = {
    "adam": "adamw_torch",
    "adamw": "adamw_torch",
    "adamw_hf": "adamw_torch",
    "adam_torch": "adamw_torch",
    "adamw_bnb_8bit": "adamw_8bit",
    "paged_adamw_8bit": "adamw_8bit",
    "paged_adamw": "paged_adamw_32bit",
    "fused_adam": "adamw_torch_fused",
    "adamw_apex_fused": "adamw_torch_fused",
    "adam_fused": "adamw_torch_fused",
}
"""Hugging Face ``optim`` spellings and everyday names that cost the same."""
