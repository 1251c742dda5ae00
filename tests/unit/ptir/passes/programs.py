"""What the rule tests share: small random programs with special values, and comparing runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

import weft
from tests.support.one_op import Array, random_array
from weft.foundation.dtypes import FP8_E4M3, I1, DType, as_dtype
from weft.ptir import Builder, Program, Value, verify


def special_array(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Random values, half of them replaced by zeros of both signs, infinities, NaN, bounds."""
    rng = np.random.default_rng([7, seed, dtype.index, *shape])
    if dtype.is_complex:
        part = np.dtype(np.float32 if dtype.bits == 64 else np.float64)
        parts = [_sprinkled(rng, random_array(dtype, shape, seed).real, part) for _ in range(2)]
        result = np.empty(shape, dtype.numpy)
        result.real, result.imag = parts
        return result
    return _sprinkled(rng, random_array(dtype, shape, seed), dtype.numpy)


def _sprinkled(rng: np.random.Generator, array: Array, dtype: np.dtype[Any]) -> Array:
    pool = specials(dtype)
    chosen = pool[rng.integers(0, len(pool), array.shape)]
    mask = rng.random(array.shape) < 0.5
    return np.asarray(np.where(mask, chosen, array)).astype(dtype)


def specials(dtype: np.dtype[Any]) -> Array:
    """The values at which rules that are almost right go wrong."""
    kind = as_dtype(dtype)
    if kind is I1:
        return np.array([False, True])
    if kind.is_integer:
        low, high = int(kind.lowest), int(kind.highest)
        values = {low, low + 1, 0, 1, 2, high - 1, high} | ({-1} if low else set())
        wide = np.uint64 if kind.bits == 64 and not kind.is_signed else np.int64
        return np.array(sorted(values), wide).astype(dtype)
    finfo: Any = ml_dtypes.finfo
    info = finfo(dtype)
    floats = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, np.nan]
    floats += [float(info.max), float(info.min), float(info.smallest_subnormal), float(info.tiny)]
    if kind is not FP8_E4M3:
        floats += [np.inf, -np.inf]
    return np.array(floats, np.float64).astype(dtype)


class Case:
    """A program under construction with random inputs for its parameters."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = np.random.default_rng([11, seed])
        self.b = Builder()
        self.inputs: list[Array] = []
        self.results: list[Value] = []

    def shape(self, least: int = 0, low: int = 0) -> tuple[int, ...]:
        """A random shape of rank `least` to 3; empty ones included unless `low` says otherwise."""
        rank = int(self.rng.integers(least, 4))
        return tuple(int(n) for n in self.rng.integers(low, 5, rank))

    def param(
        self, dtype: DType, shape: Sequence[int], dims: Sequence[int | str] | None = None
    ) -> Value:
        """A parameter with special values; `dims` declares its type, where some are symbols."""
        self.inputs.append(special_array(dtype, tuple(shape), self.seed + len(self.inputs)))
        return self.b.param(dtype, shape if dims is None else dims)

    def splat(self, value: Any, dtype: DType, shape: Sequence[int]) -> Value:
        """The same number everywhere, in one of the ways in which programs say so."""
        way = int(self.rng.integers(0, 4))
        if way == 0:
            return self.b.broadcast_to(self.b.constant(value, dtype), shape)
        if way == 1:
            return self.b.broadcast_to(self.b.literal(value, dtype), shape)
        if 0 in shape:
            return self.b.broadcast_to(self.b.literal([value], dtype), shape)
        dense = np.broadcast_to(self.b.literal(value, dtype).operand.array, shape)  # type: ignore[union-attr]
        return self.b.constant(dense) if way == 2 else self.b.literal(dense)

    def done(self, *results: Value) -> Case:
        self.results = list(results)
        return self

    @property
    def program(self) -> Program:
        return self.b.build(*self.results)


def same(before: Sequence[Array], after: Sequence[Array]) -> None:
    """Equal dtype, shape and bits; NaN equals any NaN."""
    assert len(before) == len(after)
    for a, b in zip(before, after, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        for x, y in zip(_parts(a), _parts(b), strict=True):
            nan = is_nan(x)
            np.testing.assert_array_equal(nan, is_nan(y))
            np.testing.assert_array_equal(_bits(x)[~nan], _bits(y)[~nan])


def is_nan(array: Array) -> Array:
    """NaN of any dtype; integers have none."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return np.asarray(np.not_equal(array, array), np.bool_)


def _parts(array: Array) -> list[Array]:
    return [array.real, array.imag] if array.dtype.kind == "c" else [array]


def _bits(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


def agree(before: Program, after: Program, inputs: Sequence[Array], seed: int = 0) -> None:
    """Both programs verify and give the same bits."""
    verify(after)
    same(weft.run(before, inputs, seed=seed), weft.run(after, inputs, seed=seed))


def mnemonics(program: Program) -> list[str]:
    """The ops of all bodies, in order."""
    return [i.op.mnemonic for body in program.bodies for i in body.body]
