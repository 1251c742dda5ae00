"""Lines of the GPU benchmark for products with several results: `products` of `gpu2.json`, those
that there is a program for. Peers are torch eager and torch.compile."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

SHAPES = ((4096, 4096, 4096), (16384, 3072, 768))
"""Rows, columns and summed axis of y and gelu(y)."""


def _in_weft(b: Builder, x: Value, w: Value) -> tuple[Value, Value]:
    y = b.dot_general(x, w, contract=([1], [0]), accum_dtype="f32", out_dtype=x.dtype)
    return b.gelu(y), y


def _in_torch(torch: Any, x: Any, w: Any) -> Any:
    y = x @ w
    # Both are results, so that a compiler cannot leave one out.
    return torch.nn.functional.gelu(y), y


def products_lines() -> Iterator[Line]:
    for rows, columns, depth in SHAPES:
        inputs = (Tensor((rows, depth), "bf16"), Tensor((depth, columns), "bf16", scale=0.02))
        yield Line(
            "products", f"y, gelu(y) {rows}x{columns}x{depth}", "bf16", inputs, _in_weft,
            _in_torch, {}, 2.0 * rows * columns * depth,
        )  # fmt: skip
