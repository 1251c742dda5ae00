"""Ops that place elements and compute nothing: every result element is an operand element, the
padding value, or (iota) its own index."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft.foundation import numeric
from weft.foundation.axes import check_permutation, normalise_axis
from weft.foundation.dtypes import ANY, NUMBERS, SI64, DType, as_dtype
from weft.foundation.errors import SpecViolation
from weft.ptir.literal import ScalarLiteral
from weft.ptir.op import Array, EvalContext, Op, Scope, core_op
from weft.ptir.rules import (
    bound_symbols,
    invalid_attribute,
    length_is,
    same_dim,
    same_dtype,
    show,
    violation,
)
from weft.ptir.schema import (
    INFER,
    USIZES,
    DTypeOf,
    Infer,
    Isize,
    ListOf,
    NewDimension,
    PerAxis,
    ScalarOf,
    ShapeOf,
    Usize,
    attr,
)
from weft.ptir.term import Cotangents, Pullback, Term
from weft.ptir.types import (
    UNKNOWN,
    Dim,
    Shape,
    Symbol,
    TensorType,
    ValueType,
    add_dims,
    multiply_dims,
)


@core_op(tag=10)
class Reshape(Op):
    """The elements of `x` in row-major order, in another shape with the same number of elements. At
    most one entry of `new_shape` is inferred from the others; a symbol that is not bound yet counts
    as inferred, and this instruction binds it.

    Dims that `x` and `new_shape` have in common cancel before the inferred one is computed: from
    `[0, 4]`, `[0, -1]` is `[0, 4]`, as it is for every other size of the first axis. If a zero
    remains among the others, the inferred dim would not be unique and is rejected."""

    operands = ("x",)
    dtypes = {"x": ANY}

    new_shape: tuple[Dim | Infer, ...] = attr(ListOf(NewDimension()))

    def with_dims(self, replace_dim: Callable[[Dim], Dim]) -> Reshape:
        return replace(
            self, new_shape=tuple(d if d is INFER else replace_dim(d) for d in self.new_shape)
        )

    def result_type(self, types: Sequence[ValueType], scope: Scope) -> ValueType:
        """The base rule, with unbound symbols inferred; one that stays unknown keeps its name."""
        settled = tuple(
            INFER if isinstance(d, Symbol) and not scope.is_bound(d) else d for d in self.new_shape
        )
        if settled.count(INFER) > 1:
            raise invalid_attribute(
                f"new_shape {_show_new(self.new_shape)} leaves more than one dimension to infer",
                "a symbol that is not bound yet counts as inferred",
            )
        if settled == self.new_shape:
            return super().result_type(types, scope)
        result = replace(self, new_shape=settled).result_type(types, scope)
        if not isinstance(result, TensorType):
            return result
        named = zip(result.shape, self.new_shape, strict=True)
        return result.with_shape(
            new if dim == UNKNOWN and isinstance(new, Symbol) else dim for dim, new in named
        )

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        known = tuple(d for d in self.new_shape if not isinstance(d, Infer))
        if len(known) == len(self.new_shape):
            if _counts_differ(x.shape, known):
                raise _element_count(x.shape, self.new_shape)
            return x.with_shape(known)
        inferred = _inferred_dim(x.shape, known, self.new_shape)
        return x.with_shape(inferred if isinstance(d, Infer) else d for d in self.new_shape)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0].reshape(ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.reshape(at.operands[0].shape),)


def _show_new(new_shape: Sequence[Dim | Infer]) -> str:
    return show([-1 if isinstance(d, Infer) else d for d in new_shape])


def _element_count(source: Shape, new_shape: Sequence[Dim | Infer]) -> SpecViolation:
    return violation(
        "ShapeMismatch",
        f"reshape from {show(source)} to {_show_new(new_shape)} changes the number of elements",
    )


def _product_and_symbols(dims: Iterable[Dim]) -> tuple[int, Counter[Symbol]]:
    """The product of the numbers among dims, and the symbols."""
    found = list(dims)
    product = math.prod(d for d in found if isinstance(d, int))
    return product, Counter(d for d in found if isinstance(d, Symbol))


def _counts_differ(source: Shape, target: Shape) -> bool:
    """Whether two shapes cannot have equally many elements, whatever the sizes of their symbols."""
    (size, symbols), (new_size, new_symbols) = (
        _product_and_symbols(source),
        _product_and_symbols(target),
    )
    symbols, new_symbols = symbols - new_symbols, new_symbols - symbols
    if symbols and new_symbols:
        return False
    if not symbols and not new_symbols:
        return size != new_size
    factor, product = (size, new_size) if symbols else (new_size, size)
    return product % factor != 0 if factor else product != 0


def _inferred_dim(source: Shape, known: Shape, new_shape: Sequence[Dim | Infer]) -> Dim:
    size, symbols = _product_and_symbols((Counter(source) - Counter(known)).elements())
    divisor, new_symbols = _product_and_symbols((Counter(known) - Counter(source)).elements())
    if new_symbols:
        return UNKNOWN
    if divisor and size % divisor == 0:
        return multiply_dims(size // divisor, *symbols.elements())
    if divisor and symbols:
        return UNKNOWN
    if 0 in known and any(d == 0 or isinstance(d, Symbol) for d in source):
        raise invalid_attribute(
            f"reshape from {show(source)} to {_show_new(new_shape)} cannot infer a dimension "
            "beside one of size 0"
        )
    raise _element_count(source, new_shape)


@core_op(tag=11)
class Transpose(Op):
    """Axis `i` of the result is axis `perm[i]` of `x`."""

    operands = ("x",)
    dtypes = {"x": ANY}
    relative_axes = {"perm": 0}

    perm: tuple[int, ...] = attr(USIZES)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        check_permutation(self.perm, x.rank)
        return x.with_shape(x.shape[axis] for axis in self.perm)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return args[0].transpose(self.perm)

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.transpose([self.perm.index(axis) for axis in range(len(self.perm))]),)


@core_op(tag=12)
class BroadcastTo(Op):
    """`x` repeated to `result_shape`, the axes aligned at the right: each dim of `x` is 1 or equals
    the dim of the result, and missing leading dims count as 1. A dim of 1 may become 0."""

    operands = ("x",)
    dtypes = {"x": ANY}

    result_shape: Shape = attr(ShapeOf())

    def with_dims(self, replace_dim: Callable[[Dim], Dim]) -> BroadcastTo:
        return BroadcastTo(tuple(map(replace_dim, self.result_shape)))

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.result_shape, scope, "result_shape")

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        if x.rank > len(self.result_shape):
            raise violation(
                "BroadcastRankMismatch",
                f"shape {show(x.shape)} has more axes than result_shape {show(self.result_shape)}",
            )
        aligned = self.result_shape[len(self.result_shape) - x.rank :]
        for axis, (dim, wanted) in enumerate(zip(x.shape, aligned, strict=True)):
            if dim not in (1, wanted):
                raise violation(
                    "BroadcastDimsInvalid",
                    f"axis {axis} of shape {show(x.shape)} has size {dim}, which does not "
                    f"broadcast to {wanted} in {show(self.result_shape)}",
                )
        return x.with_shape(self.result_shape)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return np.broadcast_to(args[0], ctx.shape)

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.reduced_to(at.operands[0].shape),)


def window_fits(starts: Sequence[int], sizes: Sequence[int], x: TensorType, what: str) -> None:
    """A window lies inside `x`, as far as the sizes are known."""
    for axis, (start, size, dim) in enumerate(zip(starts, sizes, x.shape, strict=True)):
        if isinstance(dim, int) and start + size > dim:
            begin = f"start {start} + " if start else ""
            raise invalid_attribute(
                f"{what} of {x} on axis {axis}: {begin}size {size} is more than {dim}"
            )


def window_at(starts: Sequence[int], sizes: Sequence[int]) -> tuple[Any, ...]:
    """The index of a window; the ellipsis keeps a rank-0 result an array."""
    return (..., *(slice(start, start + n) for start, n in zip(starts, sizes, strict=True)))


@core_op(tag=13)
class Slice(Op):
    """The window of `x` that begins at `starts` and has the shape `sizes`; the stride is 1."""

    operands = ("x",)
    dtypes = {"x": ANY}

    starts: tuple[int, ...] = attr(USIZES)
    sizes: tuple[int, ...] = attr(USIZES)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        length_is(self.starts, x.rank, "starts")
        length_is(self.sizes, x.rank, "sizes")
        window_fits(self.starts, self.sizes, x, "slice")
        return x.with_shape(self.sizes)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        window: Array = args[0][window_at(self.starts, self.sizes)]
        return window

    def vjp(self, at: Pullback) -> Cotangents:
        return (at.cotangent.placed(self.starts, at.operands[0].shape),)


@core_op(tag=14)
class Concat(Op):
    """The operands one after the other along `axis`; all other dims and the dtypes are equal."""

    operands = ("*xs",)
    dtypes = {"xs": ANY}

    axis: int = attr(Isize())

    def infer(self, *types: TensorType) -> TensorType:
        first = types[0]
        joined = normalise_axis(self.axis, first.rank)
        for index, x in enumerate(types[1:], start=1):
            what = f"operands 0 and {index} of concat"
            same_dtype(first, x, what)
            if x.rank != first.rank:
                raise violation("RankMismatch", f"{what} have ranks {first.rank} and {x.rank}")
            for axis in range(first.rank):
                if axis != joined:
                    same_dim(first.shape[axis], x.shape[axis], f"axis {axis} of {what} differs")
        total = add_dims(*(x.shape[joined] for x in types))
        return first.with_shape((*first.shape[:joined], total, *first.shape[joined + 1 :]))

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        return np.concatenate(args, axis=self.axis)

    def vjp(self, at: Pullback) -> Cotangents:
        axis = normalise_axis(self.axis, at.cotangent.rank)
        found: list[Term] = []
        start: int | Term = 0
        for x in at.operands:
            size = x.shape[axis]
            if isinstance(start, int) and isinstance(size, int):
                found.append(at.cotangent.part(axis, start, size))
                start += size
                continue
            begin = at.cotangent.emitter.literal(start, SI64) if isinstance(start, int) else start
            positions = x.counting((size,), 0) + begin.broadcast_to((size,))
            found.append(at.cotangent.taken(axis, positions))
            start = begin + x.extent(axis, SI64)
        return found


def check_pad_value(value: ScalarLiteral, dtype: DType) -> None:
    """The padding is of the class of `dtype` and in its range."""
    if not value.fits(dtype):
        raise invalid_attribute(f"pad_value {value} cannot fill a tensor of dtype {dtype}")


def padded(
    x: Array, low: Sequence[int], shape: Sequence[int], steps: Sequence[int], fill: Array
) -> Array:
    """A new array of `shape` full of `fill`, and in it `x` from `low` on, `steps` apart."""
    result = np.full(shape, fill, x.dtype)
    if x.size:
        spans = zip(low, x.shape, steps, strict=True)
        places = tuple(slice(at, at + (n - 1) * step + 1, step) for at, n, step in spans)
        result[places] = x
    return result


@core_op(tag=15)
class Pad(Op):
    """`x` with `pad_value` around it and between its elements: on each axis `low` elements before,
    `high` after, and `interior` between each two. The class of `pad_value` is that of the dtype of
    `x`; a float is rounded to it."""

    operands = ("x",)
    dtypes = {"x": ANY}

    low: tuple[int, ...] = attr(USIZES, usual=PerAxis(0))
    high: tuple[int, ...] = attr(USIZES, usual=PerAxis(0))
    interior: tuple[int, ...] = attr(USIZES, usual=PerAxis(0))
    pad_value: ScalarLiteral = attr(ScalarOf())

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        for name in ("low", "high", "interior"):
            length_is(getattr(self, name), x.rank, name)
        check_pad_value(self.pad_value, x.dtype)
        return x.with_shape(self._dim(axis, dim) for axis, dim in enumerate(x.shape))

    def _dim(self, axis: int, dim: Dim) -> Dim:
        between = self.interior[axis]
        if isinstance(dim, Symbol):
            return add_dims(dim, self.low[axis], self.high[axis]) if between == 0 else UNKNOWN
        return self.low[axis] + dim + self.high[axis] + max(dim - 1, 0) * between

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        (x,) = args
        steps = [between + 1 for between in self.interior]
        return padded(x, self.low, ctx.shape, steps, self.pad_value.fill(as_dtype(x.dtype)))

    def vjp(self, at: Pullback) -> Cotangents:
        g, (x,) = at.cotangent, at.operands
        for axis, size in enumerate(x.shape):
            low, step = self.low[axis], self.interior[axis] + 1
            if g.shape[axis] == size:
                continue
            if g.tensor.is_static and isinstance(size, int):
                spread = max((size - 1) * step + 1, 0)
                g = g.part(axis, low, spread).every(axis, step, size)
            else:
                g = g.taken(axis, x.counting((size,), 0) * step + low)
        return (g,)


@core_op(tag=16)
class Tile(Op):
    """`x` repeated as a whole, `repeats[i]` times along axis `i`."""

    operands = ("x",)
    dtypes = {"x": ANY}

    repeats: tuple[int, ...] = attr(USIZES)

    def infer(self, *types: TensorType) -> TensorType:
        (x,) = types
        length_is(self.repeats, x.rank, "repeats")
        pairs = zip(x.shape, self.repeats, strict=True)
        return x.with_shape(multiply_dims(dim, count) for dim, count in pairs)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        if 0 in ctx.shape:
            return np.empty(ctx.shape, args[0].dtype)
        return np.tile(args[0], self.repeats)

    def vjp(self, at: Pullback) -> Cotangents:
        (x,) = at.operands
        dims: list[Dim] = []
        copies: list[int] = []
        for size, count in zip(x.shape, self.repeats, strict=True):
            if count != 1:
                copies.append(len(dims))
                dims.append(count)
            dims.append(size)
        return (at.cotangent.reshape(dims).sum(copies),)


@core_op(tag=17)
class Iota(Op):
    """`out[i] = i[axis]`: counts from 0 along `axis`, constant along the others. An integer dtype
    must hold every value; floats round to nearest (and overflow as a cast does), complex values
    have a zero imaginary part."""

    dtypes = {"dtype": NUMBERS}
    no_gradient = "it does not depend on anything"

    shape: Shape = attr(ShapeOf())
    dtype: DType = attr(DTypeOf())
    axis: int = attr(Usize())

    @classmethod
    def make(cls, types: Sequence[ValueType], **attrs: Any) -> Op:
        """A negative axis counts from the end of `shape`: there is no operand to count by."""
        axis = attrs.get("axis")
        if isinstance(axis, int) and axis < 0 and "shape" in attrs:
            attrs["shape"] = tuple(attrs["shape"])
            attrs["axis"] = normalise_axis(axis, len(attrs["shape"]))
        return cls(**attrs)

    def with_dims(self, replace_dim: Callable[[Dim], Dim]) -> Iota:
        return replace(self, shape=tuple(map(replace_dim, self.shape)))

    def check_symbols(self, scope: Scope) -> None:
        bound_symbols(self.shape, scope, "the shape of iota")

    def infer(self, *types: TensorType) -> TensorType:
        extent = self.shape[normalise_axis(self.axis, len(self.shape))]
        if self.dtype.is_integer and isinstance(extent, int) and extent - 1 > self.dtype.highest:
            raise invalid_attribute(
                f"iota counts to {extent - 1} but {self.dtype} ends at {self.dtype.highest}"
            )
        return TensorType(self.dtype, self.shape)

    def evaluate(self, ctx: EvalContext, *args: Array) -> Array:
        if 0 in ctx.shape:
            return np.empty(ctx.shape, self.dtype.numpy)
        counts = numeric.cast(np.arange(ctx.shape[self.axis]), SI64, self.dtype)
        column = (-1, *(1 for _ in ctx.shape[self.axis + 1 :]))
        return np.broadcast_to(counts.reshape(column), ctx.shape)
