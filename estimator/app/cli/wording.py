"""Answers in words that fit 80 columns; plain ASCII, so that every terminal can show them."""

from collections.abc import Iterable

from estimator.specs.errors import Note
from estimator.specs.estimate import Estimate, Interval
from estimator.specs.hardware import Cluster
from estimator.specs.model import ModelSpec
from estimator.specs.recipe import TrainingRecipe
from estimator.specs.strategy import Strategy, StrategyKind
from estimator.specs.units import GIB, TERA, format_bytes, format_count, format_seconds, format_usd

_PART_NAMES = {"forward_backward": "forward + backward"}
_SMALLEST_SHARE = 0.005


def figure(value: float) -> str:
    """Three significant digits without an exponent: 0.0123, 16.4, 1,230."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    text = f"{value:#.3g}".rstrip(".")
    return text if "e" not in text else f"{value:.2e}"


def compact_usd(value: float) -> str:
    """``$4,680``, ``$12.3k``, ``$1.23M``: seven characters at most."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= limit:
            return f"${figure(value / (1e3 if suffix == 'k' else limit))}{suffix}"
    return format_usd(value)


def low_high(interval: Interval) -> str:
    """``22-34``; from ten thousand on ``12.3K-1.25M``."""
    written = format_count if interval.high >= 1e4 else figure
    return f"{written(interval.low)}-{written(interval.high)}"


def model_line(model: ModelSpec, num_parameters: int) -> str:
    return f"{model.name}, {format_count(num_parameters)} parameters ({num_parameters:,})"


def hardware_line(cluster: Cluster, usable_bytes: float) -> str:
    node = cluster.node
    count = cluster.num_accelerators
    where = f"{cluster.num_nodes} nodes x {node.num_accelerators} x " if cluster.num_nodes > 1 else f"{count} x "
    links = []
    if node.num_accelerators > 1:
        links.append(f"{node.peer_link.name} {_gigabytes(node.peer_link.bandwidth_bytes_per_second)} GB/s each way")
    if cluster.num_nodes > 1 and cluster.network is not None:
        links.append(f"network {_gigabytes(cluster.network.bandwidth_bytes_per_second)} GB/s a node")
    cap = " (capped)" if cluster.memory_cap_bytes is not None else ""
    parts = [where + node.accelerator.display_name, f"{usable_bytes / GIB:.1f} GiB usable each{cap}", *links]
    if node.cpu_memory_bytes is not None:
        parts.append(f"{format_bytes(node.cpu_memory_bytes)} host memory a node")
    if cluster.usd_per_gpu_hour is not None:
        parts.append(f"${cluster.usd_per_gpu_hour:.2f} a GPU-hour")
    return ", ".join(parts)


def _gigabytes(rate: float) -> str:
    return figure(rate / 1e9)


def recipe_line(recipe: TrainingRecipe) -> str:
    precision = recipe.precision.value + (
        " mixed" if recipe.precision.value != "fp32" else " with TF32" if recipe.tf32 else ""
    )
    return ", ".join(
        [
            precision,
            f"{recipe.attention.value} attention",
            "compiled" if recipe.compile else "not compiled",
            recipe.optimizer,
        ]
    )


def step_line(recipe: TrainingRecipe) -> str:
    """What one step and the run are: the number that users compare with."""
    batch = f"{recipe.global_batch_size:,}"
    if recipe.sequence_length is not None:
        tokens = recipe.global_batch_size * recipe.sequence_length
        step = f"{batch} x {recipe.sequence_length:,} = {tokens:,} tokens"
        total, unit = tokens, "tokens"
    else:
        step = f"{batch} images of {recipe.image_size} x {recipe.image_size}"
        total, unit = recipe.global_batch_size, "images"
    if recipe.num_training_steps is None:
        return f"{step}; length of the run not known"
    overhead = f", {recipe.overhead_fraction:.0%} added" if recipe.overhead_fraction else ""
    amount = f"{format_count(total * recipe.num_training_steps)} {unit}"
    return f"{step}; run of {recipe.num_training_steps:,} steps = {amount}{overhead}"


def strategy_name(strategy: Strategy, num_gpus: int) -> str:
    """In option values; ``none`` on several GPUs is DDP."""
    name = "none (DDP)" if strategy.kind is StrategyKind.NONE and num_gpus > 1 else strategy.kind.value
    return (
        name
        + (" + offload" if strategy.offload else "")
        + (" + checkpointing" if strategy.activation_checkpointing else "")
    )


def basis_line(basis: str) -> str:
    if basis == "calibrated":
        return "calibrated on measurements; low-high is a 90 % interval"
    return "analytical, default coefficients, nothing measured here; low-high is a 90 % interval"


def time_line(estimate: Estimate) -> str:
    """Step time by term, the terms that matter."""
    components = estimate.step_time_components_seconds
    total = components.total_seconds
    parts = {
        name: getattr(components, name)
        for name in ("forward_backward", "optimizer", "communication", "offload", "input")
    }
    step = estimate.step_time_seconds
    return (
        f"{format_seconds(step.expected)} ({format_seconds(step.low)} to {format_seconds(step.high)}) a step: "
        + ", ".join(
            f"{_PART_NAMES.get(name, name)} {format_seconds(value)} ({value / total:.0%})"
            for name, value in parts.items()
            if value >= _SMALLEST_SHARE * total
        )
    )


def memory_line(estimate: Estimate) -> str:
    """Peak by buffer, and the three ways of counting it."""
    components = estimate.memory_components_bytes
    names = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers")
    parts = {name: getattr(components, name) for name in names}
    listed = ", ".join(
        f"{name} {value / GIB:.1f}"
        for name, value in parts.items()
        if value >= _SMALLEST_SHARE * components.total_bytes
    )
    allocated, reserved = estimate.peak_memory_bytes.expected / GIB, estimate.peak_reserved_bytes
    smi = (reserved.expected + estimate.context_bytes) / GIB
    return (
        f"{allocated:.1f} GiB allocated at the peak: {listed}; reserved {reserved.expected / GIB:.1f} "
        f"({reserved.low / GIB:.1f} to {reserved.high / GIB:.1f}) of {estimate.usable_memory_bytes / GIB:.1f} usable; "
        f"nvidia-smi shows about {smi:.1f}"
    )


def speed_line(estimate: Estimate, num_gpus: int) -> str:
    speed = f"{figure(estimate.samples_per_second)} samples/s"
    if estimate.tokens_per_second is not None:
        each = f" ({estimate.tokens_per_second / num_gpus:,.0f} a GPU)" if num_gpus > 1 else ""
        speed = f"{estimate.tokens_per_second:,.0f} tokens/s{each}"
    return (
        f"{speed}; MFU {estimate.mfu_fraction:.1%}, HFU {estimate.hfu_fraction:.1%}; "
        f"{figure(estimate.model_flops_per_step / TERA)} TFLOP a step"
    )


def run_line(estimate: Estimate) -> str | None:
    """Days, dollars, energy of the whole run; None where no length is known."""
    days = estimate.training_days
    if days is None:
        return None
    line = f"{figure(days.expected)} days ({low_high(days)})"
    if estimate.cost_usd is not None:
        cost = estimate.cost_usd
        line += f", {format_usd(cost.expected)} ({format_usd(cost.low)} to {format_usd(cost.high)})"
    if estimate.energy_kwh is not None:
        line += f", {figure(estimate.energy_kwh.expected)} kWh"
    return line


def storage_line(estimate: Estimate) -> str:
    line = f"checkpoint {format_bytes(estimate.checkpoint_bytes)}"
    if estimate.host_memory_bytes:
        line += f", host memory {format_bytes(estimate.host_memory_bytes)} a node"
    return line


def optimism_line(estimate: Estimate) -> str:
    """The waterfall from FLOPs / peak to the expected step, in a sentence."""
    parts = estimate.optimism.parts
    smallest = _SMALLEST_SHARE * sum(part.seconds for part in parts)
    listed = ", ".join(
        f"{part.name.replace('_', ' ')} +{format_seconds(part.seconds)}"
        for part in parts[1:]
        if abs(part.seconds) >= smallest
    )
    ideal = format_seconds(parts[0].seconds)
    return f"FLOPs / peak says {ideal}; the step takes {estimate.optimism.ratio:.2f}x as long: {listed}"


def note_lines(notes: Iterable[Note]) -> list[str]:
    return [note.message for note in dict.fromkeys(notes)]
