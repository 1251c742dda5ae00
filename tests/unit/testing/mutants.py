"""Backends with one subtle fault each: the reference, with the meaning of some ops changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.driver.reference import ReferenceBackend, ReferenceExecutable
from weft.foundation.dtypes import F16, F32, I1, as_dtype
from weft.foundation.errors import SpecViolation
from weft.ptir.interp import Observer
from weft.ptir.ir import Body, Program
from weft.ptir.op import Array, EvalContext, Op, Value
from weft.ptir.streams import assign_streams

Meaning = Callable[[Op, EvalContext, Sequence[Array]], Any]
Rewrite = Callable[[Op], Op]


class Twisted(Op):
    """An op with another meaning."""

    inner: Op
    meaning: Meaning

    def __init__(self, inner: Op, meaning: Meaning) -> None:
        object.__setattr__(self, "inner", inner)
        object.__setattr__(self, "meaning", meaning)

    @property
    def mnemonic(self) -> str:
        return self.inner.mnemonic

    def evaluate(self, ctx: EvalContext, *args: Array) -> Value:
        value = self.meaning(self.inner, ctx, args)
        if isinstance(value, tuple):
            return tuple(np.asarray(part) for part in value)
        return np.asarray(value)


class MutantBackend(ReferenceBackend):
    """The reference with some ops rewritten."""

    def __init__(self, name: str, rewrite: Rewrite) -> None:
        self.name = name
        self.rewrite = rewrite

    def compile(self, program: Program) -> ReferenceExecutable:
        super().compile(program)
        numbered = assign_streams(program)

        def body(old: Body) -> Any:
            return tuple(dataclasses.replace(i, op=self.rewrite(i.op)) for i in old.body)

        functions = tuple(dataclasses.replace(f, body=body(f)) for f in numbered.functions)
        regions = tuple(dataclasses.replace(r, body=body(r)) for r in numbered.regions)
        return ReferenceExecutable(
            dataclasses.replace(numbered, functions=functions, regions=regions)
        )


class SeedlessBackend(ReferenceBackend):
    """The reference, which takes every seed for 0."""

    name = "seedless"

    def compile(self, program: Program) -> ReferenceExecutable:
        class Seedless(ReferenceExecutable):
            def execute(
                self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
            ) -> list[Array]:
                return super().execute(inputs, seed=0, observer=observer)

        return Seedless(program)


def twist(spelling: str, meaning: Meaning) -> Rewrite:
    """Rewrites one op to another meaning."""
    return lambda op: Twisted(op, meaning) if op.mnemonic == spelling else op


def after(change: Callable[[Array], Any]) -> Meaning:
    """The right result, then changed; of a tuple, every part."""

    def meaning(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
        value = op.evaluate(ctx, *args)
        if isinstance(value, tuple):
            return tuple(change(np.asarray(part)) for part in value)
        return change(value)

    return meaning


def nudged(array: Array) -> Array:
    """Something slightly wrong, whatever the dtype: an element of a float by 1 %, the lowest bit of
    an integer, every bool."""
    dtype = as_dtype(array.dtype)
    if dtype is I1:
        return ~array
    if dtype.is_integer:
        return np.asarray(array.astype(np.int64) ^ 1).astype(array.dtype)
    wide = array.astype(np.complex128 if dtype.is_complex else np.float64)
    return np.asarray(wide * 1.5 + 0.01).astype(array.dtype)


def off_by(ulps: float) -> Callable[[Array], Array]:
    """f32 off by so many ulp, upward."""

    def change(array: Array) -> Array:
        if array.dtype != np.float32:
            return array
        return np.asarray(array + np.float32(ulps) * np.spacing(np.abs(array)), np.float32)

    return change


def _plus_zero(array: Array) -> Array:
    return np.where(array == 0, np.zeros_like(array), array) if array.dtype.kind == "f" else array


def _floor_division(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    right = op.evaluate(ctx, *args)
    x, y = args
    return np.floor_divide(x, y) if x.dtype == np.int32 else right


def _wrapping_cast(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    right = op.evaluate(ctx, *args)
    both = args[0].dtype.kind == "i" and right.dtype.kind == "i"  # type: ignore[union-attr]
    return args[0].astype(right.dtype) if both else right  # type: ignore[union-attr]


def _narrow_sum(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    (x,) = args
    if x.dtype != np.float16 or getattr(op, "accum_dtype", None) is not None:
        return op.evaluate(ctx, x)
    return dataclasses.replace(op, accum_dtype=F16).evaluate(ctx, x)  # type: ignore[call-arg]


def _narrow_dot(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    if args[0].dtype != np.float16 or getattr(op, "accum_dtype", None) is not None:
        return op.evaluate(ctx, *args)
    return dataclasses.replace(op, accum_dtype=F16).evaluate(ctx, *args)  # type: ignore[call-arg]


def _without_accumulator(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    if args[0].dtype != np.float32:
        return op.evaluate(ctx, *args)
    return dataclasses.replace(op, accum_dtype=F32).evaluate(ctx, *args)  # type: ignore[call-arg]


def _last_of_equals(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    (x,) = args
    if x.dtype.kind not in "iuf" or not x.size:
        return op.evaluate(ctx, x)
    axis = op.axis % x.ndim  # type: ignore[attr-defined]
    last = x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis)
    return last.astype(op.output_dtype.numpy).reshape(ctx.shape)  # type: ignore[attr-defined]


def _ignoring_nan(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    x, y = args
    return np.fmax(x, y) if x.dtype.kind == "f" else op.evaluate(ctx, x, y)


def _half_away(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    (x,) = args
    if x.dtype != np.float32:
        return op.evaluate(ctx, x)
    return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)


def _first_writer_wins(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    x, indices, updates = args
    if str(op.reduce) != "replace" or x.ndim != 1:  # type: ignore[attr-defined]
        return op.evaluate(ctx, *args)
    return op.evaluate(ctx, x, np.flip(indices, 0), np.flip(updates, 0))


def _clamped_indices(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    x, indices = args
    return op.evaluate(ctx, x, np.clip(indices, 0, x.shape[0] - 1))


def _zero_instead(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    try:
        return op.evaluate(ctx, *args)
    except SpecViolation:
        return np.zeros_like(args[0])


def _zeros_around(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    """Padding that takes part in a maximum as 0."""
    right = op.evaluate(ctx, *args)
    if str(op.reduce) != "max" or args[0].dtype != np.float32:  # type: ignore[attr-defined]
        return right
    return np.maximum(right, 0) if any(map(any, op.padding)) else right  # type: ignore[attr-defined]


def _swapped_halves(array: Array) -> Array:
    half = array.size // 2
    flat = array.reshape(-1)
    return np.concatenate([flat[half:], flat[:half]]).reshape(array.shape)


def _unstable(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    """Equal elements in reverse order of their positions."""
    (x,) = args
    if not x.size or not as_dtype(x.dtype).is_integer or op.descending:  # type: ignore[attr-defined]
        return op.evaluate(ctx, x)
    axis = op.axis % x.ndim  # type: ignore[attr-defined]
    order = np.argsort(np.flip(x.astype(np.int64), axis), axis=axis, kind="stable")
    return (x.shape[axis] - 1 - order).astype(op.output_dtype.numpy)  # type: ignore[attr-defined]


def _first_stream(op: Op) -> Op:
    return dataclasses.replace(op, stream=0) if op.random else op  # type: ignore[call-arg]


def _first_execution(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    return op.evaluate(EvalContext(ctx.output, ctx.seed, lambda stream: 0), *args)


def _no_zero_point(op: Op, ctx: EvalContext, args: Sequence[Array]) -> Any:
    return op.evaluate(ctx, *args[:2])


def _other_branch(op: Op) -> Op:
    if op.mnemonic != "cond":
        return op
    turned = {"true_region": op.false_region, "false_region": op.true_region}  # type: ignore[attr-defined]
    return dataclasses.replace(op, **turned)


def _swap_batches(op: Op) -> Op:
    if op.mnemonic != "dot_general":
        return op
    left = op.batch_lhs[::-1]  # type: ignore[attr-defined]
    return dataclasses.replace(op, batch_lhs=left)  # type: ignore[call-arg]


MUTANTS: Mapping[str, tuple[str, Rewrite]] = {
    "exp off by 8 ulp": ("exp/f32/*", twist("exp", after(off_by(8)))),
    "add off by 1 ulp": ("add/f32/*", twist("add", after(off_by(1)))),
    "neg loses the sign of zero": ("neg/f32/*", twist("neg", after(_plus_zero))),
    "ceil loses the sign of zero": ("ceil/f64/*", twist("ceil", after(_plus_zero))),
    "maximum ignores NaN": ("maximum/f32/*", twist("maximum", _ignoring_nan)),
    "integer division floors": ("div/si32/*", twist("div", _floor_division)),
    "round goes away from zero": ("round/f32/*", twist("round", _half_away)),
    "casts wrap": ("cast/si32/*", twist("cast", _wrapping_cast)),
    "sums of f16 stay in f16": ("reduce_sum/f16/*", twist("reduce_sum", _narrow_sum)),
    "an f64 accumulator is ignored": (
        "reduce_sum/f32/accum=f64*", twist("reduce_sum", _without_accumulator)
    ),
    "arg_max takes the last of equals": ("arg_max/si32/*", twist("arg_max", _last_of_equals)),
    "dots of f16 stay in f16": ("dot_general/f16/*", twist("dot_general", _narrow_dot)),
    "batch axes pair the wrong way": ("dot_general/f32/*batch*", _swap_batches),
    "pad forgets where things are": ("pad/ui8/*", twist("pad", after(_swapped_halves))),
    "the first scattered update wins": (
        "scatter_reduce/f32/replace/*", twist("scatter_reduce", _first_writer_wins)
    ),
    "take clamps its indices": ("reject/Gather*/take/*", twist("take", _clamped_indices)),
    "division by zero is 0": ("reject/IntegerDivide*/div/*", twist("div", _zero_instead)),
    "padding is 0 in a maximum": ("reduce_window/f32/max/*", twist("reduce_window", _zeros_around)),
    "argsort is unstable": ("argsort/si32/*", twist("argsort", _unstable)),
    "every random op draws from stream 0": ("rng_uniform/f32/*", _first_stream),
    "every execution draws the same": ("rng_*/f32/*", twist("rng_uniform", _first_execution)),
    "quantize forgets the zero point": ("quantize/f32/*", twist("quantize", _no_zero_point)),
    "cond takes the other branch": ("cond/f32/*", _other_branch),
    "layer_norm is off": ("layer_norm/f32/*", twist("layer_norm", after(off_by(60)))),
    "eigh is off": ("eigh/f32/*", twist("eigh", after(off_by(3000)))),
}  # fmt: skip
"""Each fault, the cases that should show it, and the fault itself."""
