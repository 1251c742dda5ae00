"""Lines for ops that stay whole: sorting, scatter, cumulative ops, sums of segments, at a million
elements. They are not in the frozen list."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from benchmarks.gpu_line import Line, Tensor
from weft.ptir import Builder, Value

MILLION: Final = 1 << 20
SEGMENTS: Final = 1 << 12
Side = Callable[..., Any]


def _scatter(b: Builder, x: Value, places: Value, updates: Value) -> Value:
    return b.scatter_reduce(x, places, updates, axis=0, reduce="add")


def _segments(b: Builder, x: Value, ids: Value) -> Value:
    return b.segment_sum(x, ids, num_segments=SEGMENTS)


def _segments_in_torch(torch: Any, x: Any, ids: Any) -> Any:
    return torch.zeros(SEGMENTS, device=x.device).index_add_(0, ids, x)


def _line(
    name: str, inputs: tuple[Tensor, ...], weft: Side, torch: Side, dtype: str = "f32"
) -> Line:
    return Line("whole", name, dtype, inputs, weft, torch)


def _argsort(rows: int, length: int, dtype: str) -> Line:
    x = Tensor((rows, length), dtype, below=0 if dtype != "si64" else 1 << 62)
    return _line(
        f"argsort {rows}x{length}", (x,), lambda b, x: b.argsort(x, axis=1),
        lambda t, x: t.argsort(x, dim=1, stable=True), dtype,
    )  # fmt: skip


def _in_order(torch: Any, x: Any, places: Any, updates: Any) -> Any:
    """What gives the same bits in every run."""
    torch.use_deterministic_algorithms(True)
    try:
        return x.index_add(0, places, updates)
    finally:
        torch.use_deterministic_algorithms(False)


def _scatter_of(
    dtype: str,
    rows: int = MILLION,
    updates: int = MILLION,
    index: str = "si64",
    below: int = 0,
) -> Line:
    """Floats are added in an order that the places decide, integers as they come."""
    is_float = dtype in ("f32", "bf16")
    x, added = (Tensor((n,), dtype, below=0 if is_float else MILLION) for n in (rows, updates))
    places = Tensor((updates,), index, below=below or rows)
    name = f"scatter {updates} of {rows}"
    name += ", 32-bit places" if index == "si32" else ""
    name += f", the first {below}" if below else ""
    return Line(
        "whole", name, dtype, (x, places, added), _scatter,
        lambda t, x, i, u: x.index_add(0, i, u), {"in order": _in_order} if is_float else {},
    )  # fmt: skip


def whole_lines() -> Iterator[Line]:
    for rows, length in ((1, MILLION), (64, 1 << 14), (1024, 1024)):
        yield _argsort(rows, length, "f32")
        yield _line(
            f"cumulative sum {rows}x{length}", (Tensor((rows, length), "f32"),),
            lambda b, x: b.cumulative_sum(x, axis=1), lambda t, x: x.cumsum(1),
        )  # fmt: skip
    yield from (_argsort(1, MILLION, dtype) for dtype in ("bf16", "si64"))
    yield _line(
        f"top 64 of {MILLION}", (Tensor((1, MILLION), "f32"),),
        lambda b, x: b.top_k(x, k=64)[0], lambda t, x: t.topk(x, 64).values,
    )  # fmt: skip
    yield from map(_scatter_of, ("f32", "bf16", "si32", "si64"))
    yield _scatter_of("f32", index="si32")
    yield _scatter_of("f32", below=SEGMENTS)
    for rows, count in ((MILLION - 3, 0), (50257, 0), (MILLION >> 3,) * 2, (MILLION << 2,) * 2):
        yield _scatter_of("f32", rows, count or MILLION)
    flat = Tensor((MILLION,), "f32")
    for name, below in (("", SEGMENTS), (", all in one", 1)):
        yield _line(
            f"sums of {SEGMENTS} segments of {MILLION}{name}",
            (flat, Tensor((MILLION,), "si64", below=below)), _segments, _segments_in_torch,
        )  # fmt: skip
    x, updates = (Tensor((rows, 256), "f32") for rows in (512, 4096))
    yield _line(
        "sums of 4096x256 at places of their own",
        (x, Tensor((4096, 256), "si64", below=512), updates), _scatter,
        lambda t, x, i, u: x.scatter_add(0, i, u),
    )  # fmt: skip
