"""Windows that slide over a tensor and are reduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from weft.interop.stablehlo.reading.reductions import COMBINE, fold_region, is_identity, kind_of
from weft.interop.stablehlo.reading.shapes import pad
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.ptir.builder import Value


def reduce_window(at: Site) -> Results:
    """Each window reduced to one element."""
    count = len(at.x) // 2
    kind = kind_of(at.op.blocks[0], at.x[0].dtype) if count == 1 else ""
    if kind in ("max", "min", "any", "all") or (kind == "sum" and is_identity(at, 1, kind)):
        return _named_window(at, kind)
    # What fills the space around elements is the start, and a sum or product counts every one.
    return _window_fold(at, count)


def _named_window(at: Site, kind: str) -> Value:
    x, start = at.x
    rank = x.rank
    ones = (1,) * rank
    padding = at.pairs("padding", rank)
    wanted = {"any": "max", "all": "min"}.get(kind, kind)
    inside = [(max(a, 0), max(b, 0)) for a, b in padding]
    base = at.ints("base_dilations", ones)
    x = _cut_padding(at, x, padding, base)
    found = at.b.emit(
        "reduce_window",
        x,
        window_dims=at.ints("window_dimensions"),
        strides=at.ints("window_strides", ones),
        padding=inside,
        base_dilation=base if x is at.x[0] else ones,
        window_dilation=at.ints("window_dilations", ones),
        reduce=wanted,
    )
    if is_identity(at, 1, kind):
        return found
    return at.b.emit(COMBINE[kind], *at.aligned([found, start]))


def _cut_padding(
    at: Site, x: Value, padding: Sequence[tuple[int, int]], base: Sequence[int]
) -> Value:
    """Negative padding takes elements away, after they have been spread out."""
    if all(low >= 0 and high >= 0 for low, high in padding):
        return x
    if any(step > 1 for step in base):
        at.refuse("it has negative padding and dilates its operand")
    low, high = ([min(pair[i], 0) for pair in padding] for i in range(2))
    return pad(at, x, at.b.literal(0, x.dtype), low, high, [0] * x.rank)


def _window_fold(at: Site, count: int) -> list[Value]:
    """Any region: all windows as an axis of their own, which is then reduced."""
    starts = at.x[count:]
    windows = [_padded_windows(at, x, start) for x, start in zip(at.x, starts, strict=False)]
    return fold_region(at, at.op.blocks[0], windows, starts, [windows[0].rank - 1])


def _padded_windows(at: Site, x: Value, start: Value) -> Value:
    rank, ones = x.rank, (1,) * x.rank
    padding = at.pairs("padding", rank)
    base = [step - 1 for step in at.ints("base_dilations", ones)]
    low, high = ([pair[i] for pair in padding] for i in range(2))
    board = pad(at, x, start, low, high, base)
    return patches(at, board, ones)


def patches(at: Site, board: Value, ones: tuple[int, ...]) -> Value:
    """Every window as the last axis, behind the axes of its place."""
    found = at.b.emit(
        "extract_patches",
        board.reshape([1, *board.shape, 1]),
        window=at.ints("window_dimensions"),
        strides=at.ints("window_strides", ones),
        dilation=at.ints("window_dilations", ones),
        padding=[(0, 0)] * board.rank,
        pad_value=0,
    )
    return found.reshape(found.shape[1:])


WINDOWS: Final[Mapping[str, Lowering]] = {"reduce_window": reduce_window}
