"""The form of attention gradients (streams).

    s[r, j] = sum_d a[r, d] * b[j, d],   t[r, j] = sum_e c[r, e] * f[j, e]     products
    p[r, j] = exp(x - shift)                     x of s; one shift to a row, or to a column
    y[r, d] = sum_j g(p, t)[r, j] * b[j, d]      results

Rows r are kept and columns j gone through: for the gradient of queries rows are queries, for those
of keys and values they are keys. A group is axes of columns of which each point is gone through in
turn: query heads that share keys. `find_stream` finds the parts in a kernel; a template computes
them block by block, so that nothing with both rows and columns reaches memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from weft.foundation.dtypes import F32, DType
from weft.region.form import StreamParts
from weft.region.forms.attention import leads_to, source
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Read,
    Reduce,
    Select,
    Unary,
    Words,
)

_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select, Reduce, Words)
_MOST: Final = 2
"""Products of a stream, and results."""


def find_stream(kernel: Kernel) -> StreamParts | None:
    """The stream that a kernel is; None where it is something else."""
    lets = {let.name: let for let in kernel.body}
    if kernel.params or not all(isinstance(let.expr, _OF_ELEMENTS) for let in kernel.body):
        return None
    products, results = _sums(kernel)
    axes = stream_axes(kernel)
    if axes is None or not 1 <= len(products) <= _MOST or not 1 <= len(results) <= _MOST:
        return None
    batch, row, group, column = axes
    if not all(_multiplies(kernel, let, axes) for let in products):
        return None
    power = _find_exponential(lets, products, {row, column})
    if power is None:
        return None
    scores, x, shift, name = power
    ordered = (scores, *(let.name for let in products if let.name != scores))
    names = tuple(let.name for let in results)
    return StreamParts(ordered, x, shift, name, names, batch, row, group, column)


def _sums(kernel: Kernel) -> tuple[list[Let], list[Let]]:
    """Sums that other sums are made of, and those that are not."""
    lets = {let.name: let for let in kernel.body}
    sums = [let for let in kernel.body if isinstance(let.expr, Reduce)]
    products = [
        let
        for let in sums
        if any(
            other is not let and leads_to(lets, _value_of_reduce(other), let.name) for other in sums
        )
    ]
    return products, [let for let in sums if let not in products]


def _fn(let: Let) -> str:
    return let.expr.fn if isinstance(let.expr, Reduce) else ""


def _value_of_reduce(let: Let) -> str:
    return let.expr.value if isinstance(let.expr, Reduce) else ""


def _axes_summed(let: Let) -> tuple[str, ...]:
    return let.expr.axes if isinstance(let.expr, Reduce) else ()


def factors(kernel: Kernel, name: str) -> tuple[str, str] | None:
    """The two values whose product a sum adds up."""
    made = kernel.let(_value_of_reduce(kernel.let(name))).expr
    return (made.lhs, made.rhs) if isinstance(made, Binary) and made.fn == "mul" else None


class StreamAxes(NamedTuple):
    """What the axes of values of rows and columns are."""

    batch: tuple[str, ...]
    row: str
    group: tuple[str, ...]
    column: str


def stream_axes(kernel: Kernel) -> StreamAxes | None:
    """The axes of rows and columns, the same ones for all results."""
    _, results = _sums(kernel)
    found = {_stream_axes(kernel, let) for let in results if _fn(let) == "sum" and let.dtype is F32}
    return found.pop() if len(found) == 1 else None


def _stream_axes(kernel: Kernel, result: Let) -> StreamAxes | None:
    pair = factors(kernel, result.name)
    names = () if pair is None else pair
    read = [name for name in names if isinstance(source(kernel, name).expr, Read)]
    weights = [name for name in names if name not in read]
    if len(read) != 1 or len(weights) != 1:
        return None
    both, others = kernel.let(weights[0]).axes, set(kernel.let(read[0]).axes)
    kept = [name for name in both if name not in _axes_summed(result)]
    columns = tuple(name for name in both if name in _axes_summed(result))
    own = [name for name in kept if name not in others]
    if not own or {*columns} != {*_axes_summed(result)} or not {*columns} <= others:
        return None
    batch = tuple(name for name in kept if name != own[-1])
    return StreamAxes(batch, own[-1], columns[:-1], columns[-1])


def _multiplies(kernel: Kernel, let: Let, axes: StreamAxes) -> bool:
    """Whether a product is of something without columns and something without rows."""
    pair = factors(kernel, let.name)
    wide = {*axes.batch, axes.row, *axes.group, axes.column}
    if pair is None or _fn(let) != "sum" or let.dtype is not F32 or {*let.axes} != wide:
        return False
    lives = [set(kernel.let(name).axes) & {axes.row, axes.column} for name in pair]
    return {axes.row} in lives and {axes.column} in lives


def _find_exponential(
    lets: Mapping[str, Let], products: Sequence[Let], wide: set[str]
) -> tuple[str, str, str, str] | None:
    """The product, x and shift of exp(x - shift), and its name."""
    for let in lets.values():
        made = let.expr
        inner = lets[made.x].expr if isinstance(made, Unary) and made.fn == "exp" else None
        if not isinstance(inner, Binary) or inner.fn != "sub" or not wide <= set(let.axes):
            continue
        of = [p.name for p in products if leads_to(lets, inner.lhs, p.name)]
        if len(of) == 1 and not wide <= set(lets[inner.rhs].axes):
            return of[0], inner.lhs, inner.rhs, let.name
    return None


def sides(kernel: Kernel, found: StreamParts, product: str) -> tuple[Let, Let]:
    """What is read for a product: of rows, of columns."""
    pair = factors(kernel, product)
    assert pair is not None
    first, second = (source(kernel, name) for name in pair)
    return (first, second) if found.row in first.axes else (second, first)


def summed_axes(kernel: Kernel, product: str) -> tuple[str, ...]:
    """The axes that a product adds up along."""
    return _axes_summed(kernel.let(product))


def value_axes(kernel: Kernel, found: StreamParts, result: str) -> tuple[str, ...]:
    """The axes of a row of a result."""
    rows = {*found.batch, found.row}
    return tuple(name for name in kernel.let(result).axes if name not in rows)


def weight_and_rows(kernel: Kernel, found: StreamParts, result: str) -> tuple[str, Let]:
    """What a result sums: a value of rows and columns, times what is read for each column."""
    pair = factors(kernel, result)
    assert pair is not None
    weight, other = pair if found.row in kernel.let(pair[0]).axes else (pair[1], pair[0])
    return weight, source(kernel, other)


def is_narrow(kernel: Kernel, name: str, dtype: DType) -> bool:
    """Whether a value is rounded to a dtype: computed in it, or cast to it on the way through the
    casts that it ends in."""
    let = kernel.let(name)
    while let.dtype is not dtype and isinstance(let.expr, Cast):
        let = kernel.let(let.expr.x)
    return let.dtype is dtype
