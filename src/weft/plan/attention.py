"""Choosing an `AttentionPlan`: on a CPU blocks of queries and keys that fit its caches, on a GPU
those whose scores and sums fit in registers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.blocks import SCRATCH_BYTES, even_blocks, register_block
from weft.plan.ir import AttentionPlan, Header
from weft.plan.warp_attention import warp_attention_plan, warp_attention_plans, warp_consumers
from weft.region.form import Attention
from weft.region.forms.bands import Band, band_of, band_of_stream
from weft.region.forms.dropout_bits import draws_words
from weft.region.forms.few_queries import few_rows, is_of_few
from weft.region.forms.stream import summed_axes, value_axes
from weft.region.ir import Kernel, attention_parts, form_of, stream_parts
from weft.region.row_reads import points_of
from weft.target.target import Target

QUERIES: Final = 96
"""Queries of a block, about: enough to make packing keys and values cheap."""
KEYS: Final = 128
"""Keys of a block, about: those packed, their values, and a panel of scores stay near."""


_QUERIES_EACH: Final = 64
"""Queries of a consumer: the rows of a warpgroup's matrix instruction."""
_KEY_STEP: Final = 16
"""Keys that a matrix instruction adds up along: tiles are whole steps."""
_MOST_COLUMNS: Final = 128
"""Of a block of a stream."""
_OTHER_SHARED: Final = 8 << 10
"""Barriers, numbers of columns and what alignment takes, in bytes."""
_SPARE_REGISTERS: Final = 32
"""Addresses, counters and numbers of rows."""
_DRAWING: Final = 16
"""Random words of four elements."""
# 24 + 2 × 240 = 504, all that 384 threads of 168 are launched with; 32 + 3 × 160 = 512, all of 512
# threads of 128.
_REGISTERS: Final = {2: (24, 240), 3: (32, 160)}
"""Of a producer's and of a consumer's thread, by the number of consumers: 65,536 in all."""
_WITH_TABLES: Final = {2: (40, 232), 3: (32, 160)}
"""The same where producers read tables that say which columns are seen."""


_WARP_ROWS: Final = 16
_STREAM_WARPS: Final = 4
_STREAM_COLUMNS: Final = 64
"""Of a stream of single warps."""
_FEW_KEYS: Final = 64
"""Keys of a tile that single warps multiply."""
_LEAST_TILES: Final = 2
"""Of a part: joining parts takes as long as some tiles."""
_MOST_STAGES: Final = 6
"""Tiles of keys on their way, at most."""
_RING_BYTES: Final = 192 << 10
"""Of keys and values that the blocks of a unit have asked for."""


@dataclass(frozen=True)
class _Form:
    """Consumers and keys of a block, for rows of up to `widest` elements, and what was measured on
    an H200: microseconds of one block of keys, and of a tile of queries beside its blocks."""

    widest: int
    consumers: int
    keys: int
    block_time: float
    tile_time: float


_FORMS: Final = (
    _Form(64, 3, 128, 1.59, 0.47),
    _Form(64, 2, 128, 1.20, 0.44),
    _Form(128, 2, 128, 1.73, 0.88),
    _Form(128, 2, 176, 2.23, 1.90),
    _Form(192, 2, 112, 2.2, 1.5),
    _Form(256, 2, 80, 2.2, 1.5),
)
"""Times for 64 and 128 elements are from lengths of 512 and 4096; the last two have no rival."""
_FIXED: Final = 0.15
"""Of the time of a block of keys, what does not depend on how many they are."""


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


def gpu_attention_plan(kernel: Kernel, target: Target, header: Header) -> AttentionPlan:
    """The form that takes the least time: larger tiles are faster where most of them is seen."""
    found = attention_parts(kernel)
    if is_of_few(kernel, found):
        return _few_plan(kernel, target, header)
    if not target.has("wgmma"):
        return warp_attention_plan(kernel, target, header)
    widest = max(points_of(kernel, found.depth), points_of(kernel, found.value))
    least = min(form.widest for form in _FORMS if form.widest >= widest)
    forms = [form for form in _FORMS if form.widest == least]
    best = min(forms, key=lambda form: _time(form, kernel, target))
    keys = -(-kernel.sizes[found.key] // _KEY_STEP) * _KEY_STEP
    return AttentionPlan(
        header,
        _QUERIES_EACH * best.consumers,
        min(best.keys, keys),
        consumers=best.consumers,
        registers=_thread_registers(band_of(kernel, found).band, best.consumers),
    )


def _thread_registers(band: Band, consumers: int) -> tuple[int, int]:
    """The registers of a producer's and of a consumer's thread."""
    return (_WITH_TABLES if band.hulls else _REGISTERS)[consumers]


def _few_plan(kernel: Kernel, target: Target, header: Header) -> AttentionPlan:
    """Keys in as many parts as there is a unit for, and no more than make a part shorter. Two
    blocks of 16 rows share a unit, and memory gives each as much."""
    found = attention_parts(kernel)
    rows, matrices = few_rows(kernel, found), points_of(kernel, found.batch)
    matrices = matrices * kernel.sizes[found.query] // rows
    high = band_of(kernel, found).band.high
    keys = kernel.sizes[found.key]
    if high is not None:
        keys = min(keys, max(1, high + kernel.sizes[found.query]))
    tile, limits = round_up(rows, _KEY_STEP), target.limits
    depth, width = (
        round_up(points_of(kernel, axes), _KEY_STEP) for axes in (found.depth, found.value)
    )
    rest, size, slot = 2 * tile * depth + _OTHER_SHARED, _FEW_KEYS, 2 * _FEW_KEYS * (depth + width)
    half = min(_RING_BYTES, limits.shared_bytes_per_unit - 2 * rest) // 2
    room = min(_RING_BYTES, limits.shared_bytes_per_block - rest)
    resident = 2 if tile == _KEY_STEP and 2 * slot <= half else 1
    if 2 * slot > room:
        size, slot = size // 2, slot // 2
    tiles = -(-keys // size)
    wanted = -(-limits.units // matrices) if resident == 2 else limits.units // matrices
    parts = max(1, min(wanted, tiles // _LEAST_TILES))
    parts = -(-tiles // -(-tiles // parts))
    stages = min(_MOST_STAGES, (half if resident == 2 else room) // slot)
    return AttentionPlan(header, tile, size, stages, consumers=1, registers=(0, 0), parts=parts)


def _time(form: _Form, kernel: Kernel, target: Target) -> float:
    """Microseconds, about: tiles of equal cost come in whole waves, others fill the machine up."""
    found = attention_parts(kernel)
    queries, keys = kernel.sizes[found.query], kernel.sizes[found.key]
    band, tile = band_of(kernel, found).band, _QUERIES_EACH * form.consumers
    costs = []
    for first in range(0, queries, tile):
        last = min(first + tile, queries) - 1
        end = keys if band.high is None else min(keys, max(last + band.high + 1, 1))
        start = 0 if band.low is None else min(max(first + band.low, 0), end - 1)
        blocks = -(-end // form.keys) - start // form.keys
        costs.append(blocks * form.block_time + form.tile_time)
    matrices, units = points_of(kernel, found.batch), target.limits.units
    if len(set(costs)) == 1:
        return costs[0] * -(-len(costs) * matrices // units)
    # Unequal tiles are dealt out beforehand, the longest first: the mean of all units, or the
    # longest tile where there are few.
    return max(sum(costs) * matrices / units, *costs)


def attention_seconds(kernel: Kernel, plan: AttentionPlan, target: Target) -> float | None:
    """The time of a plan with any blocks, by the measured form that is most like it; None where
    none is."""
    form = form_of(kernel)
    known = isinstance(form, Attention) and target.has("wgmma")
    if not isinstance(form, Attention) or not known or plan.consumers not in _REGISTERS:
        return None
    found = form.parts
    widest = max(points_of(kernel, found.depth), points_of(kernel, found.value))
    least = min((form.widest for form in _FORMS if form.widest >= widest), default=0)
    alike = [form for form in _FORMS if form.widest == least]
    if not alike:
        return None
    base = next((form for form in alike if form.consumers == plan.consumers), alike[0])
    # Instructions before the first product and after the last one take as long for few keys.
    share = _FIXED + (1 - _FIXED) * plan.tile_kv / base.keys
    block_time = base.block_time * plan.consumers / base.consumers * share
    meant = _Form(least, plan.consumers, plan.tile_kv, block_time, base.tile_time)
    return 1e-6 * _time(meant, kernel, target)


def stream_plan(kernel: Kernel, target: Target, header: Header) -> AttentionPlan:
    """Two consumers, and the most columns whose products, weights and sums registers hold."""
    found = stream_parts(kernel)
    depths = [points_of(kernel, summed_axes(kernel, name)) for name in found.products]
    widths = [points_of(kernel, value_axes(kernel, found, name)) for name in found.results]
    depths, widths = ([round_up(n, _KEY_STEP) for n in sizes] for sizes in (depths, widths))
    if not target.has("wgmma"):
        return _warp_stream_plan(kernel, target, header, depths, widths)
    consumers, stages = 2, 2
    given = _thread_registers(band_of_stream(kernel, found).band, consumers)
    drawing = _DRAWING if draws_words(kernel) else 0
    columns = round_up(kernel.sizes[found.column], _KEY_STEP)
    for size in range(min(_MOST_COLUMNS, columns), _KEY_STEP, -_KEY_STEP):
        registers = stream_registers(size, len(depths), widths) + drawing
        rows = _QUERIES_EACH * consumers + stages * size
        shared = 2 * rows * sum(depths) + _OTHER_SHARED
        room = target.limits.shared_bytes_per_block
        if registers <= given[1] and shared <= room:
            break
    else:
        size = _KEY_STEP
    return AttentionPlan(
        header, _QUERIES_EACH * consumers, size, stages, consumers=consumers, registers=given
    )


def _warp_stream_plan(
    kernel: Kernel, target: Target, header: Header, depths: Sequence[int], widths: Sequence[int]
) -> AttentionPlan:
    """Four warps of 16 rows, and the most columns with which two blocks share a unit; one, where
    even few columns leave no room for two."""
    found, limits = stream_parts(kernel), target.limits
    rows, stages = _WARP_ROWS * _STREAM_WARPS, 2
    drawing = _DRAWING if draws_words(kernel) else 0
    columns = round_up(kernel.sizes[found.column], _KEY_STEP)
    most = limits.registers_per_thread - _SPARE_REGISTERS // 2 - drawing
    for size in range(min(_STREAM_COLUMNS, columns), _KEY_STEP, -_KEY_STEP):
        shared = 2 * (rows + stages * size) * sum(depths) + _OTHER_SHARED
        registers = stream_registers(size, len(depths), widths)
        if registers <= most and 2 * shared <= limits.shared_bytes_per_unit:
            break
    else:
        size = _KEY_STEP
    return AttentionPlan(header, rows, size, stages, consumers=_STREAM_WARPS, registers=(0, 0))


def stream_registers(columns: int, products: int, widths: Sequence[int]) -> int:
    """Of a thread: products of a block of columns, the weights of one result beside them where
    there are two, and sums."""
    weights = columns // 4 * (len(widths) - 1)
    sums = sum(width // 2 for width in widths)
    return products * columns // 2 + weights + sums + _SPARE_REGISTERS


def gpu_consumers(plan: AttentionPlan, *, by_queries: bool) -> AttentionPlan:
    """A plan whose consumers, queries and registers fit together: by its queries, or consumers."""
    if plan.parts:
        return plan
    if plan.registers == (0, 0):
        return warp_consumers(plan, by_queries=by_queries)
    consumers = plan.tile_q // _QUERIES_EACH if by_queries else plan.consumers
    registers = _REGISTERS.get(consumers, plan.registers)
    queries = plan.tile_q if by_queries else _QUERIES_EACH * consumers
    return replace(plan, tile_q=queries, consumers=max(1, consumers), registers=registers)


def gpu_attention_plans(kernel: Kernel, first: AttentionPlan) -> Iterator[AttentionPlan]:
    """Other blocks, and other depths of the rings."""
    if first.parts:
        yield from _few_plans(first)
        return
    if first.registers == (0, 0):
        yield from warp_attention_plans(first)
        return
    for consumers, keys, stages in product((2, 3), (64, 80, 96, 128, 160, 176), (2, 3)):
        yield replace(
            first,
            tile_q=_QUERIES_EACH * consumers,
            tile_kv=keys,
            stages=stages,
            consumers=consumers,
            registers=_REGISTERS[consumers],
        )


def smaller_blocks(first: AttentionPlan) -> Iterator[AttentionPlan]:
    """Shorter rings, down to two stages, then fewer keys in a block."""
    for stages in range(first.stages - 1, 1, -1):
        yield replace(first, stages=stages)
    stages = min(first.stages, 2)
    for keys in range(first.tile_kv - _KEY_STEP, 0, -_KEY_STEP):
        yield replace(first, tile_kv=keys, stages=stages)


def _few_plans(first: AttentionPlan) -> Iterator[AttentionPlan]:
    """More and fewer parts, and shorter rings."""
    for parts, stages in product((1, 2, 3, 4), (2, 3, 4, 6)):
        yield replace(first, parts=-(-first.parts // parts), stages=stages)
        yield replace(first, parts=first.parts * parts, stages=stages)


def scratch_bytes(kernel: Kernel, plan: AttentionPlan) -> int:
    """Memory of a thread: packed queries, keys and values, scores, mixed values and statistics."""
    return sum(scratch_elements(kernel, plan)) * _dtype_bytes(kernel)


def scratch_elements(kernel: Kernel, plan: AttentionPlan) -> tuple[int, ...]:
    """Elements of packed queries, packed keys, packed values, the scores of one panel, mixed
    values, and of the greatest score, the sum and the factor of each query."""
    found = attention_parts(kernel)
    rows, columns = plan.register_tile
    queries, keys = round_up(plan.tile_q, columns), round_up(plan.tile_kv, rows)
    depth = points_of(kernel, found.depth)
    value = round_up(points_of(kernel, found.value), rows)
    packed = (queries * depth, keys * depth, keys * value)
    return (*packed, keys * columns, queries * value, queries, queries, queries)


def _dtype_bytes(kernel: Kernel) -> int:
    found = attention_parts(kernel)
    return kernel.let(found.scores).dtype.storage_bytes
