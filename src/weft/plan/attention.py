"""Choosing an `AttentionPlan` for the CPU: blocks of queries and keys that stay in its caches."""

from __future__ import annotations

import math
from typing import Final

from weft.plan.blocks import SCRATCH_BYTES, even_blocks, register_block
from weft.plan.ir import AttentionPlan, Header
from weft.region.ir import Kernel, attention_parts
from weft.target.target import Target

QUERIES: Final = 96
"""Queries of a block, about: enough to make packing keys and values cheap."""
KEYS: Final = 128
"""Keys of a block, about: those packed, their values, and a panel of scores stay near."""


def cpu_attention_plan(kernel: Kernel, target: Target, header: Header) -> AttentionPlan | None:
    """Blocks of equal size; None where one block of each is too large for a thread."""
    found = attention_parts(kernel)
    dtype = kernel.let(found.scores).dtype
    lanes = target.lanes(dtype)
    rows, columns = register_block(target, lanes)
    tile_q = even_blocks(kernel.sizes[found.query], QUERIES, columns)
    tile_kv = even_blocks(kernel.sizes[found.key], KEYS, rows)
    plan = AttentionPlan(header, tile_q, tile_kv, register_tile=(rows, columns), vector=lanes)
    return plan if scratch_bytes(kernel, plan) <= SCRATCH_BYTES else None


def scratch_bytes(kernel: Kernel, plan: AttentionPlan) -> int:
    """Memory of a thread: packed queries, keys and values, scores, mixed values and statistics."""
    return sum(scratch_elements(kernel, plan)) * _dtype_bytes(kernel)


def scratch_elements(kernel: Kernel, plan: AttentionPlan) -> tuple[int, ...]:
    """Elements of packed queries, packed keys, packed values, the scores of one panel, mixed
    values, and of the greatest score, the sum and the factor of each query."""
    found = attention_parts(kernel)
    rows, columns = plan.register_tile
    queries, keys = _up(plan.tile_q, columns), _up(plan.tile_kv, rows)
    depth = math.prod(kernel.sizes[a] for a in found.depth)
    value = _up(math.prod(kernel.sizes[a] for a in found.value), rows)
    packed = (queries * depth, keys * depth, keys * value)
    return (*packed, keys * columns, queries * value, queries, queries, queries)


def _dtype_bytes(kernel: Kernel) -> int:
    found = attention_parts(kernel)
    return kernel.let(found.scores).dtype.storage_bytes


def _up(size: int, step: int) -> int:
    return -(-size // step) * step
