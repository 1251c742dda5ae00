"""Attention of few queries over many keys (decoding): it is bound by memory bandwidth, and the keys
of a matrix are shared among blocks.
"""

from __future__ import annotations

import math
from typing import Final

from weft.region.form import AttentionParts
from weft.region.forms.attention import score_sides, source, value_side
from weft.region.forms.pages import Paged, find_pages
from weft.region.ir import Kernel, Let, Read

LONG: Final = 128
"""Keys from which on they are many."""
_MOST_QUERIES: Final = 16
"""Of one head: the rows of one matrix instruction."""
_MOST_ROWS: Final = 64
"""Queries of all heads that share their keys, at most."""
_WIDEST: Final = 256
"""Elements of a row of queries, keys or values."""


TILE: Final = 64
"""Keys that come at a time."""
_BOX: Final = 8
"""Rows of a page that are copied at a time, at least: whole patterns of shared memory."""


def is_of_few(kernel: Kernel, found: AttentionParts) -> bool:
    """Whether an attention has few queries and many keys."""
    sizes = kernel.sizes
    widest = max(math.prod(sizes[name] for name in axes) for axes in (found.depth, found.value))
    if sizes[found.query] > _MOST_QUERIES or sizes[found.key] < LONG or widest > _WIDEST:
        return False
    if not reads_pages(kernel, found):
        return True
    pages = pages_of(kernel, found)
    return pages is not None and fits_pages(pages.size, sizes[found.key], TILE)


def reads_pages(kernel: Kernel, found: AttentionParts) -> bool:
    """Whether a table says where some of its keys or values lie."""
    reads = (let.expr for let in _keys_and_values(kernel, found))
    return any(isinstance(read, Read) and read.places for read in reads)


def pages_of(kernel: Kernel, found: AttentionParts) -> Paged | None:
    """The pages that keys lie in, if values lie in the same ones of another tensor."""
    keys, values = (find_pages(kernel, let, found.key) for let in _keys_and_values(kernel, found))
    if keys is None or values is None:
        return None
    return keys if (keys.table, keys.size) == (values.table, values.size) else None


def fits_pages(size: int, keys: int, tile: int) -> bool:
    """Whether tiles of keys are parts of pages, or made of whole ones."""
    if size % tile == 0:
        return True
    return tile % size == 0 and size % _BOX == 0 and keys % tile == 0


def _keys_and_values(kernel: Kernel, found: AttentionParts) -> tuple[Let, Let]:
    names = (score_sides(kernel, found)[1], value_side(kernel, found))
    return source(kernel, names[0]), source(kernel, names[1])


def few_rows(kernel: Kernel, found: AttentionParts) -> int:
    """Queries, times the heads that share their keys, as far as these are rows of one block."""
    shared = {axis for let in _keys_and_values(kernel, found) for axis in let.axes}
    rows = kernel.sizes[found.query]
    for name in reversed(found.batch):
        if name not in shared and rows * kernel.sizes[name] <= _MOST_ROWS:
            rows *= kernel.sizes[name]
    return rows
