"""Movement ops against loops over indices, bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, infer, random_array
from weft.foundation.dtypes import (
    BF16,
    BOOL,
    COMPLEX,
    F16,
    F32,
    FLOATS,
    FP8_E4M3,
    FP8_E5M2,
    INTEGERS,
    SI4,
    SI8,
    UI8,
    UI64,
    DType,
)
from weft.ptir.literal import ScalarLiteral, ScalarTag, scalar_literal
from weft.ptir.op import RegionSignature
from weft.ptir.ops.movement import (
    BroadcastTo,
    Concat,
    Iota,
    Pad,
    Reshape,
    Slice,
    Tile,
    Transpose,
)
from weft.ptir.schema import INFER, USIZE_MAX
from weft.ptir.types import UNKNOWN, Dim, Symbol, TensorType, shape_of, tensor

FEW = [F32, SI4]
"""One dtype of NumPy's own and one of a few bits: every dtype is in the table of conformance."""
SHAPES = [(), (1,), (5,), (0,), (2, 3), (3, 0, 2), (2, 1, 3), (2, 3, 1, 2)]


def views(x: Array) -> Iterator[Array]:
    """The same elements as a read-only array, in column-major order, and with gaps between them."""
    frozen = x.copy()
    frozen.flags.writeable = False
    yield frozen
    yield np.asfortranarray(x) if x.ndim else x
    if x.ndim:
        gaps = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        gaps[..., ::2] = x
        yield gaps[..., ::2]
        yield x[::-1].copy()[::-1]


def made(dtype: DType, shape: tuple[int, ...], element: Callable[[tuple[int, ...]], Any]) -> Array:
    """An array filled element by element."""
    result = np.zeros(shape, dtype.numpy)
    for index in np.ndindex(*shape):
        result[index] = element(index)
    return result


def agree(op: Any, x: Array, expected: Array) -> None:
    for view in views(x):
        before = bits(view)
        assert bits(apply(op, view)) == bits(expected)
        assert bits(view) == before, "the operand was modified"
    assert apply(op, x).shape == expected.shape


@each("dtype", FEW)
@each("shape", SHAPES)
def test_transpose(dtype: DType, shape: tuple[int, ...]) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    for _ in range(3):
        perm = tuple(int(p) for p in rng.permutation(len(shape)))
        out = tuple(shape[p] for p in perm)

        def element(index: tuple[int, ...], perm: tuple[int, ...] = perm) -> Any:
            source = [0] * len(perm)
            for position, axis in enumerate(perm):
                source[axis] = index[position]
            return x[tuple(source)]

        agree(Transpose(perm), x, made(dtype, out, element))


RESHAPES: list[tuple[tuple[int, ...], list[Any], tuple[int, ...]]] = [
    ((), [], ()),
    ((), [1, 1], (1, 1)),
    ((1,), [], ()),
    ((), [-1], (1,)),
    ((2, 6), [3, -1], (3, 4)),
    ((2, 6), [12], (12,)),
    ((2, 3, 4), [4, INFER, 3], (4, 2, 3)),
    ((2, 3, 4), [1, 24, 1], (1, 24, 1)),
    ((0, 4), [0, -1], (0, 4)),
    ((0, 4), [2, 0, 7], (2, 0, 7)),
    ((0, 4), [-1], (0,)),
    ((0, 4), [-1, 3], (0, 3)),
    ((0, 6), [0, 2, -1], (0, 2, 3)),
    ((5, 0), [0, -1], (0, 5)),
    ((0, 0, 3), [0, -1], (0, 0)),
]


@each("dtype", FEW)
def test_reshape(dtype: DType) -> None:
    for source, new_shape, result in RESHAPES:
        x = random_array(dtype, source)
        expected = np.zeros(result, dtype.numpy)
        for index, element in zip(np.ndindex(*result), row_major(x), strict=True):
            expected[index] = element
        agree(Reshape(tuple(new_shape)), x, expected)


def row_major(x: Array) -> Iterator[Any]:
    for index in np.ndindex(*x.shape):
        yield x[index]


class Bound:
    """A scope in which only the named symbols have a size."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def region(self, region_id: int) -> RegionSignature:
        raise AssertionError(region_id)

    def is_bound(self, symbol: Symbol) -> bool:
        return symbol.name in self.names


DYNAMIC_RESHAPES: list[tuple[list[Any], list[Any], list[Any]]] = [
    (["?B", 4], ["?B", 2, 2], ["?B", 2, 2]),
    (["?B", 4], [2, "?B", 2], [2, "?B", 2]),
    (["?B", "?B", 4], [4, "?B", "?B"], [4, "?B", "?B"]),
    (["?B", 4], ["?B", -1], ["?B", 4]),
    (["?B", 4], [-1, 4], ["?B", 4]),
    (["?B", 4], [-1, 2, 2], ["?B", 2, 2]),
    (["?B", 4], [-1, 2], [UNKNOWN, 2]),
    (["?B", 3], [-1, 2], [UNKNOWN, 2]),
    (["?B", 4], [-1], [UNKNOWN]),
    (["?B", "?S", 4], [-1, 4], [UNKNOWN, 4]),
    (["?B", "?S", 4], ["?S", -1, 4], ["?S", "?B", 4]),
    (["?B", 4], ["?S", -1], ["?S", UNKNOWN]),
    (["?B", 4], ["?S", 4], ["?S", 4]),
    (["?B", "?S"], ["?T"], ["?T"]),
    (["?B", 4], [8], [8]),
    ([8], ["?B", 4], ["?B", 4]),
    (["?B", 4], [0], [0]),
    ([0, "?B", 4], [0, 6], [0, 6]),
    ([0, "?B"], ["?S", 0], ["?S", 0]),
    (["?B", 0], [-1, 5], [0, 5]),
    # ?N is bound by nothing: inferred, and named where it stays unknown.
    (["?B", 4], ["?N", 2], ["?N", 2]),
    (["?B", 4], ["?N", 4], ["?B", 4]),
    (["?B", 4], ["?B", "?N"], ["?B", 4]),
    ([6], [2, "?N"], [2, 3]),
    ([0, 4], [0, "?N"], [0, 4]),
]


@each(("source", "new_shape", "result"), DYNAMIC_RESHAPES)
def test_reshape_of_dynamic_dims(
    source: list[Any], new_shape: list[Any], result: list[Any]
) -> None:
    op = Reshape(tuple(new_shape))
    kind = op.result_type([tensor("f32", source)], Bound("B", "S", "T"))
    assert kind == tensor("f32", result)


def test_symbols_in_attributes_are_replaced() -> None:
    sizes: dict[Dim, Dim] = {Symbol("B"): 7}

    def replace(dim: Dim) -> Dim:
        return sizes.get(dim, dim)

    b, c = shape_of(["?B", "?C"])
    assert Reshape((b, INFER, c, 2)).with_dims(replace) == Reshape((7, INFER, c, 2))
    assert BroadcastTo((b, 2)).with_dims(replace) == BroadcastTo((7, 2))
    assert Iota((b, c), F32, 1).with_dims(replace) == Iota((7, c), F32, 1)


BROADCASTS = [
    ((), ()),
    ((), (2, 3)),
    ((1,), (4,)),
    ((3,), (2, 3)),
    ((2, 1), (2, 3)),
    ((1, 3), (2, 3)),
    ((2, 1, 3), (4, 2, 5, 3)),
    ((1,), (0,)),
    ((2, 1), (2, 0)),
    ((0,), (3, 0)),
    ((1, 1), (1, 1)),
]


@each("dtype", FEW)
def test_broadcast_to(dtype: DType) -> None:
    for source, result in BROADCASTS:
        x = random_array(dtype, source)

        def element(index: tuple[int, ...], x: Array = x) -> Any:
            aligned = index[len(index) - x.ndim :]
            return x[tuple(0 if n == 1 else i for i, n in zip(aligned, x.shape, strict=True))]

        agree(BroadcastTo(result), x, made(dtype, result, element))


def test_broadcast_of_dynamic_dims() -> None:
    op = BroadcastTo(shape_of(["?A", "?B", 3, "?C"]))
    assert infer(op, tensor("f32", ["?B", 3, 1])) == tensor("f32", ["?A", "?B", 3, "?C"])


@each("dtype", FEW)
@each("shape", SHAPES)
def test_slice(dtype: DType, shape: tuple[int, ...]) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    for _ in range(4):
        starts = tuple(int(rng.integers(0, n + 1)) for n in shape)
        sizes = tuple(int(rng.integers(0, n - s + 1)) for n, s in zip(shape, starts, strict=True))
        if _ == 3:
            starts, sizes = (0,) * len(shape), shape

        def element(index: tuple[int, ...], starts: tuple[int, ...] = starts) -> Any:
            return x[tuple(i + s for i, s in zip(index, starts, strict=True))]

        agree(Slice(starts, sizes), x, made(dtype, sizes, element))


def test_slice_of_dynamic_dims() -> None:
    assert infer(Slice((5, 0), (2, 3)), tensor("f32", ["?B", 4])) == tensor("f32", [2, 3])


@each("dtype", FEW)
@each("axis", [0, 1, 2, -1, -2, -3])
def test_concat(dtype: DType, axis: int) -> None:
    parts = []
    for position, extent in enumerate((2, 0, 1, 3)):
        shape = [2, 3, 2]
        shape[axis] = extent
        parts.append(random_array(dtype, tuple(shape), position))
    owners = [(part, i) for part in parts for i in range(part.shape[axis])]
    result = [2, 3, 2]
    result[axis] = len(owners)

    def element(index: tuple[int, ...]) -> Any:
        part, inner = owners[index[axis]]
        source = list(index)
        source[axis] = inner
        return part[tuple(source)]

    expected = made(dtype, tuple(result), element)
    for turn in range(4):
        given = [list(views(part))[turn] for part in parts]
        assert bits(apply(Concat(axis), *given)) == bits(expected)
    assert bits(apply(Concat(axis), parts[0])) == bits(parts[0])


def test_concat_of_dynamic_dims() -> None:
    def joined(*dims: Any) -> Any:
        return infer(Concat(0), *(tensor("f32", [d, "?C"]) for d in dims))

    assert joined("?A", "?B") == tensor("f32", [UNKNOWN, "?C"])
    assert joined("?A", 0) == tensor("f32", ["?A", "?C"])
    assert joined("?A", 1) == tensor("f32", [UNKNOWN, "?C"])
    assert joined(2, 3) == tensor("f32", [5, "?C"])


FILLS: dict[DType, Any] = {
    **dict.fromkeys(BOOL, True),
    **dict.fromkeys(INTEGERS, 5),
    **dict.fromkeys(FLOATS, -1.5),
    **dict.fromkeys(COMPLEX, 1.5 - 2j),
}


@each("dtype", FEW)
@each("shape", SHAPES)
def test_pad(dtype: DType, shape: tuple[int, ...]) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    fill = FILLS[dtype]
    for _ in range(4):
        low, high, interior = (tuple(map(int, rng.integers(0, 3, len(shape)))) for _ in range(3))
        result = tuple(
            lo + n + hi + max(n - 1, 0) * gap
            for lo, n, hi, gap in zip(low, shape, high, interior, strict=True)
        )
        expected = np.zeros(result, dtype.numpy)
        for index in np.ndindex(*result):
            expected[index] = fill
        for index in np.ndindex(*shape):
            spread = zip(low, index, interior, strict=True)
            expected[tuple(lo + i * (gap + 1) for lo, i, gap in spread)] = x[index]
        agree(Pad(low, high, interior, scalar_literal(fill, dtype)), x, expected)


PAD_VALUES: list[tuple[DType, ScalarLiteral, float]] = [
    (F32, ScalarLiteral(ScalarTag.FLOAT, float("-inf")), float("-inf")),
    (F32, ScalarLiteral(ScalarTag.FLOAT, 1e300), float("inf")),
    (F16, ScalarLiteral(ScalarTag.FLOAT, 0.1), 0.0999755859375),
    # A tie only after a first rounding to f32: must round up, not to even.
    (BF16, ScalarLiteral(ScalarTag.FLOAT, 1 + 2**-8 + 2**-40), 1 + 2**-7),
    (FP8_E4M3, ScalarLiteral(ScalarTag.FLOAT, 1 + 2**-4 + 2**-40), 1.125),
    (FP8_E5M2, ScalarLiteral(ScalarTag.FLOAT, 1e9), float("inf")),
    (SI8, ScalarLiteral(ScalarTag.SIGNED, -128), -128),
    (SI4, ScalarLiteral(ScalarTag.SIGNED, -8), -8),
    (UI64, ScalarLiteral(ScalarTag.UNSIGNED, USIZE_MAX), USIZE_MAX),
]


@each(("dtype", "value", "stored"), PAD_VALUES)
def test_pad_value_is_rounded_once(dtype: DType, value: ScalarLiteral, stored: float) -> None:
    out = apply(Pad((1,), (0,), (0,), value), random_array(dtype, (0,)))
    assert out[0] == stored


def test_pad_value_nan_and_negative_zero() -> None:
    zero = apply(Pad((1,), (0,), (0,), scalar_literal(-0.0, F32)), np.zeros(0, np.float32))
    assert np.signbit(zero[0])
    nan = apply(
        Pad((1,), (0,), (0,), scalar_literal(float("inf"), FP8_E4M3)), random_array(FP8_E4M3, (0,))
    )
    assert np.isnan(nan[0])


def test_pad_of_dynamic_dims() -> None:
    def dim(low: int, high: int, interior: int) -> Any:
        pad = Pad((low,), (high,), (interior,), scalar_literal(0.0, F32))
        kind = infer(pad, tensor("f32", ["?B"]))
        assert isinstance(kind, TensorType)
        return kind.shape

    assert dim(0, 0, 0) == shape_of(["?B"])
    assert dim(1, 0, 0) == dim(0, 1, 0) == dim(0, 0, 1) == (UNKNOWN,)


@each("dtype", FEW)
@each("shape", SHAPES)
def test_tile(dtype: DType, shape: tuple[int, ...]) -> None:
    x = random_array(dtype, shape)
    rng = np.random.default_rng(len(shape))
    for _ in range(4):
        repeats = tuple(map(int, rng.integers(0 if _ else 1, 4, len(shape))))
        result = tuple(n * r for n, r in zip(shape, repeats, strict=True))

        def element(index: tuple[int, ...]) -> Any:
            return x[tuple(i % n for i, n in zip(index, shape, strict=True))]

        agree(Tile(repeats), x, made(dtype, result, element))


def test_tile_of_dynamic_dims() -> None:
    kind = infer(Tile((1, 2, 0)), tensor("f32", ["?A", "?B", "?C"]))
    assert kind == tensor("f32", ["?A", UNKNOWN, 0])


@each("dtype", by_name(FLOATS))
def test_iota_rounds_to_nearest_even(dtype: DType) -> None:
    out = apply(Iota((5000,), dtype, 0)).astype(np.float64)
    places = [*range(600), 2047, 2049, 2051, 4095, 4097, 4999]
    expected = [nearest(place, dtype) for place in places]
    np.testing.assert_array_equal(out[places], expected)


def nearest(value: int, dtype: DType) -> float:
    """The nearest float of a precision, ties to even, in whole numbers; fp8_e4m3 ends at 448."""
    shift = max(value.bit_length() - dtype.precision, 0)
    low, rest = value >> shift, value & ((1 << shift) - 1)
    up = 2 * rest > (1 << shift) or (2 * rest == (1 << shift) and low % 2 == 1)
    found = float((low + up) << shift) if shift else float(value)
    return found if found <= 448.0 or dtype is not FP8_E4M3 else float("nan")


def test_iota_uses_the_whole_integer_range() -> None:
    assert apply(Iota((8,), SI4, 0))[-1] == 7
    assert apply(Iota((128,), SI8, 0))[-1] == 127
    assert apply(Iota((256,), UI8, 0))[-1] == 255


def test_iota_counts_negative_axes_from_the_end() -> None:
    assert Iota.make([], shape=[2, 3], dtype="f32", axis=-1) == Iota((2, 3), F32, 1)
    assert Iota.make([], shape=[2, 3], dtype="f32", axis=0) == Iota((2, 3), F32, 0)
    assert Transpose.make([tensor("f32", [2, 3])], perm=[-1, 0]) == Transpose((1, 0))


def test_huge_attributes_cost_nothing() -> None:
    """Types of absurd size are inferred without allocating; the limits refuse them later."""
    big = USIZE_MAX
    x = tensor("f32", [big])
    assert infer(Tile((big,)), x) == tensor("f32", [big * big])
    pad = Pad((big,), (big,), (big,), scalar_literal(0.0, F32))
    assert infer(pad, x) == tensor("f32", [3 * big + (big - 1) * big])
    assert infer(Reshape((1, -1)), x) == tensor("f32", [1, big])
    assert infer(Iota((big,), UI64, 0)) == tensor("ui64", [big])
    assert infer(Concat(0), x, x) == tensor("f32", [2 * big])
    one = apply(Pad((0,), (0,), (big,), scalar_literal(0.0, F32)), np.ones(1, np.float32))
    assert one.tolist() == [1.0]
    assert apply(Iota((2**50, 0), F32, 0)).shape == (2**50, 0)
    assert apply(Tile((2**50, 1)), np.zeros((1, 0), np.float32)).shape == (2**50, 0)
