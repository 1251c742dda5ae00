"""Whether the matrix units of warpgroups can multiply what an attention multiplies."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Axis, coefficient, linear
from weft.region.forms.attention import find_attention, score_sides, source, value_side
from weft.region.forms.runs import longest_run
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
    row_major,
)

_WIDEST: Final = 256
"""Elements of a row of queries, keys or values."""
_LINE: Final = 16
"""Bytes at multiples of which the copy engine reads."""
_MAP_BATCHES: Final = 3
"""Axes of a tensor that it goes through, beside rows and columns."""
_OF_ELEMENTS: Final = (Read, Const, AxisIndex, Unary, Cast, Binary, Select, Reduce)


def suits_warpgroups(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether warpgroups can multiply what the attention multiplies: 16-bit rows that the copy
    engine can read, and nothing beside that is not computed of single elements."""
    found = find_attention(kernel)
    if found is None or kernel.params:
        return False
    if not all(isinstance(let.expr, _OF_ELEMENTS) for let in kernel.body):
        return False
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    if any(read.places or kernel.open_guards(read) for read in reads):
        return False
    lets = [
        source(kernel, name) for name in (*score_sides(kernel, found), value_side(kernel, found))
    ]
    rows = (found.depth, found.depth, found.value)
    whole = all(
        _is_regular(kernel, let, columns, tensors) for let, columns in zip(lets, rows, strict=True)
    )
    return whole and len({let.dtype for let in lets}) == 1


def _is_regular(
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
    if math.prod(sizes[name] for name in wide) > _WIDEST:
        return False
    others = [name for name in let.axes if name not in columns and sizes[name] != 1]
    strides = [coefficient(expr, name) for name in others]
    size = let.dtype.storage_bytes
    aligned = all(n >= 0 and n * size % _LINE == 0 for n in (expr.constant, *strides))
    return aligned and len(others) <= 1 + _MAP_BATCHES
