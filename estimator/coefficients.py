"""The numbers that tie the analytical model to real machines: named, documented, replaceable by a calibration.

The defaults come from data sheets, the source of the libraries and published measurements (looked at while writing:
NeuSight, five llm-foundry models, timm on RTX 3090); none was tuned on the rows that ``calibration.assess`` reports
as held out. A calibration is the same numbers with other values, for all accelerators, for an architecture
(``architecture:hopper``) or for one accelerator (``h200``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache

from .specs.hardware import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """Seconds, fractions and counts that no data sheet states. Every one enters exactly one named term."""

    # Matrix products, see ``analytic.compute.matrix_product_seconds``.
    matrix_efficiency_16bit: float = 0.80
    """Share of the dense 16-bit peak that the best large product reaches. ml-engineering's "maximum achievable
    matmul FLOPS": A100 87 %, H100 80 %; the mean over ordinary large shapes lies some points lower."""
    matrix_efficiency_tf32: float = 0.75
    """Share of the TF32 peak; operands are four bytes wide, so shared memory limits earlier."""
    matrix_efficiency_fp32: float = 0.85
    """Share of the fp32 vector peak (SGEMM of cuBLAS)."""
    flops_per_joule_16bit: float = 0.75e12
    """Matrix products on tensor cores per joule of board power: a 300 W card with a 400 W data sheet rate clocks
    down. Per architecture below; A100 reaches 270 TFLOP/s at 400 W."""
    flops_per_joule_tf32: float = 0.38e12
    """Half of the 16-bit figure: twice the operand bits at the same accumulator."""
    matrix_ramp_seconds: float = 1.5e-6
    """Prologue and epilogue of one tile: first loads from memory and write-back, two trips of 400-800 ns."""
    unaligned_matrix_slowdown: float = 1.6
    """Products whose rows do not start on 16 bytes: no bulk copies to shared memory, so an older kernel with narrow
    asynchronous copies runs (NVIDIA's "Matrix Multiplication Background", alignment)."""
    odd_matrix_slowdown: float = 2.2
    """Rows that do not even start on 4 bytes, an odd 16-bit width: no asynchronous copies at all (nanoGPT on A100
    gained 25 % by padding its vocabulary from 50257 to 50304)."""
    # Attention, see ``analytic.compute.attention_seconds``.
    flash_forward_efficiency: float = 0.62
    """Share of the dense 16-bit peak of the fused forward kernel at long lengths. FlashAttention-2 paper, fig. 5:
    A100, head_dim 128: 190-225 of 312 TFLOP/s."""
    flash_backward_efficiency: float = 0.52
    """The same for the backward kernel, counting its 5 products (2.5 x forward); same paper: 150-196."""
    cudnn_attention_speedup: float = 1.0
    """cuDNN's fused kernel, which SDPA prefers on Hopper and later, over FlashAttention-2."""
    flash_attention_slowdown: float = 1.0
    """Older fused kernels over FlashAttention-2 (its paper: 1.7-3x over the first version, 1.3-2.5x over Triton's)."""
    flash_ramp_length: float = 256.0
    """Keys per query at which the fused kernel runs at half speed (prologue, softmax rescaling, masked tiles)."""
    efficient_attention_slowdown: float = 2.0
    """Memory-efficient kernel over flash at the same length (xFormers' own benchmarks: 1.6-2.5x)."""
    attention_fp32_efficiency: float = 0.50
    """Share of the fp32 vector rate that the memory-efficient kernel reaches on 32-bit inputs, TF32 on or off: 27-32
    of 67 TFLOP/s at 512 to 2048 keys on an H200 machine."""
    # Convolutions and scans.
    convolution_efficiency: float = 0.55
    """Dense convolution over a matrix product of the same implicit shape (layout changes, halos)."""
    depthwise_forward_efficiency: float = 0.25
    """Share of the fp32 vector rate of a depthwise convolution: one multiply-add per load, no tensor cores (timm's
    ConvNeXt sizes on RTX 3090)."""
    depthwise_backward_efficiency: float = 0.12
    """Both gradients of a depthwise convolution; the weight gradient is a reduction over every pixel."""
    scan_efficiency: float = 0.20
    """Share of the fp32 vector rate of the fused selective scan (exponentials dominate; Mamba paper, fig. 8)."""
    # Memory-bound operations.
    memory_bandwidth_fraction: float = 0.80
    """Streaming kernels over the data sheet's bandwidth (BabelStream on A100, H100, V100: 0.85-0.92; short and
    strided tensors reach less)."""
    device_seconds_per_kernel: float = 2.0e-6
    """What each kernel costs on the device beyond its bytes: start, tail, gap to the next."""
    # Host.
    host_seconds_per_kernel_forward: float = 24e-6
    """Eager: Python module code, dispatch, autograd graph and launch, per kernel of the forward pass. H200 machines
    measured 20-26 us per operation over forward and backward."""
    host_seconds_per_kernel_backward: float = 20e-6
    """The autograd engine's node and its dispatch: one linear layer under autocast, forward and backward, takes
    170 us of host time for 3 + 5 kernels on an H200 machine (103 us for 1 + 3 without)."""
    host_seconds_per_kernel_compiled: float = 7e-6
    """A launch from a compiled graph's wrapper."""
    host_seconds_per_micro_step: float = 1.0e-3
    """Data loader hand-over, autocast and engine entry, loss read-out."""
    host_seconds_per_model_call: float = 2.5e-3
    """Python of one forward pass whatever its depth: argument checks, mask and position set-up, output classes,
    accelerate's wrapper (28 to 12 layers of one width on an H200 machine, extrapolated to none)."""
    # Optimizer.
    optimizer_bandwidth_fraction: float = 0.80
    """Achieved share of the bandwidth of multi-tensor kernels."""
    host_seconds_per_optimizer_kernel: float = 10e-6
    host_seconds_per_optimizer_tensor: float = 25e-6
    """Python per parameter tensor in a multi-tensor step and ``zero_grad``: lists by state, step counters on the CPU,
    bias corrections as Python numbers (an H200 machine: 44 us with clipping; 23 us bound by torch's own step)."""
    host_seconds_per_fused_optimizer_tensor: float = 6e-6
    """The same for a fused step, whose step counters and corrections live on the device."""
    host_seconds_per_clipped_tensor: float = 17e-6
    """``clip_grad_norm_``: grouping, one norm a tensor, stacking them."""
    host_lead_fraction: float = 1.0
    """Share of the host's lead over the device that hides the optimizer's Python: 0 where something is read back."""
    # Collectives.
    nvlink_bandwidth_fraction: float = 0.78
    """NCCL bus bandwidth over the data sheet's rate per direction (nccl-tests: A100 230-240 of 300 GB/s,
    H100 350-370 of 450)."""
    pcie_bandwidth_fraction: float = 0.60
    """NCCL bus bandwidth over one PCIe link per GPU: shared root ports, P2P writes."""
    host_staged_bandwidth_fraction: float = 0.60
    """Without peer-to-peer access each byte is written to host memory and read from it; the GPUs of a node together
    get this share of one link."""
    network_bandwidth_fraction: float = 0.80
    """NCCL over the node's network rate."""
    collective_launch_seconds: float = 20e-6
    """Start and synchronisation of one collective, beyond the hops."""
    overlap_fraction: float = 0.80
    """Share of the compute time behind which communication hides; the rest is waited for."""
    communication_slowdown_fraction: float = 0.10
    """Compute slowed per second of overlapped communication: NCCL kernels hold multiprocessors and bandwidth."""
    ddp_bucket_bytes: float = 25 * 2**20
    """``bucket_cap_mb`` of DistributedDataParallel; the last bucket cannot hide."""
    ddp_gradient_bytes: float = 4.0
    """Bytes per parameter that DistributedDataParallel reduces: fp32 gradients under autocast."""
    # DeepSpeed and FSDP.
    zero_bucket_elements: float = 5e8
    """``reduce_bucket_size`` of DeepSpeed, allocated whole: runtime/zero/config.py, stage_1_and_2.setup_buckets."""
    zero3_reuse_elements: float = 5e8
    """Gathered parameters alive at the turn to backward: ``stage3_max_reuse_distance`` 1e9, passed twice."""
    zero3_prefetch_elements: float = 5e7
    """``stage3_prefetch_bucket_size``."""
    zero_host_seconds_per_tensor: float = 290e-6
    """Gradient hooks, bucket copies and norms of ZeRO-1/2, per parameter tensor and micro batch. Pythia-410M with
    ZeRO-2 on one H200: backward 85 ms longer than without, for 292 tensors."""
    zero3_host_seconds_per_tensor: float = 560e-6
    """Fetch, wait, release and trace checks of ZeRO-3, per parameter tensor and pass. The same model with ZeRO-3:
    forward 158 ms and backward 170 ms longer."""
    zero_host_seconds_per_updated_tensor: float = 180e-6
    """Norms, unscaling and views of DeepSpeed's step, per parameter tensor: steps of 44 to 70 ms for 292 tensors where
    the fused update takes 5."""
    fsdp_host_seconds_per_block: float = 1.5e-3
    """Unshard, reshard and reduce-scatter bookkeeping of FSDP2, per wrapped block and pass. The same model fully
    sharded on one H200: forward 35 ms and backward 38 ms longer, for 24 blocks."""
    # Offload.
    pcie_copy_fraction: float = 0.75
    """Pinned copies over the link's rate (25 of 32 GB/s)."""
    offload_overlap_fraction: float = 0.5
    """Share of parameter copies that hides behind compute."""
    cpu_adam_parameters_per_second: float = 4.0e8
    """DeepSpeed CPU Adam with clipping and 16-bit copy, per host: published 7B runs on 8 GPUs lose 17-20 s a step."""
    cpu_adam_torch_parameters_per_second: float = 1.2e8
    """torch's own AdamW on CPU shards (FSDP), per rank: launchers set one thread per rank."""
    # Memory.
    allocator_overhead_fraction: float = 0.04
    """Reserved over allocated: size classes and fragmentation of the caching allocator."""
    allocator_overhead_bytes: float = 100 * 2**20
    """Pool granularity: 20 MiB segments, 2 MiB small pools on each stream."""
    workspace_bytes: float = 40 * 2**20
    """cuBLAS workspaces and small constants that count as allocated (Hopper: 32 MiB)."""
    gradient_flight_fraction: float = 1.0
    """Gradients of activations alive while one block runs backward, over what the operation list states."""
    host_memory_overhead_fraction: float = 0.5
    """Offload needs about 1.5x its 16 bytes per parameter: 33B ran with 750-800 GB, not with 600."""
    host_bytes_per_rank: float = 3.5 * 2**30
    """Interpreter, CUDA libraries and data loader of one training process."""
    # Intervals until a calibration states measured ones: half widths as a factor, per strategy class.
    time_factor_single: float = 1.45
    """One GPU."""
    time_factor_distributed: float = 1.6
    """Several GPUs: link and overlap are less certain."""
    time_factor_offload: float = 2.5
    """Offload: the host's cores and memory are unknown (published CPU Adam: 6e7 to 1e9 parameters/s)."""
    memory_factor: float = 1.18
    """Peak memory: library versions differ in which temporaries overlap."""
    # Costs.
    power_fraction: float = 0.85
    """Mean draw over the board's limit while training."""
    overrides: Mapping[str, Mapping[str, float]] = field(default_factory=dict, hash=False)
    """Replacements by ``architecture:NAME`` or accelerator name; the accelerator's win."""
    basis: str = "analytical"
    """``analytical`` or ``calibrated``."""

    def for_accelerator(self, accelerator: Accelerator) -> "Coefficients":
        """The numbers that hold for one accelerator: base, then its architecture's, then its own."""
        values: dict[str, float] = {}
        for key in (f"architecture:{architecture_of(accelerator)}", accelerator.name):
            values.update(self.overrides.get(key, {}))
        return replace(self, **values) if values else self  # type: ignore[arg-type]


NUMBERS: tuple[str, ...] = tuple(f.name for f in fields(Coefficients) if f.name not in ("overrides", "basis"))
"""Names of all numeric coefficients."""

_ARCHITECTURES: tuple[tuple[tuple[int, int], str], ...] = (
    ((12, 0), "blackwell_client"),
    ((10, 0), "blackwell"),
    ((9, 0), "hopper"),
    ((8, 9), "ada"),
    ((8, 6), "ampere_client"),
    ((8, 0), "ampere"),
    ((7, 5), "turing"),
    ((7, 0), "volta"),
    ((0, 0), "pascal"),
)


def architecture_of(accelerator: Accelerator) -> str:
    """NVIDIA architecture by compute capability; the vendor's name for others."""
    capability = accelerator.compute_capability
    if capability is None:
        return accelerator.vendor.lower()
    return next(name for lowest, name in _ARCHITECTURES if capability >= lowest)


_ARCHITECTURE_DEFAULTS: dict[str, dict[str, float]] = {
    # V100: 95-100 of 125 TFLOP/s in large products (Jia et al., arXiv 1804.06826); no flash kernel.
    "volta": {"matrix_efficiency_16bit": 0.75, "matrix_efficiency_fp32": 0.90, "flops_per_joule_16bit": 0.33e12},
    # T4 throttles to 25-30 TFLOP/s at 70 W.
    "turing": {"matrix_efficiency_16bit": 0.80, "flops_per_joule_16bit": 0.40e12},
    # GeForce halves the tensor rate but not what feeds it, so it comes close to its data sheet (timm on RTX 3090);
    # the full-rate cards of the same chips are held by power: A6000 sustains 105-115 of 155 TFLOP/s at 300 W.
    "ampere_client": {
        "matrix_efficiency_16bit": 0.92,
        "matrix_efficiency_tf32": 0.90,
        "flops_per_joule_16bit": 0.37e12,
        "flops_per_joule_tf32": 0.19e12,
    },
    "ada": {
        "matrix_efficiency_16bit": 0.92,
        "matrix_efficiency_tf32": 0.90,
        "flops_per_joule_16bit": 0.70e12,
        "flops_per_joule_tf32": 0.35e12,
    },
    "blackwell_client": {
        "matrix_efficiency_16bit": 0.92,
        "matrix_efficiency_tf32": 0.90,
        "flops_per_joule_16bit": 0.70e12,
        "flops_per_joule_tf32": 0.35e12,
    },
    # H100: 600-700 of 989 in ordinary large shapes at 700 W; FlashAttention-2 reaches 350 (FlashAttention-3
    # paper, fig. 5).
    "hopper": {
        "matrix_efficiency_16bit": 0.70,
        # An H200 machine: 8192 x 768 x 50257 runs at 89 TFLOP/s, 50304 wide at 670; without warp-group products the
        # tensor cores reach 60-65 % of their rate.
        "odd_matrix_slowdown": 7.5,
        "flops_per_joule_16bit": 1.25e12,
        "flops_per_joule_tf32": 0.62e12,
        "matrix_efficiency_fp32": 0.75,
        "flash_forward_efficiency": 0.37,
        "flash_backward_efficiency": 0.30,
        # An H200 machine, 16 bit, heads of 64 to 256 and 512 to 8192 tokens: 1.5-1.8 times in both directions.
        "cudnn_attention_speedup": 1.6,
    },
    "blackwell": {
        "matrix_efficiency_16bit": 0.72,
        "flops_per_joule_16bit": 1.7e12,
        "flops_per_joule_tf32": 0.85e12,
        "flash_forward_efficiency": 0.30,
        "flash_backward_efficiency": 0.24,
    },
    # ml-engineering: MI300X reaches 51 % of its dense peak.
    "amd": {
        "matrix_efficiency_16bit": 0.50,
        "matrix_efficiency_fp32": 0.85,
        "flops_per_joule_16bit": 0.90e12,
        "flash_forward_efficiency": 0.30,
        "flash_backward_efficiency": 0.22,
        "memory_bandwidth_fraction": 0.70,
    },
}


@cache
def default_coefficients() -> Coefficients:
    """Data sheets, library sources and published measurements; no calibration."""
    return Coefficients(overrides={f"architecture:{name}": values for name, values in _ARCHITECTURE_DEFAULTS.items()})
