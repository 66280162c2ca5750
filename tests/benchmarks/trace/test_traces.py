"""What a trace says about models without a closed form, at other sizes and depths."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.runner.trace import model_trace
from benchmarks.runner.trace.blocks import find_blocks
from benchmarks.runner.trace.failures import InputError, TraceError
from benchmarks.runner.trace.model_trace import trace_model
from benchmarks.runner.trace.single_trace import FakeCopy, Run, trace_once
from benchmarks.runner.trace.subject import Subject, subject_from_config
from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath, OperationKind, OperationList

from .tracing import CONFIGS, flops, subject, total, traced

pytestmark = pytest.mark.slow

SIZES = ("forward_bytes", "backward_bytes", "saved_bytes")


def _counted(tracee: Subject, b: int, s: int) -> tuple[float, float]:
    """Forward and backward FLOPs by torch's own counter; it knows SDPA's math backend only."""
    model = tracee.build("sdpa")
    with FakeTensorMode(allow_non_fake_inputs=True), sdpa_kernel(SDPBackend.MATH):
        FakeCopy(model).set_dtype(torch.float32, with_buffers=False)
        with FlopCounterMode(display=False) as forward:
            loss = tracee.loss(model, tracee.inputs(b, s))
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    return float(forward.get_total_flops()), float(backward.get_total_flops())


@pytest.mark.parametrize("name", ["t5", "whisper", "swin", "mobilevit"])
def test_flops_equal_those_of_torchs_counter(name: str) -> None:
    forward, backward = flops(traced(name).variants["autocast/flash"], 3, 96)
    counted_forward, counted_backward = _counted(subject(name), 3, 96)
    assert forward == pytest.approx(counted_forward, rel=0.005)
    if name == "mobilevit":
        # The counter takes the weight gradient of a depthwise convolution for one over all pairs of channels.
        assert counted_backward > 2 * backward
        assert backward == pytest.approx(2 * forward, rel=0.05)
    else:
        assert backward == pytest.approx(counted_backward, rel=0.005)


@pytest.mark.parametrize("name", ["t5", "whisper", "swin", "mobilevit"])
def test_parameters_equal_those_of_transformers(name: str) -> None:
    assert traced(name).variants["autocast/flash"].num_parameters == subject(name).build("sdpa").num_parameters()


def _sums_of_one_pass(name: str, b: int, s: int) -> dict[str, float]:
    tracee = subject(name)
    model = tracee.build("sdpa")
    position = {block.path: block for block in find_blocks(model)}
    run = Run(numerics=Numerics.AUTOCAST, attention=AttentionPath.FLASH, micro_batch_size=b, sequence_length=s)
    once = trace_once(
        FakeCopy(model), position, run, inputs=tracee.inputs, loss=tracee.loss, vocab_size=tracee.vocab_size
    )
    fields = (*SIZES, "forward_kernels", "backward_kernels")
    return {field: float(sum(getattr(operation, field) for operation in once.operations)) for field in fields}


@pytest.mark.parametrize("name", ["gpt2", "t5", "convnext"])
def test_two_depths_and_a_few_sizes_give_a_full_trace_at_any_size(name: str) -> None:
    model = traced(name)
    listed = model.variants["autocast/flash"]
    assert model.provenance["depth"].startswith("extrapolated")
    b, s = 7, 416
    truth = _sums_of_one_pass(name, b, s)
    found = {field: total(listed, field, b, s) for field in SIZES}
    for field in ("forward_kernels", "backward_kernels"):
        found[field] = sum(getattr(operation, field) * operation.repeats for operation in listed.operations)
    assert found == truth


def test_full_depth_and_extrapolated_operations_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    short = traced("gpt_neox")
    monkeypatch.setattr(
        model_trace._Tracer,
        "_plans",
        lambda self, path: [model_trace._Plan(is_shortened=False, base_length=64, num_lengths=2)],
    )
    full = trace_model(
        subject("gpt_neox"), attentions=("sdpa",), check_length=None, source="test", numerics=(Numerics.AUTOCAST,)
    )
    assert full.provenance["depth"] == "traced in full"

    def comparable(listed: OperationList) -> set[object]:
        # What is alive beside an operation may differ between the first and a later block.
        return {replace(operation, transient_bytes=operation.m * 0) for operation in listed.operations}

    assert comparable(short.variants["autocast/flash"]) == comparable(full.variants["autocast/flash"])


def test_attention_dropout_stays_one_fused_operation() -> None:
    listed = traced("gpt2").variants["autocast/flash"]
    attention = [operation for operation in listed.operations if operation.kind is OperationKind.ATTENTION]
    assert [(operation.repeats, operation.is_causal) for operation in attention] == [(6.0, True)]


def test_encoder_decoder_has_blocks_of_both() -> None:
    blocks = traced("t5").variants["autocast/flash"].blocks
    by_list = {}
    for block in blocks:
        stack = block.name.partition(".")[0]
        by_list[stack] = by_list.get(stack, 0) + block.num_blocks
    assert by_list == {"encoder": 6, "decoder": 6}


def test_layers_that_loop_over_tokens_are_refused() -> None:
    config = {"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 16, "vocab_size": 50, "state_size": 2}
    tracee = subject_from_config(config, name="mamba", image_size=None)
    with pytest.raises(TraceError, match=r"loops over the tokens.*Mamba is known without a trace"):
        trace_model(tracee, attentions=("sdpa",), check_length=None, source="test")


class _Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y * 2 if y.sum().item() > 0 else y


def test_control_flow_by_values_is_refused_with_its_place() -> None:
    tracee = Subject(
        name="gate",
        class_name="_Gate",
        input_kind="images",
        build=lambda attention: _Gate(),
        inputs=lambda b, s: {"x": torch.zeros(b, 8)},
        loss=lambda model, batch: model(**batch).sum(),
    )
    with pytest.raises(TraceError, match=r"values of a tensor.*test_traces\.py:\d+ in forward"):
        trace_model(tracee, attentions=("sdpa",), check_length=None, source="test")


def test_unknown_model_type_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"'gpt_neoxx' is none of .* did you mean gpt_neox"):
        subject_from_config({"model_type": "gpt_neoxx"}, name="x", image_size=None)


def _lengths() -> Iterator[int]:
    yield from (64, 128, 640)


def test_scores_of_eager_attention_grow_with_the_square_of_the_length() -> None:
    listed = traced("gpt_neox", "eager").variants["autocast/math"]
    layers, heads = CONFIGS["gpt_neox"]["num_hidden_layers"], CONFIGS["gpt_neox"]["num_attention_heads"]
    scores = [operation for operation in listed.operations if operation.is_causal]
    assert sum(operation.repeats for operation in scores) == 2 * layers
    for s in _lengths():
        assert all(operation.batch.at(2, s) == 2 * heads for operation in scores)
        assert all(s in (operation.m.at(2, s), operation.n.at(2, s)) for operation in scores)
