"""Traces for tests: small models, in this process, each made once."""

from functools import lru_cache

from benchmarks.runner.trace.__main__ import assume_unpacked_batches
from benchmarks.runner.trace.model_trace import trace_model
from benchmarks.runner.trace.subject import Subject, subject_from_config
from estimator.specs.models.traced import TracedModel
from estimator.specs.numerics import Numerics
from estimator.specs.operations import OperationKind, OperationList

_TEXT = {"num_hidden_layers": 6, "hidden_size": 256, "intermediate_size": 1024, "vocab_size": 1000}
CONFIGS: dict[str, dict[str, object]] = {
    "gpt2": {"model_type": "gpt2", "n_layer": 6, "n_embd": 256, "n_head": 4, "vocab_size": 1000},
    "gpt_neox": {"model_type": "gpt_neox", "num_attention_heads": 4, **_TEXT},
    "llama": {"model_type": "llama", "num_attention_heads": 8, "num_key_value_heads": 2, **_TEXT},
    "bert": {"model_type": "bert", "num_attention_heads": 4, **_TEXT},
    "vit": {
        "model_type": "vit", "num_hidden_layers": 6, "hidden_size": 256, "num_attention_heads": 4,
        "intermediate_size": 1024, "image_size": 64, "patch_size": 16,
    },
    "convnext": {
        "model_type": "convnext", "image_size": 64, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 2, 6, 1],
    },
    "t5": {
        "model_type": "t5", "num_layers": 6, "num_decoder_layers": 6, "d_model": 128, "d_ff": 256, "num_heads": 4,
        "d_kv": 32, "vocab_size": 500,
    },
    "whisper": {
        "model_type": "whisper", "encoder_layers": 2, "decoder_layers": 2, "d_model": 64, "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 500,
        "max_source_positions": 100, "max_target_positions": 512, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "decoder_start_token_id": 1,
    },
    "swin": {
        "model_type": "swin", "image_size": 128, "patch_size": 4, "window_size": 4, "embed_dim": 24,
        "depths": [2, 2, 6, 2], "num_heads": [2, 2, 4, 4],
    },
    "mobilevit": {
        "model_type": "mobilevit", "image_size": 64, "hidden_sizes": [24, 32, 40],
        "neck_hidden_sizes": [8, 16, 24, 32, 40, 80, 80], "num_attention_heads": 2,
    },
}  # fmt: skip


def subject(name: str) -> Subject:
    """The model of a config by its name here."""
    assume_unpacked_batches()
    return subject_from_config(CONFIGS[name], name=name, image_size=None)


@lru_cache
def traced(name: str, attention: str = "sdpa", *numerics: Numerics) -> TracedModel:
    """The trace of one of ``CONFIGS``; under autocast alone where no numerics are named."""
    return trace_model(
        subject(name),
        attentions=(attention,),
        check_length=None,
        source="test",
        numerics=numerics or (Numerics.AUTOCAST,),
    )


def flops(listed: OperationList, b: int, s: int) -> tuple[float, float]:
    """Forward and backward FLOPs as a counter counts them: causal attention in full."""
    forward = backward = 0.0
    for operation in listed.operations:
        products = 2.0 if operation.kind is OperationKind.ATTENTION else 1.0
        sizes = operation.batch, operation.m, operation.k, operation.n
        count = 2.0 * products * operation.repeats
        for size in sizes:
            count *= size.at(b, s)
        forward += count
        backward += count * (1 + operation.has_input_gradient)
    return forward, backward


def total(listed: OperationList, field: str, b: int, s: int) -> float:
    """Sum of one size over all occurrences."""
    return float(sum(getattr(entry, field).at(b, s) * entry.repeats for entry in listed.operations))
