"""Windows that are reduced one axis after the other."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder, Program
from weft.region.fitting import window_axes


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_axes, "_WORTH", 1)


def windows(
    shape: tuple[int, ...], window: int, step: int, dtype: str = "f32", reduce: str = "sum"
) -> Program:
    """Windows over an image with zeros between its elements, as in the gradient of a pool."""
    b = Builder()
    x, rank, spatial = b.param(dtype, list(shape)), len(shape), len(shape) - 1
    return b.build(
        b.emit(
            "reduce_window", x, window_dims=[1] + [window] * spatial,
            padding=[(0, 0)] + [(window - 1, window - 1)] * spatial,
            base_dilation=[1] + [step] * spatial, strides=[1] * rank, window_dilation=[1] * rank,
            reduce=reduce,
        )
    )  # fmt: skip


def axes_at_once(program: Program) -> int:
    """The axes of windows that some kernel, or a stage of one, reduces together."""
    module = json.loads(weft.compile(program, "cpu").stages["region"])["module"]
    kernels = [kernel["region"] for kernel in module["kernels"]]
    parts: list[Any] = [*kernels, *(s for k in kernels for s in k.get("stages", ()))]
    counts: list[int] = [sum(axis.get("reduce", False) for axis in p["axes"]) for p in parts]
    return max(counts)


@pytest.mark.parametrize("dtype", ["f32", "f64", "si32"])
@pytest.mark.parametrize(
    ("shape", "window", "step"), [((5, 6, 7), 3, 2), ((3, 4, 5, 4), 3, 2), ((3, 4, 3, 4), 4, 3)]
)
def test_sums_add_up_axis_by_axis(
    shape: tuple[int, ...], window: int, step: int, dtype: str
) -> None:
    program = windows(shape, window, step, dtype)
    assert axes_at_once(program) == 1
    x = np.random.default_rng(0).integers(-9, 9, shape)
    kind = BY_NAME[dtype].numpy
    found, want = (weft.run(program, [x.astype(kind)], backend=b)[0] for b in ("cpu", "reference"))
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
def test_what_is_not_finite_stays_in_its_windows(reduce: str) -> None:
    program = windows((2, 6, 7), 3, 2, reduce=reduce)
    assert axes_at_once(program) == 1
    x = np.random.default_rng(0).integers(-9, 9, (2, 6, 7)).astype(np.float32)
    x[0, 2, 3], x[1, 0, 0], x[1, 5, 5] = np.nan, np.inf, -np.inf
    found, want = (weft.run(program, [x], backend=b)[0] for b in ("cpu", "reference"))
    np.testing.assert_array_equal(found, want)


def test_windows_that_do_not_overlap_stay_whole() -> None:
    b = Builder()
    x = b.param("f32", [4, 8, 8])
    pairs = b.emit("reduce_window", x, window_dims=[1, 2, 2], strides=[1, 2, 2], reduce="sum")
    assert axes_at_once(b.build(pairs)) == 2


def test_few_elements_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert axes_at_once(windows((3, 4, 5, 4), 3, 2)) == 3
