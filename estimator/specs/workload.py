"""One training run: model x cluster x recipe x strategy."""

from dataclasses import dataclass

from .hardware import Cluster
from .model import ModelSpec
from .numerics import Numerics, numerics_of
from .recipe import TrainingRecipe
from .strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A fully specified training run."""

    model: ModelSpec
    cluster: Cluster
    recipe: TrainingRecipe
    strategy: Strategy

    @property
    def numerics(self) -> Numerics:
        return numerics_of(self.recipe.precision, self.strategy.kind)

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro batches per rank and optimizer step; the batch is validated to divide."""
        per_round = self.recipe.micro_batch_size * self.cluster.num_accelerators
        return self.recipe.global_batch_size // per_round
