"""Public measurements as workloads: which rows qualify, and what the estimator is asked for each."""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import polars as pl

from estimator.analytic.compute import attention_path
from estimator.catalog.clusters import build_cluster
from estimator.catalog.lookup import find_accelerator
from estimator.specs.hardware import Cluster
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.models.encoder import EncoderSpec
from estimator.specs.numerics import numerics_of
from estimator.specs.operations import OperationContext
from estimator.specs.recipe import OptimizationSettings, Precision, TrainingRecipe
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.units import GIB
from estimator.specs.workload import Workload

from .public_stacks import StackFacts, model_of_stack, stack_of_row

_REQUIRED = (
    "gpu", "num_gpus", "hidden", "layers", "heads", "seq_len", "micro_batch", "precision", "sharding",
    "activation_checkpointing",
)
DEVELOPMENT_GROUPS = frozenset(
    {("foundry", name) for name in ("mpt-125m", "mpt-760m", "mpt-3b", "mpt-13b", "mpt-70b")}
)
"""Groups looked at while formulas and defaults were written, beside all of NeuSight; everything else is held out."""


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


def read_measured_runs() -> pl.DataFrame:
    """The whole table as it was published, with the source prefix of each id."""
    path = files("calibration") / "data" / "public" / "measured-runs.csv"
    with path.open("rb") as stream:
        table = pl.read_csv(stream.read(), infer_schema_length=10_000)
    return table.with_columns(source=pl.col("id").str.extract(r"^([a-z0-9]+)-", 1))


def _reason_to_leave_out(row: dict[str, object]) -> str | None:
    """Why a row does not qualify; None where it does. The order is that of the report."""
    notes = str(row["notes"] or "")
    framework = str(row["framework"])
    checks = (
        ("marked suspect by its collector", "SUSPECT" in notes or "IMPOSSIBLE" in notes),
        ("not a PyTorch stack", any(name in framework for name in (
            "TensorFlow", "Paddle", "JAX", "CUDA/C++", "CUDA, cuDNN", "MxNet", "MaxText"))),
        ("LoRA or QLoRA", "LoRA" in notes or "QLoRA" in framework),
        ("tensor or pipeline parallel", (row["tensor_parallel"] or 1) != 1 or (row["pipeline_parallel"] or 1) != 1),
        ("hardware, shape, length, batch, precision, sharding or checkpointing not stated", any(
            row[name] in (None, "", "unknown") for name in _REQUIRED)),
        ("fp8 or fp4", row["precision"] not in ("fp32", "tf32", "fp16", "bf16")),
        ("selective checkpointing, not modelled", row["activation_checkpointing"] not in ("none", "full")),
        ("stack without an entry in the table of stacks", _stack(row) is None),
        ("laptop variant without a data sheet", "laptop" in str(row["gpu"])),
        ("encoder-decoder or mixture without closed form", str(row["model"]).startswith("switch")),
        ("sequences shorter than the length (binning or unpacked data)", "binning" in notes or "unpacked" in notes and ": baseline" in notes),
        ("technique not modelled (optimizer in backward, activation offload)", any(
            name in notes for name in ("optimizer in backward;", "row: +activation offloading", "row: +8-bit AdamW")) or "paged" in notes),
        ("neither rate nor memory", _rate(row) is None and row["peak_mem_gb"] is None),
    )
    return next((reason for reason, holds in checks if holds), None)


def _stack(row: dict[str, object]) -> StackFacts | None:
    return stack_of_row(str(row["source"]), str(row["notes"]), is_16bit=row["precision"] in ("fp16", "bf16"))


def _rate(row: dict[str, object]) -> float | None:
    """Tokens per second and GPU: as stated, or from samples, or from the step time."""
    if row["tokens_per_s_per_gpu"] is not None:
        return float(row["tokens_per_s_per_gpu"])  # type: ignore[arg-type]
    if row["samples_per_s_per_gpu"] is not None and row["seq_len"] is not None:
        return float(row["samples_per_s_per_gpu"]) * float(row["seq_len"])  # type: ignore[arg-type]
    return None


@cache
def select_rows() -> Selection:
    """All qualifying rows, in the order of the table."""
    rows: list[PublicRow] = []
    left_out: dict[str, int] = {}
    for row in read_measured_runs().iter_rows(named=True):
        reason = _reason_to_leave_out(row)
        if reason is None:
            rows.append(_public_row(row))
        else:
            left_out[reason] = left_out.get(reason, 0) + 1
    return Selection(rows=tuple(rows), left_out=left_out)


def _public_row(row: dict[str, object]) -> PublicRow:
    source = str(row["source"])
    facts = _stack(row)
    assert facts is not None
    memory = row["peak_mem_gb"]
    is_pure_16bit = source == "tune"
    return PublicRow(
        row_id=str(row["id"]), source=source, model_name=str(row["model"]), workload=_workload(row, facts),
        tokens_per_second_per_gpu=_rate(row), times_forward_backward=facts.times_forward_backward,
        coefficients=facts.coefficients,
        # Pure 16-bit weights and moments are not modelled, so their memory has no counterpart here.
        memory_bytes=None if memory is None or is_pure_16bit else float(memory) * GIB,  # type: ignore[arg-type]
        memory_kind="nvidia-smi" if source == "lambda" else "allocated",
    )


_PCIE_CARDS = ("RTX", "PCIe", "Quadro", "GTX", "A10", "T4", "L4")


def _accelerator_text(row: dict[str, object]) -> str:
    """The catalogue's spelling of the table's GPU column."""
    name, memory = str(row["gpu"]), row["gpu_memory_gb"]
    for pattern, spelling in (
        ("A100 SXM", f"a100-{memory or 80}gb"), ("A100 PCIe", f"a100-pcie-{memory or 40}gb"), ("V100 SXM", f"v100-sxm2-{memory or 16}gb"),
        ("V100 PCIe", f"v100-pcie-{memory or 32}gb"), ("MI250", "mi250"), ("RTX 3080", "rtx-3080"),
        ("H100 SXM", "h100-sxm"), ("H100 PCIe", "h100-pcie"), ("H200", "h200"), ("A100", "a100-80gb"), ("V100", f"v100-sxm2-{memory or 32}gb"),
    ):
        if name.startswith(pattern):
            return spelling
    return name


@cache
def _cluster(accelerator: str, gpus_per_node: int, num_nodes: int, interconnect: str | None, network_gbit: float | None) -> Cluster:
    found, _notes = find_accelerator(accelerator)
    cluster, _notes = build_cluster(
        found, gpus_per_node, num_nodes, interconnect=interconnect, network_gbit=network_gbit
    )
    return cluster


def _workload(row: dict[str, object], facts: StackFacts) -> Workload:
    num_gpus, num_nodes = int(row["num_gpus"]), int(row["num_nodes"] or 1)  # type: ignore[call-overload]
    interconnect = "pcie" if row["interconnect"] == "pcie" else None
    # llm-foundry's and NVIDIA's clusters: 1,600 Gbit/s RoCE and 8 HDR cards a node.
    cluster = _cluster(
        _accelerator_text(row), num_gpus // num_nodes, num_nodes, interconnect, 1600.0 if num_nodes > 1 else None
    )
    micro = int(row["micro_batch"])  # type: ignore[call-overload]
    accumulation = int(row["grad_accum"] or _accumulation_from_batch(row, micro, num_gpus))  # type: ignore[call-overload]
    precision, is_compiled = _precision(row), bool(row["compiled"] or 0)
    kind = {"none": StrategyKind.NONE, "ddp": StrategyKind.NONE, "zero1": StrategyKind.ZERO_1,
            "zero2": StrategyKind.FSDP_SHARD_GRAD_OP, "zero3": StrategyKind.FSDP_FULL_SHARD}[str(row["sharding"])]
    recipe = TrainingRecipe(
        precision=precision, tf32=row["precision"] == "tf32", attention=facts.attention, compile=is_compiled,
        optimizer=facts.optimizer, sequence_length=int(row["seq_len"]),  # type: ignore[call-overload]
        micro_batch_size=micro, global_batch_size=micro * accumulation * num_gpus, num_training_steps=None,
        optimization=OptimizationSettings(max_grad_norm=1.0 if facts.has_clipping else None),
    )
    spec = _model(row)
    context = OperationContext(
        numerics=numerics_of(precision, kind), attention=attention_path(spec, recipe, cluster.node.accelerator),
        is_compiled=is_compiled,
    )
    is_pure = "MP mode PURE" in str(row["notes"]) and str(row["source"]) == "foundry"
    model = _stacked_model(spec, facts, context, precision is not Precision.FP32, is_pure)
    return Workload(
        model=model, cluster=cluster, recipe=recipe,
        strategy=Strategy(
            kind=kind, offload=str(row["offload"] or "none") != "none",
            activation_checkpointing=row["activation_checkpointing"] == "full",
        ),
    )


@cache
def _stacked_model(spec, facts, context, is_16bit, is_pure):  # type: ignore[no-untyped-def]
    return model_of_stack(spec, facts, context, is_16bit=is_16bit, pure_16bit=is_pure)


def _accumulation_from_batch(row: dict[str, object], micro: int, num_gpus: int) -> int:
    batch = row["global_batch_samples"]
    return 1 if batch is None else max(1, int(batch) // (micro * num_gpus))  # type: ignore[call-overload]


def _precision(row: dict[str, object]) -> Precision:
    text = str(row["precision"])
    return Precision.FP32 if text in ("fp32", "tf32") else Precision(text)


def _model(row: dict[str, object]) -> DecoderSpec | EncoderSpec:
    name = str(row["model"])
    if name.startswith("bert"):
        return EncoderSpec(
            name=name, model_type="bert", source=str(row["id"]), vocab_size=int(row["vocab"]),  # type: ignore[call-overload]
            hidden_size=int(row["hidden"]), num_hidden_layers=int(row["layers"]),  # type: ignore[call-overload]
            num_attention_heads=int(row["heads"]), intermediate_size=int(row["ffn"]),  # type: ignore[call-overload]
            max_position_embeddings=512, type_vocab_size=2,
        )
    return _decoder(row, name)


def _decoder(row: dict[str, object], name: str) -> DecoderSpec:
    """Family conventions: Llama 3 has rotary positions, RMS norm and a gated MLP; the others are of the GPT kind
    (learned positions, layer norm, biases, GELU, tied head; OPT: ReLU), MPT as its published parameter counts say."""
    hidden, heads = int(row["hidden"]), int(row["heads"])  # type: ignore[call-overload]
    is_llama, is_opt, is_mpt = name.startswith("llama"), name.startswith("opt"), name.startswith("mpt")
    dropout = 0.0 if is_llama or is_mpt or name == "gpt2-124m" else 0.1
    return DecoderSpec(
        name=name, model_type="llama" if is_llama else "opt" if is_opt else "gpt2", source=str(row["source"]),
        vocab_size=int(row["vocab"] or 50257), hidden_size=hidden,  # type: ignore[call-overload]
        num_hidden_layers=int(row["layers"]), num_attention_heads=heads,  # type: ignore[call-overload]
        num_key_value_heads=int(row["kv_heads"] or heads), head_dim=hidden // heads,  # type: ignore[call-overload]
        intermediate_size=int(row["ffn"]), max_position_embeddings=int(row["seq_len"]),  # type: ignore[call-overload]
        is_mlp_gated=is_llama, activation="silu" if is_llama else "relu" if is_opt else "gelu" if is_mpt else "gelu_new",
        norm="rms_norm" if is_llama else "layer_norm", has_norm_bias=not is_llama, norms_per_block=2,
        is_residual_parallel=False, has_qkv_bias=not is_llama, has_attention_output_bias=not is_llama,
        has_mlp_bias=not is_llama, is_qkv_fused=not (is_llama or is_opt), position="rope" if is_llama else "learned",
        num_learned_positions=None if is_llama else int(row["seq_len"]), tie_word_embeddings=name not in ("llama-3.1-8b", "llama-3.1-70b"),  # type: ignore[call-overload]
        attention_dropout=0.0 if is_opt else dropout, hidden_dropout=dropout, embedding_dropout=0.0 if is_opt else dropout,
    )
