"""Micro-benchmarks of the device's arithmetic: matrix products, attention, convolutions."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.functional import conv2d, linear, scaled_dot_product_attention

from .bench_timer import BenchTimer, rotating
from .engine_torch import set_tf32

_CACHE_BYTES = 128 * 2**20
"""More than any level of cache: inputs rotate through at least this much."""
_MAX_ROTATION = 16
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}

_SQUARES = ((512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192))
_MODEL_SHAPES = tuple(
    (tokens, hidden, width)
    for hidden, widths in (
        (512, (1536, 2048)), (768, (768, 2304, 3072)), (1024, (1024, 4096)), (2048, (2048, 6144, 8192)),
        (2560, (10240,)), (4096, (4096, 14336)),
    )
    for width in widths
    for tokens in (2048, 16384)
)
"""(m, k, n): tokens, input, output features of linear layers, from Pythia-70M to 8B models."""
_VOCABULARY_SHAPES = ((2048, 512, 50304), (8192, 768, 50257), (8192, 2048, 50304), (4096, 4096, 128256))
_SKINNY_SHAPES = ((128, 1024, 1024), (256, 4096, 4096), (64, 2048, 8192), (16384, 64, 1024), (16384, 1024, 64))
_GRADIENT_SHAPES = ((2048, 512, 2048), (8192, 768, 3072), (16384, 1024, 4096), (16384, 2048, 8192), (8192, 4096, 4096))


def matrix_products(timer: BenchTimer, *, is_tiny: bool) -> None:
    """``y = x W^T`` as a linear layer computes it, and its two gradients for some shapes; 2 m k n FLOPs each."""
    if is_tiny:
        kinds = ("forward", "grad_input", "grad_weight")
        cases: Iterator[tuple[str, str, tuple[int, int, int]]] = (("fp32", kind, (64, 32, 8)) for kind in kinds)
    else:
        cases = _matrix_cases()
    for precision, kind, shape in cases:
        set_tf32(precision == "tf32")
        m, k, n = shape
        timer.case(
            "matrix_product", {"precision": precision, "kind": kind, "m": m, "k": k, "n": n},
            lambda p=precision, kd=kind, s=shape: _matrix_product(timer.device, _DTYPES[p], kd, s),
            work=2.0 * m * k * n, unit="flop_per_second", is_kernel=True,
        )
    set_tf32(False)


def _matrix_cases() -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    for shape in _SQUARES + _MODEL_SHAPES + _VOCABULARY_SHAPES + _SKINNY_SHAPES:
        yield "bf16", "forward", shape
    for shape in _GRADIENT_SHAPES:
        yield "bf16", "grad_input", shape
        yield "bf16", "grad_weight", shape
    for precision, shapes in (
        ("fp16", _SQUARES[1:] + _GRADIENT_SHAPES), ("tf32", _SQUARES + _MODEL_SHAPES[::2] + _SKINNY_SHAPES[:2]),
        ("fp32", _SQUARES[:4] + _GRADIENT_SHAPES[:3]),
    ):
        for shape in shapes:
            yield precision, "forward", shape


def _matrix_product(
    device: torch.device, dtype: torch.dtype, kind: str, shape: tuple[int, int, int]
) -> Callable[[], Any]:
    m, k, n = shape
    bytes_per_set = dtype.itemsize * (m * k + k * n + m * n)
    count = max(1, min(_MAX_ROTATION, -(-_CACHE_BYTES // bytes_per_set)))
    calls: list[Callable[[], Any]] = []
    for _ in range(count):
        x = torch.randn(m, k, device=device, dtype=dtype)
        weight = torch.randn(n, k, device=device, dtype=dtype)
        if kind == "forward":
            calls.append(lambda x=x, w=weight: linear(x, w))
            continue
        grad = torch.randn(m, n, device=device, dtype=dtype)
        if kind == "grad_input":
            calls.append(lambda g=grad, w=weight: g @ w)
        else:
            calls.append(lambda g=grad, x=x: g.t() @ x)
    return rotating(calls)


_ALLOW: dict[str, Callable[[bool], None]] = {
    "flash": torch.backends.cuda.enable_flash_sdp,
    "efficient": torch.backends.cuda.enable_mem_efficient_sdp,
    "cudnn": torch.backends.cuda.enable_cudnn_sdp,
    "math": torch.backends.cuda.enable_math_sdp,
}
_ATTENTION_SHAPES = (
    # batch, heads, length, head dimension
    (64, 12, 128, 64), (32, 16, 512, 64), (16, 12, 1024, 64), (8, 16, 2048, 64), (2, 16, 8192, 64), (8, 8, 512, 64),
    (8, 8, 2048, 256), (4, 32, 2048, 80), (4, 32, 2048, 128), (1, 32, 4096, 128), (64, 16, 197, 64),
)
_ATTENTION_CASES = (
    # precision, kernels, shapes, causal, dropout
    ("bf16", ("flash", "default"), _ATTENTION_SHAPES, True, 0.0),
    ("bf16", ("flash", "default"), _ATTENTION_SHAPES[1::3], False, 0.0),
    ("bf16", ("efficient", "cudnn"), _ATTENTION_SHAPES[1:8:2], True, 0.0),
    ("bf16", ("math",), _ATTENTION_SHAPES[1:3], True, 0.0),
    ("fp32", ("default", "math"), _ATTENTION_SHAPES[1:4], True, 0.0),
    ("fp16", ("default",), _ATTENTION_SHAPES[1:4], True, 0.0),
    ("bf16", ("default",), _ATTENTION_SHAPES[:4], False, 0.1),
)


def attention(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Scaled dot-product attention, forward and with backward, by kernel.

    FLOPs: 4 b h s^2 d forward, half of it where causal; the backward pass 2.5 times the forward.
    """
    if is_tiny:
        cases = [("fp32", "math", (1, 2, 32, 8), True, 0.0)]
    else:
        cases = [
            (precision, kernel, shape, is_causal, dropout)
            for precision, kernels, shapes, is_causal, dropout in _ATTENTION_CASES
            for shape in shapes
            for kernel in kernels
        ]
    for precision, backend, shape, is_causal, dropout in cases:
        batch, heads, length, dimension = shape
        forward_flops = 4.0 * batch * heads * length * length * dimension * (0.5 if is_causal else 1.0)
        for with_backward in (False, True):
            parameters = {
                "precision": precision, "kernel": backend, "batch": batch, "heads": heads, "length": length,
                "head_dim": dimension, "is_causal": is_causal, "dropout": dropout, "with_backward": with_backward,
            }
            timer.case(
                "attention", parameters,
                lambda c=(_DTYPES[precision], backend, shape, is_causal, dropout, with_backward): _attention(
                    timer.device, *c
                ),
                work=forward_flops * (3.5 if with_backward else 1.0), unit="flop_per_second", is_kernel=True,
            )
    _allow_kernels("default")


def _attention(
    device: torch.device, dtype: torch.dtype, backend: str, shape: tuple[int, int, int, int], is_causal: bool,
    dropout: float, with_backward: bool,
) -> Callable[[], Any]:
    query, key, value = (
        torch.randn(shape, device=device, dtype=dtype, requires_grad=with_backward) for _ in range(3)
    )
    grad = torch.randn(shape, device=device, dtype=dtype)

    def call() -> None:
        output = scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=is_causal)
        if with_backward:
            # Gradients are returned, not accumulated: accumulation is not attention's.
            torch.autograd.grad(output, (query, key, value), grad)

    _allow_kernels(backend)
    return call


def _allow_kernels(name: str) -> None:
    """Set globally: entering ``sdpa_kernel`` at every call would be timed with it."""
    for kernel, allow in _ALLOW.items():
        allow(name in ("default", kernel))


_CONVOLUTIONS = (
    # name, batch, channels in, side, channels out, kernel, stride, padding, groups
    ("depthwise", 64, 96, 56, 96, 7, 1, 3, 96), ("depthwise", 64, 192, 56, 192, 7, 1, 3, 192),
    ("depthwise", 64, 384, 28, 384, 7, 1, 3, 384), ("depthwise", 64, 768, 14, 768, 7, 1, 3, 768),
    ("depthwise", 64, 1536, 7, 1536, 7, 1, 3, 1536), ("patchify", 64, 3, 224, 192, 4, 4, 0, 1),
    ("patchify", 64, 3, 224, 1024, 16, 16, 0, 1), ("downsample", 64, 192, 56, 384, 2, 2, 0, 1),
    ("downsample", 64, 768, 14, 1536, 2, 2, 0, 1),
)


def convolutions(timer: BenchTimer, *, is_tiny: bool) -> None:
    """Convolutions of ConvNeXt and of patch embeddings, forward and with backward (three times the FLOPs)."""
    tiny = (("depthwise", 1, 4, 8, 4, 7, 1, 3, 4), ("patchify", 1, 3, 16, 8, 4, 4, 0, 1))
    shapes = tiny if is_tiny else _CONVOLUTIONS
    for precision in ("fp32",) if is_tiny else ("bf16", "tf32", "fp32"):
        set_tf32(precision == "tf32")
        for name, batch, channels, side, width, kernel, stride, padding, groups in shapes:
            out_side = (side + 2 * padding - kernel) // stride + 1
            forward_flops = 2.0 * batch * out_side**2 * width * (channels // groups) * kernel**2
            for with_backward in (False, True):
                parameters = {
                    "kind": name, "precision": precision, "batch": batch, "channels": channels, "side": side,
                    "out_channels": width, "kernel": kernel, "stride": stride, "padding": padding, "groups": groups,
                    "with_backward": with_backward,
                }
                timer.case(
                    "convolution", parameters,
                    lambda p=parameters: _convolution(timer.device, _DTYPES[p["precision"]], p),
                    work=forward_flops * (3.0 if with_backward else 1.0), unit="flop_per_second", is_kernel=True,
                )
    set_tf32(False)


def _convolution(device: torch.device, dtype: torch.dtype, p: dict[str, Any]) -> Callable[[], Any]:
    with_backward = bool(p["with_backward"])
    image = torch.randn(
        p["batch"], p["channels"], p["side"], p["side"], device=device, dtype=dtype, requires_grad=with_backward
    )
    weight = torch.randn(
        p["out_channels"], p["channels"] // p["groups"], p["kernel"], p["kernel"], device=device, dtype=dtype,
        requires_grad=with_backward,
    )
    bias = torch.zeros(p["out_channels"], device=device, dtype=dtype, requires_grad=with_backward)
    settings = {"stride": p["stride"], "padding": p["padding"], "groups": p["groups"]}
    if not with_backward:
        return lambda: conv2d(image, weight, bias, **settings)
    grad = torch.randn_like(conv2d(image, weight, bias, **settings))

    def call() -> None:
        torch.autograd.grad(conv2d(image, weight, bias, **settings), (image, weight, bias), grad)

    return call
