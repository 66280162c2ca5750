"""The bundled files: complete, sourced, consistent with each other and with what is published."""

import datetime
import tomllib
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.operations import operation_list
from estimator.catalog.bundled import load_bundled_model
from estimator.catalog.clusters import build_cluster
from estimator.catalog.load import DATA_DIRECTORY, load_links, load_prices
from estimator.catalog.lookup import accelerator_names, bundled_model_names, find_accelerator, known_nodes
from estimator.catalog.spelling import normalised
from estimator.specs.hardware import NumberFormat
from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath, OperationContext
from estimator.specs.recipe import Precision, TrainingRecipe
from estimator.specs.units import GB, GIB, TERA


def documents(kind: str) -> list[tuple[Path, dict[str, Any]]]:
    return [(path, tomllib.loads(path.read_text())) for path in sorted((DATA_DIRECTORY / kind).glob("*.toml"))]


def holds_numbers(value: object) -> bool:
    if isinstance(value, dict):
        return any(holds_numbers(entry) for entry in value.values())
    if isinstance(value, list):
        return any(holds_numbers(entry) for entry in value)
    return isinstance(value, int | float) and not isinstance(value, bool)


@pytest.mark.parametrize("kind", ["accelerators", "clusters", "models"])
def test_every_number_has_one_source_and_a_date(kind: str) -> None:
    for path, document in documents(kind):
        sources = document.pop("sources")
        sourced = [field for source in sources for field in source["fields"]]
        assert len(sourced) == len(set(sourced)), path
        numeric = {field for field, value in document.items() if holds_numbers(value)}
        assert numeric <= set(sourced) <= set(document), (path, numeric ^ set(sourced))
        assert all(source["source"] and isinstance(source["read"], datetime.date) for source in sources), path


def test_there_are_as_many_as_promised_and_names_are_file_names() -> None:
    assert len(documents("accelerators")) >= 50
    assert len(documents("models")) >= 40
    for kind in ("accelerators", "clusters", "models"):
        assert all(document["name"] == path.stem for path, document in documents(kind))


def test_no_alias_means_two_things() -> None:
    for file, kind in (("accelerator_names.toml", "accelerators"), ("model_names.toml", "models")):
        names = tomllib.loads((DATA_DIRECTORY / file).read_text())
        meanings: dict[str, str] = {normalised(path.stem): path.stem for path, _ in documents(kind)}
        known = set(meanings.values())
        for name, aliases in names["aliases"].items():
            assert name in known
            for alias in aliases:
                assert meanings.setdefault(normalised(alias), name) == name, alias
        for text, entry in names.get("ambiguous", {}).items():
            assert normalised(text) not in meanings, text
            assert {entry["assume"], *entry["others"]} <= known


@pytest.mark.parametrize("name", accelerator_names())
def test_an_accelerator_is_physically_plausible(name: str) -> None:
    card, notes = find_accelerator(name)
    assert (card.name, notes) == (name, ())
    rates = card.peak_dense_flop_per_second
    ladder = [
        rates[f] for f in (NumberFormat.FP32, NumberFormat.TF32, NumberFormat.BF16, NumberFormat.FP8) if f in rates
    ]
    assert ladder == sorted(ladder)
    assert NumberFormat.FP32 in rates
    assert 5 * GIB < card.memory_bytes < 300 * GIB
    assert 100 * GB < card.memory_bandwidth_bytes_per_second <= 8000 * GB
    # The balance of a device; a slip by ten in either figure leaves these bounds.
    assert 10 < rates.get(NumberFormat.FP16, ladder[0]) / card.memory_bandwidth_bytes_per_second < 500
    if card.vendor == "nvidia":
        assert card.compute_capability is not None
        assert card.supports_bf16 == (card.compute_capability >= (8, 0)) == card.supports_tf32
        assert (NumberFormat.FP8 in rates) == (card.compute_capability >= (8, 9))
    assert card.host_link in load_links()


def test_memory_is_what_the_device_reports() -> None:
    for name, marketing_gib in (
        ("a100-80gb", 80),
        ("a100-40gb", 40),
        ("h200", 141),
        ("rtx-4090", 24),
        ("v100-sxm2-16gb", 16),
    ):
        card, _ = find_accelerator(name)
        assert 0.93 * marketing_gib < card.memory_bytes / GIB < marketing_gib
    assert find_accelerator("h200")[0].memory_bytes / GIB == pytest.approx(139.8, abs=0.05)
    assert 79.1 < find_accelerator("a100-80gb")[0].memory_bytes / GIB < 79.4


def test_suspect_figures_are_settled() -> None:
    def rate(name: str, number_format: NumberFormat) -> float:
        return find_accelerator(name)[0].peak_dense_flop_per_second[number_format] / TERA

    links = load_links()
    host = find_accelerator("rtx-5060-ti-16gb")[0].host_link
    assert links[host][0].bandwidth_bytes_per_second == 32 * GB
    assert rate("b200", NumberFormat.FP32) == rate("b300", NumberFormat.FP32) == 75
    assert rate("p100-pcie", NumberFormat.FP32) == 9.3
    assert rate("mi300x", NumberFormat.FP8) == pytest.approx(2615, abs=0.2)
    assert rate("mi325x", NumberFormat.FP8) == pytest.approx(2615, abs=0.2)
    assert rate("rtx-6000-ada", NumberFormat.BF16) == pytest.approx(142 * 1024 * 2.505e9 / TERA, rel=0.001)
    assert rate("mi250", NumberFormat.BF16) == 362 / 2
    assert rate("a10g", NumberFormat.BF16) == 70
    assert rate("rtx-3090", NumberFormat.BF16) == 71
    assert not find_accelerator("rtx-4090")[0].supports_peer_to_peer
    assert not find_accelerator("rtx-5090")[0].supports_peer_to_peer
    assert find_accelerator("rtx-a6000")[0].supports_peer_to_peer


def test_known_machines_agree_with_what_is_chosen_for_their_card_and_count() -> None:
    assert len(known_nodes()) >= 10
    for node in known_nodes():
        card, _ = find_accelerator(node.gpu)
        cluster, _ = build_cluster(card, node.num_gpus, 1)
        assert cluster.node.peer_link.name == node.peer_link, node.name


def test_prices_are_of_known_cards() -> None:
    prices = load_prices(DATA_DIRECTORY / "prices.toml")
    assert set(prices.rental) | set(prices.purchase) <= set(accelerator_names())
    assert prices.write_off_years == 5
    assert prices.base_machine is not None
    assert prices.base_machine.usd == {"1": 1000, "2": 1500, "4": 7500, "8": 10500}
    card, _ = find_accelerator("a100-80gb")
    assert card.rental_price is not None
    assert card.purchase_price is not None
    assert card.purchase_price.usd == 19_000


STUDY = {
    **{
        f"pythia-{size}": (1024, 143_000, 2048, "fp16", rate)
        for size, rate in (
            ("14m", 1e-3),
            ("70m", 1e-3),
            ("160m", 6e-4),
            ("410m", 3e-4),
            ("1.4b", 2e-4),
            ("2.8b", 1.6e-4),
            ("6.9b", 1.2e-4),
            ("12b", 1.2e-4),
        )
    },
    "pythia-1b": (1024, 143_000, 2048, "bf16", 3e-4),
    "roberta-large": (8192, 500_000, 512, "fp16", 4e-4),
    "mamba-2.8b": (128, 572_204, 4096, "bf16", 8e-4),
    "convnext-large-1k": (4096, 93_600, 224, "fp32", 4e-3),
    "convnext-large-22k": (4096, 311_940, 224, "fp32", 4e-3),
    "convnext-xlarge-22k": (4096, 311_940, 224, "fp32", 4e-3),
    "vit-large-16-21k": (4096, 311_948, 224, "fp32", 1e-3),
}
"""Global batch, steps, length or image side, precision, learning rate."""


@pytest.mark.parametrize("name", sorted(STUDY))
def test_models_of_the_study_carry_their_published_recipe(name: str) -> None:
    batch, steps, size, precision, rate = STUDY[name]
    bundled = load_bundled_model(name)
    recipe = bundled.recipe
    assert isinstance(recipe, TrainingRecipe)
    assert (recipe.global_batch_size, recipe.num_training_steps) == (batch, steps)
    assert (recipe.sequence_length or recipe.image_size) == size
    assert recipe.precision is Precision(precision)
    assert recipe.optimization.learning_rate == rate
    assert recipe.tf32
    assert recipe.compile == (not name.startswith("mamba"))
    assert "default_recipe" not in [note.code for note in bundled.notes]


PUBLISHED_PARAMETERS = {
    "pythia-14m": 14_067_712,
    "pythia-70m": 70_426_624,
    "pythia-1b": 1_011_781_632,
    "pythia-12b": 11_846_072_320,
    "roberta-large": 355_412_057,
    "bert-base-uncased": 109_514_298,
    "mamba-2.8b": 2_768_345_600,
    "convnext-large-1k": 197_767_336,
    "dinov2-giant": 1_136_480_768 + 3_073_000,
    "gpt2": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "gemma-2-9b": 9_241_705_984,
    "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840,
    "phi-3-mini": 3_821_079_552,
    "opt-350m": 331_196_416,
    "bloom-560m": 559_214_592,
    "gpt-j-6b": 6_050_882_784,
    "olmo-2-7b": 7_298_617_344,
}
"""Elements of the published weights."""


@pytest.mark.parametrize("name", sorted(PUBLISHED_PARAMETERS))
def test_parameters_are_the_published_ones(name: str) -> None:
    context = OperationContext(numerics=Numerics.FP32.value, attention=AttentionPath.MATH)
    assert operation_list(load_bundled_model(name).spec, context).num_parameters == PUBLISHED_PARAMETERS[name]


def test_bundled_configs_are_complete_and_recipes_fit_their_models() -> None:
    for name in bundled_model_names():
        bundled = load_bundled_model(name)
        # A field that falls back to a default is a field that was forgotten.
        assert not {"config_defaults", "head_assumed"} & {note.code for note in bundled.notes}, name
        assert bundled.recipe is not None
        assert (bundled.recipe.sequence_length is None) != (bundled.recipe.image_size is None)
        limit = getattr(bundled.spec, "max_sequence_length", getattr(bundled.spec, "max_position_embeddings", None))
        assert bundled.recipe.sequence_length is None or limit is None or bundled.recipe.sequence_length <= limit
        assert len(bundled.sources) == 2
