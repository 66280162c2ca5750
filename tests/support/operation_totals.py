"""Totals of an operation list, the way a FLOP counter and a memory trace count them."""

from estimator.specs.operations import OperationKind, OperationList

_PRODUCTS = (OperationKind.MATRIX_PRODUCT, OperationKind.CONVOLUTION)


def product_flops(operations: OperationList, micro_batch_size: int, sequence_length: int) -> float:
    """Forward and backward FLOPs of matrix products and convolutions.

    Forward 2 x batch x m x k x n; backward as much again for each operand that needs a gradient.
    """
    total = 0.0
    for operation in operations.operations:
        if operation.kind in _PRODUCTS:
            sizes = (operation.batch, operation.m, operation.k, operation.n)
            forward = 2.0 * operation.repeats
            for size in sizes:
                forward *= size.at(micro_batch_size, sequence_length)
            total += forward * (3 if operation.has_input_gradient else 2)
    return total


def saved_bytes(
    operations: OperationList, micro_batch_size: int, sequence_length: int, *, checkpointing: bool = False
) -> float:
    """What autograd keeps after the forward pass; with checkpointing, block inputs instead of what blocks keep."""
    total = 0.0
    for operation in operations.operations:
        if not (checkpointing and operation.block is not None):
            total += operation.repeats * operation.saved_bytes.at(micro_batch_size, sequence_length)
    if checkpointing:
        for block in operations.blocks:
            total += block.num_blocks * block.input_bytes.at(micro_batch_size, sequence_length)
    return total
