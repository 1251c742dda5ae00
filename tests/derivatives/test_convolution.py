"""The way back through a convolution: a convolution, without a tensor of patches, summed in f32."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft import functional as F
from weft.ptir import Builder, Program, TensorType, gradient, vjp
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.window import ExtractPatches


def by_hand(x: Any, w: Any, g: Any, stride: int, pad: int, dilation: int, groups: int) -> Any:
    """The cotangent of x (channels first) in f64: every product put where it belongs."""
    count, spatial = x.ndim - 2, x.shape[2:]
    board = np.zeros((*x.shape[:2], *(n + 2 * pad for n in spatial)))
    each, share = w.shape[0] // groups, w.shape[1]
    for place in np.ndindex(g.shape[2:]):
        for offset in np.ndindex(w.shape[2:]):
            at = tuple(p * stride + o * dilation for p, o in zip(place, offset, strict=True))
            for n in range(groups):
                outputs = slice(n * each, (n + 1) * each)
                inputs = slice(n * share, (n + 1) * share)
                part = g[(slice(None), outputs, *place)] @ w[(outputs, slice(None), *offset)]
                board[(slice(None), inputs, *at)] += part
    inner = (slice(pad, pad + n) for n in spatial)
    return board[(slice(None), slice(None), *inner)] if count else board


SETTINGS = [
    (spatial, *rest)
    for spatial in (1, 2, 3)
    for rest in itertools.product((1, 3), (0, 2), (1, 2), (1, 2))
    if spatial == 1 or rest in ((1, 0, 1, 1), (1, 2, 1, 2), (3, 2, 2, 2), (3, 2, 1, 1))
]


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("setting", one_in(2, SETTINGS), ids=str)
def test_the_cotangent_of_the_input(setting: tuple[int, ...], window: int) -> None:
    spatial, stride, pad, dilation, groups = setting
    source = np.random.default_rng(setting)
    x = source.standard_normal((2, 4, *(8, 7, 6)[:spatial]))
    w = source.standard_normal((6, 4 // groups, *[window] * spatial))
    conv, name = getattr(F, f"conv{spatial}d"), f"conv{spatial}d"
    shape = conv(weft.tensor(x), weft.tensor(w), None, stride, pad, dilation, groups).shape
    g = source.standard_normal(shape)

    def weighed(image: Any) -> Any:
        found = conv(image, weft.tensor(w), None, stride, pad, dilation, groups)
        return weft.sum(found * weft.tensor(g))

    wanted = by_hand(x, w, g, stride, pad, dilation, groups)
    for form, backend in itertools.product(F.implementations(name), ("reference", "cpu")):
        with weft.graph(backend=backend), F.overrides({name: f"force={form}"}):
            found = np.asarray(weft.grad(weighed)(weft.tensor(x)))
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-11)


TRANSPOSED = [
    (spatial, *rest)
    for spatial in (1, 2, 3)
    for rest in itertools.product((1, 2, 3), (0, 1), (1, 2), (1, 2), (1, 2, 4))
    if spatial == 1 or rest in ((2, 1, 1, 1, 4), (3, 0, 2, 1, 2), (2, 1, 1, 2, 1))
]


@pytest.mark.parametrize("setting", one_in(4, TRANSPOSED), ids=str)
def test_the_cotangents_of_a_transposed_convolution(setting: tuple[int, ...]) -> None:
    """That of the input is a convolution in steps, and so is what the weight's is summed from."""
    spatial, stride, pad, dilation, groups, window = setting
    pad = min(pad, (window - 1) * dilation // 2)
    source = np.random.default_rng(setting)
    x = source.standard_normal((2, 4, *(5, 4, 3)[:spatial]))
    w = source.standard_normal((4, 6 // groups, *[window] * spatial))
    conv, plain = getattr(F, f"conv_transpose{spatial}d"), getattr(F, f"conv{spatial}d")
    extra = max(stride, dilation) - 1
    options = (None, stride, pad, extra, groups, dilation)
    g = source.standard_normal(conv(weft.tensor(x), weft.tensor(w), *options).shape)

    def weighed(x: Any, w: Any) -> Any:
        return weft.sum(conv(x, w, *options) * weft.tensor(g))

    def transposed(w: Any) -> Any:
        """The same sum by the convolution whose transpose it is."""
        made = plain(weft.tensor(g), w, None, stride, pad, dilation, groups)
        return weft.sum(made[(..., *map(slice, x.shape[2:]))] * weft.tensor(x))

    wanted = plain(weft.tensor(g), weft.tensor(w), None, stride, pad, dilation, groups)
    inside: Any = (..., *map(slice, x.shape[2:]))
    wanted = np.asarray(wanted)[inside]
    by_weight = np.asarray(weft.grad(transposed)(weft.tensor(w)))
    for backend in ("reference", "cpu"):
        with weft.graph(backend=backend):
            found = weft.grad(weighed, (0, 1))(weft.tensor(x), weft.tensor(w))
            alone = weft.grad(weighed, 1)(weft.tensor(x), weft.tensor(w))
        np.testing.assert_allclose(np.asarray(found[0]), wanted, rtol=1e-9, atol=1e-11)
        for each in (found[1], alone):
            np.testing.assert_allclose(np.asarray(each), by_weight, rtol=1e-9, atol=1e-11)


def test_the_cotangents_of_a_transposed_convolution_multiply_no_zeros() -> None:
    def squared(x: Any, w: Any) -> Any:
        return weft.sum(F.conv_transpose2d(x, w, stride=2) ** 2)

    program = weft.jit(lambda x, w: weft.grad(squared, (0, 1))(x, w)).program(
        np.ones((2, 4, 5, 5)), np.ones((4, 6, 2, 2))
    )
    taken = [i.op for i in program.main.body if isinstance(i.op, ExtractPatches)]
    assert {op.strides for op in taken} == {(1, 1), (2, 2)}


def _squared(dtype: str, stride: int, groups: int = 1) -> Program:
    b = Builder()
    x, w = b.param(dtype, [2, 16, 16, 8]), b.param(dtype, [3, 3, 8 // groups, 12])
    y = b.emit("weft.conv", x, w, layout="NHWC", stride=[stride] * 2, pad=[1] * 4, groups=groups)
    return b.build(y)


def _patched(dtype: str, stride: int) -> Program:
    b = Builder()
    x, w = b.param(dtype, [2, 16, 16, 8]), b.param(dtype, [72, 12])
    patches = b.emit(
        "extract_patches", x, window=[3, 3], strides=[stride] * 2, dilation=[1, 1],
        padding=[(1, 1)] * 2, pad_value=0.0,
    )  # fmt: skip
    return b.build(b.dot_general(patches, w, contract=([3], [0])))


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", [_squared, _patched])
def test_no_tensor_of_patches_is_stored(form: Any, stride: int) -> None:
    back = vjp(form("f32", stride), [0, 1])
    text = weft.compile(back, "cpu").stages["region"]
    kept = re.findall(r'"shape": \[([\d, ]*)\], "role": "internal"', text)
    sizes = [math.prod(int(n) for n in shape.split(", ")) for shape in kept if shape]
    assert max(sizes, default=0) <= 2 * 16 * 16 * 12


def test_windows_of_one_element_multiply_no_zeros() -> None:
    """What lies apart in the image is multiplied before the zeros come between."""
    b = Builder()
    x, w = b.param("f32", [2, 16, 16, 8]), b.param("f32", [1, 1, 8, 12])
    y = b.emit("weft.conv", x, w, layout="NHWC", stride=[2, 2], pad=[0] * 4)
    back = vjp(b.build(y), [0])
    products = [i.output for i in back.main.body if isinstance(i.op, DotGeneral)]
    assert [kind.shape for kind in products if isinstance(kind, TensorType)] == [(2, 8, 8, 8)]


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("form", [_squared, _patched])
def test_narrow_floats_are_summed_in_f32(form: Any, stride: int) -> None:
    """One rounding at the end: half a unit in the last place, and what f32 loses."""
    source = np.random.default_rng(stride)
    program, wide = (vjp(form(dtype, stride), [0]) for dtype in ("f16", "f64"))
    arrays = [
        source.standard_normal(kind.static_shape).astype(np.float16)
        for kind in program.main.parameters
        if isinstance(kind, TensorType)
    ]
    (_, exact) = weft.run(wide, [a.astype(np.float64) for a in arrays], backend="reference")
    for backend in ("reference", "cpu"):
        (_, found) = weft.run(program, arrays, backend=backend)
        error = np.abs(found.astype(np.float64) - exact)
        last_place = np.spacing(np.abs(exact).astype(np.float16)).astype(np.float64)
        assert (error <= 0.5 * last_place + 1e-4).all()


def test_patches_that_others_read_too_get_both_cotangents() -> None:
    b = Builder()
    x, w = b.param("f64", [1, 5, 2]), b.param("f64", [6, 3])
    patches = b.emit(
        "extract_patches", x, window=[3], strides=[1], dilation=[1], padding=[(1, 1)],
        pad_value=0.0,
    )  # fmt: skip
    product = b.dot_general(patches, w, contract=([2], [0]))
    whole = b.reduce_sum(product, [0, 1, 2]) + b.reduce_sum(patches * patches, [0, 1, 2])
    source = np.random.default_rng(3)
    arrays = [source.standard_normal((1, 5, 2)), source.standard_normal((6, 3))]
    program = b.build(whole)
    (_, found) = weft.run(gradient(program, wrt=0), arrays, backend="reference")
    step = 1e-6
    for place in np.ndindex(1, 5, 2):
        sides = []
        for sign in (1, -1):
            moved = arrays[0].copy()
            moved[place] += sign * step
            sides.append(weft.run(program, [moved, arrays[1]], backend="reference")[0])
        assert found[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-6)


def test_a_batch_of_any_size() -> None:
    b = Builder()
    x, w = b.param("f64", ["?N", 6, 2]), b.param("f64", [6, 3])
    patches = b.emit(
        "extract_patches", x, window=[3], strides=[2], dilation=[1], padding=[(1, 0)],
        pad_value=0.0,
    )  # fmt: skip
    program = vjp(b.build(b.dot_general(patches, w, contract=([2], [0]))), [0])
    assert sum(isinstance(i.op, ExtractPatches) for i in program.main.body) == 2
    source = np.random.default_rng(4)
    arrays = [source.standard_normal(s) for s in ((4, 6, 2), (6, 3), (4, 3, 3))]
    (_, found) = weft.run(program, arrays, backend="reference")
    kernel = arrays[1].reshape(3, 2, 3).transpose(2, 1, 0)
    padded = np.pad(arrays[0].swapaxes(1, 2), ((0, 0), (0, 0), (1, 0)))
    wanted = by_hand(padded, kernel, arrays[2].swapaxes(1, 2), 2, 0, 1, 1)
    np.testing.assert_allclose(found, wanted[:, :, 1:].swapaxes(1, 2), rtol=1e-9, atol=1e-12)
