"""Kernel times at the limits where they can be worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from estimator.analytic.compiled_operations import compile_operations
from estimator.analytic.compute import (
    DeviceColumns,
    alignment_slowdown,
    attention_pairs,
    attention_path,
    matrix_product_seconds,
)
from estimator.specs.models.decoder import DecoderSpec
from estimator.specs.operations import LENGTH, Operation, OperationKind, OperationList, as_size
from estimator.specs.recipe import AttentionKernel, Precision, TrainingRecipe
from tests.support.workloads import A100, TINY

RATE, BANDWIDTH, PROCESSORS = 250e12, 1.6e12, 108.0


def device(*, ramp_seconds: float = 0.0) -> DeviceColumns:
    column = lambda value: np.array([[value]])  # noqa: E731
    return DeviceColumns(
        peak_16bit=column(RATE), peak_32bit=column(RATE / 2), peak_fp32=column(19.5e12),
        attention_forward_rate=column(190e12), attention_backward_rate=column(160e12),
        attention_32bit_rate=column(50e12), flash_ramp_length=column(0.0), matrix_ramp_seconds=column(ramp_seconds),
        unaligned_matrix_slowdown=column(1.5), odd_matrix_slowdown=column(4.0),
        convolution_efficiency=column(0.5), depthwise_forward_efficiency=column(0.1),
        depthwise_backward_efficiency=column(0.05), scan_efficiency=column(0.2), bandwidth=column(BANDWIDTH),
        num_multiprocessors=column(PROCESSORS), visits_hidden_pairs=column(0.0),
    )  # fmt: skip


def product(m: float, k: float, n: float, *, batch: float = 1.0, ramp_seconds: float = 0.0) -> float:
    one = np.array([[1.0]])
    seconds = matrix_product_seconds(
        batch * one, m * one, k * one, n * one, rate=RATE * one, operand_bytes=2 * one,
        device=device(ramp_seconds=ramp_seconds),
    )  # fmt: skip
    return float(seconds[0, 0])


def test_large_product_runs_at_the_achievable_rate() -> None:
    m = 256 * 108
    assert product(m, 8192, 8192) == pytest.approx(2 * m * 8192 * 8192 / RATE)


def test_one_tile_more_than_a_wave_costs_another_wave() -> None:
    # 256 x 128 tiles on 108 multiprocessors; smaller tiles would waste less but run slower.
    full, over = product(256 * 108, 4096, 128), product(256 * 108 + 1, 4096, 128)
    assert over > 1.2 * full


def test_narrow_product_is_bound_by_memory() -> None:
    m, k, n = 100_000.0, 16.0, 16.0
    assert product(m, k, n) == pytest.approx(2 * (m * k + k * n + m * n) / BANDWIDTH)


@pytest.mark.parametrize(
    ("n", "operand_bytes", "slowdown"),
    [(50304, 2, 1.0), (50257, 2, 4.0), (30522, 2, 1.5), (50257, 4, 1.5), (2, 2, 1.0)],
)
def test_rows_off_16_bytes_slow_a_product_down(n: float, operand_bytes: float, slowdown: float) -> None:
    one = np.array([[1.0]])
    assert alignment_slowdown(768 * one, n * one, operand_bytes * one, device())[0, 0] == slowdown


def test_compiled_decoders_get_their_causal_mask_as_a_tensor_and_skip_nothing() -> None:
    from estimator.catalog.bundled import load_bundled_model

    pythia, opt, bert = (load_bundled_model(name).spec for name in ("pythia-1b", "opt-1.3b", "bert-large-uncased"))
    compiled = TrainingRecipe(
        micro_batch_size=1, global_batch_size=1, sequence_length=1024, precision=Precision.BF16,
        attention=AttentionKernel.SDPA, compile=True,
    )  # fmt: skip
    paths = {model.name: attention_path(model, compiled, A100) for model in (pythia, opt, bert)}
    assert paths == {"pythia-1b": "efficient", "opt-1.3b": "flash", "bert-large-uncased": "flash"}
    assert attention_path(pythia, replace(compiled, compile=False), A100) == "flash"
    asked = replace(compiled, attention=AttentionKernel.FLASH_ATTENTION_2)
    assert attention_path(pythia, asked, A100) == "flash"


def test_few_tiles_split_the_depth_over_idle_multiprocessors() -> None:
    # A weight gradient: 128 x 128 results over 65,536 tokens would keep one multiprocessor of 108 busy.
    alone = 2 * 128 * 128 * 65_536 / (RATE / PROCESSORS)
    assert product(128, 65_536, 128) < alone / 20


def test_ramp_weighs_on_shallow_products() -> None:
    deep = product(27_648, 8192, 1024, ramp_seconds=2e-6) / product(27_648, 8192, 1024)
    shallow = product(27_648, 256, 1024, ramp_seconds=2e-6) / product(27_648, 256, 1024)
    assert deep < 1.05
    assert shallow > 1.2


def pairs(queries: float, *, causal: bool, window: int | None = None, visits_hidden: float = 0.0) -> float:
    operation = Operation(
        name="attention",
        kind=OperationKind.ATTENTION,
        m=LENGTH,
        n=LENGTH,
        k=as_size(64),
        is_causal=causal,
        window=window,
    )
    shaped = compile_operations(OperationList(operations=(operation,), blocks=(), parameters=())).attentions
    one = np.array([[1.0]])
    return float(attention_pairs(shaped, queries * one, queries * one, visits_hidden * one)[0, 0])


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (False, None, 1000 * 1000),
        (True, None, 1000 * 1000 / 2),
        (True, 100, 1000 * 100 - 100 * 100 / 2),
        (True, 5000, 1000 * 1000 / 2),
        (False, 100, 1000 * 100),
    ],
)
def test_attention_counts_the_pairs_the_kernel_visits(causal: bool, window: int | None, expected: float) -> None:
    assert pairs(1000.0, causal=causal, window=window) == expected
    assert pairs(1000.0, causal=causal, window=window, visits_hidden=1.0) == 1e6


def recipe(precision: Precision, attention: AttentionKernel = AttentionKernel.SDPA) -> TrainingRecipe:
    return TrainingRecipe(precision=precision, attention=attention)


def decoder(*, head_dim: int = 64, attention_softcap: float | None = None) -> DecoderSpec:
    return DecoderSpec(
        name="d", model_type="gemma2", source="test", vocab_size=100, hidden_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, head_dim=head_dim, intermediate_size=512,
        max_position_embeddings=128, is_mlp_gated=True, activation="gelu", norm="rms_norm", has_norm_bias=False,
        norms_per_block=4, is_residual_parallel=False, has_qkv_bias=False, has_attention_output_bias=False,
        has_mlp_bias=False, is_qkv_fused=False, attention_softcap=attention_softcap,
    )  # fmt: skip


V100 = replace(A100, compute_capability=(7, 0))


@pytest.mark.parametrize(
    ("model", "how", "accelerator", "expected"),
    [
        (TINY, recipe(Precision.BF16), A100, "flash"),
        (TINY, recipe(Precision.BF16, AttentionKernel.EAGER), A100, "math"),
        (TINY, recipe(Precision.FP32), A100, "efficient"),
        (TINY, recipe(Precision.FP16), V100, "efficient"),
        (decoder(head_dim=512), recipe(Precision.BF16), A100, "efficient"),
        (decoder(attention_softcap=50.0), recipe(Precision.BF16), A100, "math"),
        (TINY, recipe(Precision.BF16), replace(A100, compute_capability=None, vendor="amd"), "flash"),
    ],
)
def test_attention_takes_the_kernel_that_sdpa_dispatches_to(model, how, accelerator, expected: str) -> None:
    assert attention_path(model, how, accelerator) == expected


def test_grouped_keys_in_fp32_run_the_math_code_unless_compiled() -> None:
    # transformers passes grouped keys on without a mask, and the memory-efficient kernel takes none.
    from estimator.catalog.bundled import load_bundled_model

    grouped, plain = load_bundled_model("tinyllama-1.1b").spec, load_bundled_model("pythia-1b").spec
    recipe = TrainingRecipe(
        micro_batch_size=1, global_batch_size=1, sequence_length=1024, precision=Precision.FP32,
        attention=AttentionKernel.SDPA, compile=False,
    )  # fmt: skip
    assert attention_path(grouped, recipe, A100) == "sdpa_math"
    assert attention_path(grouped, replace(recipe, compile=True), A100) == "efficient"
    assert attention_path(plain, recipe, A100) == "efficient"
    assert attention_path(grouped, replace(recipe, precision=Precision.BF16), A100) == "flash"
