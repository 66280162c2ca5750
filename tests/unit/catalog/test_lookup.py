"""Names of GPUs as people and tools write them."""

import pytest

from estimator.catalog.lookup import accelerator_names, find_accelerator, nearest_names
from estimator.specs.errors import SpecError


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a100-80gb", "a100-80gb"),
        ("A100 80GB", "a100-80gb"),
        ("a100_80gb", "a100-80gb"),
        ("A100-80G", "a100-80gb"),
        ("A100 80 GiB", "a100-80gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("A100-PCIE-40GB", "a100-pcie-40gb"),
        ("A100-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("H200 SXM", "h200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("A800", "a800"),
        ("NVIDIA A800-SXM4-80GB", "a800"),
        ("4090", "rtx-4090"),
        ("rtx-4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("3090", "rtx-3090"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx-1080-ti"),
        ("2080ti", "rtx-2080-ti"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
        ("V100-32GB", "v100-sxm2-32gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA A10G", "a10g"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("Quadro RTX 8000", "quadro-rtx-8000"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI250 (one GCD)", "mi250"),
        ("Radeon RX 7900 XTX", "rx-7900-xtx"),
        ("V100 SXM3", "v100-sxm3-32gb"),
        ("V100 SXM3 (DGX-2H 450 W)", "v100-sxm3-32gb-450w"),
        ("TITAN RTX", "titan-rtx"),
    ],
)
def test_usual_spellings(text: str, name: str) -> None:
    card, notes = find_accelerator(text)
    assert (card.name, notes) == (name, ())


@pytest.mark.parametrize(
    ("text", "name", "other"),
    [
        ("H100", "h100-sxm", "h100-pcie"),
        ("H100-80GB", "h100-sxm", "h100-pcie"),
        ("A100", "a100-80gb", "a100-40gb"),
        ("A100 SXM", "a100-80gb", "a100-40gb"),
        ("A100 PCIe", "a100-pcie-80gb", "a100-pcie-40gb"),
        ("V100", "v100-sxm2-16gb", "v100-sxm2-32gb"),
        ("V100 SXM2", "v100-sxm2-16gb", "v100-sxm2-32gb"),
        ("RTX 6000", "rtx-6000-ada", "quadro-rtx-6000"),
        ("RTX 5060 Ti", "rtx-5060-ti-16gb", "--gpu-memory-gib"),
    ],
)
def test_names_of_several_cards_say_what_was_assumed_and_what_else_to_type(text: str, name: str, other: str) -> None:
    card, notes = find_accelerator(text)
    assert card.name == name
    assert [note.code for note in notes] == ["gpu_assumed"]
    assert name in notes[0].message
    assert other in notes[0].message


def refusal(text: str) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        find_accelerator(text)
    (problem,) = caught.value.problems
    assert problem.field == "gpu"
    return problem.code, problem.message


def test_unknown_gpu_suggests_the_nearest_and_says_how_to_describe_it() -> None:
    code, message = refusal("A1000")
    assert code == "unknown_gpu"
    assert "Unknown GPU 'A1000'. Did you mean a100-80gb, a100-40gb, a10" in message
    assert "my-gpu.toml" in message
    for field in ("memory_bytes", "memory_bandwidth_bytes_per_second", "peak_dense_flop_per_second"):
        assert field in message
    assert "rtx-4090" in refusal("RTX 4090 Turbo X")[1]
    assert "catalog gpus" in refusal("banana")[1]


@pytest.mark.parametrize("text", ["", "   ", "?", "x" * 10_000, "\x00", "../../etc/passwd", "显卡"])
def test_nonsense_is_refused_briefly(text: str) -> None:
    code, message = refusal(text)
    assert code == "unknown_gpu"
    assert len(message) < 700


@pytest.mark.parametrize("text", ["TPU v4", "Gaudi2", "trainium", "trn1.32xlarge"])
def test_what_is_no_gpu_is_named_as_not_modelled(text: str) -> None:
    assert refusal(text)[0] == "not_modelled"


def test_a_machine_is_answered_with_its_options() -> None:
    code, message = refusal("p4d.24xlarge")
    assert code == "machine_name"
    assert "--gpu a100-40gb --num-gpus 8" in message


def test_accelerator_names_are_canonical_and_sorted() -> None:
    names = accelerator_names()
    assert list(names) == sorted(names)
    assert {"a100-80gb", "h100-sxm", "rtx-4090"} <= set(names)


def test_nearest_names_keeps_order_of_likeness_and_invents_nothing() -> None:
    assert (
        nearest_names("num_hiden_layers", ["vocab_size", "num_hidden_layers", "hidden_size"])[0] == "num_hidden_layers"
    )
    assert nearest_names("zzzz", ["vocab_size", "hidden_size"]) == ()
    assert nearest_names("a", []) == ()
