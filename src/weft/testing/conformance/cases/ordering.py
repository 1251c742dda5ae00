"""top_k, sort, argsort, searchsorted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import INDICES, DType, in_order
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import (
    DYNAMIC,
    LARGE,
    ODD,
    Array,
    Shape,
    apply,
    case,
    defined,
    symbolic,
    trial,
)
from weft.testing.conformance.data import counts, sample, source, special
from weft.testing.conformance.oracles import ordering as oracle
from weft.testing.conformance.oracles.indexing import gathered
from weft.testing.conformance.oracles.rounding import from_whole

LINES: dict[str, tuple[Shape, int]] = {
    "line": ((17,), 0),
    "one": ((1,), -1),
    "last": (ODD, 2),
    "first": (ODD, 0),
    "negative": (ODD, -2),
    "empty": ((2, 0, 3), 1),
    "no-lines": ((0, 4), 1),
    "large": (LARGE, 1),
    "dynamic": (ODD, 1),
    "ties": ((3, 40), 1),
    "special": ((8, 12), 1),
}


def cases() -> Iterator[Case]:
    """Every ordering op on every dtype, in both directions, with indices of both dtypes."""
    for name in LINES:
        for descending in (False, True):
            way = "descending" if descending else "ascending"
            for dtype in defined("sort"):
                make = partial(_sort, dtype, name, descending)
                yield case("sort", dtype, way, name, trial=make)
            for dtype in defined("argsort"):
                for index in in_order(INDICES):
                    make = partial(_argsort, dtype, name, descending, index)
                    yield case("argsort", dtype, way, index, name, trial=make)
            way = "largest" if descending else "smallest"
            for dtype in defined("top_k"):
                for index in in_order(INDICES):
                    make = partial(_top_k, dtype, name, descending, index)
                    yield case("top_k", dtype, way, index, name, trial=make)
    yield from _searches()


def _sample_to_order(dtype: DType, name: str, shape: Shape) -> Array:
    if name == "ties":
        return counts(dtype, shape, "ties")
    if name == "special":
        return np.array(source(dtype, shape).choice(special(dtype), shape), dtype.numpy)
    return sample(dtype, shape, name)


def _open_dims(name: str, shape: Shape) -> list[list[int | str]] | None:
    return [list(symbolic(shape, DYNAMIC))] if name == "dynamic" else None


def _sort(dtype: DType, name: str, descending: bool) -> Trial:
    shape, axis = LINES[name]
    x = _sample_to_order(dtype, name, shape)
    place = axis % len(shape)
    want = gathered(x, oracle.order(x, place, descending, dtype), place)
    build = apply("sort", [x], dims=_open_dims(name, shape), axis=axis, descending=descending)
    return trial(build, [x], exactly(want))


def _argsort(dtype: DType, name: str, descending: bool, index: DType) -> Trial:
    shape, axis = LINES[name]
    x = _sample_to_order(dtype, name, shape)
    want = oracle.order(x, axis % len(shape), descending, dtype).astype(index.numpy)
    build = apply(
        "argsort", [x], dims=_open_dims(name, shape), axis=axis, descending=descending,
        output_dtype=index,
    )  # fmt: skip
    return trial(build, [x], exactly(want))


def _top_k(dtype: DType, name: str, largest: bool, index: DType) -> Trial:
    shape, axis = LINES[name]
    x = _sample_to_order(dtype, name, shape)
    place = axis % len(shape)
    k = (shape[place] + 1) // 2
    order = np.moveaxis(oracle.order(x, place, largest, dtype), place, -1)[..., :k]
    chosen = np.moveaxis(order, -1, place)
    build = apply(
        "top_k", [x], dims=_open_dims(name, shape), k=k, axis=axis, largest=largest,
        indices_dtype=index,
    )  # fmt: skip
    values, positions = gathered(x, chosen, place), chosen.astype(index.numpy)
    return trial(build, [x], exactly(values), exactly(positions))


SEARCHES: dict[str, tuple[int, Shape]] = {
    "line": (12, (9,)),
    "matrix": (12, (3, 5)),
    "scalar": (7, ()),
    "empty-line": (0, (4,)),
    "no-values": (5, (0, 2)),
    "large": (500, (61, 7)),
    "dynamic": (12, (9,)),
}


def _searches() -> Iterator[Case]:
    for dtype in defined("searchsorted"):
        for side in ("left", "right"):
            for index in in_order(INDICES):
                for name in SEARCHES:
                    make = partial(_search, dtype, side, index, name)
                    yield case("searchsorted", dtype, side, index, name, trial=make)


def _search(dtype: DType, side: str, index: DType, name: str) -> Trial:
    length, shape = SEARCHES[name]
    line = _draw_repeated(dtype, (length,), "sorted")
    ascending = line[oracle.order(line, 0, False, dtype)]
    values = _draw_repeated(dtype, shape, "values")
    want = from_whole(oracle.insertion(ascending, values, side, dtype), index)
    dims = [["?N"], ["?M"]] if name == "dynamic" else None
    build = apply("searchsorted", [ascending, values], dims=dims, side=side, output_dtype=index)
    return trial(build, [ascending, values], exactly(want))


def _draw_repeated(dtype: DType, shape: Shape, key: str) -> Array:
    """Few different values, special ones among them."""
    unusual = source(dtype, shape, key).choice(special(dtype), shape)
    plain = source(shape, key, dtype).random(shape) < 0.7
    return np.where(plain, counts(dtype, shape, key), unusual).astype(dtype.numpy)
