"""Tensors from data and numbers, against NumPy."""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import weft
from tests.unit.ops.array.arrays import ALL, FLOATS, SHAPES, agrees, data, dtype_of
from weft.foundation.errors import SpecViolation, UserError

# -- from data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_arrays_keep_their_dtype(dtype: str) -> None:
    for shape in SHAPES:
        x = data(dtype, shape)
        agrees(weft.asarray(x), x)
        agrees(weft.tensor(x), x)


@pytest.mark.parametrize(
    ("obj", "expected", "dtype"),
    [
        (True, True, "bool"), (3, 3, "int64"), (2.5, 2.5, "float32"), (1j, 1j, "complex64"),
        ([1, 2], [1, 2], "int64"), ([1, 2.5], [1, 2.5], "float32"),
        ([True, False], [True, False], "bool"), ([True, 2], [1, 2], "int64"),
        ([[1], [2]], [[1], [2]], "int64"), ((1.0, 2j), [1, 2j], "complex64"),
        ([], [], "float32"), ([[], []], [[], []], "float32"), (range(3), [0, 1, 2], "int64"),
        ([2**63], [2**63], "uint64"), (np.float64(1.5), 1.5, "float64"),
        (np.float16(1.5), 1.5, "float16"), (np.int8(3), 3, "int8"),
        (array.array("d", [1.0, 2.0]), [1, 2], "float64"), (memoryview(b"ab"), [97, 98], "uint8"),
    ],
)  # fmt: skip
def test_what_a_tensor_can_be_made_of(obj: Any, expected: Any, dtype: str) -> None:
    agrees(weft.asarray(obj), expected, dtype)


def test_dtypes_by_every_name() -> None:
    for name in ("float32", "f32", weft.float32, np.float32, np.dtype("f4"), float):
        assert weft.asarray([1, 2], dtype=name).dtype is weft.float32
    assert weft.zeros(2, dtype=int).dtype is weft.int64
    with pytest.raises(UserError, match="unknown dtype 'float31'; the dtypes are bool, int8"):
        weft.zeros(2, dtype="float31")


def test_rounding_to_narrow_floats_happens_once() -> None:
    value = 1 + 2**-8 + 2**-30
    assert weft.asarray([value], dtype=weft.bfloat16).numpy()[0] == ml_dtypes.bfloat16(1 + 2**-7)
    assert weft.asarray(value, dtype="bfloat16").item() == 1 + 2**-7


def test_lists_may_hold_tensors() -> None:
    x, y = weft.arange(3), weft.asarray([1.5, 2.5, 3.5])
    agrees(weft.asarray([x, y]), [[0, 1, 2], [1.5, 2.5, 3.5]], "float32")
    agrees(weft.asarray([[x[0], 5], [x[2], 7]]), [[0, 5], [2, 7]], "int64")
    agrees(weft.tensor([x[0], x[1]], dtype=weft.float64), [0, 1], "float64")


def test_lists_of_arrays_keep_their_dtype() -> None:
    rows = [np.asarray([1.1, 2.2]), np.asarray([3.3, 4.4])]
    agrees(weft.asarray(rows), np.stack(rows))
    agrees(weft.asarray([np.float64(1.1), 2.2]), np.asarray([1.1, 2.2]))
    agrees(weft.asarray([np.int8(1), np.int8(2)]), np.asarray([1, 2], np.int8))


def test_a_list_in_itself() -> None:
    items: list[Any] = [1]
    items.append(items)
    with pytest.raises(UserError, match="not an array of numbers"):
        weft.asarray(items)


def test_an_array_is_copied_unless_asked_not_to() -> None:
    source = np.zeros(3)
    copied, shared = weft.asarray(source), weft.asarray(source, copy=False)
    source[0] = 7
    agrees(copied, np.zeros(3))
    agrees(shared, source)
    big_endian = np.asarray([1.0, 2.0], ">f8")
    agrees(weft.asarray(big_endian), [1.0, 2.0], "float64")


@pytest.mark.parametrize(
    ("obj", "options"),
    [([1, 2], {}), (np.zeros(2), {"dtype": weft.float32})],
)
def test_a_copy_that_is_needed_but_forbidden(obj: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="copy is False"):
        weft.asarray(obj, copy=False, **options)


def test_tensors_are_taken_as_they_are() -> None:
    x = weft.ones(3)
    assert weft.asarray(x) is x
    assert weft.asarray(x, copy=False) is x
    assert weft.asarray(x, copy=True) is not x
    agrees(weft.asarray(x, dtype=weft.int8), np.ones(3, np.int8))
    assert weft.tensor(x, requires_grad=True).requires_grad
    assert not x.requires_grad


@pytest.mark.parametrize(
    ("obj", "dtype", "message"),
    [
        ([[1, 2], [3]], None, "lists must be rectangular"),
        (["a"], None, "not an array of numbers"),
        (object(), None, "not an array of numbers"),
        ([300], "int8", "the numbers from 300 to 300 are not all representable in si8"),
        ([1j], "float32", "complex numbers cannot be converted to f32"),
        (np.asarray(["2020"], "datetime64[Y]"), None, "datetime64"),
        ([2**70], None, "fit in 64 bits"),
    ],
)
def test_what_a_tensor_cannot_be_made_of(obj: Any, dtype: Any, message: str) -> None:
    with pytest.raises((UserError, SpecViolation), match=message) as error:
        weft.asarray(obj, dtype=dtype)
    assert "[asarray]" in str(error.value)


# -- filled --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_filled_tensors(dtype: str) -> None:
    for shape in SHAPES:
        agrees(weft.zeros(shape, dtype=dtype_of(dtype)), np.zeros(shape, dtype))
        agrees(weft.ones(shape, dtype=dtype_of(dtype)), np.ones(shape, dtype))
        agrees(weft.full(shape, 1, dtype=dtype_of(dtype)), np.full(shape, 1, dtype))
        x = weft.asarray(data(dtype, shape))
        agrees(weft.zeros_like(x), np.zeros(shape, dtype))
        agrees(weft.ones_like(x), np.ones(shape, dtype))
        agrees(weft.full_like(x, 1), np.ones(shape, dtype))
        assert weft.empty(shape, dtype=dtype_of(dtype)).type == weft.empty_like(x).type


def test_fill_values_choose_the_dtype() -> None:
    agrees(weft.full(2, True), np.full(2, True))
    agrees(weft.full((2,), 3), np.full(2, 3))
    agrees(weft.full((2,), 3.5), np.full(2, 3.5, np.float32))
    agrees(weft.full((), 1j), np.asarray(1j, np.complex64))
    agrees(weft.full((2,), weft.asarray(3)), np.full(2, 3))
    agrees(weft.full_like(weft.ones(2), 3, dtype=weft.int8), np.full(2, 3, np.int8))
    with pytest.raises(UserError, match="fill_value must be a number, not str"):
        weft.full(2, "a")


@pytest.mark.parametrize("shape", [-1, (2, -3), 1.5, "23", (2, "?B"), None])
def test_what_is_no_shape(shape: Any) -> None:
    with pytest.raises((UserError, SpecViolation)):
        weft.zeros(shape).numpy()


# -- counting ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        (5,), (0,), (-3,), (2, 7), (7, 2), (2, 7, 2), (7, 2, -2), (7, 2, -3), (0.5, 3), (3.0,),
        (0, 1, 0.25), (1, 0, -0.3), (10**17, 10**17 + 3), (-5, 5, 3), (5, 6, 100),
    ],
)  # fmt: skip
def test_arange(arguments: tuple[float, ...]) -> None:
    expected = np.arange(*arguments)
    if expected.dtype.kind == "f":
        expected = expected.astype(np.float32)
    agrees(weft.arange(*arguments), expected)


@pytest.mark.parametrize("dtype", [d for d in ALL if d != "bool"])
def test_arange_in_a_dtype(dtype: str) -> None:
    agrees(weft.arange(2, 20, 3, dtype=dtype_of(dtype)), np.arange(2, 20, 3), dtype)


def test_arange_at_the_ends_of_the_integers() -> None:
    start = 2**64 - 10
    agrees(
        weft.arange(start, 2**64 - 1, 4, dtype=weft.uint64),
        np.asarray([start, start + 4, start + 8], np.uint64),
    )
    agrees(weft.arange(20, 0, -7, dtype=weft.uint64), np.asarray([20, 13, 6], np.uint64))
    agrees(weft.arange(-(2**63), -(2**63) + 2), np.asarray([-(2**63), -(2**63) + 1]))


@pytest.mark.parametrize(
    "arguments",
    [
        (0, 5, 0),
        (0, 5, 0.0),
        (0, 5, float("nan")),
        (0, 5, float("inf")),
        (0.0, 1e308, 1e-308),
        (float("inf"),),
    ],
)
def test_steps_that_never_arrive(arguments: tuple[float, ...]) -> None:
    with pytest.raises(SpecViolation, match="no finite number of steps"):
        weft.arange(*arguments)


def test_more_steps_than_memory_holds() -> None:
    with pytest.raises(weft.WeftError):
        weft.arange(10**30).numpy()
    with pytest.raises(weft.WeftError):
        weft.zeros(10**13).numpy()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("endpoint", [True, False])
def test_linspace(dtype: str, endpoint: bool) -> None:
    for start, stop, num in [
        (0, 1, 5),
        (-1.0, 7.5, 4),
        (3, 3, 3),
        (0, 1, 1),
        (2, 9, 0),
        (5, 1, 50),
    ]:
        agrees(
            weft.linspace(start, stop, num, dtype=dtype_of(dtype), endpoint=endpoint),
            np.linspace(start, stop, num, endpoint=endpoint),
            dtype,
        )


def test_linspace_ends_exactly_and_takes_complex_numbers() -> None:
    assert weft.linspace(0, 0.1, 7, dtype=weft.float64)[-1].item() == 0.1
    huge = weft.linspace(-1.7e308, 1.7e308, 3, dtype=weft.float64)
    agrees(huge, [-1.7e308, 0.0, 1.7e308])
    agrees(weft.linspace(0, 1 + 2j, 3), np.linspace(0, 1 + 2j, 3), "complex64")


@pytest.mark.parametrize("shape", [(3, None), (3, 4), (4, 2), (0, 3), (1, 1)])
@pytest.mark.parametrize("k", [-5, -1, 0, 1, 2, 9])
def test_eye_and_triangles(shape: tuple[int, int | None], k: int) -> None:
    rows, columns = shape
    agrees(weft.eye(rows, columns, k=k), np.eye(rows, columns, k), "float32")
    x = data("int32", (2, rows, columns or rows))
    agrees(weft.tril(weft.asarray(x), k=k), np.tril(x, k))
    agrees(weft.asarray(x).triu(k=k), np.triu(x, k))
    agrees(weft.tril(weft.asarray(x > 0), k=k), np.tril(x > 0, k))


@pytest.mark.parametrize("indexing", ["xy", "ij"])
@pytest.mark.parametrize("sizes", [(), (3,), (2, 3), (2, 3, 4), (0, 2)])
def test_meshgrid(indexing: Any, sizes: tuple[int, ...]) -> None:
    vectors = [np.arange(size) for size in sizes]
    found = weft.meshgrid(*map(weft.asarray, vectors), indexing=indexing)
    for got, expected in zip(found, np.meshgrid(*vectors, indexing=indexing), strict=True):
        agrees(got, expected)


def test_counting_is_captured_not_stored() -> None:
    program = weft.arange(2, 1_000_000, 3).program()
    names = [instruction.op.name for instruction in program.main.body]
    assert names[0] == "iota"
    assert len(names) < 8
    assert not program.main.parameters


# -- DLPack and NumPy ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ALL)
def test_dlpack_in_and_out(dtype: str) -> None:
    for shape in SHAPES:
        x = data(dtype, shape)
        agrees(weft.from_dlpack(x), x)
        np.testing.assert_array_equal(
            np.from_dlpack(
                weft.asarray(x) + weft.zeros_like(x) if dtype != "bool" else weft.asarray(x)
            ),
            x,
        )
        agrees(weft.from_dlpack(weft.asarray(x), copy=True), x)


def test_dlpack_shares_memory_or_copies() -> None:
    source = np.zeros(3)
    shared, copied = weft.from_dlpack(source), weft.from_dlpack(source, copy=True)
    source[0] = 1.0
    assert shared[0].item() == 1.0
    assert copied[0].item() == 0.0
    with pytest.raises(UserError, match="has no __dlpack__ method"):
        weft.from_dlpack([1, 2])
    with pytest.raises(BufferError, match="no stream"):
        weft.ones(2).__dlpack__(stream=3)


def test_numpy_reads_tensors_without_writing_to_them() -> None:
    x = weft.asarray([1.0, 2.0])
    view = np.asarray(x)
    assert not view.flags.writeable
    own = x.numpy()
    own[0] = 9
    agrees(x, [1.0, 2.0], "float32")
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, copy=True).flags.writeable


@pytest.mark.skipif(np.longdouble == np.float64, reason="the longest float here is f64")
@pytest.mark.parametrize(
    ("kind", "wide"), [("longdouble", "float64"), ("clongdouble", "complex128")]
)
def test_the_longest_numbers_of_numpy_are_refused_with_what_to_do(kind: str, wide: str) -> None:
    with pytest.raises(UserError, match=rf"bring the array to {wide}, as by x\.astype\('{wide}'\)"):
        weft.asarray(np.zeros(3, kind))
    with pytest.raises(UserError, match="has more digits than any dtype of Weft"):
        weft.zeros(3, dtype=np.dtype(kind).type)
