"""Picking, placing, padding and resampling against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, Array, agrees, data, wide
from weft import functional
from weft.foundation.dtypes import DType
from weft.foundation.errors import WeftError

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""

Shape = tuple[int, ...]


@pytest.mark.parametrize("axis", [-1, 0, 1])
@pytest.mark.parametrize("dtype", ["f32", "si64", "i1", "bf16"])
def test_one_hot(axis: int, dtype: str) -> None:
    indices = np.asarray([2, 0, 5, -1])
    expected = np.zeros((4, 3))
    expected[[0, 1], [2, 0]] = 1
    found = F.one_hot(weft.asarray(indices), 3, axis=axis, dtype=dtype)
    assert str(found.dtype) == dtype
    np.testing.assert_array_equal(wide(found.numpy()), np.moveaxis(expected, -1, axis))


@each("largest", [True, False])
@each(("shape", "axis", "k"), [((7,), -1, 3), ((4, 6), 0, 4), ((2, 5, 3), 1, 1)])
@each("dtype", DTYPES)
def test_top_k(shape: Shape, axis: int, k: int, largest: bool, dtype: DType) -> None:
    x = np.round(wide(data(shape, dtype, scale=2.0))).astype(dtype.numpy)  # with ties
    order = np.argsort(-wide(x) if largest else wide(x), axis, kind="stable")
    expected = np.take(order, range(k), axis)
    values, places = F.top_k(weft.asarray(x), k, axis, largest=largest)
    np.testing.assert_array_equal(places.numpy(), expected)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, expected, axis))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("shape", "count", "axis"), [((5,), 8, 0), ((3, 4), 2, -1), ((3, 4), 5, 0)]
)
def test_gather(shape: Shape, count: int, axis: int, kind: Any) -> None:
    x = data(shape)
    wanted = list(shape)
    wanted[axis] = count
    indices = np.random.default_rng(0).integers(0, shape[axis], wanted).astype(kind)
    found = F.gather(weft.asarray(x), weft.asarray(indices), axis)
    np.testing.assert_array_equal(found.numpy(), np.take_along_axis(x, indices, axis))


def placed(x: Array, indices: Array, updates: Array, axis: int, reduce: str) -> Array:
    out = wide(x)
    for place in np.ndindex(indices.shape):
        at = list(place)
        at[axis] = int(indices[place])
        old, new = out[tuple(at)], float(updates[place])
        out[tuple(at)] = {"replace": new, "add": old + new, "max": max(old, new),
                          "min": min(old, new)}[reduce]  # fmt: skip
    return out


@pytest.mark.parametrize("reduce", ["replace", "add", "max", "min"])
@pytest.mark.parametrize(
    ("shape", "count", "axis"), [((5,), 3, 0), ((3, 4), 2, -1), ((3, 4), 2, 0)]
)
def test_scatter(shape: Shape, count: int, axis: int, reduce: str) -> None:
    x = data(shape)
    wanted = list(shape)
    wanted[axis] = count
    rng = np.random.default_rng(1)
    indices = rng.random(shape).argsort(axis).take(range(count), axis)  # no place twice
    updates = data(tuple(wanted), seed=1)
    given = [weft.asarray(a) for a in (x, indices, updates)]
    exact = placed(x, indices, updates, axis, reduce)
    agrees(F.scatter(*given, axis, reduce=reduce), exact)
    if reduce == "add":
        agrees(F.scatter_add(*given, axis), exact)


def test_several_updates_at_one_place_add_up() -> None:
    x, indices = weft.zeros((3,)), weft.asarray(np.asarray([1, 1, 1]))
    assert F.scatter_add(x, indices, weft.asarray([1.0, 2.0, 4.0])).tolist() == [0.0, 7.0, 0.0]


TABLES: dict[str, Any] = {
    "data": lambda: weft.asarray(data((3, 4))),
    "a splat": lambda: weft.zeros((3, 4)),
    "repeated rows": lambda: weft.broadcast_to(weft.asarray(data((4,))), (3, 4)),
    "one row": lambda: weft.asarray(data((1, 4))),
    "counted": lambda: weft.broadcast_to(weft.arange(4, dtype=weft.float32), (3, 4)) * 2,
}
"""Tables of rows, some of which are the same in every row."""
READINGS: dict[str, Any] = {
    "take": lambda x, at: weft.take(x, at, axis=0),
    "gather": lambda x, at: F.gather(x, weft.broadcast_to(at.reshape(2, 1), (2, 4)), axis=0),
    "embedding": lambda x, at: F.embedding(at, x),
    "a sum": lambda x, at: weft.sum(weft.take(x, at, axis=0), axis=0),
    "a product": lambda x, at: weft.take(x, at, axis=0) @ weft.ones((4, 2)),
}


@each("backend", ["reference", "cpu"])
@each("reading", READINGS)
@each("table", TABLES)
def test_an_index_out_of_range_is_told_when_it_runs(table: str, reading: str, backend: str) -> None:
    with weft.graph(backend=backend):
        wrong = READINGS[reading](TABLES[table](), weft.asarray(np.asarray([0, 3])))
        right = READINGS[reading](TABLES[table](), weft.asarray(np.asarray([0, 0])))
    with pytest.raises(WeftError, match="GatherIndexOutOfBounds"):
        wrong.eval()
    with weft.graph():
        expected = READINGS[reading](TABLES[table](), weft.asarray(np.asarray([0, 0])))
    np.testing.assert_allclose(right.numpy(), expected.numpy(), rtol=1e-6)


# -- the array functions that models use ---------------------------------------------------------


def test_cumsum_sort_tile_clip_where() -> None:
    x = data((3, 4))
    tensor = weft.asarray(x)
    agrees(F.cumsum(tensor, axis=1), wide(x).cumsum(1))
    np.testing.assert_array_equal(F.sort(tensor, axis=0).numpy(), np.sort(x, 0))
    np.testing.assert_array_equal(F.tile(tensor, (2, 1)).numpy(), np.tile(x, (2, 1)))
    np.testing.assert_array_equal(F.clip(tensor, -0.5, 0.5).numpy(), x.clip(-0.5, 0.5))
    np.testing.assert_array_equal(F.where(tensor > 0, tensor, 0.0).numpy(), np.where(x > 0, x, 0))


# -- padding and pixels --------------------------------------------------------------------------


@each("mode", ["constant", "reflect", "edge", "wrap"])
@each(
    ("shape", "widths"),
    [((5,), 2), ((5,), (1, 2)), ((3, 4), ((0, 2), (3, 0))), ((2, 3, 4), 1), ((4,), 0)],
)
def test_pad(shape: Shape, widths: Any, mode: Any) -> None:
    x = data(shape)
    found = F.pad(weft.asarray(x), widths, mode)
    np.testing.assert_array_equal(found.numpy(), np.pad(x, widths, mode))


def test_pad_with_a_value() -> None:
    x = np.arange(3)
    found = F.pad(weft.asarray(x), (1, 2), value=-7)
    np.testing.assert_array_equal(found.numpy(), np.pad(x, (1, 2), constant_values=-7))


@pytest.mark.parametrize(
    ("widths", "meant"),
    [
        ((1, 2), "[(0, 0), (1, 2)] to read them as PyTorch does, or [(1, 2), (1, 2)] as NumPy"),
        ((1, 2, 3, 4), "[(3, 4), (1, 2)] to read them as PyTorch does"),
        ((1, 2, 3), "give a number, or a pair (low, high) for every axis"),
    ],
)
def test_flat_widths_of_several_axes_are_refused_with_what_they_could_mean(
    widths: Any, meant: str
) -> None:
    with pytest.raises(WeftError) as caught:
        F.pad(weft.zeros((3, 4)), widths)
    assert f"the widths {widths} do not say how to pad x (3, 4)" in str(caught.value)
    assert meant in str(caught.value)


def test_nothing_can_be_padded_only_by_a_value() -> None:
    assert F.pad(weft.zeros((0,)), 2).tolist() == [0.0] * 4
    with pytest.raises(WeftError, match=r"axis 0 of x \(0,\) cannot be padded"):
        F.pad(weft.zeros((0,)), 2, "edge")


def test_pixel_shuffle() -> None:
    x = data((2, 12, 3, 5))
    exact = np.zeros((2, 3, 6, 10))
    for n, c, h, w in np.ndindex(exact.shape):
        exact[n, c, h, w] = x[n, c * 4 + (h % 2) * 2 + w % 2, h // 2, w // 2]
    agrees(F.pixel_shuffle(weft.asarray(x), 2), exact, ulps=0)


def resampled(x: Array, axis: int, new: int, step: float, mode: str, corners: bool) -> Array:
    """One axis, one new element at a time."""
    old = x.shape[axis]
    pieces = []
    for i in range(new):
        if mode == "nearest":
            pieces.append(np.take(x, min(int(i * step), old - 1), axis))
            continue
        at = max((i + 0.5) * step - 0.5, 0.0)
        if corners:
            at = i * (old - 1) / (new - 1) if new > 1 else 0.0
        low = min(int(at), old - 1)
        high = min(low + 1, old - 1)
        share = at - low
        pieces.append(np.take(x, low, axis) * (1 - share) + np.take(x, high, axis) * share)
    return np.stack(pieces, axis)


@each("dtype", DTYPES)
@each(("mode", "corners"), [("nearest", False), ("linear", False), ("linear", True)])
@each(
    ("shape", "size"),
    [
        ((1, 2, 5), (8,)),
        ((1, 2, 4, 6), (8, 3)),
        ((2, 1, 3, 3), (1, 7)),
        ((1, 1, 2, 3, 4), (3, 3, 3)),
    ],
)
@each("last", [False, True])
def test_interpolate(
    shape: Shape, size: Shape, mode: str, corners: bool, last: bool, dtype: DType
) -> None:
    x = data(shape, dtype)
    exact = wide(x)
    for axis, new in enumerate(size, 2):
        exact = resampled(exact, axis, new, shape[axis] / new, mode, corners)
    layout = {3: ("NCW", "NWC"), 4: ("NCHW", "NHWC"), 5: ("NCDHW", "NDHWC")}[x.ndim][last]
    given = weft.asarray(np.moveaxis(x, 1, -1) if last else x)
    found = F.interpolate(given, size, mode=mode, align_corners=corners, layout=layout)
    agrees(found, np.moveaxis(exact, 1, -1) if last else exact, dtype)


@pytest.mark.parametrize(("factor", "new"), [(2.0, 10), (0.5, 2), (1.7, 8)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_interpolate_by_a_factor(factor: float, new: int, mode: str) -> None:
    x = data((1, 2, 5))
    exact = resampled(wide(x), 2, new, 1 / factor, mode, False)
    agrees(F.interpolate(weft.asarray(x), scale_factor=factor, mode=mode), exact)


# -- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dropout_keeps_the_mean_and_is_a_function_of_its_seed(dtype: DType) -> None:
    x = weft.ones((64, 64), dtype=dtype)
    first = wide(F.dropout(x, 0.25, seed=1, offset=3).numpy())
    kept = first != 0
    scaled = wide(np.asarray(1 / 0.75).astype(dtype.numpy))
    np.testing.assert_array_equal(first[kept], np.full(kept.sum(), scaled))
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.25 * 0.75 / kept.size)
    again = wide(F.dropout(x, 0.25, seed=1, offset=3).numpy())
    np.testing.assert_array_equal(first, again)
    for seed, offset in ((2, 3), (1, 4)):
        other = wide(F.dropout(x, 0.25, seed=seed, offset=offset).numpy()) != 0
        assert 0.5 < (other == kept).mean() < 0.75


def test_dropout_of_nothing_and_of_everything() -> None:
    x = weft.asarray(data((5,)))
    for found in (F.dropout(x, 0.0, seed=1), F.dropout(x, 0.5, seed=1, training=False)):
        np.testing.assert_array_equal(found.numpy(), x.numpy())
    np.testing.assert_array_equal(F.dropout(x, 1.0, seed=1).numpy(), np.zeros(5))


def test_the_seed_may_be_traced() -> None:
    x = weft.ones((32,))
    step = weft.jit(lambda x, seed: F.dropout(x, 0.5, seed=seed))
    for seed in (1, 2):
        expected = F.dropout(x, 0.5, seed=seed).numpy()
        np.testing.assert_array_equal(step(x, weft.asarray(seed)).numpy(), expected)
    assert len(step.versions) == 1
