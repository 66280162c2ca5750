"""Records the operations of one forward and backward pass, below autograd, on fake tensors."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from estimator.specs.operations import OperationKind

from .liveness import TransientBytes
from .operation_costs import (
    PRODUCT_GRADIENTS,
    Shape,
    base_name,
    is_free,
    moved_bytes,
    num_kernels,
    product_shape,
    tensors_in,
    view_bytes,
)

_LARGEST_DISTANCE = 3
"""Autograd nodes between a product and the parameter: transposition, view, cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that an operation reads, writes or keeps."""

    storage: int
    """Number of its storage in order of appearance; the same in traces that differ in sizes only."""
    num_bytes: int
    storage_bytes: int
    width: int
    requires_grad: bool
    is_resident: bool
    """Parameter, buffer or input."""


@dataclass(slots=True, kw_only=True)
class RecordedOperation:
    """One operation of the forward pass at one size, and what its backward pass did."""

    path: str
    """Module that ran it."""
    target: str
    """ATen name."""
    kind: OperationKind
    batch: int = 1
    m: int = 0
    k: int = 0
    n: int = 0
    is_causal: bool = False
    window: int | None = None
    key_value_groups: float = 1.0
    has_weight: bool = False
    is_fp32: bool = False
    backward_products: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    forward_kernels: float = 0.0
    backward_kernels: float = 0.0
    saved_bytes: int = 0
    is_logits: bool = False
    """Works on logits or their gradients."""
    forward_transient_bytes: int = 0
    backward_transient_bytes: int = 0
    is_weight_copy: bool = False
    """Autocast's cast of a weight: the estimator accounts for it by parameter."""
    inputs: tuple[Value, ...] = ()
    output: Value | None = None
    saved: tuple[Value, ...] = ()

    @property
    def has_input_gradient(self) -> bool:
        """A product with a weight makes one product for the weight, and one for its input where that needs it; one of
        two activations makes two."""
        return self.backward_products >= 2 or (self.backward_products == 1 and not self.has_weight)


def _costs(operation: RecordedOperation) -> bool:
    """Whether anything runs or is kept for it: most views drop out."""
    return bool(operation.forward_kernels or operation.backward_kernels or operation.saved_bytes)


class Location(Protocol):
    """Where in the model the forward pass is."""

    def path(self) -> str:
        """Module that runs."""

    def window(self) -> int | None:
        """Its sliding window."""

    def is_causal(self) -> bool:
        """Whether it says that it is causal attention: products of activations in it are scores and their use."""


class Recorder(TorchDispatchMode):
    """Sees every ATen operation. Backward operations are attributed to the forward operation whose autograd node ran
    them: both carry autograd's sequence number."""

    def __init__(
        self,
        *,
        parameters: Iterable[torch.Tensor],
        other_kept: Iterable[torch.Tensor],
        vocab_size: int | None,
        is_mixed: bool,
        location: Location,
    ) -> None:
        super().__init__()
        self._weights = {tensor.untyped_storage()._cdata for tensor in parameters}
        self._kept = self._weights | {tensor.untyped_storage()._cdata for tensor in other_kept}
        self._transients = TransientBytes(self._kept)
        self._vocab_size = vocab_size
        self._is_mixed = is_mixed
        self._location = location
        self._saved: dict[int, StorageWeakRef] = {}
        self._saved_bytes: dict[int, int] = defaultdict(int)
        self._saved_values: dict[int, list[Value]] = defaultdict(list)
        self._numbers: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num_reused = 0
        self._by_sequence: dict[int, RecordedOperation] = {}
        self._events: list[tuple[int, RecordedOperation, bool]] = []
        self._last: RecordedOperation | None = None
        self._is_backward = False
        self.operations: list[RecordedOperation] = []
        self.looked_up_weights: set[int] = set()
        """Storages of parameters used as embedding tables."""
        self.copied_weights: set[int] = set()
        """Storages of parameters that autocast cast."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default and hasattr(args[0], "fake_device"):
            # Half of all calls; the way through the fake mode would take most of the time.
            return args[0].fake_device
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if is_free(func):
            if not self._is_backward:
                self._record_view(func, args, kwargs, output)
            return output
        for tensor in tensors_in(output):
            self._transients.allocated(tensor)
        if self._is_backward:
            self._record_backward(func, args, kwargs, output)
        else:
            self._record_forward(func, args, kwargs, output)
        return output

    def _record_view(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        """A view costs nothing, but its gradient may (the parts of a split are joined)."""
        sequence = torch.autograd._get_sequence_nr() - 1
        if sequence in self._by_sequence or not any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
            return
        view = RecordedOperation(path=self._location.path(), target=base_name(func), kind=OperationKind.MEMORY_BOUND)
        self._add_values(view, args, kwargs, output)
        self._by_sequence[sequence] = view
        self.operations.append(view)

    def _add_values(self, operation: RecordedOperation, args: Any, kwargs: Any, output: Any) -> None:
        inputs = list(tensors_in((args, kwargs)))
        operation.inputs = tuple(self._value(tensor, requires_grad=tensor.requires_grad) for tensor in inputs)
        is_differentiable = any(tensor.requires_grad for tensor in inputs)
        first = next(tensors_in(output), None)
        if first is not None:
            operation.output = self._value(first, requires_grad=is_differentiable and first.is_floating_point())

    def _value(self, tensor: torch.Tensor, *, requires_grad: bool) -> Value:
        storage = tensor.untyped_storage()
        known = self._numbers.get(storage._cdata)
        if known is None or known[0].expired():
            known = (StorageWeakRef(storage), len(self._numbers) + self._num_reused)
            self._num_reused += storage._cdata in self._numbers
            self._numbers[storage._cdata] = known
        return Value(
            storage=known[1],
            num_bytes=view_bytes(tensor),
            storage_bytes=storage.nbytes(),
            width=tensor.element_size(),
            requires_grad=requires_grad,
            is_resident=storage._cdata in self._kept,
        )

    def begin_backward(self) -> None:
        """Everything from here on belongs to the backward pass."""
        self._is_backward = True

    def _record_forward(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        name = base_name(func)
        shape = product_shape(func, args, kwargs, output)
        if shape is None:
            operation = RecordedOperation(
                path=self._location.path(),
                target=name,
                kind=OperationKind.MEMORY_BOUND,
            )
            if name == "embedding":
                self.looked_up_weights.add(args[0].untyped_storage()._cdata)
        else:
            operation = self._product(name, shape, output)
        operation.forward_bytes = moved_bytes(func, args, kwargs, output)
        operation.forward_kernels = num_kernels(func, args)
        operation.is_logits = self._touches_logits((args, kwargs, output))
        self._add_values(operation, args, kwargs, output)
        self.operations.append(operation)
        # The node is made before the operation runs; operations without a gradient share the number of an older one.
        self._by_sequence.setdefault(torch.autograd._get_sequence_nr() - 1, operation)
        self._last = operation
        self._last_inputs = [tensor for tensor in tensors_in((args, kwargs))] if name == "_to_copy" else []
        self._events.append((self._transients.mark(), operation, False))

    def _product(self, name: str, shape: Shape, output: Any) -> RecordedOperation:
        m, k, n, has_weight = shape.m, shape.k, shape.n, False
        dtype = next(tensors_in(output)).dtype
        if shape.operands is not None:
            left, right = (tensor.untyped_storage()._cdata for tensor in shape.operands)
            has_weight = left in self._weights or right in self._weights
            if left in self._weights and right not in self._weights and shape.kind is OperationKind.MATRIX_PRODUCT:
                m, n = n, m
        return RecordedOperation(
            path=self._location.path(),
            target=name,
            kind=shape.kind,
            batch=shape.batch,
            m=m,
            k=k,
            n=n,
            is_causal=shape.is_causal or (not has_weight and self._location.is_causal()),
            window=self._location.window() if shape.kind is OperationKind.ATTENTION else None,
            key_value_groups=shape.key_value_groups,
            has_weight=has_weight,
            is_fp32=self._is_mixed and dtype == torch.float32,
        )

    def _record_backward(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        node = torch._C._current_autograd_node()
        operation = self._last
        if node is not None:
            if node.name().startswith("torch::autograd::AccumulateGrad"):
                return
            operation = self._by_sequence.get(node._sequence_nr(), self._last)
        if operation is None:
            return
        self._last = operation
        name = base_name(func)
        operation.backward_kernels += num_kernels(func, args)
        if name in PRODUCT_GRADIENTS:
            operation.backward_products += sum(args[-1][:2]) if name == "convolution_backward" else 1
        operation.backward_bytes += moved_bytes(func, args, kwargs, output)
        if node is not None:
            self._leave_out_gradients(node, output)
        self._events.append((self._transients.mark(), operation, True))

    def _touches_logits(self, values: Any) -> bool:
        return self._vocab_size is not None and any(
            tensor.dim() > 1
            and tensor.shape[-1] == self._vocab_size
            and tensor.untyped_storage()._cdata not in self._weights
            for tensor in tensors_in(values)
        )

    def _leave_out_gradients(self, node: Any, output: Any) -> None:
        """What becomes the gradient of a parameter is counted as a gradient, also while it waits to be added."""
        shapes = self._leaf_shapes(node, _LARGEST_DISTANCE)
        for tensor in tensors_in(output) if shapes else ():
            if (sorted(tensor.shape), tensor.dtype) in shapes:
                self._transients.keep(tensor.untyped_storage())

    def _leaf_shapes(self, node: Any, distance: int) -> list[tuple[list[int], torch.dtype]]:
        found = []
        for following, _ in node.next_functions if node is not None else ():
            if following is None:
                continue
            if following.name().startswith("torch::autograd::AccumulateGrad"):
                leaf = following.variable
                found.append((sorted(leaf.shape), leaf.dtype))
            elif distance > 1:
                found += self._leaf_shapes(following, distance - 1)
        return found

    def note_weight_copy(self, copy: torch.Tensor) -> None:
        """Autocast made and caches a 16-bit copy of a weight: the last recorded operation."""
        if self._last is None or self._last.target != "_to_copy":
            raise AssertionError("a weight copy is a _to_copy")
        self._last.is_weight_copy = True
        self.copied_weights |= {tensor.untyped_storage()._cdata for tensor in self._last_inputs}
        storage = copy.untyped_storage()
        self._weights.add(storage._cdata)
        self._kept.add(storage._cdata)
        self._transients.keep(storage)

    def note_gradient(self, gradient: torch.Tensor) -> None:
        """A parameter's gradient is complete and stays."""
        self._transients.keep(gradient.untyped_storage())

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Hook of ``saved_tensors_hooks``: autograd keeps this tensor."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._kept:
            return tensor
        sequence = torch.autograd._get_sequence_nr() - 1
        self._saved_values[sequence].append(self._value(tensor, requires_grad=tensor.requires_grad))
        if self._is_saved(storage):
            return tensor
        self._saved[storage._cdata] = StorageWeakRef(storage)
        self._transients.keep(storage)
        self._saved_bytes[sequence] += storage.nbytes()
        return tensor

    def _is_saved(self, storage: torch.UntypedStorage) -> bool:
        reference = self._saved.get(storage._cdata)
        return reference is not None and not reference.expired()

    def finish(self) -> list[RecordedOperation]:
        """The operations with everything attributed; weight copies are left out."""
        for sequence, num_bytes in self._saved_bytes.items():
            operation = self._by_sequence.get(sequence) or self._carrier(sequence)
            operation.saved_bytes += num_bytes
        for sequence, values in self._saved_values.items():
            operation = self._by_sequence.get(sequence) or self._carrier(sequence)
            operation.saved += tuple(values)
        self._mark_loss()
        for event, operation, is_backward in self._events:
            transient = max(0, self._transients.at_event[event])
            if is_backward:
                operation.backward_transient_bytes = max(operation.backward_transient_bytes, transient)
            else:
                operation.forward_transient_bytes = max(operation.forward_transient_bytes, transient)
        return [operation for operation in self.operations if not operation.is_weight_copy and _costs(operation)]

    def _mark_loss(self) -> None:
        """What follows the output layer works beside the logits, even where it does not touch them."""
        last_of_model = max(
            (
                number
                for number, operation in enumerate(self.operations)
                if operation.kind is not OperationKind.MEMORY_BOUND and not operation.is_logits
            ),
            default=0,
        )
        is_loss = False
        for operation in self.operations[last_of_model:]:
            is_loss = operation.is_logits = is_loss or operation.is_logits

    def _carrier(self, sequence: int) -> RecordedOperation:
        """The operation before, where a node that saves something ran no kernel of its own."""
        earlier = max((number for number in self._by_sequence if number < sequence), default=None)
        if earlier is None:
            raise AssertionError("something was saved before the first operation")
        return self._by_sequence[earlier]
