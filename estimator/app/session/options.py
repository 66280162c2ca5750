"""Every option of a workload, declared once: command line, environment, profiles and batch lines render from here."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from estimator.specs.errors import Problem, SpecError
from estimator.specs.recipe import OPTIMIZER_ALIASES, OPTIMIZERS, AttentionKernel, Precision
from estimator.specs.strategy import StrategyKind
from estimator.specs.units import parse_count

from .not_modelled import not_modelled


class WorkloadOptions(msgspec.Struct, frozen=True):
    """Parsed options; None where nothing was given. Filled in completely, it is the ``workload`` of the JSON."""

    model: str | None = None
    set: dict[str, object] | None = None
    gpu: str | None = None
    num_gpus: int | None = None
    num_nodes: int | None = None
    gpu_memory_gib: float | None = None
    cpu_memory_gib: float | None = None
    interconnect: str | None = None
    network_gbit: float | None = None
    usd_per_gpu_hour: float | None = None
    precision: str | None = None
    tf32: bool | None = None
    attention: str | None = None
    compile: bool | None = None
    optimizer: str | None = None
    sequence_length: int | None = None
    image_size: int | None = None
    global_batch_size: int | None = None
    num_training_steps: int | None = None
    num_training_tokens: int | None = None
    num_training_samples: int | None = None
    overhead_fraction: float | None = None
    calibration: str | None = None
    micro_batch_size: int | None = None
    strategy: str | None = None
    offload: bool | None = None
    activation_checkpointing: bool | None = None


class OptionKind(StrEnum):
    """How the text of an option becomes a value."""

    TEXT = "text"
    COUNT = "count"
    POSITIVE = "positive number"
    FRACTION = "fraction"
    SWITCH = "switch"
    CHOICE = "choice"
    SETTINGS = "settings"


class OptionGroup(StrEnum):
    """Headings of the help page."""

    MODEL = "Model"
    HARDWARE = "Hardware"
    RECIPE = "Recipe"
    RUN = "Run"
    STRATEGY = "Strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: ``--num-gpus`` on the command line, ``num_gpus`` elsewhere, ``TRAINCAST_NUM_GPUS`` outside."""

    key: str
    kind: OptionKind
    group: OptionGroup
    help: str
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] | None = None
    """CHOICE: other spellings."""

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def environment_variable(self) -> str:
        return "TRAINCAST_" + self.key.upper()


_PRECISION_ALIASES = {
    "bfloat16": "bf16",
    "amp_bf16": "bf16",
    "bf16_mixed": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "amp_fp16": "fp16",
    "fp16_mixed": "fp16",
    "16_mixed": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "32": "fp32",
}
_ATTENTION_ALIASES = {
    "flash": "flash_attention_2",
    "flash_attn": "flash_attention_2",
    "flash_attention": "flash_attention_2",
    "flash_attn_2": "flash_attention_2",
    "flash_2": "flash_attention_2",
    "math": "eager",
}
_STRATEGY_ALIASES = {
    "ddp": "none",
    "no": "none",
    "zero1": "zero_1",
    "zero2": "zero_2",
    "zero3": "zero_3",
    "zero_stage_1": "zero_1",
    "zero_stage_2": "zero_2",
    "zero_stage_3": "zero_3",
    "fsdp": "fsdp_full_shard",
    "full_shard": "fsdp_full_shard",
    "shard_grad_op": "fsdp_shard_grad_op",
    "fsdp2": "fsdp_full_shard",
}

OPTIONS: tuple[Option, ...] = (
    Option(
        key="model",
        kind=OptionKind.TEXT,
        group=OptionGroup.MODEL,
        help="Bundled name (pythia-1b), config.json, folder, traced file or hub id.",
    ),
    Option(
        key="set",
        kind=OptionKind.SETTINGS,
        group=OptionGroup.MODEL,
        help="Override a config field: KEY=VALUE, repeatable (what if num_hidden_layers=24?).",
    ),
    Option(
        key="gpu",
        kind=OptionKind.TEXT,
        group=OptionGroup.HARDWARE,
        help="GPU, in any usual spelling: a100-80gb, H100, 4090.",
    ),
    Option(key="num_gpus", kind=OptionKind.COUNT, group=OptionGroup.HARDWARE, help="GPUs per node. [default: 1]"),
    Option(key="num_nodes", kind=OptionKind.COUNT, group=OptionGroup.HARDWARE, help="Nodes. [default: 1]"),
    Option(
        key="gpu_memory_gib",
        kind=OptionKind.POSITIVE,
        group=OptionGroup.HARDWARE,
        help="Cap what each GPU offers, in GiB.",
    ),
    Option(
        key="cpu_memory_gib",
        kind=OptionKind.POSITIVE,
        group=OptionGroup.HARDWARE,
        help="Host memory per node, in GiB (for offload).",
    ),
    Option(
        key="interconnect",
        kind=OptionKind.TEXT,
        group=OptionGroup.HARDWARE,
        help="Link between the GPUs of a node: nvlink, pcie, ... [default: the card's own]",
    ),
    Option(
        key="network_gbit",
        kind=OptionKind.POSITIVE,
        group=OptionGroup.HARDWARE,
        help="Network per node, in Gbit/s each way.",
    ),
    Option(
        key="usd_per_gpu_hour",
        kind=OptionKind.FRACTION,
        group=OptionGroup.HARDWARE,
        help="Rental price. [default: catalogue]",
    ),
    Option(
        key="precision",
        kind=OptionKind.CHOICE,
        group=OptionGroup.RECIPE,
        choices=tuple(Precision),
        aliases=_PRECISION_ALIASES,
        help="Mixed precision with fp32 master weights, or fp32.",
    ),
    Option(
        key="tf32",
        kind=OptionKind.SWITCH,
        group=OptionGroup.RECIPE,
        help="TF32 for fp32 products (Ampere or newer). [default: on]",
    ),
    Option(
        key="attention",
        kind=OptionKind.CHOICE,
        group=OptionGroup.RECIPE,
        choices=tuple(AttentionKernel),
        aliases=_ATTENTION_ALIASES,
        help="Attention kernel. [default: sdpa]",
    ),
    Option(
        key="compile", kind=OptionKind.SWITCH, group=OptionGroup.RECIPE, help="torch.compile the model. [default: on]"
    ),
    Option(
        key="optimizer",
        kind=OptionKind.CHOICE,
        group=OptionGroup.RECIPE,
        choices=tuple(OPTIMIZERS),
        aliases=OPTIMIZER_ALIASES,
        help="Hugging Face optim name, or adam. [default: adamw_torch]",
    ),
    Option(key="sequence_length", kind=OptionKind.COUNT, group=OptionGroup.RECIPE, help="Tokens per sample."),
    Option(key="image_size", kind=OptionKind.COUNT, group=OptionGroup.RECIPE, help="Pixels per side (image models)."),
    Option(
        key="global_batch_size",
        kind=OptionKind.COUNT,
        group=OptionGroup.RECIPE,
        help="Samples per optimizer step, all GPUs together.",
    ),
    Option(
        key="num_training_steps",
        kind=OptionKind.COUNT,
        group=OptionGroup.RUN,
        help="Length of the run: optimizer steps ...",
    ),
    Option(key="num_training_tokens", kind=OptionKind.COUNT, group=OptionGroup.RUN, help="... or tokens (300B) ..."),
    Option(key="num_training_samples", kind=OptionKind.COUNT, group=OptionGroup.RUN, help="... or samples."),
    Option(
        key="overhead_fraction",
        kind=OptionKind.FRACTION,
        group=OptionGroup.RUN,
        help="Time added for evaluation, saving and restarts. [default: 0]",
    ),
    Option(
        key="calibration",
        kind=OptionKind.TEXT,
        group=OptionGroup.RUN,
        help="auto, none, or a calibration file. [default: auto]",
    ),
    Option(
        key="micro_batch_size",
        kind=OptionKind.COUNT,
        group=OptionGroup.STRATEGY,
        help="Samples per GPU and forward pass.",
    ),
    Option(
        key="strategy",
        kind=OptionKind.CHOICE,
        group=OptionGroup.STRATEGY,
        choices=tuple(StrategyKind),
        aliases=_STRATEGY_ALIASES,
        help="What is sharded over the GPUs. [default: none]",
    ),
    Option(
        key="offload",
        kind=OptionKind.SWITCH,
        group=OptionGroup.STRATEGY,
        help="Optimizer (ZeRO 3, FSDP: and parameters) on the host. [default: off]",
    ),
    Option(
        key="activation_checkpointing",
        kind=OptionKind.SWITCH,
        group=OptionGroup.STRATEGY,
        help="Keep block inputs only, recompute the rest. [default: off]",
    ),
)

OPTION_BY_KEY = {option.key: option for option in OPTIONS}
STRATEGY_KEYS = frozenset(option.key for option in OPTIONS if option.group is OptionGroup.STRATEGY)
_TRUE, _FALSE = frozenset({"1", "true", "yes", "on"}), frozenset({"0", "false", "no", "off"})
_LARGEST_COUNT = 10**18
_LARGEST_NUMBER = 1e12


def parse_value(option: Option, raw: object) -> object:
    """The value of an option from text or from a JSON / TOML value; SpecError says what is allowed."""
    if isinstance(raw, str) and option.kind is not OptionKind.SETTINGS:
        refuse_not_modelled(option.key, raw, strict=option.kind in (OptionKind.CHOICE, OptionKind.SWITCH))
    if option.kind is OptionKind.COUNT:
        return _count(option, raw)
    if option.kind in (OptionKind.POSITIVE, OptionKind.FRACTION):
        return _number(option, raw)
    if option.kind is OptionKind.SWITCH:
        return _switch(option, raw)
    if option.kind is OptionKind.SETTINGS:
        return _settings(option, raw)
    if not isinstance(raw, str) or not raw.strip():
        raise _refusal(
            option, raw, "a text" if option.kind is OptionKind.TEXT else "one of " + ", ".join(option.choices)
        )
    return _choice(option, raw) if option.kind is OptionKind.CHOICE else raw.strip()


def refuse_not_modelled(field: str, text: str, *, strict: bool) -> None:
    """Refuse by name what the estimator has no model for (fp8, LoRA, tensor parallelism)."""
    message = not_modelled(text) if strict else None
    if message is not None:
        raise SpecError(Problem(code="not_modelled", message=f"{field} {text!r}: {message}", field=field))


def _refusal(option: Option, raw: object, allowed: str) -> SpecError:
    shown = repr(raw) if len(repr(raw)) <= 60 else repr(raw)[:57] + "..."
    return SpecError(
        Problem(code="bad_value", message=f"{option.flag} is {shown}; it must be {allowed}.", field=option.key)
    )


def _count(option: Option, raw: object) -> int:
    allowed = "a whole number of at least 1, with K, M, B or T if wanted (300B)"
    if isinstance(raw, str):
        try:
            value = parse_count(raw)
        except (ValueError, OverflowError):
            raise _refusal(option, raw, allowed) from None
    elif isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw) or raw != int(raw):
        raise _refusal(option, raw, allowed)
    else:
        value = int(raw)
    if not 1 <= value <= _LARGEST_COUNT:
        raise _refusal(option, raw, allowed if value < 1 else "at most 1e18")
    return value


def _number(option: Option, raw: object) -> float:
    positive = option.kind is OptionKind.POSITIVE
    allowed = "a number greater than 0" if positive else "a number of at least 0"
    if isinstance(raw, str):
        try:
            value = float(raw.strip().lstrip("$"))
        except ValueError:
            raise _refusal(option, raw, allowed) from None
    elif isinstance(raw, bool) or not isinstance(raw, int | float):
        raise _refusal(option, raw, allowed)
    else:
        value = float(raw)
    if math.isnan(value) or value < 0 or (positive and value == 0):
        raise _refusal(option, raw, allowed)
    if value > _LARGEST_NUMBER:
        raise _refusal(option, raw, f"at most {_LARGEST_NUMBER:.0e}".replace("e+", "e"))
    return value


def _switch(option: Option, raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    word = raw.strip().lower() if isinstance(raw, str) else str(raw) if type(raw) is int else ""
    if word not in _TRUE and word not in _FALSE:
        raise _refusal(option, raw, "true or false")
    return word in _TRUE


def _choice(option: Option, raw: str) -> str:
    word = raw.strip().lower().replace("-", "_").replace(" ", "_")
    if option.aliases is not None:
        word = option.aliases.get(word, word)
    if word in option.choices:
        return str(word)
    from estimator.catalog.lookup import nearest_names

    nearest = nearest_names(word, (*option.choices, *(option.aliases or ())))
    hint = f" Did you mean {nearest[0]}?" if nearest else ""
    raise SpecError(
        Problem(
            code="bad_value",
            message=f"{option.flag} is {raw!r}; it must be one of {', '.join(option.choices)}.{hint}",
            field=option.key,
        )
    )


def _settings(option: Option, raw: object) -> dict[str, object]:
    """``KEY=VALUE`` texts, or an object as JSON and TOML have it. A value that reads as JSON is JSON, else text."""
    if isinstance(raw, Mapping):
        return {str(key): value for key, value in raw.items()}
    settings: dict[str, object] = {}
    for text in raw if isinstance(raw, list | tuple) else (raw,):
        key, separator, value = text.partition("=") if isinstance(text, str) else ("", "", "")
        if not separator or not key.strip():
            raise _refusal(option, text, "KEY=VALUE, such as num_hidden_layers=24")
        if key.strip() in settings:
            raise SpecError(
                Problem(code="duplicate_option", message=f"--set {key.strip()} is given twice.", field=option.key)
            )
        try:
            settings[key.strip()] = msgspec.json.decode(value.encode())
        except (msgspec.DecodeError, UnicodeEncodeError):
            try:
                settings[key.strip()] = parse_count(value)
            except ValueError:
                settings[key.strip()] = {"True": True, "False": False, "None": None}.get(value, value)
    return settings
