"""The forward pass of one micro batch as a symbolic graph of kernels.

A family writes its forward pass once, kernel by kernel as PyTorch dispatches it, with ``building_blocks``. What
follows from it is then mechanical: bytes moved, kernels, what autograd saves (a storage counts once, views share
theirs), what its backward pass costs (gradients that meet in one tensor are added by a kernel), and what a
compiler fuses. ``lowering`` makes operations of the graph.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...specs.numerics import Numerics
from ...specs.operations import ONE, ZERO, AttentionPath, BlockGroup, Component, OperationContext, OperationKind, Size

FP32_BYTES = 4
INT64_BYTES = 8


@dataclass(slots=True, eq=False, kw_only=True)
class Storage:
    """Memory that one or several tensors lie in; identity counts."""

    num_bytes: Size
    is_resident: bool = False
    """Parameters, buffers and the batch: alive anyway, never counted as saved."""


@dataclass(slots=True, eq=False, kw_only=True)
class Tensor:
    """A value of the forward pass: how many elements of how many bytes, and where they lie."""

    elements: Size
    width: int
    """Bytes per element."""
    storage: Storage
    requires_grad: bool = True
    is_contiguous: bool = True
    """False for heads seen through a transposition: a batched product copies such operands first."""
    num_uses: int = 0
    """How many gradients meet here in the backward pass; all but the first cost an addition."""

    @property
    def num_bytes(self) -> Size:
        """elements x width."""
        return self.elements * self.width


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One dispatched operation with its backward pass."""

    name: str
    kind: OperationKind
    block: str | None
    repeats: float
    inputs: tuple[Tensor, ...]
    output: Tensor
    saved: tuple[Tensor, ...]
    forward_bytes: Size
    backward_bytes: Size
    forward_kernels: float
    backward_kernels: float
    transient_bytes: Size
    held_bytes: Size
    """Part of the transient memory: gradients alive beside this branch."""
    component: Component
    is_reduction: bool = False
    """Mixes elements (norm, softmax, sum): a compiler saves its small results rather than run it again."""
    is_grouped: bool = False
    """Recorded inside a named group."""
    is_barrier: bool = False
    """No compiler fuses it: matrix products, attention, sorting, look-ups with atomics."""
    batch: Size = ONE
    m: Size = ZERO
    k: Size = ZERO
    n: Size = ZERO
    is_causal: bool = False
    window: int | None = None
    window_repeats: float = 0.0
    """ATTENTION: occurrences that see ``window`` keys only; the rest sees everything."""
    key_value_groups: float = 1.0
    has_weight: bool = False
    has_input_gradient: bool = True
    is_fp32: bool = False


class ForwardGraph:
    """Records the nodes of a forward pass under one variant (numerics, attention kernel, compile)."""

    def __init__(self, context: OperationContext) -> None:
        numerics = Numerics(context.numerics)
        self.context = context
        self.attention: AttentionPath = context.attention
        self.is_autocast = numerics in (Numerics.AUTOCAST, Numerics.AUTOCAST_CAST_WEIGHTS)
        self.compute_width = FP32_BYTES if numerics is Numerics.FP32 else 2
        """Bytes per element of matrix product inputs and outputs."""
        self.parameter_width = FP32_BYTES if numerics in (Numerics.FP32, Numerics.AUTOCAST) else 2
        """Bytes per element of the weights as the forward pass sees them, hence of embeddings and of the residual
        stream that starts with them."""
        self.nodes: list[Node] = []
        self.blocks: list[BlockGroup] = []
        self._block: str | None = None
        self._repeats = 1.0
        self._group: str | None = None
        self._held = ZERO

    # Tensors

    def new(self, elements: Size, width: int, *, requires_grad: bool = True) -> Tensor:
        """A value in memory of its own."""
        storage = Storage(num_bytes=elements * width)
        return Tensor(elements=elements, width=width, storage=storage, requires_grad=requires_grad)

    def resident(self, elements: Size, width: int | None = None, *, requires_grad: bool = False) -> Tensor:
        """A parameter, buffer or input: alive anyway, so never counted as saved."""
        width = self.parameter_width if width is None else width
        storage = Storage(num_bytes=elements * width, is_resident=True)
        return Tensor(elements=elements, width=width, storage=storage, requires_grad=requires_grad)

    def view(self, base: Tensor, elements: Size | None = None, *, is_contiguous: bool = True) -> Tensor:
        """Part (or all) of a tensor in the same memory, with a gradient of its own."""
        return Tensor(
            elements=base.elements if elements is None else elements,
            width=base.width,
            storage=base.storage,
            requires_grad=base.requires_grad,
            is_contiguous=is_contiguous,
        )

    def like(self, x: Tensor, width: int | None = None) -> Tensor:
        """The result of an elementwise kernel: as many elements, strides kept."""
        output = self.new(x.elements, x.width if width is None else width, requires_grad=x.requires_grad)
        output.is_contiguous = x.is_contiguous
        return output

    # Scopes

    @contextmanager
    def block(self, name: str, num_blocks: int, inputs: Sequence[Tensor], *, class_name: str | None) -> Iterator[None]:
        """Nodes recorded inside occur ``num_blocks`` times; checkpointing keeps ``inputs`` of each.

        Inside use ``own`` copies of what differs from block to block (the residual stream).
        """
        input_bytes = sum((tensor.num_bytes for tensor in inputs), ZERO)
        self.blocks.append(BlockGroup(name=name, num_blocks=num_blocks, input_bytes=input_bytes, class_name=class_name))
        outer = self._block, self._repeats
        self._block, self._repeats = name, float(num_blocks)
        yield
        self._block, self._repeats = outer

    def own(self, tensor: Tensor) -> Tensor:
        """The same value in memory of its own: each block's input, and what follows the last block."""
        return self.new(tensor.elements, tensor.width, requires_grad=tensor.requires_grad)

    @contextmanager
    def repeated(self, repeats: float) -> Iterator[None]:
        """Nodes inside occur ``repeats`` times in total, such as in some of the layers only."""
        outer, self._repeats = self._repeats, repeats
        yield
        self._repeats = outer

    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        """Memory-bound kernels inside become one operation of this name (the outermost group wins)."""
        outer = self._group
        if outer is None:
            self._group = name
        yield
        self._group = outer

    @contextmanager
    def residual(self, tensor: Tensor) -> Iterator[None]:
        """While the branch inside runs backward, the gradient of the residual stream stays alive beside it."""
        outer, self._held = self._held, self._held + tensor.num_bytes
        yield
        self._held = outer

    # Recording

    def record(
        self,
        name: str,
        inputs: Sequence[Tensor],
        output: Tensor,
        *,
        saved: Sequence[Tensor] = (),
        forward_bytes: Size | None = None,
        backward_bytes: Size | None = None,
        forward_kernels: float = 1.0,
        backward_kernels: float | None = None,
        transient_bytes: Size | None = None,
        component: Component = Component.ACTIVATIONS,
        kind: OperationKind = OperationKind.MEMORY_BOUND,
        is_reduction: bool = False,
        is_barrier: bool = False,
    ) -> Node:
        """Add one kernel (or a few) and its backward pass.

        Defaults for memory-bound kernels: forward reads every input and writes the output; backward reads the
        gradient of the output and what was saved and writes the gradient of each input, in one kernel.
        Transient memory is, in the backward pass, the gradients of output and inputs (forward: the tensors
        themselves, of the same sizes), plus the gradient of the residual stream beside this branch. The
        temporary of a weight gradient is not included: it follows from k and n.
        """
        differentiable = [tensor for tensor in inputs if tensor.requires_grad]
        is_differentiable = bool(differentiable) and output.requires_grad
        moved = sum((tensor.num_bytes for tensor in inputs), output.num_bytes)
        if backward_bytes is None:
            backward_bytes = output.num_bytes
            for tensor in (*saved, *differentiable):
                backward_bytes = backward_bytes + tensor.num_bytes
        if backward_kernels is None:
            backward_kernels = 1.0
        if not is_differentiable:
            backward_bytes, backward_kernels = ZERO, 0.0
        for tensor in differentiable if is_differentiable else ():
            tensor.num_uses += 1
            if tensor.num_uses > 1 and not tensor.storage.is_resident:
                # Two gradients meet: read both, write the sum.
                backward_bytes = backward_bytes + tensor.num_bytes * 3
                backward_kernels += 1
        if transient_bytes is None:
            alive = [tensor.num_bytes for tensor in inputs if not tensor.storage.is_resident]
            transient_bytes = sum(alive, output.num_bytes)
        node = Node(
            name=self._group or name,
            kind=kind,
            block=self._block,
            repeats=self._repeats,
            inputs=tuple(inputs),
            output=output,
            saved=tuple(saved) if is_differentiable else (),
            forward_bytes=moved if forward_bytes is None else forward_bytes,
            backward_bytes=backward_bytes,
            forward_kernels=forward_kernels,
            backward_kernels=backward_kernels,
            transient_bytes=transient_bytes + self._held,
            held_bytes=self._held,
            component=component,
            is_reduction=is_reduction,
            is_grouped=self._group is not None,
            is_barrier=is_barrier or kind is not OperationKind.MEMORY_BOUND,
        )
        self.nodes.append(node)
        return node
