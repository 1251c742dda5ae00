"""Ops that place elements and compute nothing, and constants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import FP8_E4M3, I1, DType
from weft.ptir.builder import Builder, Value
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    LARGE,
    ODD,
    Array,
    Dims,
    Shape,
    apply,
    case,
    defined,
    program,
    symbolic,
    trial,
)
from weft.testing.conformance.data import filling, sample, special, unusual
from weft.testing.conformance.oracles import movement as oracle

Moved = tuple[Shape, dict[str, Any], Callable[[Array], Array]]
"""The shape of the operand, the attributes, and what they do to an array."""

Draw = Callable[..., Array]
EMPTY: Shape = (2, 0, 3)


def _reshape(shape: Shape, new: Sequence[int], result: Shape) -> Moved:
    return shape, {"new_shape": list(new)}, lambda x: oracle.reshaped(x, result)


def _transpose(shape: Shape, perm: Sequence[int]) -> Moved:
    places = [axis % len(shape) for axis in perm]
    return shape, {"perm": list(perm)}, lambda x: oracle.transposed(x, places)


def _broadcast(shape: Shape, result: Shape) -> Moved:
    return shape, {"result_shape": list(result)}, lambda x: oracle.broadcast(x, result)


def _slice(shape: Shape, starts: Shape, sizes: Shape) -> Moved:
    attrs = {"starts": list(starts), "sizes": list(sizes)}
    return shape, attrs, lambda x: oracle.window(x, starts, sizes)


def _tile(shape: Shape, repeats: Shape) -> Moved:
    return shape, {"repeats": list(repeats)}, lambda x: oracle.tiled(x, repeats)


MOVES: dict[str, dict[str, Moved]] = {
    "reshape": {
        "merge": _reshape(ODD, (15, 7), (15, 7)),
        "split": _reshape((12, 10), (3, 4, 5, 2), (3, 4, 5, 2)),
        "cross": _reshape((6, 10), (4, 15), (4, 15)),
        "infer": _reshape(ODD, (5, -1), (5, 21)),
        "to-rank0": _reshape((1, 1), (), ()),
        "rank0": _reshape((), (1, 1), (1, 1)),
        "empty": _reshape(EMPTY, (0, 4), (0, 4)),
        "infer-empty": _reshape((0, 4), (0, -1), (0, 4)),
        "large": _reshape(LARGE, (67, 61), (67, 61)),
    },
    "transpose": {
        "reverse": _transpose(ODD, (2, 1, 0)),
        "rotate": _transpose(ODD, (1, 2, 0)),
        "same": _transpose(ODD, (0, 1, 2)),
        "negative": _transpose(ODD, (-1, 0, -2)),
        "rank0": _transpose((), ()),
        "empty": _transpose(EMPTY, (2, 0, 1)),
        "large": _transpose(LARGE, (1, 0)),
    },
    "broadcast_to": {
        "rank0": _broadcast((), ()),
        "scalar": _broadcast((), (3, 4)),
        "new-axes": _broadcast((5,), (3, 2, 5)),
        "ones": _broadcast((3, 1, 7), (3, 5, 7)),
        "both": _broadcast((1, 5, 1), (2, 4, 5, 3)),
        "to-empty": _broadcast((3, 1), (3, 0)),
        "empty": _broadcast(EMPTY, (4, 2, 0, 3)),
        "same": _broadcast(ODD, ODD),
        "large": _broadcast((61, 1), LARGE),
    },
    "slice": {
        "inside": _slice(ODD, (1, 2, 3), (2, 2, 4)),
        "whole": _slice(ODD, (0, 0, 0), ODD),
        "end": _slice(ODD, (2, 4, 6), (1, 1, 1)),
        "nothing": _slice(ODD, (3, 0, 2), (0, 5, 5)),
        "rank0": _slice((), (), ()),
        "empty": _slice(EMPTY, (1, 0, 1), (1, 0, 2)),
        "large": _slice(LARGE, (3, 7), (50, 59)),
    },
    "tile": {
        "some": _tile(ODD, (2, 1, 3)),
        "once": _tile(ODD, (1, 1, 1)),
        "nothing": _tile(ODD, (1, 0, 2)),
        "rank0": _tile((), ()),
        "empty": _tile(EMPTY, (2, 3, 1)),
        "large": _tile((31, 9), (3, 7)),
    },
}


def cases() -> Iterator[Case]:
    """reshape, transpose, broadcast_to, slice, tile, concat, pad, iota, constant."""
    for row, moves in MOVES.items():
        for dtype in defined(row):
            for name, move in moves.items():
                yield case(row, dtype, name, trial=partial(_make_moved, row, dtype, move, sample))
            move = _SPECIAL[row]
            yield case(row, dtype, "special", trial=partial(_make_moved, row, dtype, move, unusual))
            yield case(row, dtype, "dynamic", trial=partial(_DYNAMIC[row], dtype))
    yield from _concats()
    yield from _pads()
    yield from _iotas()
    yield from _constants()


_SPECIAL: dict[str, Moved] = {
    "reshape": _reshape((6, 4), (3, 8), (3, 8)),
    "transpose": _transpose((6, 4), (1, 0)),
    "broadcast_to": _broadcast((6, 1), (6, 4)),
    "slice": _slice((6, 4), (1, 0), (5, 4)),
    "tile": _tile((6, 4), (2, 1)),
}


def _make_moved(row: str, dtype: DType, move: Moved, draw: Draw) -> Trial:
    shape, attrs, expected = move
    x = draw(dtype, shape, row)
    return trial(apply(row, [x], **attrs), [x], exactly(expected(x)))


def _dynamic(
    row: str, names: dict[int, str], attrs: dict[str, Any], expected: Callable[[Array], Array],
    dtype: DType,
) -> Trial:  # fmt: skip
    x = sample(dtype, ODD, row)
    build = apply(row, [x], dims=[symbolic(ODD, names)], **attrs)
    return trial(build, [x], exactly(expected(x)))


_DYNAMIC: dict[str, Callable[[DType], Trial]] = {
    "reshape": partial(
        _dynamic, "reshape", {5: "?B"}, {"new_shape": [7, -1]},
        lambda x: oracle.reshaped(x, (7, 15)),
    ),
    "transpose": partial(
        _dynamic, "transpose", {5: "?B", 7: "?C"}, {"perm": [2, 0, 1]},
        lambda x: oracle.transposed(x, [2, 0, 1]),
    ),
    "broadcast_to": partial(
        _dynamic, "broadcast_to", {5: "?B"}, {"result_shape": [2, 3, "?B", 7]},
        lambda x: oracle.broadcast(x, (2, *ODD)),
    ),
    "slice": partial(
        _dynamic, "slice", {5: "?B"}, {"starts": [1, 2, 0], "sizes": [2, 3, 7]},
        lambda x: oracle.window(x, (1, 2, 0), (2, 3, 7)),
    ),
    "tile": partial(
        _dynamic, "tile", {5: "?B"}, {"repeats": [1, 2, 1]},
        lambda x: oracle.tiled(x, (1, 2, 1)),
    ),
}  # fmt: skip


# -- concat --------------------------------------------------------------------------------------

CONCATS: dict[str, tuple[list[Shape], int]] = {
    "first": ([(2, 3), (4, 3), (1, 3)], 0),
    "last": ([(2, 3), (2, 5)], 1),
    "negative": ([(2, 3, 2), (2, 1, 2)], -2),
    "one": ([(3, 5)], 0),
    "with-empty": ([(2, 3), (2, 0), (2, 1)], -1),
    "all-empty": ([(0, 3), (0, 3)], 0),
    "large": ([(61, 20), (61, 47), (61, 1)], 1),
}


def _concats() -> Iterator[Case]:
    for dtype in defined("concat"):
        for name, (shapes, axis) in CONCATS.items():
            make = partial(_concat, dtype, shapes, axis, None)
            yield case("concat", dtype, name, trial=make)
        make = partial(_concat, dtype, [(2, 3), (4, 3)], 0, [["?A", "?B"], ["?C", "?B"]])
        yield case("concat", dtype, "dynamic", trial=make)
        make = partial(_concat, dtype, [(4, 3), (4, 2)], 1, None, unusual)
        yield case("concat", dtype, "special", trial=make)


def _concat(
    dtype: DType,
    shapes: list[Shape],
    axis: int,
    dims: Sequence[Dims] | None,
    draw: Draw = sample,
) -> Trial:
    xs = [draw(dtype, shape, f"concat{i}") for i, shape in enumerate(shapes)]
    want = oracle.concatenated(xs, axis % len(shapes[0]))
    return trial(apply("concat", xs, dims=dims, axis=axis), xs, exactly(want))


# -- pad -----------------------------------------------------------------------------------------

PADS: dict[str, tuple[Shape, Shape, Shape, Shape]] = {
    "around": (ODD, (1, 0, 2), (0, 3, 1), (0, 0, 0)),
    "between": (ODD, (0, 0, 0), (0, 0, 0), (1, 0, 2)),
    "both": (ODD, (2, 1, 0), (1, 0, 1), (0, 2, 1)),
    "nothing": (ODD, (0, 0, 0), (0, 0, 0), (0, 0, 0)),
    "rank0": ((), (), (), ()),
    "empty": (EMPTY, (0, 2, 0), (1, 1, 0), (0, 3, 0)),
    "one": ((1, 2), (1, 0), (0, 1), (5, 5)),
    "large": (LARGE, (1, 2), (3, 0), (0, 1)),
}


def _pads() -> Iterator[Case]:
    for dtype in defined("pad"):
        for name, layout in PADS.items():
            yield case("pad", dtype, name, trial=partial(_pad, dtype, layout, filling(dtype), None))
        make = partial(_pad, dtype, PADS["around"], filling(dtype), [[3, "?B", 7]])
        yield case("pad", dtype, "dynamic", trial=make)
        for name, fill in _special_fills(dtype).items():
            make = partial(_pad, dtype, PADS["both"], fill, None)
            yield case("pad", dtype, f"fill={name}", trial=make)


def _special_fills(dtype: DType) -> dict[str, Any]:
    if dtype is I1:
        return {"false": False}
    if dtype.is_integer:
        return {"lowest": int(dtype.lowest), "highest": int(dtype.highest)}
    if dtype.is_complex:
        return {"-0": complex(-0.0, 0.0), "nan": complex(float("nan"), 1.0)}
    fills = {"-0": -0.0, "nan": float("nan"), "inf": float("inf"), "rounded": 0.1}
    return {k: v for k, v in fills.items() if not (dtype is FP8_E4M3 and k == "inf")}


def _pad(dtype: DType, layout: tuple[Shape, ...], fill: Any, dims: Sequence[Dims] | None) -> Trial:
    shape, low, high, interior = layout
    x = sample(dtype, shape, "pad")
    value = oracle.scalar_array(fill, dtype)
    want = oracle.pad_array(x, low, high, interior, value)
    build = apply("pad", [x], dims=dims, low=low, high=high, interior=interior, pad_value=fill)
    return trial(build, [x], exactly(want))


# -- iota ----------------------------------------------------------------------------------------


def _iotas() -> Iterator[Case]:
    layouts: dict[str, tuple[Shape, int]] = {
        "line": ((7,), 0),
        "first": ((3, 5, 7), 0),
        "middle": ((3, 5, 7), 1),
        "negative": ((3, 5, 7), -1),
        "empty": ((2, 0, 3), 2),
        "none": ((2, 0, 3), 1),
    }
    for dtype in defined("iota"):
        for name, (shape, axis) in layouts.items():
            yield case("iota", dtype, name, trial=partial(_iota, dtype, shape, axis))
        longest = min(int(dtype.highest) + 1, 5000) if dtype.is_integer else 5000
        yield case("iota", dtype, "large", trial=partial(_iota, dtype, (longest,), 0))
        yield case("iota", dtype, "dynamic", trial=partial(_dynamic_iota, dtype))


def _iota(dtype: DType, shape: Shape, axis: int) -> Trial:
    build = apply("iota", [], shape=list(shape), dtype=dtype, axis=axis)
    return trial(build, [], exactly(oracle.counted(shape, axis % len(shape), dtype)))


def _dynamic_iota(dtype: DType) -> Trial:
    x = sample(I1, (5,), "iota")

    def body(b: Builder, _: Value) -> Value:
        return b.iota(dtype, ["?B", 3], 0)

    want = oracle.counted((5, 3), 0, dtype)
    return trial(program([x], body, dims=[["?B"]]), [x], exactly(want))


# -- constants -----------------------------------------------------------------------------------


def _constants() -> Iterator[Case]:
    shapes: dict[str, Shape] = {"rank0": (), "odd": (3, 5), "empty": (0, 2), "large": (40, 50)}
    for dtype in defined("constant"):
        for name, shape in shapes.items():
            value = partial(sample, dtype, shape, "constant")
            yield case("constant", dtype, name, trial=partial(_constant, value, False))
        values = partial(special, dtype)
        yield case("constant", dtype, "special", trial=partial(_constant, values, False))
        yield case("constant", dtype, "literal", trial=partial(_constant, values, True))
        same = partial(np.full, (3, 4), filling(dtype), dtype.numpy)
        yield case("constant", dtype, "splat", trial=partial(_constant, same, False))


def _constant(make: Callable[[], Array], as_operand: bool) -> Trial:
    value = make()

    def body(b: Builder) -> Value:
        return b.stop_gradient(b.literal(value)) if as_operand else b.constant(value)

    return trial(program([], body), [], exactly(value))
