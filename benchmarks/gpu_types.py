"""Matrix products of other dtypes than bf16 and f16: lines that the frozen list does not have.

Products of si8 have sums of si32, those of 8-bit floats results of bf16 (torch._scaled_mm with
scales of one), those of f32 never go through TF32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

DTYPES: Final = ("si8", "fp8_e4m3", "fp8_e5m2", "f64", "f32")
SHAPES: Final = (
    (4096, 4096, 4096), (1000, 1000, 1000), (8192, 3072, 768),
    *((rows, 4096, 4096) for rows in (1, 2, 4, 8, 16)),
)  # fmt: skip
_FEWEST_ROWS: Final = 17
"""Rows from which torch multiplies matrices of si8."""


def gemm_types_lines() -> Iterator[Line]:
    """Every dtype with every shape; both operands lie along k."""
    for dtype in DTYPES:
        for m, n, k in SHAPES:
            yield _line(dtype, m, n, k)
    # Operands that matrix instructions of 8 bits do not take as they lie.
    yield _line("si8", 4096, 4096, 4096, turned=True)
    yield _line("f64", 4096, 4096, 4096, turned=True)
    yield _line("f32", 4, 4096, 4096, turned=True)


def _line(dtype: str, m: int, n: int, k: int, *, turned: bool = False) -> Line:
    contract = ([1], [0]) if turned else ([1], [1])
    results = {"si8": "si32", "fp8_e4m3": "bf16", "fp8_e5m2": "bf16"}

    def multiply(b: Builder, x: Value, w: Value) -> Value:
        return b.dot_general(x, w, contract=contract, out_dtype=results.get(dtype, dtype))

    def eager(torch: Any, x: Any, w: Any) -> Any:
        return _TORCH.get(dtype, _plain)(torch, x, w if turned else w.t())

    library: Mapping[str, Callable[..., Any]] = {}
    if dtype.startswith("fp8"):
        library = {"fast accum": lambda t, x, w: _scaled(t, x, w.t(), fast=True)}
    whole = 127 if dtype == "si8" else 0
    inputs = (
        Tensor((m, k), dtype, below=whole),
        Tensor((k, n) if turned else (n, k), dtype, below=whole),
    )
    name = f"{m}x{n}x{k} {'NN' if turned else 'NT'}"
    flops = 2.0 * m * n * k
    return Line("gemm_types", name, dtype, inputs, multiply, eager, library, flops=flops)


def _plain(torch: Any, x: Any, w: Any) -> Any:
    return torch.matmul(x, w)


def _integers(torch: Any, x: Any, w: Any) -> Any:
    if x.shape[0] < _FEWEST_ROWS:
        return torch.matmul(x.double(), w.double()).to(torch.int32)
    return torch._int_mm(x, w)


def _scaled(torch: Any, x: Any, w: Any, *, fast: bool = False) -> Any:
    if x.dtype is torch.float32:
        return torch.matmul(x, w)
    one = _one(torch)
    return torch._scaled_mm(x, w, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)


@cache
def _one(torch: Any) -> Any:
    return torch.ones((), device="cuda")


_TORCH: Final = {"si8": _integers, "fp8_e4m3": _scaled, "fp8_e5m2": _scaled}
