"""weft.fourier: every factor, both signs, divided or not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from weft.foundation.dtypes import DType
from weft.testing.conformance.case import Case, Trial
from weft.testing.conformance.cases.common import Array, Dims, apply, case, defined, near, trial
from weft.testing.conformance.data import sample

_ROW = "weft.fourier"
_SHAPES: dict[str, tuple[int, ...]] = {
    "twos": (3, 64),
    "threes": (2, 2, 36),
    "fives-and-sevens": (70,),
    "large-factors": (2, 286),
    "long": (1, 2048),
    "no-rows": (0, 32),
    "dynamic": (3, 48),
}


def cases() -> Iterator[Case]:
    """Every size in every direction on every dtype."""
    for dtype in defined(_ROW):
        for name in _SHAPES:
            for inverse, divided in ((False, False), (True, False), (False, True), (True, True)):
                label = f"{name}{'-inverse' * inverse}{'-divided' * divided}"
                made = partial(_transform_trial, dtype, name, inverse, divided)
                yield case(_ROW, dtype, label, trial=made)


def _transform_trial(dtype: DType, name: str, inverse: bool, divided: bool) -> Trial:
    shape = _SHAPES[name]
    x = sample(dtype, shape, "x", scale=1.0)
    dims: list[Dims] | None = [["?M", shape[-1]]] if name == "dynamic" else None
    build = apply(_ROW, [x], dims=dims, inverse=inverse, divided=divided)
    exact = _transform_rows(x.astype(np.clongdouble), inverse, divided)
    plain = _transform_rows(x, inverse, divided)
    return trial(build, [x], near(exact, plain.astype(dtype.numpy), dtype, dtype))


def _transform_rows(x: Array, inverse: bool, divided: bool) -> Array:
    """The definition, with roots as exact as the type has them."""
    size = x.shape[-1]
    real = x.real.dtype
    turns = np.outer(np.arange(size), np.arange(size)) % size
    angle = turns.astype(np.longdouble) * (2 * np.arctan2(np.longdouble(0), np.longdouble(-1)))
    angle = angle / size * (1 if inverse else -1)
    roots = np.cos(angle).astype(real) + np.array(1j, x.dtype) * np.sin(angle).astype(real)
    found: Array = x @ roots.astype(x.dtype)
    return found / np.array(size, real) if divided else found
