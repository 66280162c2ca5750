"""What is known about the software behind each source of public rows, where it changes the operation list.

One table, read from the sources' own repositories; a fact that no source states is left at the library's default.
"""

from dataclasses import dataclass, replace

from estimator.analytic.operations import operation_list
from estimator.specs.model import ModelSpec
from estimator.specs.models.traced import TracedModel
from estimator.specs.numerics import Numerics
from estimator.specs.operations import (
    AttentionPath,
    OperationContext,
    OperationList,
    ParameterKind,
)
from estimator.specs.recipe import AttentionKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """How one source's software runs a model."""

    attention: AttentionKernel
    optimizer: str
    numerics_16bit: Numerics | None = None
    """Where the stack's 16-bit mode is not the one our strategy implies."""
    language_model_head: str = "full"
    """``full``; ``masked``: on the masked positions only; ``none``: a head of two numbers per token."""
    has_clipping: bool = True
    times_forward_backward: bool = False
    """The source's clock leaves the optimizer out."""
    has_16bit_states: bool = False
    """Weights and moments in bf16 without fp32 copies."""
    memory_kind: str = "allocated"
    """What the source calls memory: ``allocated``, ``reserved`` or ``nvidia-smi``."""
    coefficients: tuple[tuple[str, float], ...] = ()
    """Coefficients that differ for reasons of the software alone."""
    reason: str
    """Where this is known from."""


_SQUAD = StackFacts(
    attention=AttentionKernel.EAGER,
    optimizer="adamw_torch_fused",
    numerics_16bit=Numerics.LOW_PRECISION,
    language_model_head="none",
    memory_kind="nvidia-smi",
    coefficients=(
        ("ddp_gradient_bytes", 2.0),
        ("host_seconds_per_fused_optimizer_tensor", 0.0),
        ("host_seconds_per_clipped_tensor", 0.0),
        ("host_lead_fraction", 0.0),
    ),
    reason="NVIDIA DeepLearningExamples BERT/run_squad.py --fp16: apex amp O2 (16-bit module, fp32 masters), apex "
    "FusedAdam and multi-tensor norm (no Python per tensor), apex DDP reducing 16-bit gradients; the loss scaler and "
    "clip_grad_norm_ of its time read results back before the step",
)
STACKS: dict[str, StackFacts] = {
    "squad_16bit": _SQUAD,
    "squad_32bit": replace(
        _SQUAD,
        optimizer="adamw_torch",
        numerics_16bit=None,
        coefficients=(("host_seconds_per_optimizer_tensor", 18 * 10e-6), ("host_lead_fraction", 0.0)),
        reason="the same script without --fp16: BertAdam, a Python loop of about 18 kernels per tensor",
    ),
    "dle": StackFacts(
        attention=AttentionKernel.EAGER,
        optimizer="adamw_torch_fused",
        numerics_16bit=Numerics.LOW_PRECISION,
        language_model_head="masked",
        coefficients=(("ddp_gradient_bytes", 2.0),),
        reason="DeepLearningExamples BERT/run_pretraining.py: module in half precision, FusedLAMB (as many bytes as "
        "fused Adam and one norm pass), dense_sequence_output: decoder on masked positions only",
    ),
    "foundry": StackFacts(
        attention=AttentionKernel.FLASH_ATTENTION_2,
        optimizer="adamw_torch_fused",
        coefficients=(("flash_attention_slowdown", 1.8),),
        reason="llm-foundry scripts/train/benchmarking/submit_benchmarks.py: attn_impl triton, for which the "
        "FlashAttention-2 paper gives 1.3-2.5x; FSDP with 16-bit gathered weights; DecoupledAdamW on flat shards",
    ),
    "neusight": StackFacts(
        attention=AttentionKernel.EAGER,
        optimizer="adamw_torch",
        times_forward_backward=True,
        has_clipping=False,
        reason="NeuSight labels: transformers models in fp32, forward and backward between CUDA events, no optimizer",
    ),
    "tune": StackFacts(
        attention=AttentionKernel.SDPA,
        optimizer="adamw_torch_fused",
        numerics_16bit=Numerics.LOW_PRECISION,
        has_clipping=False,
        has_16bit_states=True,
        reason="torchtune: bf16 weights, fused AdamW, SDPA",
    ),
    "nanogpt": StackFacts(
        attention=AttentionKernel.SDPA,
        optimizer="adamw_torch_fused",
        reason="nanoGPT train.py: autocast, fused AdamW, flash through SDPA, clipping at 1.0",
    ),
    "fairseq": StackFacts(
        attention=AttentionKernel.EAGER,
        optimizer="adamw_torch_fused",
        numerics_16bit=Numerics.LOW_PRECISION,
        coefficients=(("cpu_adam_torch_parameters_per_second", 4.0e8),),
        reason="fairseq FSDP README: memory-efficient fp16, DeepSpeed's CPU Adam in each rank instead of torch's",
    ),
}
"""By name; ``stack_of_row`` says which rows run on which."""


def stack_of_row(source: str, task_notes: str, *, is_16bit: bool) -> StackFacts | None:
    """The stack of one row, or None where nothing is known about it."""
    if source == "lambda" or (source == "dle" and "SQuAD" in task_notes):
        return STACKS["squad_16bit" if is_16bit else "squad_32bit"]
    return STACKS.get(source)


_HEAD_OPERATIONS = ("head_transform", "head_activation", "head_norm", "decoder", "loss")
_HEAD_TENSORS = ("head_transform", "head_transform_bias", "head_norm", "decoder_bias", "decoder", "head_bias")
_MASKED_FRACTION = 0.156
"""20 of 128 and 80 of 512 positions (max_predictions_per_seq of the examples)."""


def model_of_stack(
    model: ModelSpec, facts: StackFacts, context: OperationContext, *, is_16bit: bool, pure_16bit: bool
) -> ModelSpec:
    """The model as this stack runs it: itself, or its operation list changed by the stack's facts.

    ``context`` is the variant that the estimator will ask for; a changed list answers to it.
    """
    numerics = facts.numerics_16bit if is_16bit else None
    if pure_16bit:
        numerics = Numerics.LOW_PRECISION
    if numerics is None and facts.language_model_head == "full":
        return model
    source = replace(context, numerics=str(numerics or context.numerics))
    listing = _with_head(operation_list(model, source), facts.language_model_head)
    if numerics is Numerics.LOW_PRECISION:
        listing = _without_casts(listing)
    variants = {f"{context.numerics}/{path}": listing for path in (AttentionPath(context.attention),)}
    return TracedModel(
        name=model.name,
        source=f"closed form, {facts.reason}",
        input_kind="tokens",
        variants=variants,
        max_position_embeddings=getattr(model, "max_position_embeddings", None),
        vocab_size=getattr(model, "vocab_size", None),
    )


def _with_head(listing: OperationList, head: str) -> OperationList:
    if head == "full":
        return listing
    operations = []
    for operation in listing.operations:
        if not any(operation.name.startswith(name) for name in _HEAD_OPERATIONS) or operation.block is not None:
            operations.append(operation)
        elif head == "masked":
            share = _MASKED_FRACTION
            operations.append(
                replace(
                    operation,
                    m=operation.m * share,
                    forward_bytes=operation.forward_bytes * share,
                    backward_bytes=operation.backward_bytes * share,
                    saved_bytes=operation.saved_bytes * share,
                    transient_bytes=operation.transient_bytes * share,
                )
            )
    tensors = listing.parameters
    if head == "none":
        tensors = tuple(replace(t, is_tied_matrix=False) for t in tensors if t.name not in _HEAD_TENSORS)
    return replace(listing, operations=tuple(operations), parameters=tensors)


def _without_casts(listing: OperationList) -> OperationList:
    """A 16-bit module needs no copies of its weights."""
    tensors = tuple(
        replace(t, kind=ParameterKind.NORM if t.kind is not ParameterKind.EMBEDDING else t.kind, is_tied_matrix=False)
        for t in listing.parameters
    )
    return replace(listing, parameters=tensors)
