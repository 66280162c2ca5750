"""Micro-benchmarks of moving bytes: device memory, launches, copies to and from the host, optimizers, collectives."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, dropout, gelu, layer_norm, softmax

from estimator.specs.units import GIB

from .bench_timer import BenchTimer
from .ranks import Ranks

_MIB = 2**20


def memory_bandwidth(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Memory-bound operations by size of the tensor; work is the bytes read and written at least."""
    sizes = (_MIB,) if is_tiny else (4 * _MIB, 32 * _MIB, 256 * _MIB, GIB)
    for size in sizes:
        for name, (bytes_per_byte, build) in _ELEMENTWISE.items():
            timer.case(
                "memory", {"operation": name, "tensor_bytes": size},
                lambda b=build, s=size: b(timer.device, s), work=float(bytes_per_byte * size), unit="bytes_per_second",
                is_kernel=True,
            )
    rows, vocabulary = (64, 256) if is_tiny else (8192, 50304)
    timer.case(
        "memory", {"operation": "cross_entropy_forward_backward", "rows": rows, "vocabulary": vocabulary},
        lambda: _cross_entropy(timer.device, rows, vocabulary),
        # Logits read, log-probabilities written; they and a dense gradient read, the gradient written.
        work=4.0 * rows * vocabulary * 6, unit="bytes_per_second",
    )
    timer.case(
        "memory", {"operation": "embedding_backward", "rows": rows, "vocabulary": vocabulary, "hidden_size": 1024},
        lambda: _embedding_backward(timer.device, rows, vocabulary, 1024),
        work=4.0 * 1024 * (rows + vocabulary), unit="bytes_per_second", is_kernel=True,
    )


def _copy(device: torch.device, size: int) -> Callable[[], Any]:
    source = torch.randn(size // 4, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _add(device: torch.device, size: int) -> Callable[[], Any]:
    first, second = (torch.randn(size // 2, device=device, dtype=torch.bfloat16) for _ in range(2))
    return lambda: torch.add(first, second)


def _cast(device: torch.device, size: int) -> Callable[[], Any]:
    source = torch.randn(size // 4, device=device)
    return lambda: source.to(torch.bfloat16)


def _layer_norm(dtype: torch.dtype, *, with_backward: bool) -> Callable[[torch.device, int], Callable[[], Any]]:
    def build(device: torch.device, size: int) -> Callable[[], Any]:
        width = 1024
        x = torch.randn(size // dtype.itemsize // width, width, device=device, dtype=dtype, requires_grad=with_backward)
        weight = torch.ones(width, device=device, dtype=dtype, requires_grad=with_backward)
        bias = torch.zeros(width, device=device, dtype=dtype, requires_grad=with_backward)
        if not with_backward:
            return lambda: layer_norm(x, (width,), weight, bias)
        grad = torch.randn_like(x)
        return lambda: torch.autograd.grad(layer_norm(x, (width,), weight, bias), (x, weight, bias), grad)

    return build


def _gelu_forward_backward(device: torch.device, size: int) -> Callable[[], Any]:
    x = torch.randn(size // 2, device=device, dtype=torch.bfloat16, requires_grad=True)
    grad = torch.randn_like(x)
    return lambda: torch.autograd.grad(gelu(x), (x,), grad)


def _dropout(device: torch.device, size: int) -> Callable[[], Any]:
    x = torch.randn(size // 2, device=device, dtype=torch.bfloat16)
    return lambda: dropout(x, 0.1, training=True)


def _softmax(device: torch.device, size: int) -> Callable[[], Any]:
    x = torch.randn(size // 4 // 1024, 1024, device=device)
    return lambda: softmax(x, dim=-1)


_ELEMENTWISE: dict[str, tuple[float, Callable[[torch.device, int], Callable[[], Any]]]] = {
    # bytes read and written per byte of the (input) tensor
    "copy_fp32": (2.0, _copy),
    "add_bf16": (3.0, _add),
    "cast_fp32_to_bf16": (1.5, _cast),
    "layer_norm_fp32": (2.0, _layer_norm(torch.float32, with_backward=False)),
    "layer_norm_bf16": (2.0, _layer_norm(torch.bfloat16, with_backward=False)),
    "layer_norm_fp32_forward_backward": (5.0, _layer_norm(torch.float32, with_backward=True)),
    "gelu_bf16_forward_backward": (5.0, _gelu_forward_backward),
    # A mask of one byte an element is written as well.
    "dropout_bf16": (2.5, _dropout),
    "softmax_fp32": (2.0, _softmax),
}


def _cross_entropy(device: torch.device, rows: int, vocabulary: int) -> Callable[[], Any]:
    logits = torch.randn(rows, vocabulary, device=device, requires_grad=True)
    labels = torch.randint(0, vocabulary, (rows,), device=device)
    return lambda: torch.autograd.grad(cross_entropy(logits, labels), (logits,))


def _embedding_backward(device: torch.device, rows: int, vocabulary: int, width: int) -> Callable[[], Any]:
    weight = torch.randn(vocabulary, width, device=device, requires_grad=True)
    ids = torch.randint(0, vocabulary, (rows,), device=device)
    grad = torch.randn(rows, width, device=device)
    return lambda: torch.autograd.grad(torch.nn.functional.embedding(ids, weight), (weight,), grad)


def launch_overhead(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Seconds of host time per kernel where kernels are too small to matter: work is their number."""
    count = 50 if is_tiny else 500
    x = torch.zeros(16, device=timer.device)
    width = 64
    layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(32))).to(timer.device)
    batch = torch.randn(8, width, device=timer.device)

    def chain() -> None:
        for _ in range(count):
            x.add_(1.0)

    def linear_chain() -> None:
        layers(batch).sum().backward()
        layers.zero_grad()

    def autocast_chain() -> None:
        with torch.autocast(timer.device.type, dtype=torch.bfloat16):
            loss = layers(batch).sum()
        loss.backward()
        layers.zero_grad()

    unit = "operations_per_second"
    timer.case("launch", {"chain": "add_in_place"}, lambda: chain, work=float(count), unit=unit)
    timer.case(
        "launch", {"chain": "add_in_place", "clock": "host"}, lambda: chain, work=float(count), unit=unit,
        is_host_time=True,
    )
    timer.case("launch", {"chain": "linear_forward_backward"}, lambda: linear_chain, work=32.0, unit=unit)
    timer.case("launch", {"chain": "linear_autocast_forward_backward"}, lambda: autocast_chain, work=32.0, unit=unit)


def host_transfers(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Copies between host and device, pinned and pageable, each way; nothing to copy where the device is the CPU."""
    if timer.device.type != "cuda":
        return
    for size in (_MIB,) if is_tiny else (_MIB, 16 * _MIB, 256 * _MIB):
        for is_pinned in (True, False):
            for direction in ("to_device", "to_host"):
                timer.case(
                    "host_transfer", {"direction": direction, "is_pinned": is_pinned, "tensor_bytes": size},
                    lambda s=size, p=is_pinned, d=direction: _transfer(timer.device, s, p, d),
                    work=float(size), unit="bytes_per_second",
                )


def _transfer(device: torch.device, size: int, is_pinned: bool, direction: str) -> Callable[[], Any]:
    host = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
    host.fill_(1)
    on_device = torch.ones(size, dtype=torch.uint8, device=device)
    if direction == "to_device":
        return lambda: on_device.copy_(host, non_blocking=True)
    return lambda: host.copy_(on_device, non_blocking=True)


def optimizers(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Updates of fp32 parameters on the device, work in parameters; and clipping of their gradients."""
    num_parameters = 10_000 if is_tiny else 200_000_000
    num_tensors = 10 if is_tiny else 200
    for name in ("adamw_foreach", "adamw_fused", "sgd", "clip_grad_norm"):
        timer.case(
            "optimizer", {"name": name, "num_parameters": num_parameters, "num_tensors": num_tensors},
            lambda n=name: _optimizer(timer.device, n, num_parameters, num_tensors),
            work=float(num_parameters), unit="parameters_per_second",
        )


def _optimizer(device: torch.device, name: str, num_parameters: int, num_tensors: int) -> Callable[[], Any]:
    tensors = [torch.randn(num_parameters // num_tensors, device=device) for _ in range(num_tensors)]
    for tensor in tensors:
        tensor.requires_grad_()
        tensor.grad = torch.randn_like(tensor)
    match name:
        case "adamw_foreach":
            return torch.optim.AdamW(tensors, foreach=True).step
        case "adamw_fused":
            return torch.optim.AdamW(tensors, fused=True).step
        case "sgd":
            return torch.optim.SGD(tensors, lr=1e-3).step
        case _:
            return lambda: torch.nn.utils.clip_grad_norm_(tensors, 1.0)


def cpu_adam(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Adam on the host, as offload runs it: torch's for FSDP, DeepSpeed's (built at first use) for ZeRO."""
    num_parameters = 10_000 if is_tiny else 100_000_000
    for name in ("torch_adamw", "torch_adamw_fused") + (() if is_tiny else ("deepspeed_cpu_adam",)):
        timer.case(
            "cpu_adam", {"name": name, "num_parameters": num_parameters, "num_threads": torch.get_num_threads()},
            lambda n=name: _cpu_adam(n, num_parameters), work=float(num_parameters), unit="parameters_per_second",
            is_host_time=True,
        )
    if not is_tiny and timer.device.type == "cuda":
        num_device_parameters = 200_000_000
        timer.case(
            "optimizer", {"name": "deepspeed_fused_adam", "num_parameters": num_device_parameters, "num_tensors": 1},
            lambda: _deepspeed_fused_adam(timer.device, num_device_parameters),
            work=float(num_device_parameters), unit="parameters_per_second",
        )


def _cpu_adam(name: str, num_parameters: int) -> Callable[[], Any]:
    parameter = torch.nn.Parameter(torch.randn(num_parameters))
    parameter.grad = torch.randn(num_parameters)
    if name == "deepspeed_cpu_adam":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        return DeepSpeedCPUAdam([parameter], lr=1e-3).step
    return torch.optim.AdamW([parameter], fused=name.endswith("fused")).step


def _deepspeed_fused_adam(device: torch.device, num_parameters: int) -> Callable[[], Any]:
    from deepspeed.ops.adam import FusedAdam

    parameter = torch.nn.Parameter(torch.randn(num_parameters, device=device))
    parameter.grad = torch.randn_like(parameter)
    return FusedAdam([parameter]).step


def collectives(timer: BenchTimer, ranks: Ranks, *, is_tiny: bool) -> None:
    """All-reduce, all-gather, reduce-scatter by size; work is the bytes of the whole (gathered) tensor.

    All ranks time the same number of calls: the iteration counts are fixed beforehand, not found by each.
    """
    if ranks.world_size == 1:
        return
    dtype = torch.bfloat16 if timer.device.type == "cuda" else torch.float32
    for size in (64 * 1024,) if is_tiny else (64 * 1024, _MIB, 16 * _MIB, 128 * _MIB, GIB):
        for name in ("all_reduce", "all_gather", "reduce_scatter"):
            timer.fixed_case(
                "collective", {"operation": name, "tensor_bytes": size, "world_size": ranks.world_size},
                _collective(timer.device, dtype, name, size, ranks.world_size),
                iterations=max(3, min(200, int(2 * GIB / size / 4))), work=float(size), unit="bytes_per_second",
            )


def _collective(
    device: torch.device, dtype: torch.dtype, name: str, size: int, world_size: int
) -> Callable[[], Any]:
    count = size // dtype.itemsize // world_size * world_size
    whole = torch.zeros(count, device=device, dtype=dtype)
    shard = torch.zeros(count // world_size, device=device, dtype=dtype)
    match name:
        case "all_reduce":
            return lambda: dist.all_reduce(whole)
        case "all_gather":
            return lambda: dist.all_gather_into_tensor(whole, shard)
        case _:
            return lambda: dist.reduce_scatter_tensor(shard, whole)
