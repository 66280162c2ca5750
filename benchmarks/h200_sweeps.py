"""Named sweeps for one accelerator of 140 GiB, whose rows stand in the order of their worth.

Wherever a sweep is cut off, what was measured so far is balanced over models: rows come in rounds, each round visiting
every model, the questions that most coefficients hang on first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from estimator.specs.strategy import ALL_STRATEGIES, Strategy, StrategyKind

from .sweeps import EAGER_SDPA, NAIVE, PlannedRow, strategy_options


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptModel:
    """How a sweep uses a model."""

    name: str
    micro_batch_sizes: tuple[int, int, int, int]
    """Launch-bound, small, large, near the largest, for an accelerator of 140 GiB."""
    lengths: tuple[int, ...]
    """Sequence lengths, or image sizes, in the order of their worth."""
    is_vision: bool = False

    @property
    def is_slow_without_tensor_cores(self) -> bool:
        """Plain fp32 runs at a fifteenth of the bf16 rate: one sample is enough of a large model."""
        return self.micro_batch_sizes[1] <= 4 and not self.is_vision

    def options(self, size: int, length: int | None = None) -> dict[str, object]:
        """Model, micro batch (the index into its four sizes) and length."""
        name = "image_size" if self.is_vision else "sequence_length"
        return {"model": self.name, "micro_batch_size": self.micro_batch_sizes[size], name: length or self.lengths[0]}


SWEPT_MODELS: tuple[SweptModel, ...] = (
    SweptModel(name="pythia-410m", micro_batch_sizes=(1, 4, 16, 32), lengths=(2048, 512)),
    SweptModel(name="vit-large-16-21k", micro_batch_sizes=(1, 32, 128, 384), lengths=(224,), is_vision=True),
    SweptModel(name="roberta-large", micro_batch_sizes=(1, 16, 64, 128), lengths=(512, 128)),
    SweptModel(name="pythia-1b", micro_batch_sizes=(1, 2, 8, 24), lengths=(2048, 512)),
    SweptModel(name="convnext-large-1k", micro_batch_sizes=(1, 16, 64, 192), lengths=(224, 384), is_vision=True),
    SweptModel(name="qwen2.5-0.5b", micro_batch_sizes=(1, 4, 12, 24), lengths=(2048, 512)),
    SweptModel(name="pythia-160m", micro_batch_sizes=(1, 8, 32, 64), lengths=(2048, 512)),
    SweptModel(name="gpt2-medium", micro_batch_sizes=(1, 8, 32, 64), lengths=(1024, 256)),
    SweptModel(name="tinyllama-1.1b", micro_batch_sizes=(1, 2, 8, 24), lengths=(2048, 512)),
    SweptModel(name="dinov2-large", micro_batch_sizes=(1, 32, 96, 256), lengths=(224, 518), is_vision=True),
    SweptModel(name="pythia-2.8b", micro_batch_sizes=(1, 2, 4, 10), lengths=(2048, 512)),
    SweptModel(name="bert-base-uncased", micro_batch_sizes=(1, 32, 128, 256), lengths=(512, 128)),
    SweptModel(name="pythia-70m", micro_batch_sizes=(1, 16, 64, 96), lengths=(2048, 512)),
    SweptModel(name="convnext-xlarge-22k", micro_batch_sizes=(1, 16, 48, 128), lengths=(224, 384), is_vision=True),
    SweptModel(name="qwen2.5-1.5b", micro_batch_sizes=(1, 2, 6, 14), lengths=(2048, 512)),
    SweptModel(name="gpt2", micro_batch_sizes=(1, 16, 64, 96), lengths=(1024, 256)),
    SweptModel(name="pythia-1.4b", micro_batch_sizes=(1, 2, 6, 16), lengths=(2048, 512)),
    SweptModel(name="gpt2-large", micro_batch_sizes=(1, 4, 16, 32), lengths=(1024, 256)),
    SweptModel(name="mamba-130m", micro_batch_sizes=(1, 2, 4, 8), lengths=(512, 256)),
)
"""In the order of a round: neighbours differ in family and size. Mamba runs through the slow path where the fused
kernels are not built; its rows are few, and the runner marks them."""


BY_NAME = {model.name: model for model in SWEPT_MODELS}
_MAMBA = tuple(model for model in SWEPT_MODELS if model.name.startswith("mamba"))
_OTHERS = tuple(model for model in SWEPT_MODELS if model not in _MAMBA)

_CHECKPOINTING = {"activation_checkpointing": True}
_FP32 = {"precision": "fp32"}
_UNSHARDED = {**strategy_options(Strategy()), "gradient_accumulation_steps": 1}


def _plain(options: Mapping[str, object], **changes: object) -> PlannedRow:
    """A row of the plain grid: no sharding, everything in one process."""
    complete = {**EAGER_SDPA, **_UNSHARDED, "precision": "bf16", **options}
    return replace(PlannedRow(options=complete, only_if_it_fits=True), **changes)  # type: ignore[arg-type]


def h200_micro() -> list[PlannedRow]:
    """The machine's micro-benchmarks."""
    return [PlannedRow(is_microbenchmark=True)]


def h200_plain() -> list[PlannedRow]:
    """Eager execution with SDPA over micro batches, lengths, precisions, checkpointing and attention."""
    rows: list[PlannedRow] = []
    for model in _OTHERS:
        rows += [_plain(model.options(1)), _plain(model.options(2))]
    for model in _OTHERS:
        rows += [_plain(model.options(0)), _plain({**model.options(2), **_CHECKPOINTING})]
    for model in _OTHERS:
        rows += [_plain({**model.options(1), **_FP32}), _plain({**model.options(1), "attention": "eager"})]
    for model in _OTHERS:
        rows += [_plain(model.options(size, length)) for length in model.lengths[1:] for size in (1, 2)]
    rows += [_plain(model.options(1)) for model in _MAMBA]
    for model in _OTHERS:
        accumulated = {**model.options(0), "gradient_accumulation_steps": 2}
        rows += [_plain({**model.options(1), "precision": "fp16"}), _plain(accumulated, linear_check=True)]
    for model in _OTHERS:
        plain_fp32 = {**model.options(0 if model.is_slow_without_tensor_cores else 1), **_FP32, "tf32": False}
        rows += [_plain(model.options(3)), _plain(plain_fp32)]
    rows += [_plain({**model.options(1), "optimizer": "adamw_torch_fused"}) for model in _OTHERS]
    rows += [_plain({**model.options(3), **_CHECKPOINTING}) for model in _OTHERS]
    rows += [_plain({**model.options(2), **_FP32}) for model in _OTHERS]
    rows += [_plain(model.options(size)) for model in _MAMBA for size in (0, 2)]
    return _distinct(rows)


def h200_naive() -> list[PlannedRow]:
    """The study's naive settings at the published precision; eager attention leaves room for half the large batch."""
    naive = {**NAIVE, **_UNSHARDED}
    options = [{**naive, **model.options(1)} for model in _OTHERS]
    options += [
        {**naive, **model.options(2), "micro_batch_size": model.micro_batch_sizes[2] // 2} for model in _OTHERS
    ]
    options += [{**naive, **model.options(0)} for model in _OTHERS]
    return _distinct(PlannedRow(options=one, only_if_it_fits=True) for one in options)


_COMPILED_FIRST = (
    "pythia-1b",
    "bert-base-uncased",
    "gpt2",
    "pythia-160m",
    "vit-large-16-21k",
    "tinyllama-1.1b",
    "pythia-410m",
    "roberta-large",
)


def h200_compile() -> list[PlannedRow]:
    """Compiled, at the published precision; shallow models first, for the time goes into compiling."""
    first = [BY_NAME[name] for name in _COMPILED_FIRST]
    rest = [model for model in _OTHERS if model not in first]
    compiled = {"compile": True, "precision": None}
    rows = [_plain({**model.options(2), **compiled}) for model in (*first, *rest)]
    rows += [_plain({**model.options(1), **compiled}) for model in first]
    rows += [_plain({**model.options(2), **compiled, **_CHECKPOINTING}) for model in first[:4]]
    return rows


_BOUNDARIES: tuple[tuple[str, float, bool], ...] = (
    ("pythia-410m", 24, False),
    ("roberta-large", 16, False),
    ("pythia-1b", 40, False),
    ("convnext-large-1k", 24, False),
    ("qwen2.5-0.5b", 24, False),
    ("vit-large-16-21k", 16, False),
    ("pythia-160m", 16, False),
    ("tinyllama-1.1b", 48, False),
    ("gpt2-medium", 16, False),
    ("pythia-2.8b", 80, False),
    ("qwen2.5-0.5b", 80, True),
    ("pythia-410m", 16, True),
    ("dinov2-large", 24, False),
    ("pythia-1b", 80, False),
    ("bert-base-uncased", 16, False),
    ("convnext-xlarge-22k", 48, False),
    ("qwen2.5-1.5b", 40, False),
    ("pythia-1.4b", 40, True),
    ("pythia-410m", 80, False),
    ("gpt2", 24, False),
    ("roberta-large", 48, True),
    ("tinyllama-1.1b", 24, False),
    ("pythia-70m", 16, False),
    ("gpt2-large", 40, False),
    ("convnext-large-1k", 80, False),
    ("pythia-2.8b", 48, True),
    ("vit-large-16-21k", 40, True),
    ("pythia-160m", 40, False),
)
"""Model, cap in GiB, activation checkpointing."""


def h200_memory() -> list[PlannedRow]:
    """The largest micro batch within what smaller cards offer, from both sides."""
    template = PlannedRow(
        finds_largest_micro_batch=True,
        resolution_fraction=0.12,
        num_warmup_steps=1,
        num_steps=2,
        min_seconds=0.0,
    )
    rows = []
    for name, cap_gib, is_checkpointing in _BOUNDARIES:
        options = {**EAGER_SDPA, **_UNSHARDED, "precision": "bf16", **BY_NAME[name].options(0)}
        del options["micro_batch_size"]
        options |= {"gpu_memory_gib": cap_gib, "activation_checkpointing": is_checkpointing}
        rows.append(replace(template, options=options))
    return rows


def h200_sharded() -> list[PlannedRow]:
    """ZeRO and FSDP with and without offload on one GPU, a fresh process each."""
    sharded = [strategy for strategy in ALL_STRATEGIES if strategy.kind is not StrategyKind.NONE]
    storing = [strategy for strategy in sharded if not strategy.activation_checkpointing]
    offloading = [strategy for strategy in storing if strategy.offload]
    resident = [strategy for strategy in storing if not strategy.offload]
    recomputing = [strategy for strategy in sharded if strategy.activation_checkpointing and strategy.offload]
    rounds = (
        ("pythia-410m", 1, [*offloading, *resident]),
        ("pythia-1b", 1, storing),
        ("vit-large-16-21k", 1, offloading),
        ("pythia-1b", 2, recomputing),
        ("roberta-large", 1, offloading),
        ("pythia-160m", 1, storing),
    )
    return [
        _plain(
            {**BY_NAME[name].options(size), **strategy_options(strategy)},
            num_warmup_steps=1,
            num_steps=2 if strategy.offload else 5,
            min_seconds=0.0,
        )
        for name, size, strategies in rounds
        for strategy in strategies
    ]


def several_gpus() -> list[PlannedRow]:
    """Data parallel, ZeRO and FSDP with ``--num-gpus`` above 1; accumulation shows what is communicated how often."""
    resident = [strategy for strategy in ALL_STRATEGIES if not (strategy.offload or strategy.activation_checkpointing)]
    offloading = [strategy for strategy in ALL_STRATEGIES if strategy.offload and not strategy.activation_checkpointing]
    rows = []
    for name, size, strategies, accumulation in (
        ("pythia-410m", 1, resident, 1),
        ("pythia-1b", 2, resident, 1),
        ("pythia-410m", 1, resident, 4),
        ("vit-large-16-21k", 1, resident, 1),
        ("pythia-1b", 1, offloading, 1),
        ("roberta-large", 1, resident, 1),
    ):
        options = {**BY_NAME[name].options(size), "gradient_accumulation_steps": accumulation}
        rows += [_plain({**options, **strategy_options(strategy)}, num_warmup_steps=1) for strategy in strategies]
    return rows


_REPEATED = (
    ("pythia-70m", 0),
    ("gpt2", 0),
    ("pythia-160m", 0),
    ("bert-base-uncased", 0),
    ("vit-large-16-21k", 0),
    ("pythia-410m", 1),
    ("roberta-large", 1),
    ("convnext-large-1k", 1),
    ("pythia-1b", 1),
    ("qwen2.5-0.5b", 1),
)


def h200_repeat() -> list[PlannedRow]:
    """Ten rows for fresh processes, the shortest steps among them: how far do medians repeat?"""
    return [_plain(BY_NAME[name].options(size), in_own_process=True, num_steps=5) for name, size in _REPEATED]


SWEEPS = {
    "h200-micro": h200_micro,
    "h200-plain": h200_plain,
    "h200-memory": h200_memory,
    "h200-sharded": h200_sharded,
    "h200-compile": h200_compile,
    "h200-naive": h200_naive,
    "h200-repeat": h200_repeat,
    "several-gpus": several_gpus,
}
"""By name, in the order in which short GPU time is best spent."""


def _distinct(rows: Iterable[PlannedRow]) -> list[PlannedRow]:
    """Without repetitions, first come first kept."""
    seen: dict[tuple[tuple[str, str], ...], PlannedRow] = {}
    for row in rows:
        seen.setdefault(tuple(sorted((name, repr(value)) for name, value in row.options.items())), row)
    return list(seen.values())
