"""The two producers of operation lists agree where both exist."""

import pytest

from estimator.analytic.operations import operation_list
from estimator.catalog.huggingface import model_from_config
from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath, OperationContext, OperationList

from .tracing import CONFIGS, flops, total, traced

pytestmark = pytest.mark.slow

B, S = 4, 320
MODELS = ("gpt2", "gpt_neox", "llama", "bert", "vit", "convnext")


def _pair(
    name: str, numerics: Numerics, path: AttentionPath, attention: str, *, is_compiled: bool = False
) -> tuple[OperationList, OperationList]:
    spec, _ = model_from_config(CONFIGS[name], name=name, source="test")
    extra = () if numerics is Numerics.AUTOCAST else (Numerics.AUTOCAST, numerics)
    context = OperationContext(numerics=numerics.value, attention=path, is_compiled=is_compiled)
    # As an estimate picks its variant.
    return operation_list(traced(name, attention, *extra), context), operation_list(spec, context)


def _assert_equal(trace: OperationList, closed: OperationList) -> None:
    assert trace.num_parameters == closed.num_parameters
    assert sum(flops(trace, B, S)) == pytest.approx(sum(flops(closed, B, S)), rel=0.005)
    assert total(trace, "saved_bytes", B, S) == pytest.approx(total(closed, "saved_bytes", B, S), rel=0.03)
    # Backward: a closed form takes one pass per gradient where kernels fuse (layer norm, GELU) or re-read.
    assert total(trace, "forward_bytes", B, S) == pytest.approx(total(closed, "forward_bytes", B, S), rel=0.06)
    assert total(trace, "backward_bytes", B, S) == pytest.approx(total(closed, "backward_bytes", B, S), rel=0.15)
    assert sum(block.num_blocks for block in trace.blocks) == sum(block.num_blocks for block in closed.blocks)


@pytest.mark.parametrize("name", MODELS)
def test_autocast_with_fused_attention(name: str) -> None:
    _assert_equal(*_pair(name, Numerics.AUTOCAST, AttentionPath.FLASH, "sdpa"))


@pytest.mark.parametrize("name", MODELS)
def test_autocast_compiled(name: str) -> None:
    _assert_equal(*_pair(name, Numerics.AUTOCAST, AttentionPath.FLASH, "sdpa", is_compiled=True))


@pytest.mark.parametrize("name", ["gpt2", "vit"])
def test_fp32_with_fused_attention(name: str) -> None:
    _assert_equal(*_pair(name, Numerics.FP32, AttentionPath.EFFICIENT, "sdpa"))


@pytest.mark.parametrize("name", ["bert", "gpt_neox"])
def test_low_precision_with_fused_attention(name: str) -> None:
    _assert_equal(*_pair(name, Numerics.LOW_PRECISION, AttentionPath.FLASH, "sdpa"))


@pytest.mark.parametrize("name", ["gpt_neox", "bert"])
def test_eager_attention(name: str) -> None:
    _assert_equal(*_pair(name, Numerics.AUTOCAST, AttentionPath.MATH, "eager"))


@pytest.mark.parametrize("name", MODELS)
def test_parameters_cast_by_autocast(name: str) -> None:
    trace, closed = _pair(name, Numerics.AUTOCAST, AttentionPath.FLASH, "sdpa")

    def by_kind(listed: OperationList) -> dict[tuple[str, bool], int]:
        counts: dict[tuple[str, bool], int] = {}
        for tensor in listed.parameters:
            key = (tensor.kind.value, tensor.is_tied_matrix)
            counts[key] = counts.get(key, 0) + tensor.num_elements * tensor.repeats
        return counts

    assert by_kind(trace) == by_kind(closed)
