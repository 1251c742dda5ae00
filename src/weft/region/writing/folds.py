"""Folds that Weft knows: reductions with more than one running number, computed in one pass.

Each comes with its merge, which is associative and has the start as identity, so that a row may be
cut among lanes, threads or blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from weft.foundation.dtypes import DType
from weft.region.ir import Binary, Carry, Fold, Kernel, Let, Reduce, Tensor, Unary
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
    parts = [_rescaled(body, m, amount, top) for m, amount in (left, right)]
    return top, body.binary("add", *parts)


def _rescaled(body: Body, m: str, amount: str, top: str) -> str:
    """`amount * exp(m - top)`."""
    dtype: DType = body.dtype(m)
    power = body.unary("exp", body.binary("sub", m, top))
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
            online_softmax(scratch, x, _axes(top))
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


def _axes(let: Let) -> tuple[str, ...]:
    return let.expr.axes if isinstance(let.expr, Reduce) else ()


def welford(body: Body, x: str, axes: Sequence[str]) -> tuple[str, str]:
    """The mean of `x` over `axes` and the sum of squared distances from it, in one pass.

    A partial result is (count, mean, m2); merging follows Chan's formula. The count is a float:
    exact as long as a row has fewer elements than the dtype has integers.
    """
    dtype = body.dtype(x)
    rows = tuple(name for name in body.known[x][1] if name not in axes)
    number = len(body.lets)
    names = (f"n{number}", f"mean{number}", f"m2{number}")

    step = body.inside(f"step{number}_")
    for name in names:
        step.known[name] = (dtype, rows)
    step.known[x] = (dtype, rows)
    one, zero = step.const(1.0, dtype), step.const(0.0, dtype)
    following = _merge_moments(step, names, (one, x, zero))

    merge = body.inside(f"merge{number}_")
    left, right = (tuple(f"{name}.{side}" for name in names) for side in ("a", "b"))
    for name in (*left, *right):
        merge.known[name] = (dtype, rows)
    merged = _merge_moments(merge, left, right)

    carries = tuple(
        Carry(name, dtype, rows, 0.0, following[n], merged[n]) for n, name in enumerate(names)
    )
    mean, m2 = (
        body.let(dtype, rows, Fold(tuple(axes), carries, tuple(step.lets), tuple(merge.lets), name))
        for name in names[1:]
    )
    return mean, m2


def _merge_moments(body: Body, left: Sequence[str], right: Sequence[str]) -> tuple[str, str, str]:
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = left, right
    dtype = body.dtype(mean_a)
    count = body.binary("add", n_a, n_b)
    one = body.const(1.0, dtype)
    weight = body.binary("div", n_b, body.binary("max", count, one))
    delta = body.binary("sub", mean_b, mean_a)
    mean = body.binary("add", mean_a, body.binary("mul", delta, weight))
    spread = body.binary("mul", body.binary("mul", delta, delta), body.binary("mul", n_a, weight))
    return count, mean, body.binary("add", body.binary("add", m2_a, m2_b), spread)
