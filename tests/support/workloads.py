"""Small workloads that need no catalogue: a hand-written operation list on a made-up or an A100-like device."""

from dataclasses import replace

from estimator.specs.hardware import Accelerator, Cluster, Link, Node, NumberFormat
from estimator.specs.models.traced import TracedModel
from estimator.specs.numerics import Numerics
from estimator.specs.operations import (
    LENGTH,
    SAMPLES,
    TOKENS,
    AttentionPath,
    BlockGroup,
    Component,
    Operation,
    OperationKind,
    OperationList,
    ParameterKind,
    ParameterTensor,
    as_size,
)
from estimator.specs.recipe import OptimizationSettings, Precision, TrainingRecipe
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.workload import Workload

A100 = Accelerator(
    name="test-a100",
    display_name="A100-like",
    vendor="nvidia",
    peak_dense_flop_per_second={
        NumberFormat.FP32: 19.5e12,
        NumberFormat.TF32: 156e12,
        NumberFormat.BF16: 312e12,
        NumberFormat.FP16: 312e12,
    },
    memory_bytes=80 * 2**30,
    memory_bandwidth_bytes_per_second=2.0e12,
    compute_capability=(8, 0),
    num_multiprocessors=108,
    host_link="pcie4x16",
    peer_link="nvlink3",
    power_watts=400.0,
)
NVLINK = Link(name="nvlink3", bandwidth_bytes_per_second=300e9, latency_seconds=3e-6)
PCIE = Link(name="pcie4x16", bandwidth_bytes_per_second=32e9, latency_seconds=6e-6)
NETWORK = Link(name="ethernet", bandwidth_bytes_per_second=25e9, latency_seconds=20e-6)


def operation_list(*, hidden: int = 1024, layers: int = 8, vocab: int = 32_000) -> OperationList:
    """A decoder in eight kinds of operation: projections, attention, a norm, output matrix, loss."""

    def product(name: str, k: int, n: int, block: str | None, repeats: int) -> Operation:
        return Operation(
            name=name, kind=OperationKind.MATRIX_PRODUCT, block=block, repeats=repeats, m=TOKENS, k=as_size(k),
            n=as_size(n), has_weight=True, backward_kernels=2.0, saved_bytes=TOKENS * (2 * k),
        )  # fmt: skip

    operations = (
        product("qkv", hidden, 3 * hidden, "layer", layers),
        product("projection", hidden, hidden, "layer", layers),
        product("up", hidden, 4 * hidden, "layer", layers),
        product("down", 4 * hidden, hidden, "layer", layers),
        Operation(
            name="attention", kind=OperationKind.ATTENTION, block="layer", repeats=layers,
            batch=SAMPLES * (hidden // 64), m=LENGTH, n=LENGTH, k=as_size(64), is_causal=True,
            saved_bytes=TOKENS * (8 * hidden),
        ),
        Operation(
            name="norm", kind=OperationKind.MEMORY_BOUND, block="layer", repeats=2 * layers,
            forward_bytes=TOKENS * (8 * hidden), backward_bytes=TOKENS * (12 * hidden),
            saved_bytes=TOKENS * (4 * hidden), transient_bytes=TOKENS * (4 * hidden),
        ),
        product("head", hidden, vocab, None, 1),
        Operation(
            name="loss", kind=OperationKind.MEMORY_BOUND, forward_bytes=TOKENS * (12 * vocab),
            backward_bytes=TOKENS * (12 * vocab), saved_bytes=TOKENS * (6 * vocab),
            transient_bytes=TOKENS * (6 * vocab), component=Component.LOGITS,
        ),
    )  # fmt: skip
    parameters = (
        ParameterTensor(
            name="block", shape=(hidden, 12 * hidden), kind=ParameterKind.MATRIX, block="layer", repeats=layers
        ),
        ParameterTensor(name="head", shape=(vocab, hidden), kind=ParameterKind.MATRIX),
        ParameterTensor(name="embedding", shape=(vocab, hidden), kind=ParameterKind.EMBEDDING),
    )
    return OperationList(
        operations=operations,
        blocks=(BlockGroup(name="layer", num_blocks=layers, input_bytes=TOKENS * (4 * hidden)),),
        parameters=parameters,
        input_bytes=TOKENS * 16,
    )


def traced(listing: OperationList, name: str = "tiny") -> TracedModel:
    """A model that answers every variant with one list."""
    variants = {f"{numerics}/{path}": listing for numerics in Numerics for path in AttentionPath}
    return TracedModel(
        name=name,
        source="test",
        input_kind="tokens",
        variants=variants,
        max_position_embeddings=4096,
        vocab_size=32_000,
    )


TINY = traced(operation_list())


def cluster(
    num_gpus: int = 1, num_nodes: int = 1, *, accelerator: Accelerator = A100, peer_link: Link = NVLINK,
    cpu_memory_bytes: int | None = None, usd_per_gpu_hour: float | None = 2.0,
) -> Cluster:  # fmt: skip
    """Nodes of ``num_gpus`` each."""
    return Cluster(
        node=Node(
            accelerator=accelerator, num_accelerators=num_gpus, peer_link=peer_link, host_link=PCIE,
            cpu_memory_bytes=cpu_memory_bytes,
        ),
        num_nodes=num_nodes,
        network=NETWORK if num_nodes > 1 else None,
        usd_per_gpu_hour=usd_per_gpu_hour,
    )  # fmt: skip


def workload(
    *, on: Cluster | None = None, kind: StrategyKind = StrategyKind.NONE, offload: bool = False,
    checkpointing: bool = False, micro_batch_size: int = 4, accumulation: int = 1, sequence_length: int = 1024,
    precision: Precision = Precision.BF16, model: TracedModel = TINY, compile: bool = False,
    optimizer: str = "adamw_torch_fused", num_training_steps: int | None = 1000,
) -> Workload:  # fmt: skip
    """One workload; the global batch follows from micro batch, accumulation and GPUs."""
    where = on or cluster()
    return Workload(
        model=model,
        cluster=where,
        recipe=TrainingRecipe(
            precision=precision, compile=compile, optimizer=optimizer, sequence_length=sequence_length,
            micro_batch_size=micro_batch_size,
            global_batch_size=micro_batch_size * accumulation * where.num_accelerators,
            num_training_steps=num_training_steps, optimization=OptimizationSettings(max_grad_norm=1.0),
        ),
        strategy=Strategy(kind=kind, offload=offload, activation_checkpointing=checkpointing),
    )  # fmt: skip


def faster(accelerator: Accelerator, *, compute: float = 1.0, bandwidth: float = 1.0) -> Accelerator:
    """The same device with its rates multiplied."""
    return replace(
        accelerator,
        peak_dense_flop_per_second={k: v * compute for k, v in accelerator.peak_dense_flop_per_second.items()},
        memory_bandwidth_bytes_per_second=accelerator.memory_bandwidth_bytes_per_second * bandwidth,
        power_watts=None if accelerator.power_watts is None else accelerator.power_watts * compute,
    )
