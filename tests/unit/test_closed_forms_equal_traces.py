"""The two producers of operation lists agree: closed forms from a config, and a trace of the model itself.

Left out: what the trace cannot see of a GPU. The backward pass of a layer norm reads its tensors once more for the
gradients of weight and bias, so bytes of backward passes are compared loosely.
"""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from estimator.analytic.flops import total_flops
from estimator.analytic.operations import operation_list
from estimator.catalog.huggingface import model_from_config
from estimator.specs.operations import AttentionPath, Operation, OperationContext, OperationList

CONFIGS = Path(__file__).parents[1] / "data" / "configs"
CASES = [
    ("bert-base-uncased", {"num_hidden_layers": 6}, 4, 512),
    ("roberta-base", {"num_hidden_layers": 6}, 8, 128),
    ("vit-base-patch16-224", {"num_hidden_layers": 6}, 8, 1),
    (
        "dinov2-base",
        {"num_hidden_layers": 6, "image_size": 224, "architectures": ["Dinov2ForImageClassification"]},
        8,
        1,
    ),
    ("convnext-tiny-224", {}, 8, 1),
]


def total(operations: OperationList, read: Callable[[Operation], float]) -> float:
    return sum(operation.repeats * read(operation) for operation in operations.operations)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "overrides", "micro_batch_size", "length"), CASES, ids=[case[0] for case in CASES])
def test_closed_form_equals_trace(name: str, overrides: dict[str, Any], micro_batch_size: int, length: int) -> None:
    from benchmarks.runner.trace.model_trace import trace_model
    from benchmarks.runner.trace.subject import subject_from_config

    config = {**json.loads((CONFIGS / f"{name}.json").read_text()), **overrides}
    spec, _ = model_from_config(config, name=name, source="test")
    at = micro_batch_size, length
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = trace_model(
            subject_from_config(config, name=name, image_size=None),
            attentions=("sdpa",),
            check_length=None,
            source="test",
            progress=lambda phase: None,
        )
    assert {"fp32/efficient", "autocast/flash", "low_precision/flash"} <= set(traced.variants)
    eager = {variant: trace for variant, trace in traced.variants.items() if not variant.endswith("/compiled")}
    for variant, trace in eager.items():
        numerics, path = variant.split("/")
        closed = operation_list(spec, OperationContext(numerics=numerics, attention=AttentionPath(path)))
        assert closed.num_parameters == trace.num_parameters
        assert total_flops(closed, *at) == pytest.approx(total_flops(trace, *at), rel=0.001), variant
        for read, tolerance in (
            (lambda o: o.saved_bytes.at(*at), 0.01),
            (lambda o: o.forward_bytes.at(*at), 0.04),
            (lambda o: o.backward_bytes.at(*at), 0.15),
        ):
            assert total(closed, read) == pytest.approx(total(trace, read), rel=tolerance), variant
        for kernels in ("forward_kernels", "backward_kernels"):
            count = total(closed, lambda o, kernels=kernels: getattr(o, kernels))
            expected = total(trace, lambda o, kernels=kernels: getattr(o, kernels))
            assert count == pytest.approx(expected, rel=0.06), (variant, kernels)
