"""A user's own GPUs, models and prices."""

from pathlib import Path

import pytest

from estimator.catalog.bundled import load_bundled_model
from estimator.catalog.lookup import accelerator_names, bundled_model_names, find_accelerator
from estimator.catalog.prices import base_machine_usd, rental_price, write_off_years
from estimator.specs.errors import SpecError
from estimator.specs.hardware import NumberFormat
from estimator.specs.models.decoder import DecoderSpec

GPU = """
name = "my-gpu"
aliases = ["big card"]
memory_bytes = 25_769_803_776
memory_bandwidth_bytes_per_second = 1000e9
[peak_dense_flop_per_second]
bf16 = 150e12
"""
MODEL = """
name = "my-model"
[config]
model_type = "llama"
vocab_size = 1000
hidden_size = 64
num_hidden_layers = 2
num_attention_heads = 4
intermediate_size = 128
[recipe]
precision = "bf16"
global_batch_size = 64
sequence_length = 128
optimizer = "adam"
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINCAST_CONFIG_DIR", str(tmp_path))
    return tmp_path


def write(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_least_description_of_a_gpu_is_enough(own: Path) -> None:
    write(own, "accelerators/my-gpu.toml", GPU)
    for text in ("my-gpu", "My GPU", "Big Card"):
        card, notes = find_accelerator(text)
        assert card.peak_dense_flop_per_second == {NumberFormat.BF16: 150e12}
        assert (card.memory_bytes, card.peer_link) == (24 * 2**30, "pcie4x16")
        assert [note.code for note in notes] == ["user_gpu"]
    assert "my-gpu" in accelerator_names()


def test_a_users_entry_wins_and_a_changed_file_is_read_again(own: Path) -> None:
    path = write(own, "accelerators/mine.toml", GPU.replace("my-gpu", "a100-80gb"))
    card, notes = find_accelerator("A100-80GB")
    assert card.memory_bytes == 24 * 2**30
    assert str(path) in notes[0].message
    write(
        own, "accelerators/mine.toml", GPU.replace("my-gpu", "a100-80gb").replace("25_769_803_776", "1_073_741_824_000")
    )
    assert find_accelerator("A100-80GB")[0].memory_bytes == 1_073_741_824_000
    path.unlink()
    assert find_accelerator("A100-80GB")[1] == ()


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("memory_bytes = 25_769_803_776\n", "", "memory_bytes", "is missing"),
        ("bf16 = 150e12", "", "peak_dense_flop_per_second", "length >= 1"),
        ("bf16 = 150e12", "bf16 = 0", "peak_dense_flop_per_second[...]", "> 0"),
        ("bf16 = 150e12", "int4 = 1e12", "peak_dense_flop_per_second", "int4"),
        ("25_769_803_776", '"24 GB"', "memory_bytes", "Expected `int`, got `str`"),
        ("25_769_803_776", "-1", "memory_bytes", ">= 1"),
        ("aliases = [", "colour = [", "colour", "unknown field"),
        ('name = "my-gpu"', 'name = "my-gpu"\npeer_link = "rope"', "peer_link", "no link is called 'rope'"),
        ('name = "my-gpu"', 'name = "my-gpu', None, "no valid TOML"),
    ],
)
def test_errors_name_file_and_field(own: Path, old: str, new: str, place: str | None, words: str) -> None:
    assert old in GPU
    path = write(own, "accelerators/my-gpu.toml", GPU.replace(old, new))
    with pytest.raises(SpecError) as caught:
        find_accelerator("my-gpu")
    (problem,) = caught.value.problems
    assert problem.field == (f"{path}: {place}" if place else str(path))
    assert words in problem.message


def test_every_wrong_field_is_reported(own: Path) -> None:
    write(own, "accelerators/my-gpu.toml", 'name = 3\nmemory_bytes = "x"\nspeed = 1\n')
    with pytest.raises(SpecError) as caught:
        find_accelerator("my-gpu")
    assert len(caught.value.problems) == 5


def test_two_files_cannot_share_a_name(own: Path) -> None:
    write(own, "accelerators/a.toml", GPU)
    write(own, "accelerators/b.toml", GPU)
    with pytest.raises(SpecError, match="two files cannot share a name"):
        find_accelerator("my-gpu")


def test_own_models(own: Path) -> None:
    path = write(own, "models/my-model.toml", MODEL)
    bundled = load_bundled_model("My Model")
    assert isinstance(bundled.spec, DecoderSpec)
    assert bundled.spec.hidden_size == 64
    assert bundled.recipe is not None
    assert (bundled.recipe.global_batch_size, bundled.recipe.optimizer) == (64, "adamw_torch")
    assert "user_model" in [note.code for note in bundled.notes]
    assert "my-model" in bundled_model_names()
    path.write_text(MODEL.replace("= 64\nsequence", "= 0\nsequence").replace('"adam"', '"sophia"'))
    with pytest.raises(SpecError) as caught:
        load_bundled_model("my-model")
    assert caught.value.problems[0].field == f"{path}: recipe.global_batch_size"
    path.write_text(MODEL.replace('"adam"', '"sophia"'))
    with pytest.raises(SpecError, match=r"recipe.optimizer: is 'sophia'; it must be one of adamw_torch"):
        load_bundled_model("my-model")
    path.write_text(MODEL.replace("my-model", "other"))
    with pytest.raises(SpecError, match="is named like its file"):
        load_bundled_model("my-model")


def test_own_prices(own: Path) -> None:
    assert base_machine_usd(1) == 1000
    assert [base_machine_usd(n) for n in (2, 3, 8, 16)] == [1500, 7500, 10_500, 21_000]
    write(
        own,
        "prices.toml",
        'write_off_years = 3\n[rental]\na100-80gb = { usd = 0.5, date = "today", source = "mine" }\n',
    )
    card, notes = find_accelerator("a100-80gb")
    assert card.rental_price is not None
    assert card.rental_price.usd == 0.5
    assert [note.code for note in notes] == ["user_price"]
    assert write_off_years() == 3
    assert base_machine_usd(8) == 10_500
    h100 = rental_price("h100-sxm")
    assert h100 is not None
    assert h100.usd == 2.95
    assert rental_price("gtx-1080-ti") is None
    write(own, "prices.toml", '[rental]\na100-80gb = { usd = -1, date = "today", source = "mine" }\n')
    with pytest.raises(SpecError, match=r"prices.toml: rental\[...\].usd"):
        find_accelerator("a100-80gb")


def test_an_unreadable_place_is_no_obstacle(own: Path) -> None:
    (own / "accelerators").write_text("a file, not a folder")
    assert find_accelerator("t4")[1] == ()
