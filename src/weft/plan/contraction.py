"""Choosing an `MmaPlan` on a CPU: a register tile in blocks that stay in a cache."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import BF16, F16, F32, SI8, SI32, UI8, UI32, DType
from weft.foundation.index_expr import coefficient, linear
from weft.foundation.records import dataclass
from weft.plan.blocks import (
    BLOCK,
    PACKING,
    PANELS,
    REGISTER_BLOCKS,
    SCRATCH_BYTES,
    TALL_BLOCK,
    TILE_EDGE,
    TILES,
    Sizes,
    block_sizes,
    even_blocks,
    register_block,
    register_blocks,
    rounds,
    slower,
    time_of,
    without_rest,
)
from weft.plan.edges import local_edges
from weft.plan.images import IMAGE, NEAR_BYTES, image_block, image_of, saves_time
from weft.plan.ir import CacheRead, Header, MmaPlan, Vectorize
from weft.region.forms.columns import FEW_ROWS
from weft.region.forms.panels import Panels, panels_of
from weft.region.ir import (
    Binary,
    Cast,
    Kernel,
    Let,
    Pattern,
    Read,
    Reduce,
    Tensor,
    epilogue_of,
    row_major,
)
from weft.target.target import Target

ROWS_PER_PIECE = 240
"""Rows that share packed columns, at most: enough to make packing cheap, few enough to spread."""


def columns_along_k(rows: int, registers: int) -> int:
    """Columns of a B that lies along k which are read side by side: one stream, or as many as use
    every number of A often enough to keep the units busy."""
    return 1 if rows <= FEW_ROWS // 2 else max(1, min(3, (registers - FEW_ROWS) // rows))


@dataclass(frozen=True)
class _Tiles:
    """How a contraction is cut on a CPU: blocks, what of one stays in registers, which axis runs
    along vectors, and the operands that are packed first."""

    block: tuple[int, int, int]
    registers: tuple[int, int]
    vectors: Vectorize
    packed: tuple[CacheRead, ...] = ()


def cpu_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> MmaPlan:
    """Dot products for a few rows of a B that lies along k, blocks of packed operands where that is
    worth it, register tiles else."""
    assert kernel.roles is not None
    lanes = target.lanes(kernel.let(kernel.roles.contraction).dtype)
    tiles = (
        _dot_products(kernel, tensors, target, lanes)
        or _matrix_tiles(kernel, tensors, target, lanes)
        or _image_tiles(kernel, tensors, target, lanes)
        or _blocks_of_panels(kernel, tensors, target, lanes)
        or _nothing_packed(kernel, tensors, target, lanes)
        or _packed_blocks(kernel, tensors, target, lanes)
        or _register_tiles(kernel, tensors, target, lanes)
    )
    kind = "conv" if kernel.pattern.value == "conv" else "matmul"
    return MmaPlan(
        header,
        tiles.block,
        warp_tile=tiles.registers,
        cache=tiles.packed,
        vectorize=tiles.vectors,
        epilogue=epilogue_of(kernel),
        arch="cpu",
        algo_choice={kind: "implicit_gemm"},
        local_edges=local_edges(kernel),
        roles="single",
    )


def _inner_sizes(kernel: Kernel) -> tuple[int, int, int]:
    """The sizes of the innermost axes of m and n, and the depth of the sum."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    m = sizes[roles.m[-1]] if roles.m else 1
    return m, sizes[roles.n[-1]], math.prod(sizes[a] for a in roles.k)


def _dot_products(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Lanes along k; None where the rows are many, or B does not lie so."""
    assert kernel.roles is not None
    m, n, depth = _inner_sizes(kernel)
    n_and_k = kernel.roles.n, kernel.roles.k
    step_n, step_k = (
        _operand_stride(kernel, tensors, kernel.roles.rhs, axes[-1]) for axes in n_and_k
    )
    # Each sum is then one vector of partial sums along k: B is read once, as it lies, and every row
    # uses what was read.
    if m > FEW_ROWS or step_k != 1 or step_n == 1 or depth < lanes:
        return None
    tile = (m, min(columns_along_k(m, target.limits.vector_registers or 16), n))
    return _Tiles((*tile, depth - depth % lanes), tile, Vectorize("k.i.i", lanes))


def _image_tiles(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Blocks over a copy of the image that windows are shifts of; None where no operand is one, or
    packing windows takes less time."""
    image = image_of(kernel, tensors)
    panels = panels_of(kernel, tensors)
    if image is None or (panels is not None and panels.side == image.side):
        return None
    block = image_block(kernel, image, tensors, target, lanes, panels.width if panels else 0)
    if block is None or not saves_time(kernel, image, block, tensors, target, lanes):
        return None
    line = math.prod(kernel.sizes[window.place] for window in image.windows[1:])
    taps = math.prod(window.taps for window in image.windows)
    sizes = (block.rows, block.lines * line)
    registers = (block.register_rows, block.register_results)
    if image.side == "A":
        sizes, registers = sizes[::-1], registers[::-1]
    other = PANELS if panels else "packed"
    packed = tuple(
        CacheRead(side, IMAGE if side == image.side else other, "k", False) for side in "AB"
    )
    along = Vectorize("m.i.i" if image.side == "A" else "n.i.i", lanes)
    return _Tiles((*sizes, block.channels * taps), registers, along, packed)


def _blocks_of_panels(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Blocks of which one operand lies in panels, and the other is packed; None where none lies
    so, or registers do not hold a tile as wide as the panels."""
    panels = panels_of(kernel, tensors)
    if panels is None:
        return None
    assert kernel.roles is not None
    registers = _tile_of_panels(kernel, panels, target, lanes)
    if registers is None:
        return None
    packed = tuple(
        CacheRead(side, PANELS if side == panels.side else "packed", "k", False) for side in "AB"
    )
    block = _choose_block(kernel, target, lanes, registers)
    return _Tiles(block, registers, Vectorize("n.i.i", lanes), packed)


def _tile_of_panels(
    kernel: Kernel, panels: Panels, target: Target, lanes: int
) -> tuple[int, int] | None:
    """A register tile with the panels along one of its sides."""
    assert kernel.roles is not None
    roles, held = kernel.roles, target.limits.vector_registers or 16
    if panels.side == "A":
        shapes = REGISTER_BLOCKS[held >= 32]
        vectors = next((found for rows, found in shapes if rows == panels.width), 0)
        return (panels.width, vectors * lanes) if vectors else None
    vectors, rest = divmod(panels.width, lanes)
    most = (held - 1 - vectors) // vectors if vectors and not rest else 0
    m = math.prod(kernel.sizes[name] for name in roles.m)
    # As many rows as leave the fewest idle, and a panel of B as seldom read as can be.
    rows = min(range(1, most + 1), key=lambda r: -(-m // r) * (r + 0.5), default=0)
    return (rows, panels.width) if rows else None


def _matrix_tiles(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Blocks that matrix tiles multiply; None where there are none for these numbers, columns lie
    along neither of its axes, or the product is too small, or too thin, to be packed for them."""
    if not multiplies_tiles(kernel, target):
        return None
    assert kernel.roles is not None
    n = kernel.roles.n
    along = (*n[-1:], *kernel.roles.k)
    if 1 not in (_operand_stride(kernel, tensors, kernel.roles.rhs, name) for name in along):
        return None
    axes = (kernel.roles.m, n, kernel.roles.k)
    sizes = [math.prod(kernel.sizes[name] for name in each) for each in axes]
    if min(sizes) < TILE_EDGE // 2 or math.prod(sizes) < WORTH_PACKING:
        return None
    edges = (TILE_EDGE, TILE_EDGE)
    packed = tuple(CacheRead(side, TILES, "k", pingpong=False) for side in "AB")
    block = _choose_block(kernel, target, lanes, edges)
    return _Tiles(block, edges, Vectorize("n.i.i", lanes), packed)


def _nothing_packed(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Rows so few that packing a column takes longer than it saves: tiles as tall as registers
    hold, which read the fewest columns for a product, of rows and columns where they lie; None
    where rows are more, sums are short, or rows of columns are pages apart."""
    assert kernel.roles is not None
    roles, (m, n, depth) = kernel.roles, _inner_sizes(kernel)
    columns = _TALL_VECTORS * lanes
    if not _TALLEST // 2 < m <= _ROWS_IN_PLACE or n < columns or depth < _DEEP:
        return None
    if not _lies_in_place(kernel, tensors, lanes, _ROWS_TOGETHER, columns):
        return None
    item = kernel.let(roles.rhs).dtype.storage_bytes
    if _operand_stride(kernel, tensors, roles.rhs, roles.k[0]) * item >= _PAGE:
        return None
    beside = math.prod(kernel.sizes[a] for a in roles.batch) * -(-n // columns)

    def tiles_of(parts: int) -> tuple[int, int]:
        rows = even_blocks(-(-m // parts), _TALLEST, 1)
        return rows, -(-m // parts // rows) * rows

    def seconds(tiles: tuple[int, int]) -> float:
        pieces = beside * -(-m // tiles[1])
        return rounds(pieces, target.limits.units) * (tiles[1] + _ROWS_A_READ)

    parts = range(-(-m // _ROWS_TOGETHER), -(-m // _TALLEST) + 1)
    rows, block = min(map(tiles_of, parts), key=seconds)
    return _Tiles((block, columns, depth), (rows, columns), Vectorize("n.i.i", lanes))


def _packed_blocks(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles | None:
    """Blocks of which both operands are packed; None where `blocked_tile` has none, or rows are
    better left where they are."""
    found = blocked_tile(kernel, tensors, target, lanes)
    if found is None or _rows_stay(kernel, tensors, target, lanes):
        return None
    block, registers = found
    where = "words" if multiplies_words(kernel, target) else "packed"
    packed = (CacheRead("A", where, "k", False), CacheRead("B", where, "k", False))
    return _Tiles(block, registers, Vectorize("n.i.i", lanes), packed)


def _rows_stay(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int) -> bool:
    """Whether rows of A are read where they lie while packed columns of B pass by, and sums are
    finished in registers: wide vectors use a number of A so often that packing it costs more than
    it saves, as long as the rows and columns of a piece stay in the second cache."""
    assert kernel.roles is not None
    m, n, _ = _inner_sizes(kernel)
    columns = lanes * register_tile(m, n, lanes, target.limits.vector_registers or 16)[1]
    batch = math.prod(kernel.sizes[a] for a in kernel.roles.batch)
    pieces = batch * -(-m // ROWS_PER_PIECE) * -(-n // columns)
    enough = pieces >= target.limits.units
    return enough and _lies_in_place(kernel, tensors, lanes, ROWS_PER_PIECE, columns)


def _lies_in_place(
    kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int, rows: int, columns: int
) -> bool:
    """Whether wide vectors of columns and single numbers of rows can be read where they lie, and
    the second cache keeps so many columns and rows."""
    if lanes < _WIDE or not _multiplies_matrices(kernel):
        return False
    assert kernel.roles is not None
    roles, (m, _, depth) = kernel.roles, _inner_sizes(kernel)
    item = kernel.let(roles.contraction).dtype.storage_bytes
    near = (min(m, rows) + columns) * depth * item <= NEAR_BYTES
    along_k = _operand_stride(kernel, tensors, roles.lhs, roles.k[0]) == 1
    along_n = _operand_stride(kernel, tensors, roles.rhs, roles.n[0]) == 1
    apart = _operand_stride(kernel, tensors, roles.lhs, roles.m[0]) * item
    return along_k and along_n and near and apart % _PAGE > 0


def _multiplies_matrices(kernel: Kernel) -> bool:
    """Whether a contraction has one axis of each kind, and multiplies what it reads as it is."""
    roles = kernel.roles
    assert roles is not None
    total = kernel.let(roles.contraction).expr
    made = kernel.let(total.value).expr if isinstance(total, Reduce) else None
    if not isinstance(made, Binary) or {made.lhs, made.rhs} != {roles.lhs, roles.rhs}:
        return False
    reads = [kernel.let(name).expr for name in (roles.lhs, roles.rhs)]
    plain = all(isinstance(r, Read) and not r.places and not r.guards for r in reads)
    return plain and len(roles.m) == len(roles.n) == len(roles.k) == 1


def _register_tiles(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> _Tiles:
    """Rows by vectors of columns, as large as the registers allow and the sizes fill; columns of a
    small B that many rows share are packed."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    m, n, depth = _inner_sizes(kernel)
    while lanes > 1 and lanes > n:
        lanes //= 2
    short = math.prod(sizes.values()) < WORTH_PACKING
    registers = target.limits.vector_registers or 16
    rows, vectors = register_tile(m, n, lanes, registers, rest=_SHORT_REST if short else 1.0)
    columns = vectors * lanes
    small = depth * columns * kernel.let(roles.rhs).dtype.storage_bytes <= SCRATCH_BYTES
    apart = _operand_stride(kernel, tensors, roles.rhs, roles.n[-1]) != 1
    packs = small and bool(roles.m) and (m >= 3 * rows or (apart and m > 1))
    block = rows
    if packs:
        beside = math.prod(sizes[a] for a in roles.batch) * -(-n // columns)
        parts = range(-(-m // max(rows, ROWS_PER_PIECE // rows * rows)), -(-m // rows) + 1)
        blocks = (even_blocks(m, -(-m // count), rows) for count in parts)
        block = min(
            blocks,
            key=lambda block: (
                rounds(beside * -(-m // block), target.limits.units) * (block + PACKING * lanes)
            ),
        )
    packed = (CacheRead("B", "packed", "k", pingpong=False),) if packs else ()
    return _Tiles((block, columns, depth), (rows, columns), Vectorize("n.i.i", lanes), packed)


WORTH_PACKING = 64 * 64 * 64
"""Products from which on copying operands into panels takes less than reading them as they lie."""
_SHORT_REST = 0.85
"""What a register tile that leaves a rest is worth for a product of a few microseconds: the rest
has code of its own, which takes LLVM as long as that of the tile."""
_WIDE = 16
"""Lanes of vectors whose tiles are so much code that it should not be written twice."""
_TALLEST = 14
_TALL_VECTORS = 2
"""The tallest register tile of 32 registers, in rows and vectors."""
# With vectors of AVX-512 packing a column takes as long as the products of 20 rows. In place,
# 64x784x512 takes 0.079 ms instead of 0.098 and 24x1000x1000 0.056 instead of 0.099 (16 threads,
# Sapphire Rapids, docs/performance/cpu.md). A piece has ten of the tallest register tiles.
_ROWS_IN_PLACE = 256
"""Rows that are too few to pack columns for, ..."""
_ROWS_TOGETHER = 140
"""... those of a piece ..."""
_ROWS_A_READ = 8
"""Rows that take as long as reading the columns of a piece, ..."""
_DEEP = 256
"""... and elements of sums that are not too few."""
_PAGE = 4096
"""Bytes after which rows take one another's place in the nearest cache."""


_LONG: Final = 1 << 14
"""Elements of sums from which on they have totals beside them, for which stacks have no room."""


def takes_rows_in_turn(kernel: Kernel, tensors: Mapping[str, Tensor], lanes: int) -> bool:
    """Whether blocks of packed operands pack, multiply and finish a panel of rows at a time, which
    then stays in the nearest cache: vectors are wide, so that columns come from the second one, and
    rows do not lie side by side, where memory is read along several panels."""
    roles = kernel.roles
    assert roles is not None
    across = roles.m and _operand_stride(kernel, tensors, roles.lhs, roles.m[-1]) == 1
    return lanes >= _WIDE and not across


def blocked_tile(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, lanes: int
) -> tuple[tuple[int, int, int], tuple[int, int]] | None:
    """Block and register tile for a contraction that is worth packing both operands for: blocks of
    equal size that keep all threads busy. None: it is too small, or too thin."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    m, n, k = (math.prod(sizes[a] for a in axes) for axes in (roles.m, roles.n, roles.k))
    rows, columns = register_block(target, lanes, m, n)
    # Where the last axis of the columns fills no vector, half a tile of all of them is better.
    least = columns // 2 if roles.n and sizes[roles.n[-1]] < lanes else columns
    if m < rows or n < least or k < 16 or m * n * k < WORTH_PACKING:
        return None
    tiles, plain = [(rows, columns)], kernel.pattern is not Pattern.CONV
    if plain:
        every = register_blocks(target, lanes)
        tiles = [tile for tile in every if tile[0] <= m and tile[1] <= n] or tiles
    whole = Sizes(math.prod(sizes[a] for a in roles.batch), m, n)

    def seconds(cut: tuple[tuple[int, int, int], tuple[int, int]]) -> float:
        took = time_of(whole, cut[0][:2], target.limits.units, lanes)
        return took * slower(target, lanes, cut[1])

    tall = plain and k <= _LONG and takes_rows_in_turn(kernel, tensors, lanes)
    cuts = ((_choose_block(kernel, target, lanes, tile, tall=tall), tile) for tile in tiles)
    return min(cuts, key=seconds)


def _choose_block(
    kernel: Kernel,
    target: Target,
    lanes: int,
    registers: tuple[int, int],
    *,
    tall: bool = False,
) -> tuple[int, int, int]:
    """Blocks of equal size, whole register tiles each, that keep all threads busy."""
    assert kernel.roles is not None
    roles, sizes = kernel.roles, kernel.sizes
    batch, m, n, k = (
        math.prod(sizes[a] for a in axes) for axes in (roles.batch, roles.m, roles.n, roles.k)
    )
    rows, _ = registers
    wide = kernel.let(roles.contraction).dtype.storage_bytes > 4
    most_rows, most_columns, most_depth = (x // 2 if wide else x for x in BLOCK)
    if multiplies_tiles(kernel, target):
        most_depth *= 4 // tile_bytes(kernel.let(roles.lhs).dtype)
    elif multiplies_words(kernel, target):
        most_depth *= 4
    elif tall:
        most_rows = TALL_BLOCK
    blocks = block_sizes(
        Sizes(batch, m, n), (most_rows, most_columns), registers, target.limits.units, lanes
    )
    if lanes >= _WIDE:
        blocks = (without_rest(m, blocks[0], rows), blocks[1])
    # Whole runs of the last summed axis: between them, windows jump.
    run = sizes[roles.k[-1]]
    whole = run % lanes == 0 or kernel.pattern is Pattern.CONV
    run = run if run <= most_depth and whole else 1
    # Whole vectors: what is left over of one is packed element by element, in every block.
    step = lanes if run == 1 and len(roles.k) == 1 and k > most_depth else run
    # How k is cut decides in which order products are added up: it depends on the sizes and on the
    # target, never on the number of threads.
    depth = even_blocks(k, most_depth // step * step, step)
    return (*blocks, depth)


def multiplies_words(kernel: Kernel, target: Target) -> bool:
    """Whether there is an instruction for four products of bytes at a time, and use for it."""
    return target.has("asimddp") and are_words(kernel)


def multiplies_tiles(kernel: Kernel, target: Target) -> bool:
    """Whether the machine has tiles for the numbers that a contraction multiplies."""
    if kernel.roles is None or not are_tiles(kernel):
        return False
    is_float = kernel.let(kernel.roles.lhs).dtype.is_float
    return target.has("avx512f") and target.has("amx_bf16" if is_float else "amx_int8")


def are_tiles(kernel: Kernel) -> bool:
    """Whether a contraction along one axis multiplies 8-bit numbers, or such of bf16 or f16, as
    they are read, and adds up in 32 bits."""
    return kernel.roles is not None and len(kernel.roles.k) == 1 and _are_widened(kernel, BF16, F16)


def tile_bytes(dtype: DType) -> int:
    """What a number takes where it is packed for tiles: one of f16 is two of bf16."""
    return 2 * BF16.storage_bytes if dtype is F16 else dtype.storage_bytes


def are_words(kernel: Kernel) -> bool:
    """Whether a contraction multiplies 8-bit numbers as they are read, widened to 32 bits that have
    their values, and adds up there."""
    return _are_widened(kernel)


def _are_widened(kernel: Kernel, *floats: DType) -> bool:
    """The same, also for numbers of one of these dtypes that are added up in f32."""
    roles = kernel.roles
    if roles is None:
        return False
    total = kernel.let(roles.contraction)
    sides = [kernel.let(name) for name in (roles.lhs, roles.rhs)]
    kinds = {let.dtype for let in sides}
    holds = kinds <= {SI8, UI8} if total.dtype is SI32 else (kinds, total.dtype) == ({UI8}, UI32)
    holds = holds or any((kinds, total.dtype) == ({each}, F32) for each in floats)
    if not holds or not isinstance(total.expr, Reduce):
        return False
    product = kernel.let(total.expr.value).expr
    if not isinstance(product, Binary) or any(_is_indirect(let) for let in sides):
        return False
    widened = {kernel.let(name).expr for name in (product.lhs, product.rhs)}
    return product.fn == "mul" and widened == {Cast(roles.lhs), Cast(roles.rhs)}


def _is_indirect(let: Let) -> bool:
    return not isinstance(let.expr, Read) or bool(let.expr.places)


def _operand_stride(kernel: Kernel, tensors: Mapping[str, Tensor], operand: str, name: str) -> int:
    """How far apart in memory neighbours of an operand along an axis lie, in elements."""
    read = kernel.let(operand).expr
    if not isinstance(read, Read):
        return 0
    strides = row_major(tensors[read.tensor].shape)
    return coefficient(linear(read.index, strides), name)


def register_tile(
    m: int, n: int, lanes: int, registers: int, *, rest: float = 1.0
) -> tuple[int, int]:
    """Rows and vectors of a register tile: each step loads rows + vectors values for rows * vectors
    multiply-adds, and what does not fill a tile runs at the speed of single elements. A tile that
    leaves a rest along an axis is worth `rest` times as much."""
    best, chosen = 0.0, (1, 1)
    for vectors in range(1, 5):
        # Beside the sums a register for each vector of B, and one for the number of A that is
        # spread.
        most = (registers - 1 - vectors) // vectors
        for rows in range(1, min(most, m, 14) + 1):
            reuse = rows * vectors / (rows + vectors)
            score = reuse * _filled_share(m, rows) * _filled_share(n, vectors * lanes)
            score *= rest ** ((m % rows > 0) + (n % (vectors * lanes) > 0))
            if score > best:
                best, chosen = score, (rows, vectors)
    return chosen


def _filled_share(size: int, step: int) -> float:
    """The share of an axis that whole tiles cover, and a quarter of what is left."""
    whole = size // step * step
    return (whole + (size - whole) / 4) / size if size else 1.0
