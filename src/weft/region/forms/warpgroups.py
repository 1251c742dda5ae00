"""Whether wgmma can multiply the operands of an attention or its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32, DType
from weft.foundation.index_expr import Axis, coefficient, linear
from weft.foundation.records import replace
from weft.region.forms.attention import (
    find_attention,
    leads_to,
    score_sides,
    source,
    value_side,
)
from weft.region.forms.few_queries import pages_of
from weft.region.forms.pages import find_pages
from weft.region.forms.runs import longest_run
from weft.region.forms.stream import (
    find_stream,
    is_narrow,
    sides,
    summed_axes,
    value_axes,
    weight_and_rows,
)
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
    Tensor,
    Unary,
    Words,
    row_major,
)
from weft.region.row_reads import points_of

WIDEST: Final = 256
"""Elements of a row of queries, keys or values."""
_LINE: Final = 16
"""Bytes at multiples of which the copy engine reads."""
_MAP_BATCHES: Final = 3
"""Axes of a tensor that it goes through, beside rows and columns."""
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select, Reduce, Words)


def suits_warpgroups(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether warpgroups can multiply what the attention multiplies: 16-bit rows that the copy
    engine can read, one result for its values, and nothing beside that is not computed of single
    elements."""
    found = find_attention(kernel)
    if found is None or kernel.params:
        return False
    stored = [set(kernel.let(output.value).axes) for output in kernel.outputs]
    if sum(bool(axes & set(found.value)) for axes in stored) != 1:
        return False
    if not all(isinstance(let.expr, _OF_ELEMENTS) for let in kernel.body):
        return False
    lets = [
        source(kernel, name) for name in (*score_sides(kernel, found), value_side(kernel, found))
    ]
    in_pages = pages_of(kernel, found) is not None
    placed = {let.name for let in lets[1:]} if in_pages else set[str]()
    for let in kernel.body:
        read = let.expr
        if not isinstance(read, Read):
            continue
        if kernel.open_guards(read) or (read.places and let.name not in placed):
            return False
    rows = (found.depth, found.depth, found.value)
    whole = all(
        is_regular(kernel, _of_one_page(kernel, let, found.key), columns, tensors)
        for let, columns in zip(lets, rows, strict=True)
    )
    return whole and len({let.dtype for let in lets}) == 1


def _of_one_page(kernel: Kernel, let: Let, key: str) -> Let:
    """A Let as it would be if all rows lay in the first page."""
    paged = find_pages(kernel, let, key)
    if paged is None or not isinstance(let.expr, Read):
        return let
    return replace(let, expr=Read(let.expr.tensor, paged.index))


def stream_suits_warpgroups(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether warpgroups can multiply what a stream multiplies: 16-bit rows that the copy engine
    can read, those of columns for products and results alike, and sums that registers hold."""
    found = find_stream(kernel)
    if found is None:
        return False
    if not _reads_plainly(kernel, tensors) or not _stores_each(kernel, found.results):
        return False
    if _divides_by_rows(kernel):
        return False
    shift = kernel.let(found.shift)
    if not isinstance(shift.expr, Read) or shift.dtype is not F32:
        return False
    pairs = {name: sides(kernel, found, name) for name in found.products}
    depths = {name: summed_axes(kernel, name) for name in found.products}
    if not all(is_regular(kernel, x, depths[n], tensors) for n in pairs for x in pairs[n]):
        return False
    streamed = [_rows_read(pairs[name][1], depths[name]) for name in found.products]
    lets = {let.name: let for let in kernel.body}
    for name in found.results:
        width = value_axes(kernel, found, name)
        weight, let = weight_and_rows(kernel, found, name)
        if not isinstance(let.expr, Read) or _rows_read(let, width) not in streamed:
            return False
        # One product's rows serve one result: their places in shared memory are its.
        streamed.remove(_rows_read(let, width))
        # Powers take the place of the scores that they are made of.
        if leads_to(lets, weight, found.products[0], past=(found.power,)):
            return False
        if not is_narrow(kernel, weight, let.dtype) and not _ends_in(kernel, name, let.dtype):
            return False
    widths = [points_of(kernel, value_axes(kernel, found, name)) for name in found.results]
    dtypes = {let.dtype for pair in pairs.values() for let in pair}
    return len(dtypes) == 1 and sum(widths) <= WIDEST


def _reads_plainly(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether every read is of an element that axes say where to find, and always there."""
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    indices = [(read.tensor, read.index) for read in reads]
    indices += [(output.tensor, output.index) for output in kernel.outputs]
    exprs = [linear(index, row_major(tensors[name].shape)) for name, index in indices]
    affine = all(isinstance(term, Axis) for expr in exprs for term, _ in expr.terms)
    return affine and not any(read.places or kernel.open_guards(read) for read in reads)


def _stores_each(kernel: Kernel, results: Sequence[str]) -> bool:
    """Whether every result is stored, once, and nothing else."""
    lets = {let.name: let for let in kernel.body}
    made_of = [
        [name for name in results if leads_to(lets, output.value, name)]
        for output in kernel.outputs
    ]
    if sorted(made_of) != sorted([name] for name in results):
        return False
    stored = [lets[output.value] for output in kernel.outputs]
    whole = all(let.axes == lets[name].axes for let, (name,) in zip(stored, made_of, strict=True))
    return whole and all(let.dtype in (BF16, F16, F32) for let in stored)


def _divides_by_rows(kernel: Kernel) -> bool:
    """Whether something is divided by what there is only where there are rows and columns: beyond
    them it is 0, and 0 times that no number."""
    quotients = [let.expr for let in kernel.body if isinstance(let.expr, Binary)]
    return any(made.fn == "div" and bool(kernel.let(made.rhs).axes) for made in quotients)


def _ends_in(kernel: Kernel, result: str, dtype: DType) -> bool:
    """Whether a result is rounded to a dtype before it is stored, so that weights may be."""
    lets = {let.name: let for let in kernel.body}
    stored = [lets[o.value] for o in kernel.outputs if leads_to(lets, o.value, result)]
    return all(let.dtype is dtype for let in stored)


def _rows_read(let: Let, columns: Sequence[str]) -> tuple[object, ...]:
    """Which rows are read, whatever the axes along a row are called."""
    assert isinstance(let.expr, Read)
    plain = {name: f"column{number}" for number, name in enumerate(columns)}
    names = [[(str(term), factor) for term, factor in expr.terms] for expr in let.expr.index]
    # Terms stand in the order of their names, which differ.
    terms = [
        tuple(sorted((plain.get(name, name), factor) for name, factor in found)) for found in names
    ]
    return let.expr.tensor, tuple(terms), tuple(expr.constant for expr in let.expr.index)


def is_regular(
    kernel: Kernel, let: Let, columns: Sequence[str], tensors: Mapping[str, Tensor]
) -> bool:
    """Whether an operand is read in rows of neighbours that begin at whole lines."""
    if not isinstance(let.expr, Read) or let.dtype not in (BF16, F16):
        return False
    expr = linear(let.expr.index, row_major(tensors[let.expr.tensor].shape))
    if any(not isinstance(term, Axis) for term, _ in expr.terms):
        return False
    sizes = kernel.sizes
    wide = [name for name in columns if sizes[name] != 1]
    run = longest_run(columns, [expr], sizes)[0]
    if not wide or run or coefficient(expr, wide[-1]) != 1:
        return False
    if math.prod(sizes[name] for name in wide) > WIDEST:
        return False
    others = [name for name in let.axes if name not in columns and sizes[name] != 1]
    strides = [coefficient(expr, name) for name in others]
    size = let.dtype.storage_bytes
    aligned = all(n >= 0 and n * size % _LINE == 0 for n in (expr.constant, *strides))
    return aligned and len(others) <= 1 + _MAP_BATCHES
