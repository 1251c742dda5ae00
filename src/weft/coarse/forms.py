"""Formulas that several decompositions of coarse ops share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.foundation.dtypes import I1, SI64
from weft.ptir.term import Term, known_size
from weft.ptir.types import Symbol


def reduced(x: Term, kind: str, axes: Sequence[int]) -> Term:
    """A reduction over axes, which stay as 1, in the dtype of x throughout."""
    return x.emitter.emit(
        f"reduce_{kind}", x, axes=tuple(axes), keepdims=True, accum_dtype=x.dtype, out_dtype=x.dtype
    )


def mean(x: Term, axes: Sequence[int]) -> Term:
    """The mean over axes, which stay as 1; of nothing it is 0."""
    total = reduced(x, "sum", axes)
    if any(isinstance(x.shape[axis], Symbol) for axis in axes):
        count = x.extent(axes[0], SI64)
        for axis in axes[1:]:
            count = count * x.extent(axis, SI64)
        return total / count.maximum(1).cast(x.dtype).broadcast_to(total.shape)
    size = math.prod(known_size(x.shape[axis]) for axis in axes)
    return total / float(max(size, 1))


def length(squares: Term) -> Term:
    """The square root of a sum of squares, which has the derivative 0 at 0."""
    zero, one = squares.compare(0, "equal"), squares.like(1)
    return squares.like(0).where(zero, one.where(zero, squares).sqrt())


def laid_along(parameter: Term, axes: Sequence[int], x: Term) -> Term:
    """A parameter whose axes are these axes of x, repeated over the others."""
    order = sorted(range(len(axes)), key=lambda position: axes[position])
    ordered = parameter.transpose(order)
    places = dict(zip(sorted(axes), ordered.shape, strict=True))
    return ordered.reshape([places.get(d, 1) for d in range(x.rank)]).broadcast_to(x.shape)


def summed_to(x: Term, axes: Sequence[int]) -> Term:
    """The adjoint of `laid_along`: the sum over all axes but these, which come in this order."""
    kept = sorted(axes)
    total = x.sum([d for d in range(x.rank) if d not in kept])
    return total.transpose([kept.index(axis) for axis in axes])


def guarded(x: Term, holds: Term) -> Term:
    """`x` where a condition (i1[]) holds; elsewhere the program is rejected when it runs, because
    an element is read that does not exist. The op around it says what that means (`rejection`)."""
    emitter = holds.emitter
    zero, one = emitter.literal(0, SI64), emitter.literal(1, SI64)
    nothing = emitter.emit("take", emitter.literal([0], SI64), zero.where(holds, one))
    none = nothing.cast(x.dtype).broadcast_to(x.shape)
    # Subtracting zero changes no element, not even -0.
    return x.maximum(none) if x.dtype is I1 else x - none


def all_equal(x: Term, values: Sequence[int]) -> Term:
    """Whether a rank-1 term has exactly these elements, as i1[]."""
    same = x.compare(x.emitter.literal(list(values), x.dtype), "equal")
    return same.reduce_min(axes=(0,), keepdims=False)


def stacked(*scalars: Term) -> Term:
    """Scalars of one dtype as a rank-1 term."""
    first, *rest = (scalar.reshape((1,)) for scalar in scalars)
    return first.emitter.emit("concat", first, *rest, axis=0)
