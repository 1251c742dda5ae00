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


def _line(name: str, inputs: tuple[Tensor, ...], weft: Side, torch: Side) -> Line:
    return Line("whole", name, "f32", inputs, weft, torch)


def whole_lines() -> Iterator[Line]:
    for rows, length in ((1, MILLION), (64, 1 << 14), (1024, 1024)):
        x = (Tensor((rows, length), "f32"),)
        yield _line(
            f"argsort {rows}x{length}", x, lambda b, x: b.argsort(x, axis=1),
            lambda t, x: t.argsort(x, dim=1, stable=True),
        )  # fmt: skip
        yield _line(
            f"cumulative sum {rows}x{length}", x, lambda b, x: b.cumulative_sum(x, axis=1),
            lambda t, x: x.cumsum(1),
        )  # fmt: skip
    yield _line(
        f"top 64 of {MILLION}", (Tensor((1, MILLION), "f32"),),
        lambda b, x: b.top_k(x, k=64)[0], lambda t, x: t.topk(x, 64).values,
    )  # fmt: skip
    flat, places = Tensor((MILLION,), "f32"), Tensor((MILLION,), "si64", below=MILLION)
    yield _line(
        f"scatter {MILLION} of {MILLION}", (flat, places, flat), _scatter,
        lambda t, x, i, u: x.index_add(0, i, u),
    )  # fmt: skip
    yield _line(
        f"sums of {SEGMENTS} segments of {MILLION}",
        (flat, Tensor((MILLION,), "si64", below=SEGMENTS)), _segments, _segments_in_torch,
    )  # fmt: skip
