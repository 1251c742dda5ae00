"""Numerical sensitivity of a program: the reference run with every rounding disturbed.

A backend may round differently from the reference wherever the contract allows it: other sums,
other functions, fused multiply-adds. What such differences grow to downstream depends on the
program. So the reference is run again with a random disturbance of about two ulp on every result
that was rounded; what it then computes is as right as what it computed before, and the distance
between them says which errors prove nothing.

A result is left alone when its own op rounded nothing, which is found by repeating the op in f64 on
the very same operands. Exact values therefore stay exact, and ops that jump do not jump elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.reference import BACKEND
from weft.foundation.dtypes import F64, DType, as_dtype
from weft.foundation.scalar import FUNCTIONS
from weft.ptir.ir import Body, Instruction, Program
from weft.ptir.op import EvalContext, Op, Value
from weft.ptir.ops.functions import Nextafter
from weft.ptir.ops.random import PhiloxBits, PhiloxUniform, RngUniform
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.streams import assign_streams
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.testing.choices import mixed
from weft.testing.data import DataSource
from weft.testing.facts import part_dtype, smallest
from weft.testing.widen import widen_arrays, widen_op, widen_type

Array = NDArray[Any]

ULPS = 2.0
"""How far a rounded result is moved at most: functions may err by a few ulp."""
_FACTOR_ULPS = 16.0
"""Ulps of the largest element by which a factorisation is moved."""
_INEXACT = frozenset(
    (
        *(str(fn) for fn, row in FUNCTIONS.items() if row.ulps > 1),
        *("layer_norm", "byteir.layer_norm", "byteir.erf"),
        *("byteir.softmax", "byteir.log_softmax", "byteir.l2_norm", "byteir.gelu", "weft.conv"),
        *("weft.attention", "byteir.flash_attn_bwd", "byteir.flash_attn_kvcache"),
        *("weft.grouped_matmul", "weft.grouped_outer", "weft.fourier"),
    )
)
"""What rounds in f64 too, though nothing wider is at hand that could show it."""


def disturbed_run(
    program: Program, inputs: Sequence[Array], *, seed: int = 0, round: int = 0
) -> list[Array]:
    """The results of the reference with every rounding disturbed, differently in each `round`."""
    sizes = bind_shapes(program.main.parameters, [np.shape(array) for array in inputs])
    static = assign_streams(specialise(program, sizes))
    return BACKEND.compile(disturbed(static, round)).execute(inputs, seed=seed)


def disturbed(program: Program, round: int, ulps: float = ULPS) -> Program:
    """A static program with explicit streams whose rounded results come out a little different. It
    runs on the reference, and nothing else can be done with it."""
    count = 0

    def body_of(body: Body) -> tuple[Instruction, ...]:
        nonlocal count
        made = []
        for instruction in body.body:
            count += 1
            op = instruction.op
            if op.regions or isinstance(op, RngUniform | PhiloxBits | PhiloxUniform | Nextafter):
                made.append(instruction)
            else:
                made.append(replace(instruction, op=_Disturbed(op, (round, count), ulps)))
        return tuple(made)

    functions = tuple(replace(f, body=body_of(f), hints=()) for f in program.functions)
    regions = tuple(replace(r, body=body_of(r)) for r in program.regions)
    return replace(program, functions=functions, regions=regions)


class _Disturbed(Op):
    """An op whose rounded results come out a little different."""

    inner: Op
    key: tuple[int, int]
    ulps: float

    def __init__(self, inner: Op, key: tuple[int, int], ulps: float) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "ulps", ulps)

    @property
    def mnemonic(self) -> str:
        return self.inner.mnemonic

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        value = self.inner.evaluate(ctx, *args)
        with np.errstate(all="ignore"):
            return self._disturb_value(value, self._precise(ctx, args), ctx.output)

    def _precise(self, ctx: EvalContext, args: Sequence[Array]) -> Value | None:
        """The result on the same operands in f64; None where the op has no such form."""
        if self.inner.dtype_bound or self.inner.random:
            return None
        wide = EvalContext(widen_type(ctx.output), ctx.seed, ctx.execution)
        return widen_op(self.inner).evaluate(wide, *widen_arrays(args))

    def _disturb_value(self, value: Value, precise: Value | None, kind: ValueType) -> Value:
        if isinstance(kind, TupleType):
            parts = precise if isinstance(precise, tuple) else (None,) * len(value)
            triples = zip(value, parts, kind.elements, strict=True)
            return tuple(self._disturb_value(v, p, k) for v, p, k in triples)
        if isinstance(value, tuple) or isinstance(precise, tuple):
            raise TypeError(f"{self.mnemonic} made a tuple, not {kind}")
        if not (kind.dtype.is_float or kind.dtype.is_complex) or not value.size:
            return value
        return self._moved_tensor(value, precise, kind)

    def _moved_tensor(self, value: Array, precise: Array | None, kind: TensorType) -> Array:
        wide: Any = np.complex128 if kind.dtype.is_complex else np.float64
        plain = value.astype(wide)
        unit = _ulps(np.abs(plain), kind.dtype)
        reach = self.ulps * unit
        if self.inner.family == "linear_algebra":
            reach = np.full_like(reach, _FACTOR_ULPS * np.max(unit, initial=0.0))
        elif precise is not None:
            # What the op itself has lost on these operands may be more than some ulp of the result:
            # that of a sum that cancels.
            errors = np.where(np.isfinite(plain), np.abs(plain - precise), 0.0)
            errors = np.where(np.isfinite(errors), errors, 0.0)
            rounded = errors > 0
            if part_dtype(kind.dtype) is F64 and self.mnemonic in _INEXACT:
                # Nothing wider shows which elements were rounded: whole numbers are taken for
                # exact.
                rounded = np.isfinite(plain) & (plain != np.rint(plain))
            reach = np.where(rounded, np.maximum(reach, np.max(errors, initial=0.0)), 0.0)
        if not reach.any():
            return value
        moved = plain + self._noise(plain.shape, kind.dtype) * reach
        return np.where(reach > 0, moved, plain).astype(kind.dtype.numpy)

    def _noise(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """-1, -1/2, 1/2 or 1 for every element, and for a complex one in both parts."""
        seed, position = self.key
        drawn = DataSource(mixed(seed) + position).integers((2, *shape), 0, 3)
        noise = np.asarray((-1.0, -0.5, 0.5, 1.0))[drawn]
        return np.asarray(noise[0] + 1j * noise[1] if dtype.is_complex else noise[0])


def _ulps(size: Array, dtype: DType) -> Array:
    """One ulp of each element."""
    real = part_dtype(dtype)
    exponent = np.frexp(np.where(np.isfinite(size), size, 0.0))[1]
    return np.asarray(np.maximum(np.ldexp(1.0, exponent - real.precision), smallest(real)))


def spreads(results: Sequence[Array], exact: Sequence[Array]) -> list[float]:
    """The largest distance of each tensor from the exact one; infinite where a discrete result, or
    one that is not finite, came out differently."""
    return [_distance(a, b) for a, b in zip(results, exact, strict=True)]


def _distance(a: Array, b: Array) -> float:
    dtype = as_dtype(a.dtype)
    with np.errstate(all="ignore"):
        if not (dtype.is_float or dtype.is_complex):
            return 0.0 if np.array_equal(a, b) else np.inf
        wide = a.astype(b.dtype)
        finite = np.isfinite(wide) & np.isfinite(b)
        return float(np.max(np.where(finite, np.abs(wide - b), 0.0), initial=0.0))
