"""What is known by name, as rows."""

from estimator.analytic.operations import operation_list
from estimator.catalog.bundled import load_bundled_model
from estimator.catalog.lookup import accelerator_names, bundled_model_names, find_accelerator
from estimator.specs.hardware import Accelerator, NumberFormat
from estimator.specs.model import ModelSpec
from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath, OperationContext
from estimator.specs.units import GIB, TERA

_GIGA = 1e9


def model_rows(words: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Bundled models whose row holds every word."""
    rows = []
    for name in bundled_model_names():
        bundled = load_bundled_model(name)
        recipe = bundled.recipe
        rows.append(
            {
                "name": name,
                "family": bundled.spec.family,
                "parameters": num_parameters(bundled.spec),
                "sequence_length": recipe.sequence_length if recipe else None,
                "image_size": recipe.image_size if recipe else getattr(bundled.spec, "image_size", None),
                "global_batch_size": recipe.global_batch_size if recipe else None,
                "num_training_steps": recipe.num_training_steps if recipe else None,
                "precision": recipe.precision.value if recipe else None,
                "optimizer": recipe.optimizer if recipe else None,
                "sources": list(bundled.sources),
            }
        )
    return [row for row in rows if _holds(row, words)]


def num_parameters(model: ModelSpec) -> int:
    """All parameters, tied weights once; the same in every variant of the operation list."""
    return operation_list(model, OperationContext(numerics=Numerics.FP32, attention=AttentionPath.MATH)).num_parameters


def gpu_rows(words: tuple[str, ...] = ()) -> list[dict[str, object]]:
    """Accelerators whose row holds every word."""
    rows = [_gpu_row(find_accelerator(name)[0]) for name in accelerator_names()]
    return [row for row in rows if _holds(row, words)]


def _gpu_row(card: Accelerator) -> dict[str, object]:
    peaks = card.peak_dense_flop_per_second
    rates = {
        f"{number_format.value}_dense_tflop_per_second": peaks[number_format] / TERA if number_format in peaks else None
        for number_format in (NumberFormat.BF16, NumberFormat.FP16, NumberFormat.TF32, NumberFormat.FP32)
    }
    return {
        "name": card.name,
        "display_name": card.display_name,
        "vendor": card.vendor,
        "memory_gib": card.memory_bytes / GIB,
        "memory_bandwidth_gb_per_second": card.memory_bandwidth_bytes_per_second / _GIGA,
        **rates,
        "peer_link": card.peer_link,
        "bridge_link": card.bridge_link,
        "host_link": card.host_link,
        "compute_capability": ".".join(map(str, card.compute_capability)) if card.compute_capability else None,
        "power_watts": card.power_watts,
        "usd_per_gpu_hour": card.rental_price.usd if card.rental_price else None,
        "purchase_usd": card.purchase_price.usd if card.purchase_price else None,
        "sources": list(card.sources),
    }


def _holds(row: dict[str, object], words: tuple[str, ...]) -> bool:
    text = " ".join(str(row[key]) for key in ("name", "display_name", "family", "vendor") if key in row).lower()
    return all(word.lower() in text for word in words)
