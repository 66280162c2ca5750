"""FLOPs of an operation list: what runs, and the model FLOPs of the literature.

One multiply-accumulate is two FLOPs. Memory-bound kernels count nothing, as in torch's FlopCounterMode.
"""

from ..specs.operations import Operation, OperationKind, OperationList

_PRODUCTS = (OperationKind.MATRIX_PRODUCT, OperationKind.CONVOLUTION)
BACKWARD_PRODUCTS_OF_FUSED_ATTENTION = 5
"""Scores once more, then the gradients of values, weights, queries and keys (FlashAttention 2, section 3.1)."""


def forward_flops(operation: Operation, micro_batch_size: float, sequence_length: float) -> float:
    """One occurrence, forward: 2 batch m k n of a product; 4 batch m n k of attention over all (query, key) pairs.

    The fused causal kernels skip the hidden half; eager and math code computes it, and so does a masked kernel:
    ``is_causal`` attention counts half here, as it runs.
    """
    at = micro_batch_size, sequence_length
    size = operation.batch.at(*at) * operation.m.at(*at) * operation.k.at(*at) * operation.n.at(*at)
    if operation.kind in _PRODUCTS:
        return 2 * size
    if operation.kind is OperationKind.ATTENTION:
        return 4 * size * visible_fraction(operation, sequence_length)
    return 0.0


def visible_fraction(operation: Operation, sequence_length: float) -> float:
    """Share of the (query, key) pairs that attention computes.

    Causal: one half. Causal with a window w < s: w s - w^2 / 2 of s^2 pairs.
    """
    if not operation.is_causal:
        return 1.0
    window = operation.window
    if window is None or window >= sequence_length:
        return 0.5
    share = window / sequence_length
    return share - share * share / 2


def backward_flops(operation: Operation, micro_batch_size: float, sequence_length: float) -> float:
    """One occurrence, backward: a product as large as the forward one for each operand that needs a gradient
    (the first layer's input needs none); fused attention recomputes the scores: 5/2 of its forward pass."""
    forward = forward_flops(operation, micro_batch_size, sequence_length)
    if operation.kind is OperationKind.ATTENTION:
        return forward * BACKWARD_PRODUCTS_OF_FUSED_ATTENTION / 2
    return forward * (2 if operation.has_input_gradient else 1)


def total_flops(operations: OperationList, micro_batch_size: float, sequence_length: float) -> float:
    """Forward and backward of one micro batch, as it runs (no recomputation)."""
    at = micro_batch_size, sequence_length
    return sum(
        operation.repeats * (forward_flops(operation, *at) + backward_flops(operation, *at))
        for operation in operations.operations
    )


def model_flops(operations: OperationList, micro_batch_size: float, sequence_length: float) -> float:
    """3 x forward products of one micro batch: what the literature divides by peak for MFU.

    The output layer is included, embedding look-ups are not, causal attention counts half (with a window, the pairs
    inside it), whatever kernel runs it. So it is below ``total_flops`` of eager attention by half of the attention.
    """
    total = 0.0
    for operation in operations.operations:
        flops = forward_flops(operation, micro_batch_size, sequence_length)
        if operation.kind is OperationKind.MATRIX_PRODUCT and operation.is_causal:
            flops *= visible_fraction(operation, sequence_length)
        total += 3 * operation.repeats * flops
    return total
