"""Known folds: reductions with several accumulators in one pass, such as an online softmax.

Each comes with its merge, which is associative and has the start as identity, so that a row may be
cut among lanes, threads or blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import inf

from weft.foundation.dtypes import F32, DType
from weft.foundation.records import replace
from weft.region.ir import (
    Binary,
    Carry,
    Cast,
    Const,
    Fold,
    Kernel,
    Let,
    Reduce,
    Tensor,
    Unary,
)
from weft.region.row_reads import row_bytes
from weft.region.writing.build import Body


def online_softmax(body: Body, x: str, axes: Sequence[str]) -> tuple[str, str]:
    """The maximum m of `x` over `axes` and the sum l of exp(x - m), in one pass.

    A partial result (m, l) stands for a sum of exponentials relative to m; seeing x is merging
    with (x, 1), and merging brings both sums to the greater maximum. Where two maxima are equal the
    factor is 1 without computing it, which is what makes -inf with 0 an identity.
    """
    dtype = body.dtype(x)
    rows = tuple(name for name in body.known[x][1] if name not in axes)
    count = len(body.lets)
    names = (f"m{count}", f"l{count}")

    step = body.inside(f"step{count}_")
    for name in names:
        step.known[name] = (dtype, rows)
    step.known[x] = (dtype, rows)
    one = step.const(1.0, dtype)
    # What stands behind (m, l) is l exp(m), the sum of exp(x). Merging adds two such numbers up,
    # and so is associative and commutative but for rounding; l is never much more than the number
    # of elements, whatever the x are.
    following = _merge_softmax(step, names, (x, one))

    merge = body.inside(f"merge{count}_")
    left, right = ((f"{names[0]}.{side}", f"{names[1]}.{side}") for side in ("a", "b"))
    for name in (*left, *right):
        merge.known[name] = (dtype, rows)
    merged = _merge_softmax(merge, left, right)

    carries = tuple(
        Carry(name, dtype, rows, start, following[n], merged[n])
        for n, (name, start) in enumerate(zip(names, (-inf, 0.0), strict=True))
    )
    folds = (
        Fold(tuple(axes), carries, tuple(step.lets), tuple(merge.lets), name) for name in names
    )
    top, total = (body.let(dtype, rows, fold) for fold in folds)
    return top, total


def _merge_softmax(body: Body, left: tuple[str, str], right: tuple[str, str]) -> tuple[str, str]:
    top = body.binary("max", left[0], right[0])
    parts = [_rescale(body, m, amount, top) for m, amount in (left, right)]
    return top, body.binary("add", *parts)


def _rescale(body: Body, m: str, amount: str, top: str) -> str:
    """`amount * exp(m - top)`."""
    dtype: DType = body.dtype(m)
    power = body.unary("exp", body.binary("sub", m, top))
    # -inf less -inf is NaN: the start, (-inf, 0), would spoil what it is merged with.
    factor = body.select(body.binary("eq", m, top), body.const(1.0, dtype), power)
    return body.binary("mul", amount, factor)


def in_one_pass(kernel: Kernel, tensors: Mapping[str, Tensor], limit: int) -> Kernel:
    """The kernel with softmax statistics from one pass, where its rows take more than `limit` bytes
    and a second pass would read them from memory again.

        m = max(x), l = sum(exp(x - m))   ->   (m, l) = fold
    """
    if row_bytes(kernel, tensors) <= limit:
        return kernel
    lets = {let.name: let for let in kernel.body}
    body = list(kernel.body)
    for total in kernel.body:
        pair = _statistics(total, lets)
        if pair is not None:
            x, top = pair
            scratch = Body([found.name for found in kernel.axes], prefix=f"{total.name}_")
            scratch.known = {let.name: (let.dtype, let.axes) for let in kernel.body}
            online_softmax(scratch, x, _axes_of_reduce(top))
            fold_top, fold_total = (made.expr for made in scratch.lets)
            changed = {top.name: fold_top, total.name: fold_total}
            body = [replace(let, expr=changed.get(let.name, let.expr)) for let in body]
    return replace(kernel, body=tuple(body))


def _statistics(total: Let, lets: Mapping[str, Let]) -> tuple[str, Let] | None:
    """For `sum(exp(x - max(x)))` over one set of axes: x, and the maximum."""
    if not isinstance(total.expr, Reduce) or total.expr.fn != "sum":
        return None
    power = lets[total.expr.value].expr
    shifted = lets[power.x].expr if isinstance(power, Unary) and power.fn == "exp" else None
    if not isinstance(shifted, Binary) or shifted.fn != "sub":
        return None
    top = lets[shifted.rhs]
    same = isinstance(top.expr, Reduce) and top.expr == Reduce("max", total.expr.axes, shifted.lhs)
    return (shifted.lhs, top) if same and top.dtype is total.dtype else None


def _axes_of_reduce(let: Let) -> tuple[str, ...]:
    return let.expr.axes if isinstance(let.expr, Reduce) else ()


def moments(body: Body, x: str, axes: Sequence[str], count: int) -> tuple[str, str]:
    """The sum of `x` over `axes`, `count` points, and the sum of squared distances from the mean,
    in one pass.

    A partial result has its first element as `pivot`, and sums of distances from it and of their
    squares: what these lose to one another where they are subtracted is little, since a pivot is
    as far from the mean as elements are. Merging, which is rare, moves the pivot to the mean by
    Chan's formula. Counts are floats, exact as long as a row has fewer elements than the dtype has
    integers.
    """
    dtype = body.dtype(x)
    rows = tuple(name for name in body.known[x][1] if name not in axes)
    number = len(body.lets)
    stems = ("count", "pivot", "shift", "squares", "total")
    names = tuple(f"{stem}{number}" for stem in stems)

    step = body.inside(f"step{number}_")
    for name in (*names, x):
        step.known[name] = (dtype, rows)
    following = _with_element(step, names, x)

    merge = body.inside(f"merge{number}_")
    left, right = (tuple(f"{name}.{side}" for name in names) for side in ("a", "b"))
    for name in (*left, *right):
        merge.known[name] = (dtype, rows)
    merged = _merge_moments(merge, left, right)

    carries = tuple(
        Carry(name, dtype, rows, 0.0, following[n], merged[n]) for n, name in enumerate(names)
    )
    shift, squares, total = (
        body.let(dtype, rows, Fold(tuple(axes), carries, tuple(step.lets), tuple(merge.lets), name))
        for name in names[2:]
    )
    each = body.const(1.0 / count, dtype)
    # Of n numbers x with pivot p and mean a, n (a - p) is the sum of x - p: so the sum of (x - p)²
    # is that of (x - a)² and (sum of x - p)² / n. Rounding may leave less than 0.
    lost = body.binary("mul", shift, body.binary("mul", shift, each))
    zero = body.const(0.0, dtype)
    return total, body.binary("max", body.binary("sub", squares, lost), zero)


def _with_element(body: Body, carried: Sequence[str], x: str) -> tuple[str, ...]:
    count, pivot, shift, squares, total = carried
    dtype = body.dtype(x)
    zero, one = body.const(0.0, dtype), body.const(1.0, dtype)
    pivot = body.select(body.binary("eq", count, zero), x, pivot)
    distance = body.binary("sub", x, pivot)
    return (
        body.binary("add", count, one),
        pivot,
        body.binary("add", shift, distance),
        body.binary("add", squares, body.binary("mul", distance, distance)),
        body.binary("add", total, x),
    )


def _merge_moments(body: Body, left: Sequence[str], right: Sequence[str]) -> tuple[str, ...]:
    (n_a, *_, total_a), (n_b, *_, total_b) = left, right
    dtype = body.dtype(n_a)
    one, zero = body.const(1.0, dtype), body.const(0.0, dtype)
    count = body.binary("add", n_a, n_b)
    by_a, by_b, by_count = _reciprocals(body, [n_a, n_b, count], one)
    mean_a, m2_a = _about_mean(body, left, by_a)
    mean_b, m2_b = _about_mean(body, right, by_b)
    weight = body.binary("mul", n_b, by_count)
    delta = body.binary("sub", mean_b, mean_a)
    # Of a part without elements the first factor is zero, however large the distance is.
    # Chan's formula: squares about the mean of all are those about the means of both parts, and n_a
    # n_b / n times the square of how far these are apart.
    spread = body.binary("mul", body.binary("mul", body.binary("mul", n_a, weight), delta), delta)
    return (
        count,
        body.binary("add", mean_a, body.binary("mul", delta, weight)),
        body.binary("mul", count, zero),
        body.binary("add", body.binary("add", m2_a, m2_b), spread),
        body.binary("add", total_a, total_b),
    )


def _reciprocals(body: Body, counts: Sequence[str], one: str) -> list[str]:
    """Of three counts, 1 in place of 0, by one root: a division takes as long as all else together,
    and its branches keep apart what is merged for one row and for its neighbour."""
    a, b, c = (body.binary("max", count, one) for count in counts)
    others = [body.binary("mul", x, y) for x, y in ((b, c), (a, c), (a, b))]
    root = body.unary("rsqrt", body.binary("mul", a, others[0]))
    # 1 / (a b c), and 1 / a is that times b c. Counts are whole numbers that the dtype holds: the
    # product of three is far from the end of its range.
    whole = body.binary("mul", root, root)
    return [body.binary("mul", whole, other) for other in others]


def _about_mean(body: Body, side: Sequence[str], by_count: str) -> tuple[str, str]:
    """The mean of a partial result, and its squared distances from that."""
    _, pivot, shift, squares, _ = side
    moved = body.binary("mul", shift, by_count)
    lost = body.binary("mul", shift, moved)
    return body.binary("add", pivot, moved), body.binary("sub", squares, lost)


def with_moments(kernel: Kernel) -> Kernel:
    """The kernel with sums and squared distances from the mean of narrow floats from one pass.

    s = sum(x), m2 = sum((x - s / n)²)   ->   (s, m2) = fold
    """
    body = list(kernel.body)
    for found in kernel.body:
        if not isinstance(found.expr, Reduce) or found.expr.fn != "sum":
            continue
        lets = {let.name: let for let in body}
        pair = _distances(found, lets, kernel.sizes)
        if pair is None:
            continue
        x, total = pair
        scratch = Body([axis.name for axis in kernel.axes], prefix=f"{total.name}_")
        scratch.known = {let.name: (let.dtype, let.axes) for let in body}
        axes = _axes_of_reduce(total)
        made = moments(scratch, x, axes, math.prod(kernel.sizes[name] for name in axes))
        exprs = {let.name: let.expr for let in scratch.lets}
        changed = dict(zip((total.name, found.name), (exprs[name] for name in made), strict=True))
        more = [let for let in scratch.lets if let.name not in made]
        at = body.index(total)
        body = [
            replace(let, expr=changed.get(let.name, let.expr))
            for let in (*body[:at], *more, *body[at:])
        ]
    return replace(kernel, body=tuple(body))


def _distances(
    found: Let, lets: Mapping[str, Let], sizes: Mapping[str, int]
) -> tuple[str, Let] | None:
    """For `sum((x - sum(x) / n)²)` over one set of axes, with x narrow floats in a wider dtype: x,
    and its sum."""
    if not isinstance(found.expr, Reduce) or found.expr.fn != "sum":
        return None
    square = lets[found.expr.value].expr
    same = isinstance(square, Binary) and square.fn == "mul" and square.lhs == square.rhs
    centred = lets[square.lhs].expr if isinstance(square, Binary) and same else None
    if not isinstance(centred, Binary) or centred.fn != "sub" or not _is_widened(centred.lhs, lets):
        return None
    mean, axes = lets[centred.rhs].expr, found.expr.axes
    if not isinstance(mean, Binary) or mean.fn != "mul":
        return None
    total, each = lets[mean.lhs], lets[mean.rhs].expr
    points = math.prod(sizes[name] for name in axes)
    share = each.value if isinstance(each, Const) and isinstance(each.value, float) else 0.0
    fits = math.isclose(share * points, 1.0, rel_tol=1e-6)
    is_sum = total.expr == Reduce("sum", axes, centred.lhs) and total.dtype is found.dtype
    return (centred.lhs, total) if fits and is_sum else None


def _is_widened(name: str, lets: Mapping[str, Let]) -> bool:
    """Whether a value is a float of 16 bits or fewer in a wider dtype."""
    cast = lets[name].expr
    source = lets[cast.x].dtype if isinstance(cast, Cast) else None
    return source is not None and source.is_float and source.bits <= 16 and lets[name].dtype is F32
