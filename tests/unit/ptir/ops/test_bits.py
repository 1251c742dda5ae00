"""Bitwise ops against Python's unbounded integers with explicit wrapping."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.support.cases import each
from tests.support.one_op import Array, apply, bits, by_name, random_array
from weft.foundation.dtypes import FLOATS, I1, INTEGERS, SI4, SI64, UI4, UI32, UI64, DType
from weft.ptir.op import Op
from weft.ptir.ops import bits as b

LOGIC: dict[type[Op], Callable[[int, int], int]] = {
    b.BitwiseAnd: lambda x, y: x & y,
    b.BitwiseOr: lambda x, y: x | y,
    b.BitwiseXor: lambda x, y: x ^ y,
}


def wrap(value: int, dtype: DType) -> int:
    """The value modulo 2^bits, in the dtype's range."""
    value %= 1 << dtype.bits
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def every(dtype: DType) -> Array:
    """All values where there are few, otherwise random and extreme ones."""
    if dtype is I1:
        return np.array([False, True])
    if dtype in (SI4, UI4):
        return np.arange(16, dtype=np.uint8).view(dtype.numpy)
    edges = [wrap(v, dtype) for v in (0, 1, 2, -1, -2, 1 << (dtype.bits - 1))]
    edges += [int(dtype.lowest), int(dtype.highest)]
    return np.concatenate([np.array(edges, dtype.numpy), random_array(dtype, (40,))])


def ints(array: Array) -> list[int]:
    return [int(v) for v in array]


def amounts(dtype: DType) -> list[int]:
    """From none to far beyond the width, as far as the dtype can say."""
    wanted = [*range(min(dtype.bits + 3, 70)), 100, 127, int(dtype.highest)]
    return sorted({a for a in wanted if a <= dtype.highest})


def shift_cases(dtype: DType) -> tuple[Array, Array]:
    x, y = np.meshgrid(every(dtype), np.array(amounts(dtype), dtype.numpy))
    return x.reshape(-1), y.reshape(-1)


def one_at_a_time(x: int, steps: int, dtype: DType, left: bool) -> int:
    for _ in range(min(steps, dtype.bits)):
        x = wrap(x * 2, dtype) if left else x // 2
    return x


@each("dtype", by_name(INTEGERS))
@each("op", [b.ShiftLeft, b.ShiftRight])
def test_shifts_act_one_bit_at_a_time(op: type[Op], dtype: DType) -> None:
    x, y = shift_cases(dtype)
    left = op is b.ShiftLeft
    want = [one_at_a_time(p, q, dtype, left) for p, q in zip(ints(x), ints(y), strict=True)]
    assert ints(apply(op(), x, y)) == want


@pytest.mark.parametrize("dtype", [SI64, UI64, SI4], ids=str)
def test_shifts_beyond_the_width_leave_only_the_sign(dtype: DType) -> None:
    amount = np.array([dtype.highest] * 2, dtype.numpy)
    x = np.array([dtype.lowest, dtype.highest], dtype.numpy)
    assert ints(apply(b.ShiftLeft(), x, amount)) == [0, 0]
    assert ints(apply(b.ShiftRight(), x, amount)) == [-1 if dtype.is_signed else 0, 0]


@each("dtype", [SI4, UI64])
@each("op", [*LOGIC, b.ShiftLeft, b.ShiftRight])
def test_views_scalars_and_empty_tensors(op: type[Op], dtype: DType) -> None:
    x = random_array(dtype, (3, 4))
    y = np.broadcast_to(np.array([0, 1, 2, 3]).astype(dtype.numpy), (3, 4))
    x.flags.writeable = False
    whole = apply(op(), x, y)
    assert bits(apply(op(), x.T, y.T)) == bits(whole.T)
    assert bits(apply(op(), np.asarray(x[1, 2]), np.asarray(y[1, 2]))) == bits(whole[1, 2])
    assert apply(op(), x[:, :0], y[:, :0]).shape == (3, 0)
    assert bits(apply(b.BitwiseNot(), np.asarray(x[0, 0]))) == bits(apply(b.BitwiseNot(), x)[0, 0])


WIDE = [dtype for dtype in by_name(INTEGERS | FLOATS) if dtype.bits >= 8]
SAME_WIDTH = [(x, y) for x in WIDE for y in WIDE if x.bits == y.bits]


@each(("source", "target"), SAME_WIDTH)
def test_bitcast_keeps_every_byte(source: DType, target: DType) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (3, 5, source.bits // 8), np.uint8)
    x = np.frombuffer(raw.tobytes(), source.numpy).reshape(3, 5)
    found = apply(b.Bitcast(target), x)
    assert (found.dtype, found.shape) == (target.numpy, (3, 5))
    assert found.tobytes() == raw.tobytes()
    assert apply(b.Bitcast(target), x.T).tobytes() == np.swapaxes(raw, 0, 1).tobytes()


def test_bitcast_of_known_patterns() -> None:
    x = np.array([1.0, -0.0, np.inf, 2.0**-149], np.float32)
    want = [0x3F800000, 0x80000000, 0x7F800000, 1]
    assert ints(apply(b.Bitcast(UI32), x)) == want
