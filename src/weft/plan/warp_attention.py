"""Choosing an `AttentionPlan` for a GPU whose matrix instructions are those of single warps (SM80):
scores and sums stay in the registers of a warp, and as many blocks as possible share an SM."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from weft.foundation.records import dataclass
from weft.plan.ir import AttentionPlan, Header
from weft.region.ir import Kernel, attention_parts
from weft.target.target import Target

_BAND: Final = 16
"""Queries of a matrix instruction."""
_KEY_STEP: Final = 16
_NONE: Final = (0, 0)
"""Registers of plans whose warps are all alike."""


@dataclass(frozen=True)
class _Form:
    """Warps, bands of 16 queries that each has, and keys of a block, for rows of up to `widest`
    elements."""

    widest: int
    warps: int
    bands: int
    keys: int
    stages: int = 2


_FORMS: Final = (
    _Form(64, 4, 2, 64),
    _Form(128, 4, 2, 32),
    _Form(256, 8, 1, 64),
)
"""Two bands read keys and values from shared memory half as often, as long as registers hold the
sums of both. More stages were slower: two blocks of a unit wait in turns."""
_SMALL: Final = (
    _Form(128, 4, 1, 64),
    _Form(256, 4, 1, 32),
)
"""Where larger tiles leave units without work."""
_FEWEST: Final = 8
"""Large tiles of a unit, which has two at a time: with fewer the last ones are waited for."""


def warp_attention_plan(kernel: Kernel, target: Target, header: Header) -> AttentionPlan:
    """Large tiles, which read keys and values the least often, where there are enough of them."""
    found, sizes = attention_parts(kernel), kernel.sizes
    elements = (math.prod(sizes[name] for name in axes) for axes in (found.depth, found.value))
    widest, matrices = max(elements), math.prod(sizes[name] for name in found.batch)
    large, small = (
        next(form for form in forms if form.widest >= widest) for forms in (_FORMS, _SMALL)
    )
    tiles = -(-sizes[found.query] // (_BAND * large.warps * large.bands)) * matrices
    form = large if tiles >= _FEWEST * target.limits.units else small
    keys = -(-sizes[found.key] // _KEY_STEP) * _KEY_STEP
    return AttentionPlan(
        header,
        _BAND * form.warps * form.bands,
        min(form.keys, keys),
        form.stages,
        consumers=form.warps,
        registers=_NONE,
    )


def warp_consumers(plan: AttentionPlan, *, by_queries: bool) -> AttentionPlan:
    """A plan whose warps and queries fit together, two bands to a warp where that is possible."""
    if not by_queries:
        return replace(plan, tile_q=2 * _BAND * plan.consumers, registers=_NONE)
    each = 2 * _BAND if plan.tile_q % (2 * _BAND) == 0 else _BAND
    return replace(plan, consumers=max(1, plan.tile_q // each), registers=_NONE)


def warp_attention_plans(first: AttentionPlan) -> Iterator[AttentionPlan]:
    """Other blocks, other shares of a warp, and other depths of the rings."""
    for warps, bands, keys, stages in product((4, 8), (1, 2), (32, 64, 96, 128), (2, 4)):
        rows = _BAND * warps * bands
        yield replace(first, tile_q=rows, tile_kv=keys, stages=stages, consumers=warps)
