"""Attentions of few queries over many keys: what they wait for is memory, and the keys of a matrix
are shared among blocks."""

from __future__ import annotations

import math
from typing import Final

from weft.region.form import AttentionParts
from weft.region.forms.attention import score_sides, source, value_side
from weft.region.ir import Kernel

LONG: Final = 128
"""Keys from which on they are many."""
_MOST_QUERIES: Final = 16
_MOST_ROWS: Final = 64
"""Queries of all heads that share their keys, at most."""
_WIDEST: Final = 128
"""Elements of a row of queries, keys or values."""


def is_of_few(kernel: Kernel, found: AttentionParts) -> bool:
    """Whether an attention has few queries and many keys."""
    sizes = kernel.sizes
    widest = max(math.prod(sizes[name] for name in axes) for axes in (found.depth, found.value))
    return sizes[found.query] <= _MOST_QUERIES and sizes[found.key] >= LONG and widest <= _WIDEST


def few_rows(kernel: Kernel, found: AttentionParts) -> int:
    """Queries, times the heads that share their keys, as far as these are rows of one block."""
    shared = {
        axis
        for name in (score_sides(kernel, found)[1], value_side(kernel, found))
        for axis in source(kernel, name).axes
    }
    rows = kernel.sizes[found.query]
    for name in reversed(found.batch):
        if name not in shared and rows * kernel.sizes[name] <= _MOST_ROWS:
            rows *= kernel.sizes[name]
    return rows
