"""The machine that a user named."""

from dataclasses import dataclass

from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import find_accelerator
from estimator.specs.errors import Note
from estimator.specs.hardware import Accelerator, Cluster

from .options import WorkloadOptions
from .problems import refusal

LARGEST_CLUSTER = 100_000
"""GPUs. More is a batch or a token count in the wrong place."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MachineInput:
    """A cluster. Compared by identity: one per set of hardware options."""

    cluster: Cluster
    notes: tuple[Note, ...]

    @property
    def accelerator(self) -> Accelerator:
        return self.cluster.node.accelerator


def machine_input(options: WorkloadOptions) -> MachineInput:
    """Build the cluster from the hardware options."""
    if options.gpu is None:
        message = "--gpu is missing: a name such as a100-80gb, h100-sxm or rtx-4090 (`traincast catalog gpus`)."
        raise refusal("missing_option", "gpu", message)
    accelerator, found_notes = find_accelerator(options.gpu)
    num_gpus, num_nodes = options.num_gpus or 1, options.num_nodes or 1
    if num_gpus * num_nodes > LARGEST_CLUSTER:
        field = "num_gpus" if num_gpus >= num_nodes else "num_nodes"
        message = f"{num_nodes} x {num_gpus} GPUs is more than {LARGEST_CLUSTER:,}; is it a batch or a token count?"
        raise refusal("bad_value", field, message)
    cluster, built_notes = build_cluster(
        accelerator,
        num_gpus,
        num_nodes,
        interconnect=options.interconnect,
        network_gbit=options.network_gbit,
        cpu_memory_gib=options.cpu_memory_gib,
        gpu_memory_gib=options.gpu_memory_gib,
        usd_per_gpu_hour=options.usd_per_gpu_hour,
    )
    notes = [*found_notes, *built_notes]
    if options.interconnect is not None and num_gpus == 1:
        notes.append(Note(code="option_unused", message="--interconnect has no effect with one GPU a node."))
    if options.network_gbit is not None and num_nodes == 1:
        notes.append(Note(code="option_unused", message="--network-gbit has no effect on one node."))
    return MachineInput(cluster=cluster, notes=tuple(notes))
