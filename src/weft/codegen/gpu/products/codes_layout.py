"""The layout of products with quantised weights (of 4 or 8 bits): which columns a block keeps,
which bits of the packed weights are which number, and which plans the template accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Final

from weft.codegen.gpu.body.accept import refuse, too_many
from weft.codegen.gpu.ir import Address
from weft.codegen.gpu.ir.formats import SMALL
from weft.codegen.gpu.ir.scalar import LANES, WARP, Name, Scalar
from weft.codegen.gpu.products.refusals import (
    algorithm_refusals,
    memory_refusals,
    unused_field_refusals,
)
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.index_expr import Expr, axes_of, coefficient, linear
from weft.foundation.records import dataclass
from weft.plan.code_tiles import COLUMNS, MOST_SUMS, ROWS, step_of
from weft.plan.completion import IN_REGISTERS, false_claims
from weft.plan.ir import MmaPlan
from weft.plan.text import told
from weft.region.forms.codes import LANES as SHARING
from weft.region.forms.codes import Codes, find_codes, made_of
from weft.region.forms.small_integers import Field, Scaled, find_field
from weft.region.ir import Kernel, Let, Read, Tensor, row_major
from weft.target.target import Target

_USED: Final = frozenset({
    "header", "tile", "warp_tile", "cache", "epilogue", "local_edges", "arch", "algo_choice",
    "stages",
})  # fmt: skip
_FIXED: Final = {"roles": "single", "order": "rows"}
_MOST_WARPS: Final = 16
"""Of a block: their sums are joined in shared memory."""
PADDING: Final = 2
"""Sums between the columns of a warp's, so that those of neighbours begin in different banks."""
CELL: Final = 16
"""Bytes of a run in shared memory."""
_MOST_KEPT: Final = 1 << 14
"""Bytes of a block's scales, beyond which they are read where they are used."""


@dataclass(frozen=True)
class KeptRow:
    """What is read once for several runs of a column, kept in shared memory: for each column a row
    of `length` elements, whose number is `number`."""

    read: Read
    number: Expr
    length: int
    word: int

    @property
    def bytes(self) -> int:
        return self.length * self.word

    @property
    def pitch(self) -> int:
        """Bytes from column to column; those of eight neighbours begin in different banks."""
        return self.bytes + CELL * (1 - self.bytes // CELL % 2)


@dataclass(frozen=True)
class Stream:
    """Runs of every column that wait in a ring: what they are read of, and where inner axes
    stand."""

    read: Read
    inner: Mapping[str, Scalar]
    bytes: int
    word: int


@dataclass(frozen=True)
class Ring:
    """Where the codes wait that a warp has copied: for each of some turns a `line` of runs of each
    of its columns."""

    line: int
    columns: int
    warps: int
    turns: int

    @property
    def parts(self) -> int:
        """Runs of each lane in a turn."""
        return self.line // SHARING

    @property
    def bytes(self) -> int:
        return self.turns * self.warps * self.columns * self.line * CELL

    def cell(self, stream: int, turn: Scalar, column: int, place: str) -> Address:
        """Where a run of a stream waits: `place` is that of a lane's first column."""
        start = stream * self.bytes + column * self.line * CELL
        return Address("codes", turn * (self.bytes // self.turns) + start + Name(place))

    def place(self, column: Scalar, piece: Scalar) -> Scalar:
        """Where a run lies in a turn. The halves of a cache line change places in every other
        column, so that lanes that read two of them begin in different banks."""
        if self.parts > 1:
            piece = ((piece // SHARING + column) % 2) * SHARING + (piece & (SHARING - 1))
        return ((WARP * self.columns + column) * self.line + piece) * CELL


def _reads_of_codes(kernel: Kernel, found: Codes) -> list[Let]:
    """What runs are read of."""
    lets = made_of(kernel, found.weight)
    return [let for let in lets if isinstance(let.expr, Read) and found.run in let.axes]


def find_kept(
    kernel: Kernel, tensors: Mapping[str, Tensor], found: Codes, columns: int
) -> dict[str, KeptRow]:
    """What a block of so many columns keeps, by the Let that reads it: what does not go along the
    runs, and has a column's elements next to one another."""
    kept: dict[str, KeptRow] = {}
    for let in made_of(kernel, found.weight):
        if isinstance(let.expr, Read) and not kernel.open_guards(let.expr):
            row = _row_of_column(kernel, tensors, found, let, let.expr)
            if row is not None:
                kept[let.name] = row
    return kept if sum(columns * row.pitch for row in kept.values()) <= _MOST_KEPT else {}


def _row_of_column(
    kernel: Kernel, tensors: Mapping[str, Tensor], found: Codes, let: Let, read: Read
) -> KeptRow | None:
    address = linear(read.index, row_major(tensors[read.tensor].shape))
    names = axes_of(address)
    along = sorted(names & {*found.outer}, key=lambda name: coefficient(address, name))
    if found.run in names or names & {*found.inner} or not along:
        return None
    length = 1
    for name in along:
        if coefficient(address, name) != length:
            return None
        length *= kernel.sizes[name]
    word = let.dtype.storage_bytes
    others = [factor for term, factor in address.terms if str(term) not in along]
    if any(size * word % CELL for size in (length, address.constant, *others)):
        return None
    number = Expr(0, tuple(term for term in address.terms if str(term[0]) in along))
    return KeptRow(read, number, length, word)


# -- the template --------------------------------------------------------------------------------


def refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, target: Target
) -> Iterator[Finding]:
    """Why the template cannot carry out a kernel, or not with the plan."""
    found = find_codes(kernel, tensors)
    if found is None:
        yield refuse("NotOfCodes", f"{kernel.name} is not a product with weights of few bits")
        return
    yield from _field_refusals(kernel, plan)
    yield from _tile(kernel, tensors, found, plan, target)


def _field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    yield from unused_field_refusals(plan, _USED, _FIXED, "the template of codes")
    if plan.cache not in ((), IN_REGISTERS):
        yield refuse("PlanField", f"{told(plan, 'cache')}: both operands go to registers")
    for why in (*false_claims(kernel, plan), *algorithm_refusals(kernel, plan)):
        yield refuse("PlanField", why)


def _tile(
    kernel: Kernel, tensors: Mapping[str, Tensor], found: Codes, plan: MmaPlan, target: Target
) -> Iterator[Finding]:
    rows, columns = (
        prod(kernel.sizes[name] for name in names) for names in (found.rows, found.columns)
    )
    (high, wide, depth), step = plan.tile, step_of(found)
    tall, own = plan.warp_tile
    if high != ROWS * -(-rows // ROWS) or wide < COLUMNS or wide % COLUMNS:
        yield refuse("Tile", f"{high}x{wide} is not all {rows} rows and multiples of {COLUMNS}")
    elif tall != high or own < COLUMNS or own % COLUMNS or wide % own:
        yield refuse(
            "Tile", f"warps of {tall}x{own} do not share k and multiples of {COLUMNS} columns"
        )
    elif depth % step or not 0 < depth // step * (wide // own) <= _MOST_WARPS:
        yield refuse(
            "Tile", f"{depth} is not a step of {step} for each of up to {_MOST_WARPS} warps"
        )
    elif plan.stages < 2:
        yield refuse(
            "Stages", f"{told(plan, 'stages')}: codes of a step arrive while others are read"
        )
    elif high * own // LANES > MOST_SUMS:
        yield refuse("Registers", f"{high * own // LANES} sums of a thread are too many")
    else:
        warps = depth // step * (wide // own)
        sums = depth // step * wide * (high + PADDING) * 4
        ring = Ring(found.together, own, warps, plan.stages)
        codes = ring.bytes * len(_reads_of_codes(kernel, found))
        kept = sum(wide * row.pitch for row in find_kept(kernel, tensors, found, wide).values())
        yield from memory_refusals(sums + codes + kept + 2 * CELL, target)
    batch = prod(kernel.sizes[name] for name in found.batch)
    yield from too_many(columns, found.runs(kernel.sizes), blocks=batch * columns)


def paired_fields(
    kernel: Kernel, found: Codes, scaled: Scaled | None, dtype: DType
) -> Mapping[tuple[int, ...], Field]:
    """The bits of codes that integers are; none where the two of a pair have others."""
    if scaled is None:
        return {}
    fields: dict[tuple[int, ...], Field] = {}
    for place, _ in found.points:
        at = dict(zip(found.inner, place, strict=True))
        field = find_field(kernel, scaled.integer, at)
        if field is None or field.mask >= SMALL[dtype]:
            return {}
        fields[place] = field
    places = [place for place, _ in found.points]
    alike = all(fields[x] == fields[y] for x, y in zip(places[::2], places[1::2], strict=True))
    return fields if alike else {}
