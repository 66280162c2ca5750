"""Optimizers by the names of the command line, through the classes that the Trainer would take."""

from collections.abc import Iterable
from typing import Any

import torch

from estimator.specs.recipe import OPTIMIZER_ALIASES, OPTIMIZERS

LEARNING_RATE = 1e-4
"""Costs nothing; small, so that random data cannot make a run diverge."""
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.95)
EPSILON = 1e-8


def canonical_optimizer(name: str) -> str:
    """The name in ``OPTIMIZERS``."""
    canonical = OPTIMIZER_ALIASES.get(name, name)
    if canonical not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is unknown; allowed: {', '.join(OPTIMIZERS)}")
    return canonical


def parameter_groups(parameters: Iterable[torch.nn.Parameter]) -> list[dict[str, Any]]:
    """Matrices decay, vectors (biases, norms) do not: two groups, as the Trainer makes them."""
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    # Under ZeRO-3 a parameter is an empty tensor that remembers its shape.
    dimensions = [len(getattr(parameter, "ds_shape", parameter.shape)) for parameter in trainable]
    groups = (
        ([p for p, dimension in zip(trainable, dimensions, strict=True) if dimension >= 2], WEIGHT_DECAY),
        ([p for p, dimension in zip(trainable, dimensions, strict=True) if dimension < 2], 0.0),
    )
    return [{"params": members, "weight_decay": decay} for members, decay in groups if members]


def build_optimizer(name: str, model: torch.nn.Module) -> torch.optim.Optimizer:
    """A torch optimizer over the model's parameters; what is not installed raises the library's own error."""
    groups = parameter_groups(model.parameters())
    match canonical_optimizer(name):
        case "adamw_torch":
            return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
        case "adamw_torch_fused":
            return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, fused=True)
        case "sgd":
            return torch.optim.SGD(groups, lr=LEARNING_RATE)
        case "adafactor":
            from transformers.optimization import Adafactor

            return Adafactor(groups, lr=LEARNING_RATE, scale_parameter=False, relative_step=False)
        case "adamw_8bit" | "paged_adamw_32bit" as kind:
            import bitsandbytes

            is_8bit = kind == "adamw_8bit"
            return bitsandbytes.optim.AdamW(
                groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, optim_bits=8 if is_8bit else 32,
                is_paged=not is_8bit,
            )
        case other:
            raise ValueError(f"optimizer {other!r} is known to the estimator, but the harness cannot run it yet")
