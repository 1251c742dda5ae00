"""Index expressions against NumPy: written ones, and random ones, read and assigned, eager and
traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.support.cases import each
from tests.unit.ops.array.arrays import Array, agrees, data
from weft.foundation.errors import SpecViolation, UserError
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.evaluate import Request
from weft.ops.jit import jit

_RELAXED = settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    database=None,
)


def numbered(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.int64).reshape(shape)


# -- random index expressions --------------------------------------------------------------------


@st.composite
def slices(draw: Any, size: int) -> slice:
    bound = st.none() | st.integers(-size - 2, size + 2)
    step = draw(st.none() | st.integers(-3, 3).filter(bool))
    return slice(draw(bound), draw(bound), step)


@st.composite
def places(draw: Any, size: int) -> Array:
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 1), (2, 3)]))
    found = draw(st.lists(st.integers(-size, size - 1), min_size=6, max_size=6))
    return np.resize(np.asarray(found), shape)


@st.composite
def keys(draw: Any, shape: tuple[int, ...], masks: bool = True) -> tuple[Any, ...]:
    """An index expression for a shape, arrays as NumPy's."""
    key: list[Any] = []
    axis = 0
    dotted = False
    while axis < len(shape):
        size = shape[axis]
        kinds = ["slice", "slice", "stop"] + ["none"] * (len(key) < 6)
        kinds += ["dots"] * (not dotted)
        kinds += ["int", "places"] * (size > 0) + ["mask"] * masks
        kind = draw(st.sampled_from(kinds))
        if kind == "stop":
            break
        if kind == "none":
            key.append(None)
            continue
        if kind == "dots":
            dotted = True
            key.append(...)
            axis += draw(st.integers(0, len(shape) - axis))
            continue
        if kind == "mask":
            key.append(
                np.asarray(draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
            )
        elif kind == "int":
            key.append(draw(st.integers(-size, size - 1)))
        else:
            key.append(draw(slices(size) if kind == "slice" else places(size)))
        axis += 1
    return tuple(key)


def reads(array: Array, key: tuple[Any, ...]) -> Array | None:
    """What NumPy reads; None where it says that the arrays do not broadcast."""
    try:
        return np.asarray(array[key])
    except IndexError:
        return None


def in_weft(key: tuple[Any, ...], as_tensors: bool) -> tuple[Any, ...]:
    return tuple(weft.asarray(k) if as_tensors and isinstance(k, np.ndarray) else k for k in key)


SHAPES = st.lists(st.integers(0, 4), min_size=0, max_size=4).map(tuple)


@_RELAXED
@given(st.data(), SHAPES, st.booleans())
def test_reading_agrees_with_numpy(draw: Any, shape: tuple[int, ...], as_tensors: bool) -> None:
    key = draw.draw(keys(shape))
    array = numbered(*shape)
    expected = reads(array, key)
    x = weft.asarray(array)
    if expected is None:
        with pytest.raises(IndexError):
            x[in_weft(key, as_tensors)].numpy()
        return
    agrees(x[in_weft(key, as_tensors)], expected)


@_RELAXED
@given(st.data(), SHAPES, st.booleans())
def test_assigning_agrees_with_numpy(draw: Any, shape: tuple[int, ...], as_tensors: bool) -> None:
    key = draw.draw(keys(shape))
    array = numbered(*shape)
    found = reads(array, key)
    if found is None:
        return
    dims = list(found.shape)
    for axis in range(len(dims)):
        dims[axis] = draw.draw(st.sampled_from([1, dims[axis]]))
    value = -1 - numbered(*dims[draw.draw(st.integers(0, len(dims))) :])
    x = weft.asarray(array)
    untouched = x + 0
    x[in_weft(key, as_tensors)] = weft.asarray(value) if as_tensors else value
    expected = array.copy()
    expected[key] = value
    agrees(x, expected)
    agrees(untouched, array)


@settings(_RELAXED, max_examples=30)
@given(st.data(), SHAPES)
def test_traced_indices_agree_with_numpy(draw: Any, shape: tuple[int, ...]) -> None:
    key = draw.draw(keys(shape, masks=False))
    array = numbered(*shape)
    expected = reads(array, key)
    if expected is None:
        return
    arrays = [k for k in key if isinstance(k, np.ndarray)]

    def both(x: weft.Tensor, *given_places: weft.Tensor) -> tuple[weft.Tensor, weft.Tensor]:
        remaining = iter(given_places)
        own = tuple(next(remaining) if isinstance(k, np.ndarray) else k for k in key)
        read = x[own]
        x[own] = -7
        return read, x

    read, written = jit(both)(weft.asarray(array), *map(weft.asarray, arrays))
    agrees(read, expected)
    assigned = array.copy()
    assigned[key] = -7
    agrees(written, assigned)


# -- written ones --------------------------------------------------------------------------------

X = numbered(3, 4, 5)
WRITTEN: list[Any] = [
    0, -1, slice(None), slice(1, 3), slice(None, None, -1), slice(3, 0, -2), ..., None,
    (0, 1, 2), (..., 0), (slice(None), 1), (None, 0, None), (0, ..., -1), (slice(0, 0),),
    [0, 2], ([0, 2], [1, 3]), ([[0], [2]], [1, 3]), (0, slice(None), [1, 2]), (slice(None), [1], 0),
    ([0, 1], slice(None), [1, 2]), (0, [1, 2]), ([0, 1], None, [1, 2]), X > 30,
    (X > 30).any(axis=2), (slice(None), (X > 30)[0]), (0, X[0] > 10), True, False,
    (True, 0), np.asarray(1), np.int64(2), np.asarray([[0, 1], [2, 0]]), [], (slice(None), []),
    np.uint8(1), np.asarray([0, 2], np.uint8),
]  # fmt: skip


@each("key", WRITTEN)
def test_written_expressions(key: Any) -> None:
    agrees(weft.asarray(X)[key], X[key])


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float32", "complex128"])
def test_every_dtype(dtype: str) -> None:
    array = data(dtype, (3, 4))
    x = weft.asarray(array)
    agrees(x[::-1, 1::2], array[::-1, 1::2])
    agrees(x[[0, 2]], array[[0, 2]])
    x[1:, ::2] = x[0, 0]
    array[1:, ::2] = array[0, 0]
    agrees(x, array)


def test_a_scalar_tensor_is_an_index() -> None:
    x = weft.asarray(X)
    at = weft.asarray(2)
    agrees(x[at], X[2])
    agrees(x[:, at], X[:, 2])
    agrees(x[weft.asarray(0) : at], X[0:2])
    agrees(jit(lambda x, i: x[:, i, 1:])(x, at), X[:, 2, 1:])


def test_iteration_and_length() -> None:
    x = weft.asarray(X)
    assert len(x) == 3
    for row, expected in zip(x, X, strict=True):
        agrees(row, expected)


# -- assignment ----------------------------------------------------------------------------------


def test_assigning_by_a_mask_reads_nothing_where_one_value_fits_all() -> None:
    def positive_part(x: weft.Tensor) -> weft.Tensor:
        x[x < 0] = 0.0
        return x

    array = data("float32", (3, 4))
    agrees(jit(positive_part)(weft.asarray(array)), np.maximum(array, 0))


def test_assigning_by_a_mask_with_a_value_for_each_element() -> None:
    array = numbered(3, 4)
    x = weft.asarray(array)
    x[x % 2 == 0] = weft.arange(6) * 10
    array[array % 2 == 0] = np.arange(6) * 10
    agrees(x, array)
    x[weft.asarray([True, False, True])] = weft.asarray([1, 2, 3, 4])
    array[[0, 2]] = [1, 2, 3, 4]
    agrees(x, array)


def test_of_repeated_positions_the_last_value_stays() -> None:
    x = weft.zeros(3)
    x[[1, 1, 1]] = weft.asarray([1.0, 2.0, 3.0])
    agrees(x, [0.0, 3.0, 0.0], "float32")


def test_tensors_that_share_a_value_do_not_share_assignments() -> None:
    x = weft.asarray([1.0, 2.0, 3.0])
    copy, detached, positive = weft.asarray(x, copy=True), x.detach(), +x
    x[0] = 9.0
    for other in (copy, detached, positive):
        agrees(other, [1.0, 2.0, 3.0], "float32")
    assert weft.asarray(x) is x


def test_an_assigned_tensor_keeps_its_dtype() -> None:
    x = weft.zeros(3, dtype=weft.float32)
    x[0] = 1
    x[1] = weft.asarray(2.5, dtype=weft.float64)
    x[2] = weft.asarray(3)
    agrees(x, [1.0, 2.5, 3.0], "float32")
    with pytest.raises(SpecViolation, match=r"\[setitem\] elements of f32 cannot be assigned"):
        weft.zeros(3, dtype=weft.int32)[0] = weft.asarray(1.5)
    with pytest.raises(SpecViolation, match=r"the number 1\.5 is not representable in si32"):
        weft.zeros(3, dtype=weft.int32)[0] = 1.5


def test_assigning_to_a_tensor_from_outside_a_traced_function_is_an_error() -> None:
    outside = weft.zeros(3)

    def changes(x: weft.Tensor) -> weft.Tensor:
        outside[0] = 1.0
        return x

    with pytest.raises(UserError, match=r"\[setitem\] a tensor of type f32\[3\] that the traced"):
        jit(changes)(weft.ones(3))

    def grows(x: weft.Tensor) -> weft.Tensor:
        nonlocal outside
        outside += x
        return x

    with pytest.raises(UserError, match=r"test_indexing\.py:\d+: \[iadd\]"):
        jit(grows)(weft.ones(3))
    agrees(outside, np.zeros(3), "float32")


# -- take ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8, np.uint16])
def test_take(axis: int, dtype: Any) -> None:
    indices = np.asarray([2, 0, 1, 1], dtype)
    agrees(weft.take(weft.asarray(X), weft.asarray(indices), axis=axis), X.take(indices, axis))
    grid = indices.reshape(2, 2)
    agrees(weft.asarray(X).take(weft.asarray(grid), axis=axis), X.take(grid, axis))


def test_take_counts_from_the_end_and_needs_an_axis() -> None:
    agrees(weft.take(weft.arange(5), weft.asarray([-1, -5])), [4, 0], "int64")
    with pytest.raises(SpecViolation, match="the axis must be named"):
        weft.take(weft.asarray(X), weft.asarray([0]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_take_along_axis(axis: int) -> None:
    order = np.argsort(-X, axis=axis)
    agrees(
        weft.take_along_axis(weft.asarray(X), weft.asarray(order), axis=axis),
        np.take_along_axis(X, order, axis),
    )


def test_take_along_axis_broadcasts() -> None:
    indices = np.asarray([[[0], [2], [-1], [1]]])
    agrees(
        weft.take_along_axis(weft.asarray(X), weft.asarray(indices), axis=-1),
        np.take_along_axis(X, indices, -1),
    )


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (3, r"index 3 is out of range for axis 0 of x \(3, 4, 5\) \(it has -3 to 2\)"),
        ((0, -5), r"index -5 is out of range for axis 1"),
        ((0, 0, 0, 0), r"4 axes are indexed, but x \(3, 4, 5\) has 3"),
        ([0, 3], r"index 3 is out of range for axis 0"),
        (np.zeros((2, 4), bool), r"the mask \(2, 4\) has size 2 on axis 0, but x"),
        (([0, 1], [0, 1, 2]), r"do not broadcast: sizes 2 and 3 differ"),
    ],
)
def test_positions_out_of_range_are_named_at_once(key: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message) as error:
        weft.asarray(X)[key]
    assert isinstance(error.value, SpecViolation)
    assert "[getitem]" in str(error.value)
    assert "test_indexing.py:" in str(error.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((..., ...), "at most one"),
        ("name", "cannot be indexed with a str"),
        (1.5, "cannot be indexed with a float"),
        (slice(None, None, 0), "slice step cannot be zero"),
        ([[0, 1], [0]], "rectangular"),
    ],
)
def test_what_is_no_index(key: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        weft.asarray(X)[key]


def test_an_index_tensor_must_hold_integers() -> None:
    with pytest.raises(SpecViolation, match="the index is of dtype f32"):
        weft.asarray(X)[weft.asarray([0.0])]


@pytest.mark.parametrize("key", [([3],), ([0], [4]), ([-4],)])
def test_tensor_positions_out_of_range_are_an_error_when_they_are_read(key: Any) -> None:
    chosen = weft.asarray(X)[tuple(map(weft.asarray, key))]
    with pytest.raises(SpecViolation) as error:
        chosen.numpy()
    assert error.value.code == "GatherIndexOutOfBounds"


def test_a_traced_mask_cannot_change_a_shape() -> None:
    with pytest.raises(SpecViolation, match="the number of elements that a mask selects") as error:
        jit(lambda x: x[x > 0])(weft.ones(3))
    assert error.value.code == "DynamicDimensionMismatch"
    assert "weft.where" in error.value.hint


def test_a_value_must_broadcast_to_the_elements() -> None:
    x = weft.asarray(X)
    with pytest.raises(SpecViolation, match=r"shape \(3,\) does not broadcast to the \(4, 5\)"):
        x[0] = weft.asarray([1, 2, 3])
    x[0] = weft.ones((1, 1, 5), dtype=weft.int64)
    assert int(x[0].sum()) == 20


# -- another place is the same program -----------------------------------------------------------


def compiled() -> int:
    return PROGRAMS.statistics.compiled


def keys_at(i: int) -> list[Any]:
    """Index expressions that differ by their places only, for each list position."""
    at = np.asarray([2, 0, 1])
    return [
        i, -i - 1, slice(i, i + 3), slice(-i - 3, None if i == 0 else -i), (slice(None), i),
        (i, slice(i, i + 2)), slice(i + 4, i, -2), (..., slice(i, i + 4, 3)), (None, i, None),
        (i, weft.asarray(at)), (slice(i, i + 4), weft.asarray(at)),
    ]  # fmt: skip


@pytest.mark.parametrize("which", range(len(keys_at(0))))
def test_a_read_or_assignment_at_another_place_compiles_nothing(which: int) -> None:
    array = numbered(9, 10).astype(np.float32)
    x = weft.asarray(array).eval()
    before = compiled()
    for i in range(5):
        if i == 2:
            before = compiled()
        key = keys_at(i)[which]
        agrees(x[key], array[_as_arrays(key)])
        new, expected = weft.asarray(array).eval(), array.copy()
        new[key] = float(i) + 0.5
        expected[_as_arrays(key)] = float(i) + 0.5
        agrees(new, expected)
    assert compiled() == before


def _as_arrays(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_as_arrays, key))
    return np.asarray(key) if isinstance(key, weft.Tensor) else key


def test_iteration_over_many_rows_compiles_two_programs() -> None:
    x = weft.asarray(numbered(40, 3)).eval()
    before = compiled()
    assert [row.tolist() for row in x] == numbered(40, 3).tolist()
    assert compiled() - before <= 2


def test_traced_functions_know_their_places() -> None:
    def spread(x: Any) -> Any:
        return weft.sum(x[1:] * x[:-1]) + x[3]

    x = weft.asarray(numbered(6).astype(np.float32))
    for function in (spread, weft.grad(spread)):
        body = jit(function).program(x).main.body
        assert not [i for i in body if i.op.name.startswith("dynamic_slice")]
    eager, traced = weft.grad(spread)(x), jit(weft.grad(spread))(x)
    assert eager.tolist() == traced.tolist() == [1.0, 2.0, 4.0, 7.0, 8.0, 4.0]


def test_a_place_that_never_changes_stays_part_of_the_program() -> None:
    x = weft.asarray(numbered(8).astype(np.float32)).eval()
    for scale in (1.0, 2.0, 3.0):
        agrees((x[2:] - x[:-2]) * scale, np.full(6, 2 * scale, np.float32))
    request = Request([((x[2:] - x[:-2]) * 4.0)._node])
    numbers = tuple(node.storage.data for node in request.literals)
    _, lifted = PROGRAMS.find(request.signature, numbers, request.build)
    assert [request.literals[at].tensor.rank for at in lifted] == [0]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize(("axis", "place"), [(0, -7), (0, 3), (1, -3), (1, 5)])
def test_an_assignment_out_of_range_is_told_as_one(axis: int, place: int, backend: str) -> None:
    x, places = weft.ones((3, 2)).to(backend), weft.asarray([0, place]).to(backend)
    x[(slice(None),) * axis + (places,)] = 9.0
    with pytest.raises(SpecViolation, match=f"index {place} at ") as caught:
        x.numpy()
    assert caught.value.code == "ScatterIndexOutOfBounds"
