"""Public measurements as workloads: which rows qualify, and what the estimator is asked for each."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import msgspec
import polars as pl

from estimator.analytic.compute import attention_path
from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import find_accelerator
from estimator.specs.hardware import Cluster
from estimator.specs.model import ModelSpec
from estimator.specs.numerics import numerics_of
from estimator.specs.operations import OperationContext
from estimator.specs.recipe import OptimizationSettings, Precision, TrainingRecipe
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.units import GIB
from estimator.specs.workload import Workload

from .public_models import model_of_shape
from .public_stacks import StackFacts, model_of_stack, stack_of_row

DEVELOPMENT_GROUPS = frozenset(
    {("foundry", name) for name in ("mpt-125m", "mpt-760m", "mpt-3b", "mpt-13b", "mpt-70b")}
)
"""Groups looked at while formulas and defaults were written, beside all of NeuSight; everything else is held out."""


class MeasuredRun(msgspec.Struct, kw_only=True, frozen=True):
    """One row of the table as published; see the README beside it for each column."""

    id: str
    framework: str | None
    gpu: str | None
    gpu_memory_gb: int | None
    interconnect: str | None
    num_gpus: int | None
    num_nodes: int | None
    model: str | None
    hidden: int | None
    layers: int | None
    heads: int | None
    kv_heads: int | None
    ffn: int | None
    vocab: int | None
    seq_len: int | None
    micro_batch: int | None
    grad_accum: int | None
    global_batch_samples: int | None
    precision: str | None
    compiled: int | None
    activation_checkpointing: str | None
    sharding: str | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    offload: str | None
    tokens_per_s_per_gpu: float | None
    samples_per_s_per_gpu: float | None
    peak_mem_gb: float | None
    notes: str | None

    @property
    def source(self) -> str:
        """Prefix of the id: ``foundry-0021`` -> ``foundry``."""
        return self.id.rsplit("-", 1)[0]

    @property
    def is_16bit(self) -> bool:
        return self.precision in ("fp16", "bf16")

    @property
    def tokens_per_second_per_gpu(self) -> float | None:
        """As stated, or from samples."""
        if self.tokens_per_s_per_gpu is not None:
            return self.tokens_per_s_per_gpu
        if self.samples_per_s_per_gpu is not None and self.seq_len is not None:
            return self.samples_per_s_per_gpu * self.seq_len
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRow:
    """One public measurement that the estimator can be asked about."""

    row_id: str
    source: str
    model_name: str
    workload: Workload
    tokens_per_second_per_gpu: float | None
    """Measured; None where the row states memory only."""
    times_forward_backward: bool
    """The clock left the optimizer out."""
    coefficients: tuple[tuple[str, float], ...]
    """What the row's software changes, see ``public_stacks``."""
    memory_bytes: float | None
    memory_kind: str
    """``nvidia-smi``, ``allocated`` or ``reserved``."""

    @property
    def group(self) -> tuple[str, str]:
        return self.source, self.model_name

    @property
    def is_held_out(self) -> bool:
        return self.source != "neusight" and self.group not in DEVELOPMENT_GROUPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Rows that qualify, and how many of the rest fell to which reason."""

    rows: tuple[PublicRow, ...]
    left_out: dict[str, int]


def read_measured_runs() -> list[MeasuredRun]:
    """The whole table as it was published."""
    path = files("calibration") / "data" / "public" / "measured-runs.csv"
    table = pl.read_csv(path.read_bytes(), infer_schema_length=10_000)
    return msgspec.convert(table.to_dicts(), list[MeasuredRun], strict=False)


@cache
def select_rows() -> Selection:
    """All qualifying rows, in the order of the table."""
    rows: list[PublicRow] = []
    left_out: dict[str, int] = {}
    for run in read_measured_runs():
        reason = reason_to_leave_out(run)
        if reason is None:
            rows.append(_public_row(run))
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Selection(rows=tuple(rows), left_out=left_out)


def reason_to_leave_out(run: MeasuredRun) -> str | None:
    """Why a row does not qualify; None where it does. The order is that of the report."""
    notes, framework = run.notes or "", run.framework or ""
    required = (
        run.gpu, run.num_gpus, run.hidden, run.layers, run.heads, run.seq_len, run.micro_batch, run.precision,
        run.sharding, run.activation_checkpointing,
    )  # fmt: skip
    foreign = ("TensorFlow", "Paddle", "JAX", "CUDA/C++", "CUDA, cuDNN", "MxNet", "MaxText")
    unmodelled = ("optimizer in backward;", "row: +activation offloading", "row: +8-bit AdamW", "paged")
    checks = (
        ("marked suspect by its collector", "SUSPECT" in notes or "IMPOSSIBLE" in notes),
        ("not a PyTorch stack", any(name in framework for name in foreign)),
        ("LoRA or QLoRA", "LoRA" in notes or "QLoRA" in framework),
        ("tensor or pipeline parallel", (run.tensor_parallel or 1) != 1 or (run.pipeline_parallel or 1) != 1),
        (
            "not stated: GPU, shape, length, batch, precision, sharding or recompute",
            any(value in (None, "", "unknown") for value in required),
        ),
        ("fp8 or fp4", run.precision not in ("fp32", "tf32", "fp16", "bf16")),
        ("selective checkpointing, not modelled", run.activation_checkpointing not in ("none", "full")),
        ("stack without an entry in the table of stacks", stack_of_run(run) is None),
        ("laptop variant without a data sheet", "laptop" in (run.gpu or "")),
        ("encoder-decoder, no closed form", (run.model or "").startswith("switch")),
        ("sequences shorter than the length (binning, unpacked data)", "binning" in notes or "row: baseline" in notes),
        ("technique not modelled (optimizer in backward, offloaded activations)", any(n in notes for n in unmodelled)),
        ("neither rate nor memory", run.tokens_per_second_per_gpu is None and run.peak_mem_gb is None),
    )
    return next((reason for reason, holds in checks if holds), None)


def stack_of_run(run: MeasuredRun) -> StackFacts | None:
    """The software behind a row, or None where nothing is known about it."""
    return stack_of_row(run.source, run.notes or "", is_16bit=run.is_16bit)


def _public_row(run: MeasuredRun) -> PublicRow:
    facts = stack_of_run(run)
    assert facts is not None
    return PublicRow(
        row_id=run.id,
        source=run.source,
        model_name=run.model or "",
        workload=workload_of_run(run, facts),
        tokens_per_second_per_gpu=run.tokens_per_second_per_gpu,
        times_forward_backward=facts.times_forward_backward,
        coefficients=facts.coefficients,
        # Pure 16-bit weights and moments are not modelled, so their memory has no counterpart here.
        memory_bytes=None if run.peak_mem_gb is None or facts.has_16bit_states else run.peak_mem_gb * GIB,
        memory_kind=facts.memory_kind,
    )


_SPELLINGS = (
    ("A100 SXM", "a100-{memory}gb", 80),
    ("A100 PCIe", "a100-pcie-{memory}gb", 40),
    ("A100", "a100-80gb", None),
    ("V100 SXM3 (DGX-2H", "v100-sxm3-32gb-450w", None),
    ("V100 SXM3", "v100-sxm3-32gb", None),
    ("V100 PCIe", "v100-pcie-{memory}gb", 32),
    ("V100", "v100-sxm2-{memory}gb", 32),
    ("MI250", "mi250", None),
    ("H100 SXM", "h100-sxm", None),
    ("H100 PCIe", "h100-pcie", None),
    ("H200", "h200", None),
)
"""Start of the table's GPU column, the catalogue's name, and the memory where the row states none."""


def _accelerator_name(run: MeasuredRun) -> str:
    name = run.gpu or ""
    for start, spelling, memory in _SPELLINGS:
        if name.startswith(start):
            return spelling.format(memory=run.gpu_memory_gb or memory)
    return name


@cache
def _cluster(accelerator: str, gpus_per_node: int, num_nodes: int, interconnect: str | None) -> Cluster:
    found, _ = find_accelerator(accelerator)
    # Both sources with several nodes state 1,600 Gbit/s a node (RoCE; eight HDR cards of a DGX A100).
    network_gbit = 1600.0 if num_nodes > 1 else None
    return build_cluster(found, gpus_per_node, num_nodes, interconnect=interconnect, network_gbit=network_gbit)[0]


_KINDS = {
    "none": StrategyKind.NONE,
    "ddp": StrategyKind.NONE,
    "zero1": StrategyKind.ZERO_1,
    "zero2": StrategyKind.FSDP_SHARD_GRAD_OP,
    "zero3": StrategyKind.FSDP_FULL_SHARD,
}
"""The rows that shard weights or gradients and qualify all run FSDP."""


def workload_of_run(run: MeasuredRun, facts: StackFacts) -> Workload:
    """A qualifying row as the estimator is asked about it.

    Blank compile means no, blank offload none, blank accumulation what the batches say, or 1.
    """
    assert run.num_gpus
    assert run.micro_batch
    assert run.precision
    assert run.sharding
    num_nodes = run.num_nodes or 1
    interconnect = "pcie" if run.interconnect == "pcie" else None
    cluster = _cluster(_accelerator_name(run), run.num_gpus // num_nodes, num_nodes, interconnect)
    per_round = run.micro_batch * run.num_gpus
    accumulation = run.grad_accum or max(1, (run.global_batch_samples or per_round) // per_round)
    precision = Precision(run.precision) if run.is_16bit else Precision.FP32
    kind = _KINDS[run.sharding]
    recipe = TrainingRecipe(
        precision=precision,
        tf32=run.precision == "tf32",
        attention=facts.attention,
        compile=bool(run.compiled),
        optimizer=facts.optimizer,
        sequence_length=run.seq_len,
        micro_batch_size=run.micro_batch,
        global_batch_size=per_round * accumulation,
        optimization=OptimizationSettings(max_grad_norm=1.0 if facts.has_clipping else None),
    )
    spec = model_of_shape(run)
    context = OperationContext(
        numerics=numerics_of(precision, kind),
        attention=attention_path(spec, recipe, cluster.node.accelerator),
        is_compiled=recipe.compile,
    )
    is_pure = "MP mode PURE" in (run.notes or "")
    return Workload(
        model=_stacked_model(spec, facts, context, run.is_16bit, is_pure),
        cluster=cluster,
        recipe=recipe,
        strategy=Strategy(
            kind=kind,
            offload=(run.offload or "none") != "none",
            activation_checkpointing=run.activation_checkpointing == "full",
        ),
    )


@cache
def _stacked_model(
    spec: ModelSpec, facts: StackFacts, context: OperationContext, is_16bit: bool, is_pure: bool
) -> ModelSpec:
    return model_of_stack(spec, facts, context, is_16bit=is_16bit, pure_16bit=is_pure)
