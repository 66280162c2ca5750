"""One forward and backward pass of a model at one size, numerics and attention kernel."""

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
)
from torch.nn.attention import SDPBackend, sdpa_kernel

from estimator.specs.numerics import Numerics
from estimator.specs.operations import AttentionPath

from .blocks import Block
from .failures import TraceError
from .gpu_kernels import GpuKernels
from .operation_costs import distinct_bytes, tensors_in
from .recorder import RecordedOperation, Recorder

_KERNELS = {AttentionPath.FLASH: "flash", AttentionPath.CUDNN: "flash", AttentionPath.EFFICIENT: "efficient"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What to trace."""

    numerics: Numerics
    attention: AttentionPath
    micro_batch_size: int
    sequence_length: int


@dataclass(slots=True, kw_only=True)
class Trace:
    """What one pass did."""

    operations: list[RecordedOperation]
    input_bytes: int
    block_input_bytes: dict[str, int] = field(default_factory=dict)
    """By group: new bytes that the last of its blocks gets."""
    block_calls: dict[str, int] = field(default_factory=dict)
    embeddings: set[str] = field(default_factory=set)
    """Names of parameters used as look-up tables."""
    cast_parameters: set[str] = field(default_factory=set)
    """Names of parameters that autocast casts to 16 bit."""


class FakeCopy:
    """A model whose parameters and buffers are replaced by fake CPU tensors of any dtype, ties kept."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._originals = [
            (table, name, tensor)
            for module in model.modules()
            for table in (module._parameters, module._buffers)
            for name, tensor in table.items()
            if tensor is not None
        ]

    def set_dtype(self, dtype: torch.dtype, *, with_buffers: bool) -> None:
        """Fresh fake tensors (call it under a FakeTensorMode)."""
        replaced: dict[int, torch.Tensor] = {}
        for table, name, tensor in self._originals:
            if id(tensor) not in replaced:
                is_parameter = isinstance(tensor, nn.Parameter)
                cast = tensor.is_floating_point() and (is_parameter or with_buffers)
                fake = torch.empty(tensor.shape, dtype=dtype if cast else tensor.dtype, device="cpu")
                replaced[id(tensor)] = nn.Parameter(fake, tensor.requires_grad) if is_parameter else fake
            table[name] = replaced[id(tensor)]


class _Location:
    """The module that runs, and the blocks seen so far.

    ``boundary_dtype``: floating tensors that enter or leave a block are cast to it, as FSDP2's mixed precision policy
    of accelerate does (``cast_forward_inputs``, ``output_dtype``).
    """

    def __init__(
        self, model: nn.Module, position: Mapping[str, Block], *, boundary_dtype: torch.dtype | None = None
    ) -> None:
        self._boundary_dtype = boundary_dtype
        self._stack: list[tuple[str, nn.Module]] = [("", model)]
        self._position = position
        self._seen_inputs: set[int] = set()
        self._held: list[torch.UntypedStorage] = []
        self.block_input_bytes: dict[str, int] = {}
        self.block_calls: dict[str, int] = {}
        self._handles = []
        for path, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(path), with_kwargs=True, prepend=True))
            self._handles.append(module.register_forward_hook(self._leaving(path), always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def path(self) -> str:
        return self._stack[-1][0]

    def window(self) -> int | None:
        value = getattr(self._stack[-1][1], "sliding_window", None)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def is_causal(self) -> bool:
        return getattr(self._stack[-1][1], "is_causal", False) is True

    def _entering(self, path: str) -> Callable[..., Any]:
        block = self._position.get(path)

        def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
            self._stack.append((path, module))
            if block is None:
                return None
            if self._boundary_dtype is not None:
                args, kwargs = _cast(args, self._boundary_dtype), _cast(kwargs, self._boundary_dtype)
            self._note_block(block, (args, kwargs))
            return args, kwargs

        return enter

    def _leaving(self, path: str) -> Callable[..., Any]:
        def leave(module: nn.Module, inputs: Any, output: Any) -> Any:
            if path in self._position and self._boundary_dtype is not None:
                output = _cast(output, self._boundary_dtype)
            self._stack.pop()
            return output

        return leave

    def _note_block(self, block: Block, inputs: Any) -> None:
        self.block_calls[block.group] = self.block_calls.get(block.group, 0) + 1
        new = [
            tensor
            for tensor in tensors_in(inputs)
            if tensor.requires_grad and tensor.untyped_storage()._cdata not in self._seen_inputs
        ]
        self.block_input_bytes[block.group] = distinct_bytes(new)
        # Held, so that no later storage gets the same address.
        self._held += [tensor.untyped_storage() for tensor in new]
        self._seen_inputs |= {tensor.untyped_storage()._cdata for tensor in new}


def trace_once(
    copy: FakeCopy,
    position: Mapping[str, Block],
    run: Run,
    *,
    inputs: Callable[[int, int], dict[str, Any]],
    loss: Callable[[nn.Module, dict[str, Any]], torch.Tensor],
    vocab_size: int | None,
) -> Trace:
    """Record one pass. Raises TraceError with the place in the model's code where it cannot go on."""
    low = run.numerics in (Numerics.LOW_PRECISION, Numerics.AUTOCAST_CAST_WEIGHTS)
    dtype = torch.bfloat16 if low else torch.float32
    autocasts = run.numerics in (Numerics.AUTOCAST, Numerics.AUTOCAST_CAST_WEIGHTS)
    with _explained(), FakeTensorMode(allow_non_fake_inputs=True):
        copy.set_dtype(dtype, with_buffers=run.numerics is Numerics.LOW_PRECISION)
        model = copy.model
        model.train()
        batch = _cast(inputs(run.micro_batch_size, run.sequence_length), dtype)
        is_fsdp = run.numerics is Numerics.AUTOCAST_CAST_WEIGHTS
        location = _Location(model, position, boundary_dtype=dtype if is_fsdp else None)
        parameters = dict(model.named_parameters())
        recorder = Recorder(
            parameters=parameters.values(),
            other_kept=[*model.buffers(), *tensors_in(batch)],
            vocab_size=vocab_size,
            is_mixed=run.numerics is not Numerics.FP32,
            location=location,
        )
        kernels = GpuKernels(
            torch.bfloat16 if autocasts else None,
            attention=_KERNELS.get(run.attention),
            on_weight_copy=recorder.note_weight_copy,
        )
        hooks = [
            parameter.register_post_accumulate_grad_hook(lambda tensor: recorder.note_gradient(tensor.grad))
            for parameter in parameters.values()
            if parameter.requires_grad
        ]
        try:
            with recorder:
                with (
                    kernels,
                    sdpa_kernel(SDPBackend.MATH),
                    torch.autograd.graph.saved_tensors_hooks(recorder.pack, lambda tensor: tensor),
                ):
                    result = loss(model, batch)
                recorder.begin_backward()
                result.backward()
        finally:
            location.remove()
            for hook in hooks:
                hook.remove()
        storages = {name: parameter.untyped_storage()._cdata for name, parameter in parameters.items()}
        return Trace(
            operations=recorder.finish(),
            input_bytes=distinct_bytes(tensors_in(batch)),
            block_input_bytes=location.block_input_bytes,
            block_calls=location.block_calls,
            embeddings={name for name, key in storages.items() if key in recorder.looked_up_weights},
            cast_parameters={name for name, key in storages.items() if key in recorder.copied_weights},
        )


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Floating tensors in nested values, in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(_cast(item, dtype) for item in value)
    if type(value) is dict:
        return {name: _cast(item, dtype) for name, item in value.items()}
    return value


@contextmanager
def _explained() -> Iterator[None]:
    """Turn what goes wrong inside the model's code into a TraceError that names the place."""
    try:
        yield
    except TraceError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise TraceError(
            f"the model decides in Python by values of a tensor ({error.func}, {_place(error)}), so its operations are "
            "not known without data; a trace needs a model whose operations follow from shapes alone"
        ) from error
    except UnsupportedFakeTensorException as error:
        raise TraceError(f"an operation cannot run on fake tensors: {error} ({_place(error)})") from error
    except Exception as error:
        raise TraceError(f"the model's code fails: {type(error).__name__}: {error} ({_place(error)})") from error


def _place(error: BaseException) -> str:
    """The innermost line of code that is neither torch's nor ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = ("/torch/", "benchmarks/runner/")
    foreign = [frame for frame in frames if not any(part in frame.filename for part in ours)]
    frame = (foreign or list(frames))[-1]
    return f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
