"""Which plans the CPU generator accepts for a kernel. A plan field that would have no effect is
refused, so that nobody believes it has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from weft.codegen.cpu.attention_algorithms import ALGORITHMS as ATTENTIONS
from weft.plan.attention import scratch_bytes
from weft.plan.blocks import PANELS, SCRATCH_BYTES, STACK_BYTES, TILE_EDGE, TILES
from weft.plan.completion import false_claims
from weft.plan.contraction import are_tiles, are_words, takes_rows_in_turn, tile_bytes
from weft.plan.cpu_rows import KEPT_BYTES, columns_together, kept_bytes
from weft.plan.images import IMAGE, image_refusal
from weft.plan.ir import (
    STREAMING,
    AttentionPlan,
    CacheRead,
    MapPlan,
    MmaPlan,
    Plan,
    RowPlan,
    StagedPlan,
    idle_fields,
)
from weft.plan.line_windows import line_windows_refusal
from weft.plan.staged import staged_refusals
from weft.plan.text import told
from weft.plan.transposes import crossing_of
from weft.plan.winograd import ALGORITHM as WINOGRAD
from weft.plan.winograd import winograd_refusal
from weft.region.form import Attention
from weft.region.forms.panels import panels_of
from weft.region.ir import Kernel, Tensor, form_of

MAX_LANES: Final = 64
MAX_UNROLL: Final = 64
"""Lanes and turns that are written out, at most: beyond, code grows and nothing is gained."""
MAX_VECTORS: Final = 256
"""Vectors of a register tile."""
PACKED: Final = (CacheRead("B", "packed", "k", pingpong=False),)
WORD: Final = 4
"""Bytes that are packed as one number."""
WORDS: Final = tuple(CacheRead(side, "words", "k", pingpong=False) for side in ("A", "B"))
IN_TILES: Final = tuple(CacheRead(side, TILES, "k", pingpong=False) for side in ("A", "B"))
BLOCKED: Final = (CacheRead("A", "packed", "k", pingpong=False), *PACKED)
LYING: Final = tuple(
    tuple(CacheRead(name, PANELS if name == side else "packed", "k", False) for name in "AB")
    for side in "AB"
)
"""One operand lies in panels, and the other is packed."""
_TILE_DEPTH: Final = 64
"""A multiple of what a tile has along k."""
IMAGES: Final = (
    (CacheRead("A", IMAGE, "k", pingpong=False), *PACKED),
    (BLOCKED[0], CacheRead("B", IMAGE, "k", pingpong=False)),
    (CacheRead("A", IMAGE, "k", pingpong=False), CacheRead("B", PANELS, "k", pingpong=False)),
    (CacheRead("A", PANELS, "k", pingpong=False), CacheRead("B", IMAGE, "k", pingpong=False)),
)


def plan_refusals(kernel: Kernel, tensors: Mapping[str, Tensor], plan: Plan) -> Iterator[str]:
    """Why a plan cannot be carried out on the CPU."""
    if kernel.stages and not isinstance(plan, StagedPlan):
        yield "the kernel has stages, which only a plan of the kind staged knows"
        return
    match plan:
        case MmaPlan():
            yield from _lanes(plan.vectorize.width if plan.vectorize else 1)
            yield from _refuse_unroll("warp_tile rows", plan.warp_tile[0])
            yield from _refuse_unroll("warp_tile columns", plan.warp_tile[1])
            yield from _refuse_idle_fields(plan)
            yield from _contraction_refusals(kernel, tensors, plan)
        case MapPlan():
            yield from _lanes(plan.vector)
            yield from _refuse_unroll("unroll", plan.unroll)
            yield from _refuse_idle_fields(plan)
            yield from _block_refusals(kernel, plan)
        case RowPlan():
            yield from _lanes(plan.vector)
            yield from _refuse_unroll("accumulators", plan.accumulators)
            yield from _refuse_idle_fields(plan)
            yield from _refuse_kept_rows(kernel, tensors, plan)
            yield from _across_refusals(kernel, plan)
            yield from _lines_refusals(kernel, tensors, plan)
        case AttentionPlan():
            yield from _lanes(plan.vector)
            yield from _attention(kernel, plan)
        case StagedPlan():
            yield from _lanes(plan.vector)
            yield from _refuse_unroll("unroll", plan.unroll)
            yield from staged_refusals(kernel, plan)
        case _:
            yield f"the CPU has no template for {type(plan).__name__}"


def _attention(kernel: Kernel, plan: AttentionPlan) -> Iterator[str]:
    """Blocks hold whole register tiles and fit into the memory of a thread."""
    if not isinstance(form_of(kernel), Attention):
        yield "the kernel is not an attention"
        return
    yield from _refuse_idle_fields(plan)
    if plan.algo not in ATTENTIONS:
        yield f"algo={plan.algo} is not built for this kernel"
    rows, columns = plan.register_tile if len(plan.register_tile) == 2 else (0, 0)
    yield from _refuse_unroll("register_tile rows", rows)
    yield from _refuse_unroll("register_tile columns", columns)
    if min(rows, columns, plan.vector, plan.tile_q, plan.tile_kv) < 1:
        return
    if columns % plan.vector or plan.tile_q % columns or plan.tile_kv % rows:
        yield (
            f"blocks of {plan.tile_q} queries and {plan.tile_kv} keys are not whole tiles of "
            f"{columns} and {rows}, or those not whole vectors of {plan.vector}"
        )
    elif scratch_bytes(kernel, plan) > SCRATCH_BYTES:
        size = scratch_bytes(kernel, plan)
        yield f"its blocks take {size} bytes of a thread; {SCRATCH_BYTES} is the most"


def _block_refusals(kernel: Kernel, plan: MapPlan) -> Iterator[str]:
    """Blocks are for kernels that go along two axes at once, and hold whole tiles."""
    if plan.block > 1 and crossing_of(kernel) is None:
        yield f"block={plan.block} has no effect: no operand is transposed"
    elif plan.block > 1 and (plan.vector == 1 or plan.block % (plan.unroll * plan.vector)):
        yield (
            f"block={plan.block} is not a multiple of {plan.unroll} vectors of {plan.vector} lanes"
        )


def _refuse_kept_rows(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan
) -> Iterator[str]:
    """A row is kept where several passes need a value of it, and memory of the thread holds it."""
    size = kept_bytes(kernel, columns_together(kernel, tensors, plan))
    if plan.keep_row and not size:
        yield "keep_row=true has no effect: no dear value is needed by two passes over a row"
    elif plan.keep_row and size > KEPT_BYTES:
        yield f"keep_row=true takes {size} bytes of a thread; {KEPT_BYTES} is the most"


def _across_refusals(kernel: Kernel, plan: RowPlan) -> Iterator[str]:
    """Rows are read whole where nothing but the sums of columns is wanted of them."""
    if plan.across and form_of(kernel).rows.columns is None:
        yield "across=true has no effect: the kernel does more than sum up columns"


def _lines_refusals(kernel: Kernel, tensors: Mapping[str, Tensor], plan: RowPlan) -> Iterator[str]:
    """Lines of windows are a tile that is written out, over a copy of what they see."""
    if plan.lines == 0:
        return
    yield from _refuse_unroll("lines", plan.lines)
    if plan.keep_row or plan.across:
        yield "lines of windows are neither kept nor added up across"
    elif plan.lines * plan.accumulators > MAX_UNROLL:
        yield f"{plan.lines} lines of {plan.accumulators} vectors; {MAX_UNROLL} vectors is the most"
    elif why := line_windows_refusal(kernel, tensors, plan):
        yield why


def _lanes(lanes: int) -> Iterator[str]:
    if not 1 <= lanes <= MAX_LANES or lanes & (lanes - 1):
        yield f"{lanes} lanes; a power of two up to {MAX_LANES} is needed"


def _refuse_unroll(name: str, value: int) -> Iterator[str]:
    if not 1 <= value <= MAX_UNROLL:
        yield f"{name} is {value}; it must be from 1 to {MAX_UNROLL}"


def _refuse_idle_fields(plan: Plan) -> Iterator[str]:
    for name in idle_fields(plan):
        yield f"{told(plan, name)} has no effect on the CPU"
    if isinstance(plan, MmaPlan) and plan.arch != "cpu":
        yield f"arch={plan.arch} has no effect on the CPU"


def _contraction_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan
) -> Iterator[str]:
    yield from false_claims(kernel, plan)
    known = {kernel.pattern.value: "implicit_gemm", "attention": STREAMING}
    for key, value in plan.algo_choice.items():
        if (key, value) == ("conv", WINOGRAD):
            why = winograd_refusal(kernel, plan)
            yield from [] if why is None else [why]
        elif known.get(key) != value:
            yield f"algo_choice.{key}={value} is not built for this kernel"
    axis = plan.vectorize.axis.partition(".")[0] if plan.vectorize else "n"
    yield from _panel_refusals(kernel, tensors, plan)
    if plan.cache in IMAGES:
        yield from _image_refusals(kernel, tensors, plan, axis)
        return
    if axis not in ("n", "k"):
        yield f"vectorize.axis={axis} is neither n nor k"
    if plan.cache not in ((), PACKED, BLOCKED, WORDS, IN_TILES, *LYING):
        yield (
            "B is cached, or A and B, packed at k or one as an image or in panels, without pingpong"
        )
    elif plan.cache == WORDS and not are_words(kernel):
        yield "only products of 8-bit numbers, added up in 32 bits, are packed as words"
    elif plan.cache == IN_TILES and not are_tiles(kernel):
        yield "tiles are for products along one axis of bf16 or f16 added up in f32, or of 8 bits"
    elif plan.cache == IN_TILES and plan.warp_tile != (TILE_EDGE, TILE_EDGE):
        yield f"warp_tile of tiles is {TILE_EDGE}x{TILE_EDGE}"
    elif plan.cache and axis == "k":
        yield "nothing is packed where vectors run along k"
    yield from _register_tile(plan, axis)
    if plan.cache in (BLOCKED, WORDS, IN_TILES, *LYING):
        yield from _refuse_blocks(kernel, tensors, plan)
    else:
        yield from _tile(kernel, plan, axis)


def _panel_refusals(kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan) -> Iterator[str]:
    """What is read as panels lies in panels, as wide as the register tile."""
    side = next((cached.tensor for cached in plan.cache if cached.where == PANELS), None)
    if side is None:
        return
    panels = panels_of(kernel, tensors)
    if panels is None or panels.side != side:
        yield f"{side} does not lie in panels"
    elif panels.width != (width := plan.warp_tile["AB".index(side)]):
        yield f"{side} lies in panels of {panels.width}, and warp_tile has {width}"
    elif (block := plan.tile["AB".index(side)]) % panels.width:
        yield f"a block of {block} has no whole panels of {panels.width}"


def _image_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, axis: str
) -> Iterator[str]:
    """Vectors run along the results, which are those of the image's side."""
    along = "m" if plan.cache[0].where == IMAGE else "n"
    if axis != along:
        yield f"vectorize.axis={axis}, but the results of the image are along {along}"
    elif (vectors := prod(plan.warp_tile) // max(1, _lanes_of(plan))) > MAX_VECTORS:
        yield f"warp_tile is {vectors} vectors; {MAX_VECTORS} is the most"
    else:
        why = image_refusal(kernel, tensors, plan)
        yield from [] if why is None else [why]


def _lanes_of(plan: MmaPlan) -> int:
    return plan.vectorize.width if plan.vectorize else 1


def _register_tile(plan: MmaPlan, axis: str) -> Iterator[str]:
    """Every vector of the tile is a piece of code of its own, and a register at best; a row of it
    is whole vectors."""
    lanes = plan.vectorize.width if plan.vectorize and axis == "n" else 1
    rows, columns = plan.warp_tile
    if columns % lanes:
        yield f"warp_tile columns is {columns}, not a multiple of {lanes} lanes"
    vectors = rows * max(1, columns // lanes)
    if vectors > MAX_VECTORS:
        yield (
            f"warp_tile {rows}x{columns} is {vectors} vectors of {lanes}; {MAX_VECTORS} is the most"
        )


def _refuse_blocks(kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan) -> Iterator[str]:
    """Packed operands and sums lie on a thread's stack."""
    if kernel.roles is None:
        return
    depth = -(-plan.tile[2] // WORD) if plan.cache == WORDS else plan.tile[2]
    rows, columns = (
        -(-size // step) * step for size, step in zip(plan.tile[:2], plan.warp_tile, strict=True)
    )
    lets = [kernel.let(name) for name in (kernel.roles.contraction, kernel.roles.lhs)]
    item = max(let.dtype.storage_bytes for let in lets)
    in_turn = plan.cache == BLOCKED and takes_rows_in_turn(kernel, tensors, _lanes_of(plan))
    own = plan.warp_tile[0] if in_turn else rows
    size = (own * depth + columns * depth + rows * columns) * item
    if plan.cache == IN_TILES:
        packed = (rows + columns) * (-(-depth // _TILE_DEPTH) * _TILE_DEPTH)
        size = packed * tile_bytes(lets[1].dtype) + rows * columns * item
    if size > STACK_BYTES:
        shown = "x".join(map(str, plan.tile))
        yield f"packed blocks of tile {shown} take {size:,} bytes; {STACK_BYTES:,} is the most"


def _tile(kernel: Kernel, plan: MmaPlan, axis: str) -> Iterator[str]:
    """The tile is what warp_tile says, over all of k, or has as many rows as share columns."""
    rows, columns = plan.warp_tile
    lanes = plan.vectorize.width if plan.vectorize else 1
    depth = prod(kernel.sizes[name] for name in kernel.roles.k) if kernel.roles else 1
    depth -= depth % lanes if axis == "k" else 0
    if plan.cache and kernel.roles:
        size = depth * columns * kernel.let(kernel.roles.rhs).dtype.storage_bytes
        if size > SCRATCH_BYTES:
            yield f"packed columns of B take {size:,} bytes; {SCRATCH_BYTES:,} is the most"
    wanted = (max(rows, plan.tile[0]) if axis == "n" else rows, columns, depth)
    if plan.tile != wanted:
        shown = "x".join(map(str, wanted))
        yield f"tile is {'x'.join(map(str, plan.tile))}; with this warp_tile it is {shown}"
