"""Windows that slide over a tensor, in StableHLO's words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from weft.foundation import numeric
from weft.foundation.dtypes import SI64
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.writing.elementwise import WriteOne, cast, identity_of
from weft.interop.stablehlo.writing.page import Page, Ssa, array_text
from weft.interop.stablehlo.writing.structure import BODIES, moved, padded, rows_at
from weft.ptir.literal import literal
from weft.ptir.types import TensorType

MOST_PATCHES: Final = 4096
"""How many elements a window of `extract_patches` may have: each is an operand of its own."""


def _extract_patches(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    count = math.prod(op.window)
    if count > MOST_PATCHES:
        raise Unimplemented(
            "extract_patches", f"its windows have {count} elements, more than {MOST_PATCHES}"
        )
    places = [dim for dim in kind.shape[1:-1] if isinstance(dim, int)]
    if len(places) != kind.rank - 2:
        raise Unimplemented(
            "extract_patches",
            f"how many windows {x[0].type} has is known only at run time; its first and last axis "
            "may be open, the others not",
        )
    if 0 in kind.shape:
        return page.full(0, kind)
    board = _with_border(page, op, x[0])
    if board.type.is_static:
        pieces = _slices(page, op, board, places)
        return page.concat(pieces, board.rank - 1, kind.shape[-1])
    return page.reshape(_patches_by_rows(page, op, board, places), kind.shape)


def _with_border(page: Page, op: Any, x: Ssa) -> Ssa:
    around = [(0, 0), *op.padding, (0, 0)]
    sizes = zip(x.shape, around, strict=True)
    kind = x.type.with_shape(n + a + b if isinstance(n, int) else n for n, (a, b) in sizes)
    fill = page.scalar(op.pad_value.fill(x.dtype), x.dtype)
    low, high = ([pair[i] for pair in around] for i in range(2))
    return padded(page, x, fill, low, high, [0] * x.rank, kind)


def _slices(page: Page, op: Any, board: Ssa, places: Sequence[int]) -> list[Ssa]:
    """Each element of the window is a slice with steps of the padded operand."""
    images, depth = board.type.static_shape[0], board.type.static_shape[-1]
    steps = [1, *op.strides, 1]
    pieces = []
    for offset in itertools.product(*(range(n) for n in op.window)):
        starts = [0, *(o * d for o, d in zip(offset, op.dilation, strict=True)), 0]
        ends = [
            a + (n - 1) * s + 1 for a, n, s in zip(starts[1:-1], places, op.strides, strict=True)
        ]
        pieces.append(page.slice(board, starts, [images, *ends, depth], steps))
    return pieces


def _patches_by_rows(page: Page, op: Any, board: Ssa, places: Sequence[int]) -> Ssa:
    """Windows of images whose number or depth is open, axis by axis: [images, places, offsets in
    the window, depth]."""
    spatial = len(places)
    for axis in range(spatial):
        # So far [places, offsets] for each axis before, then the images, the other axes, the depth.
        numbers = np.arange(places[axis])[:, None] * op.strides[axis]
        offsets = np.arange(op.window[axis])[None, :] * op.dilation[axis]
        where = page.constant(literal(numbers + offsets, SI64))
        board = rows_at(page, moved(page, board, 2 * axis + 1, 0), where)
    first, last = 2 * spatial, 2 * spatial + 1
    # The axis that came last stands first.
    pairs = [2 * (spatial - 1 - axis) for axis in range(spatial)]
    return page.transpose(board, [first, *pairs, *(pair + 1 for pair in pairs), last])


def _reduce_window(page: Page, op: Any, x: list[Ssa], kind: TensorType) -> Ssa:
    name = str(op.reduce)
    dtype = x[0].dtype
    wide = op.accum_dtype or (numeric.accumulator_dtype(dtype) if name == "sum" else dtype)
    start = cast(page, page.scalar(identity_of(name, dtype), dtype), wide)
    scalar = TensorType(wide, ())
    pairs = ", ".join(f"[{low}, {high}]" for low, high in op.padding)
    attrs = {
        "window_dimensions": array_text(op.window_dims),
        "window_strides": array_text(op.strides),
        "base_dilations": array_text(op.base_dilation),
        "window_dilations": array_text(op.window_dilation),
        "padding": f"dense<[{pairs}]> : tensor<{x[0].rank}x2xi64>",
    }
    if not x[0].rank:
        return x[0]

    def combine(inner: Page, args: list[Ssa]) -> list[Ssa]:
        return [inner.op(BODIES[name], *args)]

    found = page.ops(
        "stablehlo.reduce_window", [cast(page, x[0], wide), start], [kind.with_dtype(wide)],
        attrs, [((scalar, scalar), combine)],
    )[0]  # fmt: skip
    return cast(page, found, dtype)


WINDOWS: Final[Mapping[str, WriteOne]] = {
    "extract_patches": _extract_patches,
    "reduce_window": _reduce_window,
}
"""By mnemonic."""
