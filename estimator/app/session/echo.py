"""A workload back in option names: what the JSON repeats, and what a batch line could say again."""

from estimator.specs.hardware import Cluster
from estimator.specs.recipe import TrainingRecipe
from estimator.specs.strategy import Strategy
from estimator.specs.units import BITS_PER_BYTE, GIB

from .model_input import ModelInput
from .options import WorkloadOptions

_BITS_PER_GIGABIT = 1e9


def echo_of(
    options: WorkloadOptions, model: ModelInput, cluster: Cluster, recipe: TrainingRecipe, strategy: Strategy | None
) -> WorkloadOptions:
    """Every input after defaults were filled in. A plan's strategy stays open (None)."""
    node = cluster.node
    network = cluster.network if cluster.num_nodes > 1 else None
    return WorkloadOptions(
        model.text,
        options.set,
        node.accelerator.name,
        node.num_accelerators,
        cluster.num_nodes,
        options.gpu_memory_gib,
        None if node.cpu_memory_bytes is None else node.cpu_memory_bytes / GIB,
        options.interconnect or (node.peer_link.name if node.num_accelerators > 1 else None),
        None if network is None else network.bandwidth_bytes_per_second * BITS_PER_BYTE / _BITS_PER_GIGABIT,
        cluster.usd_per_gpu_hour,
        recipe.precision,
        recipe.tf32,
        recipe.attention,
        recipe.compile,
        recipe.optimizer,
        recipe.sequence_length,
        recipe.image_size,
        recipe.global_batch_size,
        recipe.num_training_steps,
        None,
        None,
        recipe.overhead_fraction,
        options.calibration or "auto",
        None if strategy is None else recipe.micro_batch_size,
        None if strategy is None else strategy.kind,
        None if strategy is None else strategy.offload,
        None if strategy is None else strategy.activation_checkpointing,
    )
