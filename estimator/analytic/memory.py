"""Memory per GPU at its peak, as named buffers, over the moments at which the peak can lie."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .columns import WorkloadColumns
from .operation_totals import OperationTotals
from .optimizer_step import local_parameters, optimizer_temporary_bytes

Array = NDArray[np.float64]

MEMORY_PARTS = ("parameters", "gradients", "optimizer", "activations", "logits", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryColumns:
    """Bytes at the peak moment, [workloads]; the six parts sum to the peak."""

    parts: Array
    """[workloads, MEMORY_PARTS]."""
    peak_bytes: Array
    reserved_bytes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentStates:
    """Bytes of the model states of one rank, [workloads]."""

    parameters: Array
    gradients: Array
    """When all of them exist: after the first backward pass."""
    optimizer: Array
    """Moments, and fp32 master weights where the module itself is 16 bit."""


def resident_states(columns: WorkloadColumns, num_parameters: Array) -> ResidentStates:
    """Model states by strategy (ZeRO, arXiv 1910.02054, section 3; P parameters, N ranks, K optimizer state).

        none     4 P + 4 P + K P                      fp32 weights and gradients
        ZeRO-1   2 P + 2 P + (4 + K) P / N            16-bit module, fp32 master copies sharded
        ZeRO-2   2 P + 2 P / N + (4 + K) P / N
        ZeRO-3   2 P / N + 2 P / N + (4 + K) P / N
        FSDP     4 P / N + 4 P / N + K P / N          fp32 shards
    ZeRO under fp32 keeps 4-byte weights and gradients and a further fp32 master copy (DeepSpeed clones the flat
    partition). Offload moves the optimizer (ZeRO-1/2, with ZeRO-2's gradient shard) or every state (ZeRO-3, FSDP).
    """
    p, shard = num_parameters, num_parameters / columns.cluster.num_gpus
    stage, fsdp = columns.zero_stage, columns.is_fsdp
    wide = np.where((stage > 0) & columns.is_16bit, 2.0, 4.0)
    parameters = wide * np.where((stage == 3) | fsdp, shard, p)
    gradients = wide * np.where((stage >= 2) | fsdp, shard, p)
    state = columns.optimizer_state_bytes
    optimizer = np.where(stage > 0, (4.0 + state) * shard, np.where(fsdp, state * shard, state * p))
    is_all_offloaded = columns.has_offload & ((stage == 3) | fsdp)
    return ResidentStates(
        parameters=np.where(is_all_offloaded, 0.0, parameters),
        gradients=np.where(is_all_offloaded | (columns.has_offload & (stage == 2)), 0.0, gradients),
        optimizer=np.where(columns.has_offload, 0.0, optimizer),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingBuffers:
    """Bytes that strategies hold besides states, [workloads]."""

    forward_end: Array
    """Weights in working form while the loss is computed: autocast copies, gathered weights."""
    backward: Array
    """While a block runs backward: gathered weights, unsharded gradients, buckets."""
    backward_end: Array
    optimizer_step: Array
    initialisation: Array


def working_buffers(columns: WorkloadColumns, totals: OperationTotals) -> WorkingBuffers:
    """What lives besides states and activations (C elements cast by autocast, B one block, P all, N ranks).

    none, 16 bit  autocast caches 2 C until the forward pass ends; the copies that backward needs live on; under
                  checkpointing only those outside blocks and of one block do.
    DDP           buckets hold one more copy of the gradients, 4 P (``gradient_as_bucket_view=False``).
    ZeRO-1/2      one reduce bucket of 5e8 elements, allocated whole during backward, and the gradients on their way
                  into it; optimizer offload: one staging buffer of the largest tensor. Step: 16-bit shard of the
                  gradients twice (partition, flat copy) and in fp32, 4 P / N. Start: weights twice while they
                  are flattened, on the host where the device has no room.
    ZeRO-3        bucket, gathered weights within ``max_reuse_distance`` and prefetch; step as above.
    FSDP2         gathered 16-bit weights: two blocks and the gather's own output; ``shard_grad_op`` keeps all from
                  forward to backward; unsharded gradients of one block and the reduce-scatter's input.
    Sources: torch/nn/parallel/distributed.py; deepspeed/runtime/zero/{stage_1_and_2,stage3,
    partitioned_param_coordinator}.py; torch/distributed/fsdp/_fully_shard. Neglected: NCCL's own buffers (they are
    outside the allocator), padding.
    """
    c, p, ranks = columns.coefficients, totals.num_parameters, columns.cluster.num_gpus
    stage, wide = columns.zero_stage, np.where(columns.is_16bit, 2.0, 4.0)
    casts = np.where(columns.is_none & columns.is_16bit, 2.0 * totals.num_cast, 0.0)
    block_casts = 2.0 * totals.num_cast_in_blocks / totals.num_blocks
    kept_casts = np.where(
        columns.has_checkpointing, 2.0 * (totals.num_cast - totals.num_cast_in_blocks) + block_casts, casts
    )
    kept_casts = np.where(columns.is_none & columns.is_16bit, kept_casts, 0.0)
    ddp = np.where(columns.is_none & (ranks > 1), 4.0 * p, 0.0)

    bucket = wide * c.zero_bucket_elements
    reuse = c.zero3_reuse_elements / np.where(columns.has_checkpointing, 1.5, 1.0)
    live = wide * np.minimum(p, reuse + c.zero3_prefetch_elements + totals.largest_block)
    flight = wide * np.minimum(c.zero_bucket_elements, totals.largest_block)
    staging = np.where(columns.has_offload, wide * totals.largest_tensor, 0.0)

    gathered_block = wide * totals.largest_block
    outside = wide * np.minimum(totals.num_outside_blocks, p)
    all_gathered = columns.is_fsdp & ~columns.is_full_shard
    fsdp_forward = np.where(all_gathered, wide * p + gathered_block, 3.0 * gathered_block + outside)
    fsdp_backward = np.where(all_gathered, wide * p, 3.0 * gathered_block + outside) + 2.0 * gathered_block

    choose = [columns.is_none, stage == 1, stage == 2, stage == 3, columns.is_fsdp]
    step = optimizer_temporary_bytes(columns) * local_parameters(columns, p)
    shards = np.where(columns.has_offload, 0.0, wide * p / ranks)
    step = np.where(columns.has_offload, 0.0, step + np.where(stage > 0, 4.0 * p / ranks, 0.0))
    step = step + np.where((stage == 1) | (stage == 2), shards, 0.0)
    flattened = np.where(2.0 * wide * p <= columns.cluster.usable_memory_bytes, wide * p, 0.0)
    return WorkingBuffers(
        forward_end=np.select(choose, [casts + ddp, staging, staging, live + bucket, fsdp_forward]),
        backward=np.select(
            choose,
            [
                kept_casts + ddp,
                bucket + flight + staging,
                bucket + flight + staging,
                live + bucket + flight,
                fsdp_backward,
            ],
        ),
        # ZeRO-1 and its shard of reduced gradients: stage_1_and_2.copy_grads_in_partition.
        backward_end=np.select(
            choose, [ddp, bucket + shards + staging, bucket + staging, bucket + flight, 2.0 * gathered_block + outside]
        ),
        optimizer_step=step + np.select(choose, [ddp, staging, staging, bucket, 0.0 * p]),
        initialisation=np.where((stage == 1) | (stage == 2), flattened, 0.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """What is alive at one moment of the step, bytes [workloads]."""

    gradients: Array
    optimizer: Array
    activations: Array
    logits: Array
    buffers: Array

    def parts(self, parameters: Array) -> Array:
        """[workloads, MEMORY_PARTS]."""
        return np.stack(
            (parameters, self.gradients, self.optimizer, self.activations, self.logits, self.buffers), axis=1
        )


def peak_memory(columns: WorkloadColumns, totals: OperationTotals) -> MemoryColumns:
    """The largest of five moments, part by part.

    end of forward   states, all saved activations (block inputs under checkpointing), logits with the loss's copies
    in backward      states, saved activations, one block being run (again), gradients so far
    end of backward  states, all gradients
    optimizer step   states, gradients, temporaries
    initialisation   weights twice (ZeRO-1/2), no optimizer state yet
    Gradients of earlier micro batches exist from the first moment on where batches are accumulated. Optimizer state
    is counted at every moment of a step: it exists from the second step on. Between the named moments activations
    fall and gradients grow block by block, so an end of that line is its peak. Neglected: fragmentation (reserved,
    below).
    """
    c = columns.coefficients
    states, buffers = resident_states(columns, totals.num_parameters), working_buffers(columns, totals)
    accumulates = columns.accumulation_steps > 1
    is_sharded_gradient = (columns.zero_stage >= 2) | columns.is_fsdp
    early_gradients = np.where(accumulates | (columns.zero_stage == 3), states.gradients, 0.0)
    checkpointing = columns.has_checkpointing
    saved = (
        np.where(
            checkpointing, totals.activation_bytes_outside_blocks + totals.block_inputs_bytes, totals.activation_bytes
        )
        + totals.input_bytes
    )
    one_block = (
        np.where(checkpointing, totals.block_saved_bytes, 0.0) + c.gradient_flight_fraction * totals.transient_bytes
    )
    # The first gradients after the loss: those of what lies outside blocks (output layer).
    first_gradients = np.maximum(
        early_gradients,
        np.where(is_sharded_gradient, 0.0, states.gradients * totals.num_outside_blocks / totals.num_parameters),
    )
    zero, workspace = np.zeros_like(saved), c.workspace_bytes
    # DeepSpeed drops the gradients that other ranks update before it steps.
    step_gradients = np.where(columns.zero_stage == 1, states.gradients / columns.cluster.num_gpus, states.gradients)
    # accelerate copies what the model returns to fp32 (ConvertOutputsToFp32): 4 bytes beside the 2 that a compiled loss
    # keeps of each logit; the eager loss holds more at its own peak.
    is_copied = columns.is_compiled & (columns.is_none | columns.is_fsdp) & columns.is_16bit
    returned_logits = np.where(is_copied, 2.0 * totals.logits_bytes, 0.0)
    moments = (
        _Moment(
            gradients=early_gradients, optimizer=states.optimizer, activations=saved,
            logits=totals.logits_bytes + np.maximum(totals.logits_transient_bytes, returned_logits),
            buffers=buffers.forward_end + workspace,
        ),
        _Moment(
            gradients=first_gradients, optimizer=states.optimizer, activations=saved + one_block, logits=zero,
            buffers=buffers.backward + workspace,
        ),
        _Moment(
            gradients=states.gradients, optimizer=states.optimizer, activations=totals.input_bytes + one_block,
            logits=zero, buffers=buffers.backward_end + workspace,
        ),
        _Moment(
            gradients=step_gradients, optimizer=states.optimizer, activations=totals.input_bytes, logits=zero,
            buffers=buffers.optimizer_step + workspace,
        ),
        _Moment(gradients=zero, optimizer=zero, activations=zero, logits=zero, buffers=buffers.initialisation),
    )  # fmt: skip
    by_moment = np.stack([moment.parts(states.parameters) for moment in moments])
    parts = by_moment[np.argmax(by_moment.sum(axis=2), axis=0), np.arange(len(saved))]
    peak = parts.sum(axis=1)
    return MemoryColumns(
        parts=parts,
        peak_bytes=peak,
        reserved_bytes=peak * (1.0 + c.allocator_overhead_fraction) + c.allocator_overhead_bytes,
    )


def checkpoint_bytes(columns: WorkloadColumns, num_parameters: Array) -> Array:
    """Bytes of one saved checkpoint over all ranks: fp32 weights and optimizer state; DeepSpeed saves 16-bit weights
    beside the fp32 master copies."""
    weights = np.where((columns.zero_stage > 0) & columns.is_16bit, 6.0, 4.0)
    return num_parameters * (weights + columns.optimizer_state_bytes)
