"""Paged rows: the page of a key is looked up in a page table.

    k[j, d] = cache[table[floor(j / size)], j mod size, d]

A page is a run of `size` rows anywhere in the tensor, in whatever dimension pages are counted.
"""

from __future__ import annotations

from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Index,
    Param,
    add,
    axes_of,
    axis,
    constant,
    floordiv,
    scale,
)
from weft.foundation.records import dataclass
from weft.region.ir import Kernel, Let, Read


@dataclass(frozen=True)
class Paged:
    """How a read goes through pages: `table` is the Let of a page's number, which dimension `dim`
    of the tensor is counted in."""

    table: str
    size: int
    dim: int
    index: Index
    """Of the first page: the axis of keys is the row of the page."""
    table_index: Index
    """Of the table: the axis of keys is the number of the page among those of its keys."""


def find_pages(kernel: Kernel, let: Let, key: str) -> Paged | None:
    """The pages that a Let reads, by keys; None where it reads otherwise."""
    read = let.expr
    if not isinstance(read, Read) or len(read.places) != 1 or kernel.open_guards(read):
        return None
    table = kernel.let(read.places[0].value).expr
    if not isinstance(table, Read) or table.places or kernel.open_guards(table):
        return None
    sizes = {size for expr in read.index for size in _page_sizes(expr, key)}
    if len(sizes) != 1:
        return None
    (size,) = sizes
    # key mod size, in the form that index expressions have. Equal expressions are one object.
    row = axis(key) - floordiv(axis(key), size) * size
    page = Param(read.places[0].param)
    found: list[Expr] = []
    for expr in read.index:
        if expr is row:
            found.append(axis(key))
        elif expr.terms == ((page, 1),) and expr.constant == 0:
            found.append(constant(0))
        elif key in axes_of(expr) or any(isinstance(term, Param) for term, _ in expr.terms):
            return None
        else:
            found.append(expr)
    dims = [n for n, expr in enumerate(read.index) if expr.terms == ((page, 1),)]
    rows = [expr for expr in read.index if expr is row]
    by_page = [_by_page(expr, key, size) for expr in table.index]
    whole = tuple(expr for expr in by_page if expr is not None)
    if len(dims) != 1 or len(rows) != 1 or len(whole) != len(by_page):
        return None
    return Paged(read.places[0].value, size, dims[0], tuple(found), whole)


def _page_sizes(expr: Expr, key: str) -> set[int]:
    """What the axis of keys is divided by."""
    divided = [term for term, _ in expr.terms if isinstance(term, FloorDiv)]
    return {term.divisor for term in divided if term.value is axis(key)}


def _by_page(expr: Expr, key: str, size: int) -> Expr | None:
    """An expression with an axis in the place of the number of a page; None where it is made of
    single keys."""
    parts = [constant(expr.constant)]
    for term, factor in expr.terms:
        if isinstance(term, FloorDiv) and term.value is axis(key) and term.divisor == size:
            parts.append(scale(axis(key), factor))
        elif isinstance(term, Axis) and term.name != key:
            parts.append(scale(axis(term.name), factor))
        else:
            return None
    return add(*parts)
