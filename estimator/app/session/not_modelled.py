"""What users ask for that has no model here: refused by name, never answered with figures of something else."""

_PEFT = "LoRA and other PEFT methods are not modelled; leave it out for figures of full fine-tuning or pre-training."
_FP8 = "fp8 needs Ada, Hopper or newer (compute capability 8.9+) and is not modelled here; use bf16."
_FP4 = "4-bit and 8-bit weights are not modelled; use bf16."
_PURE = "pure bf16 / fp16 (16-bit master weights) is not modelled; bf16 means mixed precision with fp32 master weights."
_SELECTIVE = "selective activation checkpointing is not modelled; whole blocks only: --activation-checkpointing."
_PARALLEL = (
    "tensor, pipeline, context, sequence and expert parallelism are not modelled; data parallel strategies only."
)
_HYBRID = "hybrid sharding (HSDP, ZeRO++, MiCS) is not modelled; use fsdp_full_shard, zero_3 or zero_1."
_NVME = "offload to NVMe (ZeRO-Infinity) is not modelled; --offload is to host memory."
_CHUNKED = "fused or chunked losses and other replacement kernels (Liger, Apex) are not modelled."
_FSDP1 = (
    "FSDP1 is not modelled; FSDP2 is what transformers and accelerate run now: fsdp_full_shard, fsdp_shard_grad_op."
)

_WORDS = {
    **dict.fromkeys(
        ("lora", "qlora", "dora", "peft", "adapter", "adapters", "ia3", "prefix_tuning", "use_peft", "use_lora"), _PEFT
    ),
    **dict.fromkeys(("fp8", "float8", "mxfp8", "amp_fp8", "transformer_engine", "e4m3", "fp8_hybrid"), _FP8),
    **dict.fromkeys(
        ("fp4", "nvfp4", "mxfp4", "int8", "int4", "nf4", "4bit", "8bit", "load_in_4bit", "load_in_8bit", "gptq", "awq"),
        _FP4,
    ),
    **dict.fromkeys(("pure_bf16", "bf16_true", "bf16_full", "pure_fp16", "fp16_true", "bf16_pure", "fp16_pure"), _PURE),
    **dict.fromkeys(
        ("selective", "attention_only", "attn_only", "selective_checkpointing", "selective_ac"), _SELECTIVE
    ),
    **dict.fromkeys(
        (
            "tensor_parallel",
            "tp",
            "tensor_parallel_size",
            "tp_size",
            "pipeline_parallel",
            "pp",
            "pipeline_parallel_size",
            "pp_size",
            "context_parallel",
            "cp",
            "context_parallel_size",
            "sequence_parallel",
            "sp",
            "expert_parallel",
            "ep",
            "expert_parallel_size",
            "model_parallel",
            "mp",
            "megatron",
            "ulysses",
            "ring_attention",
        ),
        _PARALLEL,
    ),
    **dict.fromkeys(
        ("hybrid_shard", "hsdp", "fsdp_hybrid_shard", "zero++", "zeropp", "mics", "hybrid_shard_zero2"), _HYBRID
    ),
    **dict.fromkeys(("nvme", "zero_infinity", "zero_3_nvme", "nvme_offload"), _NVME),
    **dict.fromkeys(("liger", "liger_kernel", "use_liger_kernel", "fused_loss", "chunked_loss"), _CHUNKED),
    **dict.fromkeys(("fsdp1",), _FSDP1),
}

_OTHER_NAMES = {
    **dict.fromkeys(
        ("per_device_train_batch_size", "micro_batch", "batch_size", "mbs", "train_micro_batch_size_per_gpu"),
        "the micro batch is --micro-batch-size (samples per GPU and pass)",
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "grad_accum", "accumulation", "gradient_accumulation"),
        "accumulation is derived: --global-batch-size / (--micro-batch-size x GPUs)",
    ),
    **dict.fromkeys(("train_batch_size", "global_batch"), "the batch of an optimizer step is --global-batch-size"),
    **dict.fromkeys(
        (
            "max_seq_length",
            "max_seq_len",
            "seq_len",
            "seq_length",
            "cutoff_len",
            "max_length",
            "block_size",
            "context_length",
        ),
        "the length is --sequence-length",
    ),
    **dict.fromkeys(
        ("gradient_checkpointing", "recompute", "checkpointing", "remat"), "use --activation-checkpointing"
    ),
    **dict.fromkeys(
        ("zero_stage", "zero", "deepspeed", "fsdp", "ddp", "sharding"),
        "use --strategy none, zero_1 ... fsdp_full_shard",
    ),
    **dict.fromkeys(("gpus", "num_gpu", "gpu_count", "nproc_per_node", "n_gpus"), "use --num-gpus (per node)"),
    **dict.fromkeys(("nodes", "nnodes"), "use --num-nodes"),
    **dict.fromkeys(
        ("bf16", "fp16", "fp32", "dtype", "torch_dtype", "mixed_precision"), "use --precision bf16, fp16 or fp32"
    ),
    **dict.fromkeys(("optim",), "use --optimizer"),
    **dict.fromkeys(("tokens", "num_tokens", "total_tokens"), "use --num-training-tokens"),
    **dict.fromkeys(("steps", "max_steps", "num_steps"), "use --num-training-steps"),
    **dict.fromkeys(
        ("epochs", "num_train_epochs", "samples"), "use --num-training-samples (epochs x samples of the data set)"
    ),
    **dict.fromkeys(
        ("attn_implementation", "flash_attention", "flash_attn"), "use --attention sdpa, eager or flash_attention_2"
    ),
    **dict.fromkeys(("torch_compile",), "use --compile"),
    **dict.fromkeys(("cpu_offload", "offload_optimizer", "offload_param"), "use --offload"),
    **dict.fromkeys(("config",), "use --model PATH"),
    **dict.fromkeys(("json",), "use --format json"),
    **dict.fromkeys(("csv",), "use --format csv"),
    **dict.fromkeys(("cpu_ram", "host_memory", "ram"), "use --cpu-memory-gib"),
}


def _normalised(text: str) -> str:
    return text.strip().lower().lstrip("-").replace("-", "_").replace(" ", "_")


def not_modelled(text: str) -> str | None:
    """Why a word names something without a model here; None where it does not."""
    return _WORDS.get(_normalised(text))


def hint_for_name(name: str) -> str | None:
    """The option that an unknown option name of another tool corresponds to, as a sentence part."""
    return _OTHER_NAMES.get(_normalised(name))
