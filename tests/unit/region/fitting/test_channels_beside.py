"""Windows of single channels whose lines fill no vectors have their channels side by side."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import weft
from weft import functional as F
from weft.ptir import Program
from weft.region.fitting import channels_beside
from weft.testing.compare import compare

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "steps of two": ((2, 33, 13, 18), (3, 3), {"stride": 2, "padding": 1}),
    "short lines": ((1, 40, 9, 7), (5, 5), {"padding": 2}),
    "few lines": ((3, 16, 2, 6), (3, 3), {"padding": 1}),
    "lines that nearly fill vectors": ((1, 17, 14, 14), (7, 7), {"padding": 3}),
    "one axis": ((2, 33, 50), (4,), {"stride": 3}),
    "three axes": ((1, 19, 4, 5, 6), (2, 3, 2), {"padding": 1}),
    "dilated": ((1, 33, 11, 12), (3, 3), {"stride": 2, "dilation": 2, "padding": 2}),
}


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels_beside, "_WORTH", 1)
    monkeypatch.setenv("WEFT_CACHE", "off")


def depthwise(name: str, dtype: str = "f32") -> tuple[Program, list[Any]]:
    """A layer with what is behind it."""
    shape, window, options = CASES[name]
    channels = shape[1]
    conv = getattr(F, f"conv{len(window)}d")

    def layer(x: Any, w: Any, b: Any) -> Any:
        y = conv(x, w, b, groups=channels, **options)
        return F.relu(y) + y.astype("f32")

    source = np.random.default_rng(0)
    shapes = (shape, (channels, 1, *window), (channels,))
    given = [weft.tensor(source.standard_normal(s), dtype=dtype) for s in shapes]
    return weft.jit(layer).program(*given), [np.asarray(each) for each in given]


def kernels_of(program: Program) -> list[str]:
    """With vectors of 16 floats."""
    module = json.loads(weft.compile(program, "x86-64-v4").stages["region"])["module"]
    return [kernel["region"]["name"] for kernel in module["kernels"]]


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_channels_lie_beside_one_another_and_agree(name: str, dtype: str) -> None:
    program, given = depthwise(name, dtype)
    assert any(found.endswith("_windows") for found in kernels_of(program))
    report = compare(program, given, "cpu")
    assert report.agrees, str(report)


def test_what_is_no_number_stays_in_its_windows() -> None:
    program, (x, w, b) = depthwise("steps of two")
    x, w = x.copy(), w.copy()
    x[1, 3, 5, 7], x[0, 8, 0, 0], w[9, 0, 1, 1] = np.inf, np.nan, -np.inf
    report = compare(program, [x, w, b], "cpu")
    assert report.agrees, str(report)


@pytest.mark.parametrize(
    "shape",
    [(1, 16, 8, 40), (1, 15, 8, 7), (1, 1, 8, 7), (1, 32, 14, 14)],
    ids=["long lines", "few channels", "one channel", "lines that nearly fill vectors"],
)
def test_other_windows_are_left_alone(shape: tuple[int, ...]) -> None:
    channels = shape[1]
    given = (weft.zeros(shape), weft.zeros((channels, 1, 3, 3)))
    layer = weft.jit(lambda x, w: F.conv2d(x, w, padding=1, groups=channels))
    assert not any(name.endswith("_windows") for name in kernels_of(layer.program(*given)))
