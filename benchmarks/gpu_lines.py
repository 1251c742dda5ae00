"""The lines of the GPU benchmark, from the frozen list in `gpu.json`.

Both sides compute narrow floats in f32 between loading and storing. A matrix product is named by
how its operands are stored: N as they are multiplied, T the other way round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final

from benchmarks.gpu_attention import attention_lines, attention_training_lines
from benchmarks.gpu_backward import rows_backward_lines
from benchmarks.gpu_convolutions import (
    conv_epilogue_lines,
    conv_lines,
    depthwise_lines,
    few_channel_lines,
    group_lines,
)
from benchmarks.gpu_decode import decode_lines
from benchmarks.gpu_gpt2 import gpt2_lines
from benchmarks.gpu_line import Line, Tensor
from benchmarks.gpu_products import products_lines
from benchmarks.gpu_types import gemm_types_lines
from benchmarks.gpu_whole import whole_lines
from weft.ptir import Builder, Value

LIST: Final[dict[str, Any]] = json.loads((Path(__file__).parent / "gpu.json").read_text())
EPSILON: Final = 1e-5
OTHER_LAYOUTS: Final = ((4096, 4096, 4096), (8192, 3072, 768), (1024, 6144, 4096))
BATCHED: Final = ((64, 512, 512, 64), (192, 1024, 1024, 64))
SM80_SHAPE: Final = (8192, 8192, 8192)


def wide(b: Builder, x: Value) -> Value:
    return b.cast(x, "f32")


# -- matrix products -----------------------------------------------------------------------------


def _gemm(
    family: str, sizes: tuple[int, ...], dtype: str, layout: str = "NT", target: str = "sm90"
) -> Line:
    *lead, m, n, k = sizes
    a = (m, k) if layout[0] == "N" else (k, m)
    c = (k, n) if layout[1] == "N" else (n, k)
    batch = tuple(range(len(lead)))
    contract = (
        [len(lead) + (1 if layout[0] == "N" else 0)],
        [len(lead) + (0 if layout[1] == "N" else 1)],
    )

    def multiply(torch: Any, x: Any, w: Any) -> Any:
        left = x if layout[0] == "N" else x.transpose(-1, -2)
        return torch.matmul(left, w if layout[1] == "N" else w.transpose(-1, -2))

    return Line(
        family, f"{'x'.join(map(str, sizes))} {layout}", dtype,
        (Tensor((*lead, *a), dtype), Tensor((*lead, *c), dtype, scale=k**-0.5)),
        lambda b, x, w: b.dot_general(x, w, contract=contract, batch=(batch, batch)),
        multiply, flops=2.0 * math.prod(sizes), target=target,
    )  # fmt: skip


def gemm_lines() -> Iterator[Line]:
    for dtype in LIST["gemm"]["dtypes"]:
        for shape in LIST["gemm"]["shapes"]:
            yield _gemm("gemm", tuple(shape), dtype)
        for shape, layout in product(OTHER_LAYOUTS, ("NN", "TN", "TT")):
            yield _gemm("gemm", shape, dtype, layout)
        for shape in BATCHED:
            yield _gemm("gemm", shape, dtype)


def gemm_odd_lines() -> Iterator[Line]:
    for dtype, shape in product(LIST["gemm_odd"]["dtypes"], LIST["gemm_odd"]["shapes"]):
        yield _gemm("gemm_odd", tuple(shape), dtype)


def sm80_lines() -> Iterator[Line]:
    """The older template on the newer chip."""
    yield _gemm("sm80", SM80_SHAPE, "bf16", target="sm80")


def _product(b: Builder, x: Value, w: Value) -> Value:
    """`x @ w.T`, its sums not yet rounded."""
    return b.dot_general(x, w, contract=([1], [1]), out_dtype="f32")


def _tanh_gelu(b: Builder, x: Value) -> Value:
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
    return 0.5 * x * (1.0 + b.tanh(inner))


ACTIVATIONS: Final[Mapping[str, Callable[[Builder, Value], Value]]] = {
    "": lambda b, x: x,
    "relu": lambda b, x: b.emit("maximum", x, 0.0),
    "gelu_tanh": _tanh_gelu,
    "gelu_erf": lambda b, x: b.gelu(x),
    "silu": lambda b, x: b.silu(x),
}
TORCH_ACTIVATIONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "": lambda t, x: x,
    "relu": lambda t, x: t.relu(x),
    "gelu_tanh": lambda t, x: t.nn.functional.gelu(x, approximate="tanh"),
    "gelu_erf": lambda t, x: t.nn.functional.gelu(x),
    "silu": lambda t, x: t.nn.functional.silu(x),
}
FUSED: Final[Mapping[str, Callable[..., Any]]] = {
    "relu": lambda t, x, w, c: t._addmm_activation(c, x, w.t()),
    "gelu_tanh": lambda t, x, w, c: t._addmm_activation(c, x, w.t(), use_gelu=True),
}
"""Activations that cuBLASLt has as epilogues."""


def _biased(shape: tuple[int, int, int], dtype: str, activation: str) -> Line:
    m, n, _k = shape

    def dense(b: Builder, x: Value, w: Value, c: Value) -> Value:
        total = _product(b, x, w) + b.broadcast_to(wide(b, c), [m, n])
        return b.cast(ACTIVATIONS[activation](b, total), dtype)

    def eager(torch: Any, x: Any, w: Any, c: Any) -> Any:
        return TORCH_ACTIVATIONS[activation](torch, torch.nn.functional.linear(x, w, c))

    library = {"cublaslt": FUSED[activation]} if activation in FUSED else {}
    name = f"bias{'+' if activation else ''}{activation}"
    return _epilogue_line(name, shape, dtype, (Tensor((n,), dtype),), dense, eager, library)


def _residual(shape: tuple[int, int, int], dtype: str) -> Line:
    m, n, _ = shape
    return _epilogue_line(
        "residual", shape, dtype, (Tensor((m, n), dtype),),
        lambda b, x, w, r: b.cast(_product(b, x, w) + wide(b, r), dtype),
        lambda t, x, w, r: t.addmm(r, x, w.t()), {},
    )  # fmt: skip


def _scaled(shape: tuple[int, int, int], dtype: str) -> Line:
    return _epilogue_line(
        "scale+cast_f32", shape, dtype, (),
        lambda b, x, w: _product(b, x, w) * 0.125,
        lambda t, x, w: (x @ w.t()).float() * 0.125,
        {"mm to f32": lambda t, x, w: t.mm(x, w.t(), out_dtype=t.float32) * 0.125},
    )  # fmt: skip


def _epilogue_line(
    name: str,
    shape: tuple[int, int, int],
    dtype: str,
    more: tuple[Tensor, ...],
    weft: Callable[..., Any],
    eager: Callable[..., Any],
    library: Mapping[str, Callable[..., Any]],
) -> Line:
    m, n, k = shape
    plain = {"plain cublas": lambda t, x, w, *rest: t.matmul(x, w.t())}
    inputs = (Tensor((m, k), dtype), Tensor((n, k), dtype, scale=k**-0.5), *more)
    case = f"{m}x{n}x{k} {name}"
    flops = 2.0 * m * n * k
    return Line(
        "gemm_epilogue", case, dtype, inputs, weft, eager, {**library, **plain}, flops=flops
    )


def gemm_epilogue_lines() -> Iterator[Line]:
    found = LIST["gemm_epilogue"]
    for dtype, name, sizes in product(found["dtypes"], found["epilogues"], found["shapes"]):
        shape = (sizes[0], sizes[1], sizes[2])
        if name == "residual":
            yield _residual(shape, dtype)
        elif name == "scale+cast_f32":
            yield _scaled(shape, dtype)
        else:
            yield _biased(shape, dtype, name.removeprefix("bias").removeprefix("+"))


# -- rows ----------------------------------------------------------------------------------------


def _log_softmax(b: Builder, x: Value) -> Value:
    z = wide(b, x)
    largest = b.reduce_max(z, [1], keepdims=True)
    moved = z - b.broadcast_to(largest, z.shape)
    total = b.log(b.reduce_sum(b.exp(moved), [1], keepdims=True))
    return b.cast(moved - b.broadcast_to(total, z.shape), x.dtype)


def _rms_norm(b: Builder, x: Value, gamma: Value) -> Value:
    z, columns = wide(b, x), x.type.static_shape[1]  # type: ignore[union-attr]
    mean = b.reduce_sum(z * z, [1], keepdims=True) * (1.0 / columns)
    scaled = z * b.broadcast_to(b.rsqrt(mean + EPSILON), z.shape)
    return b.cast(scaled * b.broadcast_to(wide(b, gamma), z.shape), x.dtype)


def _layer_norm(b: Builder, x: Value, gamma: Value, beta: Value) -> Value:
    parts = (wide(b, value) for value in (x, gamma, beta))
    return b.cast(b.layer_norm(*parts, epsilon=EPSILON, feature_axis=-1), x.dtype)


ROWS: Final[Mapping[str, tuple[int, Callable[..., Any], Callable[..., Any]]]] = {
    "softmax": (0, lambda b, x: b.softmax(x), lambda t, x: t.softmax(x, -1)),
    "log_softmax": (0, _log_softmax, lambda t, x: t.log_softmax(x, -1)),
    "layer_norm": (
        2, _layer_norm,
        lambda t, x, g, c: t.nn.functional.layer_norm(x, x.shape[-1:], g, c, EPSILON),
    ),
    "rms_norm": (
        1, _rms_norm, lambda t, x, g: t.nn.functional.rms_norm(x, x.shape[-1:], g, EPSILON),
    ),
    "sum_last": (0, lambda b, x: b.reduce_sum(x, [1]), lambda t, x: x.sum(-1)),
    "max_last": (0, lambda b, x: b.reduce_max(x, [1]), lambda t, x: x.amax(-1)),
    "argmax_last": (0, lambda b, x: b.arg_max(x, axis=1), lambda t, x: x.argmax(-1)),
}  # fmt: skip
"""How many vectors of the row's length each takes, and both sides."""


def rows_lines() -> Iterator[Line]:
    found = LIST["rows"]
    for dtype, op, (rows, columns) in product(found["dtypes"], found["ops"], found["shapes"]):
        vectors, weft, torch = ROWS[op]
        inputs = (Tensor((rows, columns), dtype), *[Tensor((columns,), dtype)] * vectors)
        yield Line("rows", f"{op} {rows}x{columns}", dtype, inputs, weft, torch)


# -- maps ----------------------------------------------------------------------------------------


def _chain(b: Builder, x: Value) -> Value:
    z = wide(b, x)
    return b.cast(b.tanh(z * 0.5 + 0.1) * b.exp(-(z * z)) + 0.3, x.dtype)


def _torch_chain(torch: Any, x: Any) -> Any:
    return torch.tanh(x * 0.5 + 0.1) * torch.exp(-(x * x)) + 0.3


def _broadcasts(b: Builder, x: Value, row: Value, column: Value) -> Value:
    z = wide(b, x)
    added = z + b.broadcast_to(wide(b, row), z.shape)
    return b.cast(added * b.broadcast_to(wide(b, column), z.shape), x.dtype)


def _dropout(b: Builder, x: Value) -> Value:
    drawn = b.rng_uniform(shape=x.shape, dtype="f32")
    kept = b.compare(drawn, 0.1, "greater_equal")
    z = wide(b, x)
    return b.cast(b.select(kept, z * (1 / 0.9), 0.0), x.dtype)


def _maps_line(op: str, size: int, dtype: str) -> Line:
    columns = 1 << (size.bit_length() // 2)
    shape = (size // columns, columns)
    x = Tensor(shape, dtype)
    other = "bf16" if dtype == "f32" else "f32"
    torch_dtype = {"f32": "float32", "bf16": "bfloat16"}[other]
    sides: dict[str, tuple[tuple[Tensor, ...], Callable[..., Any], Callable[..., Any]]] = {
        "copy": ((x,), lambda b, x: b.stop_gradient(x), lambda t, x: x.clone()),
        "gelu": (
            (x,), lambda b, x: b.cast(b.gelu(wide(b, x)), x.dtype),
            lambda t, x: t.nn.functional.gelu(x),
        ),
        "chain": ((x,), _chain, _torch_chain),
        "add+mul": (
            (x, Tensor((columns,), dtype), Tensor((shape[0], 1), dtype)), _broadcasts,
            lambda t, x, row, column: (x + row) * column,
        ),
        "cast": (
            (x,), lambda b, x: b.cast(x, other), lambda t, x: x.to(getattr(t, torch_dtype)),
        ),
        "where+compare": (
            (x, x), lambda b, x, y: b.select(b.compare(x, y, "greater"), x, y * 2.0),
            lambda t, x, y: t.where(x > y, x, y * 2.0),
        ),
        "dropout": ((x,), _dropout, lambda t, x: t.nn.functional.dropout(x, 0.1)),
    }  # fmt: skip
    short = op.partition(" ")[0].partition(":")[0]
    label = f"cast to {other}" if short == "cast" else short
    inputs, weft, torch = sides[short]
    random = short == "dropout"
    return Line("maps", f"{label} {size}", dtype, inputs, weft, torch, random=random)


def maps_lines() -> Iterator[Line]:
    found = LIST["maps"]
    for dtype, op, size in product(found["dtypes"], found["ops"], found["sizes"]):
        yield _maps_line(op, size, dtype)


# -- reductions over other axes ------------------------------------------------------------------


def _sum(name: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str) -> Line:
    return Line(
        "reduce", name, dtype, (Tensor(shape, dtype),),
        lambda b, x: b.reduce_sum(x, list(axes)), lambda t, x: x.sum(axes),
    )  # fmt: skip


def _mean(name: str, shape: tuple[int, ...], dtype: str) -> Line:
    count = math.prod(shape[:3])

    def mean(b: Builder, x: Value) -> Value:
        total = b.reduce_sum(wide(b, x), [0, 1, 2])
        return b.cast(total * (1.0 / count), dtype)

    inputs = (Tensor(shape, dtype),)
    return Line("reduce", name, dtype, inputs, mean, lambda t, x: x.mean((0, 1, 2)))


def reduce_lines() -> Iterator[Line]:
    for dtype in LIST["reduce"]["dtypes"]:
        cases = {
            "sum axis 0 [16384,16384]": ((16384, 16384), (0,)),
            "sum axis 1 [16384,16384]": ((16384, 16384), (1,)),
            "sum all 2^29": ((1 << 29,), (0,)),
            "sum axis 0 [1048576,64]": ((1 << 20, 64), (0,)),
        }
        for name in LIST["reduce"]["cases"]:
            if name.startswith("mean"):
                yield _mean(name, (64, 56, 56, 256), dtype)
            else:
                shape, axes = cases[name]
                yield _sum(name, shape, axes, dtype)


# -- movement ------------------------------------------------------------------------------------


def _pad_and_slice(b: Builder, x: Value) -> Value:
    padded = b.emit("pad", x, low=[0, 1, 1, 0], high=[0, 1, 1, 0], pad_value=0.0)
    return b.slice(padded, [0, 0, 0, 0], [64, 56, 56, 256])


def _embedding_backward(b: Builder, indices: Value, rows: Value) -> Value:
    zeros = b.full([50304, 768], 0.0, rows.dtype)
    return b.scatter_add(
        zeros, b.reshape(indices, [1 << 20, 1]), rows, update_window_dims=[1],
        inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1,
    )  # fmt: skip


def _movement(name: str, dtype: str) -> Line:
    square, images = Tensor((16384, 16384), dtype), Tensor((64, 56, 56, 256), dtype)
    pieces = (Tensor((32768, 1024), dtype),) * 4
    table = Tensor((50304, 768), dtype)
    indices = Tensor((1 << 20,), "si32", below=50304)
    gradients = Tensor((1 << 20, 768), dtype)
    sides: dict[str, tuple[tuple[Tensor, ...], Callable[..., Any], Callable[..., Any]]] = {
        "transpose": (
            (square,), lambda b, x: b.transpose(x, [1, 0]), lambda t, x: x.t().contiguous(),
        ),
        "permute": (
            (Tensor((64, 256, 56, 56), dtype),), lambda b, x: b.transpose(x, [0, 2, 3, 1]),
            lambda t, x: x.permute(0, 2, 3, 1).contiguous(),
        ),
        "x.T": (
            (square, square), lambda b, x, y: b.transpose(x, [1, 0]) + y,
            lambda t, x, y: x.t() + y,
        ),
        "concat": (
            pieces, lambda b, *parts: b.concat(parts, axis=1), lambda t, *parts: t.cat(parts, 1),
        ),
        "pad+slice": (
            (images,), _pad_and_slice,
            lambda t, x: t.nn.functional.pad(x, (0, 0, 1, 1, 1, 1))[:, :56, :56].contiguous(),
        ),
        "gather": (
            (table, indices), lambda b, x, i: b.take(x, i),
            lambda t, x, i: t.nn.functional.embedding(i, x),
        ),
        "embedding": (
            (indices, gradients), _embedding_backward,
            lambda t, i, g: t.ops.aten.embedding_dense_backward(g, i, 50304, -1, False),
        ),
    }  # fmt: skip
    inputs, weft, torch = sides[name.partition(" ")[0]]
    return Line("movement", name, dtype, inputs, weft, torch)


def movement_lines() -> Iterator[Line]:
    for dtype, name in product(LIST["movement"]["dtypes"], LIST["movement"]["cases"]):
        yield _movement(name, dtype)


FAMILIES: Final[Mapping[str, Callable[[], Iterator[Line]]]] = {
    "gemm": gemm_lines,
    "gemm_odd": gemm_odd_lines,
    "gemm_epilogue": gemm_epilogue_lines,
    "rows": rows_lines,
    "maps": maps_lines,
    "reduce": reduce_lines,
    "movement": movement_lines,
    "sm80": sm80_lines,
    "gpt2": gpt2_lines,
    "gemm_types": gemm_types_lines,
    "whole": whole_lines,
    "attention": attention_lines,
    "attention_training": attention_training_lines,
    "attention_decode": decode_lines,
    "conv": conv_lines,
    "conv_epilogue": conv_epilogue_lines,
    "depthwise": depthwise_lines,
    "few_channels": few_channel_lines,
    "groups": group_lines,
    "products": products_lines,
    "rows_backward": rows_backward_lines,
}
