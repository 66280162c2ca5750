"""The operations of one micro batch, with sizes as polynomials in micro batch and length.

Two producers make this one type: closed forms per family (``estimator.analytic.architectures``) and a trace of
any torch model (``traincast trace``). Everything else (FLOPs, bytes, kernels, saved activations, time, memory)
is derived from it.
"""

from dataclasses import dataclass, field
from enum import StrEnum

MONOMIALS = ("1", "b", "s", "b*s", "s*s", "b*s*s")
"""b: micro batch in samples; s: sequence length in tokens."""
_EXPONENTS = ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2))
_INDEX = {exponents: index for index, exponents in enumerate(_EXPONENTS)}


@dataclass(frozen=True, slots=True)
class Size:
    """A quantity as a polynomial in micro batch b and length s, over ``MONOMIALS``."""

    coefficients: tuple[float, float, float, float, float, float]

    def __add__(self, other: "Size | float") -> "Size":
        addend = as_size(other)
        a, b = self.coefficients, addend.coefficients
        return Size((a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3], a[4] + b[4], a[5] + b[5]))

    __radd__ = __add__

    def __sub__(self, other: "Size | float") -> "Size":
        return self + as_size(other) * -1.0

    def __mul__(self, other: "Size | float") -> "Size":
        if isinstance(other, Size):
            product = [0.0] * 6
            for left, x in zip(_EXPONENTS, self.coefficients, strict=True):
                for right, y in zip(_EXPONENTS, other.coefficients, strict=True):
                    if x and y:
                        # KeyError: a power beyond MONOMIALS is a bug of the producer.
                        product[_INDEX[(left[0] + right[0], left[1] + right[1])]] += x * y
            return Size((product[0], product[1], product[2], product[3], product[4], product[5]))
        c = self.coefficients
        return Size((c[0] * other, c[1] * other, c[2] * other, c[3] * other, c[4] * other, c[5] * other))

    __rmul__ = __mul__

    def at(self, micro_batch_size: float, sequence_length: float) -> float:
        """The value for b samples of s tokens."""
        c, b, s = self.coefficients, micro_batch_size, sequence_length
        return c[0] + c[1] * b + s * (c[2] + c[3] * b) + s * s * (c[4] + c[5] * b)


def as_size(value: "Size | float") -> Size:
    """A constant as a Size."""
    return value if isinstance(value, Size) else Size((float(value), 0.0, 0.0, 0.0, 0.0, 0.0))


ZERO = as_size(0)
ONE = as_size(1)
SAMPLES = Size((0.0, 1.0, 0.0, 0.0, 0.0, 0.0))
LENGTH = Size((0.0, 0.0, 1.0, 0.0, 0.0, 0.0))
TOKENS = Size((0.0, 0.0, 0.0, 1.0, 0.0, 0.0))


class OperationKind(StrEnum):
    """What limits an operation, hence which coefficient applies."""

    MATRIX_PRODUCT = "matrix_product"
    """``batch`` products (m x k)(k x n)."""
    ATTENTION = "attention"
    """One fused attention kernel over ``batch`` (samples x heads) of (m queries, n keys, k head_dim)."""
    CONVOLUTION = "convolution"
    """As the implicit matrix product: ``batch`` = groups, m outputs, k = channels in / groups x window,
    n = channels out / groups."""
    SCAN = "scan"
    """Selective scan of Mamba: m = samples x channels, n = length, k = state size."""
    MEMORY_BOUND = "memory_bound"
    """Everything else: time is bytes over bandwidth, or launches."""


class Component(StrEnum):
    """Which line of the memory breakdown the saved bytes of an operation belong to."""

    ACTIVATIONS = "activations"
    LOGITS = "logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation of the forward pass of a micro batch, with what its backward pass will cost.

    All sizes are for ONE occurrence; ``repeats`` says how often it occurs in a micro batch.
    """

    name: str
    kind: OperationKind
    block: str | None = None
    """Name of the ``BlockGroup`` it belongs to (what activation checkpointing runs again); None outside blocks."""
    repeats: float = 1.0
    """Occurrences per micro batch (all layers)."""
    batch: Size = ONE
    m: Size = ZERO
    k: Size = ZERO
    n: Size = ZERO
    is_causal: bool = False
    """ATTENTION: only half of the (query, key) pairs count; the fused kernels skip the rest. MATRIX_PRODUCT: a mask
    hides half of it later; it runs whole, and model FLOPs count half."""
    window: int | None = None
    """ATTENTION: at most this many keys per query."""
    key_value_groups: float = 1.0
    """ATTENTION: query heads per key/value head."""
    has_weight: bool = False
    """MATRIX_PRODUCT, CONVOLUTION: (k x n) is a parameter, so backward makes a weight gradient."""
    has_input_gradient: bool = True
    """False for the first layer: its input needs no gradient."""
    is_fp32: bool = False
    """Runs in fp32 whatever the precision of the recipe (autocast's fp32 list, router logits)."""
    forward_bytes: Size = ZERO
    """Bytes moved by memory-bound kernels of the forward pass, read and written."""
    backward_bytes: Size = ZERO
    forward_kernels: float = 1.0
    backward_kernels: float = 1.0
    saved_bytes: Size = ZERO
    """Bytes that autograd keeps from this occurrence until its backward pass; a tensor saved twice counts once."""
    transient_bytes: Size = ZERO
    """Peak of what is alive only while the operation (or its backward) runs, on top of everything saved."""
    component: Component = Component.ACTIVATIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Equal blocks that checkpointing and sharding wrap one by one (transformer layers, ConvNeXt blocks)."""

    name: str
    num_blocks: int
    input_bytes: Size
    """What one checkpointed block keeps: its input(s)."""
    class_name: str | None = None
    """transformers' layer class, for FSDP wrapping."""


class ParameterKind(StrEnum):
    """How a parameter is used."""

    MATRIX = "matrix"
    """Weight of a matrix product or convolution: cast to 16 bit by autocast."""
    EMBEDDING = "embedding"
    """Looked up; never cast."""
    VECTOR = "vector"
    """Biases of matrix products: cast by autocast together with their matrix."""
    NORM = "norm"
    """Norm weights, layer scales, class tokens: stay fp32 under autocast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterTensor:
    """Equal parameter tensors."""

    name: str
    shape: tuple[int, ...]
    kind: ParameterKind
    block: str | None = None
    """``BlockGroup`` it lies in; None outside blocks."""
    repeats: int = 1
    """How many such tensors the whole model has (tied weights once)."""
    is_tied_matrix: bool = False
    """An embedding that is also the output matrix: cast by autocast."""

    @property
    def num_elements(self) -> int:
        """Elements of one tensor."""
        product = 1
        for size in self.shape:
            product *= size
        return product


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationList:
    """One micro batch of one model in one variant (numerics, attention kernel, compile)."""

    operations: tuple[Operation, ...]
    blocks: tuple[BlockGroup, ...]
    parameters: tuple[ParameterTensor, ...]
    input_bytes: Size = field(default=ZERO)
    """Batch on the device: ids, labels, pixels."""
    active_parameter_fraction: float = 1.0
    """MoE: share of the parameters that a token passes through."""

    @property
    def num_parameters(self) -> int:
        """All parameters, tied weights once."""
        return sum(tensor.num_elements * tensor.repeats for tensor in self.parameters)


class AttentionPath(StrEnum):
    """The kernel that attention really takes on a device."""

    MATH = "math"
    """Eager: two batched products and a softmax over the whole score matrix."""
    SDPA_MATH = "sdpa_math"
    """SDPA's own math fallback (what CPU SDPA decomposes to)."""
    FLASH = "flash"
    EFFICIENT = "efficient"
    """SDPA's memory-efficient kernel: fp32, or GPUs before Ampere."""
    CUDNN = "cudnn"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """The variant of an operation list."""

    numerics: str
    """A ``Numerics`` value."""
    attention: AttentionPath
    is_compiled: bool = False
