"""Position of a tile of a product: its row and column number, its batch, its addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.scalar import Name, Scalar, total, wide
from weft.codegen.gpu.ir.swizzle import Major
from weft.codegen.gpu.products.operand import Operand
from weft.codegen.gpu.products.problem import Problem, Strides
from weft.codegen.gpu.products.tiles import TileOrder
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Place:
    """Where in the result a tile lies."""

    m: Scalar
    n: Scalar
    batch: tuple[Scalar, ...]
    rows: tuple[Scalar, Scalar, Scalar] | None = None
    """Where tiles do not begin at multiples of their height: the row from which on the left operand
    is read, that from which on results are stored, and that before which they end."""

    def first_read(self, height: int) -> Scalar:
        """The first row of the left operand."""
        return self.m * height if self.rows is None else self.rows[0]

    def first_stored(self, height: int) -> Scalar:
        """The first row of the result."""
        return self.m * height if self.rows is None else self.rows[1]

    def moved_to(self, prefix: str) -> Place:
        """The same, in variables that outlive the loop over tiles."""
        batch = tuple(Name(f"{prefix}_batch{i}") for i, _ in enumerate(self.batch))
        return Place(Name(f"{prefix}_m"), Name(f"{prefix}_n"), batch)

    @property
    def parts(self) -> tuple[Scalar, ...]:
        return (self.m, self.n, *self.batch)


def locate(problem: Problem, order: TileOrder, tile: Scalar) -> tuple[Place, tuple[ir.Stmt, ...]]:
    """Where a tile lies, from its number, and the statements that find out."""
    statements = list(order.locate(tile))
    batch: list[Scalar] = []
    rest: Scalar = Name("matrix")
    for axis in reversed(range(len(problem.batch))):
        statements.append(ir.Let(f"batch{axis}", rest % problem.batch[axis] if axis else rest))
        batch.insert(0, Name(f"batch{axis}"))
        rest = rest // problem.batch[axis]
    return Place(Name("tile_m"), Name("tile_n"), tuple(batch)), tuple(statements)


def present(batch: tuple[Scalar, ...], strides: tuple[int, ...]) -> tuple[Scalar, ...]:
    """The batch indices that a tensor with these strides depends on."""
    return tuple(index for index, stride in zip(batch, strides, strict=True) if stride)


def place_in(
    operand: Operand,
    outer: Scalar,
    inner: Scalar,
    batch: tuple[Scalar, ...],
    digits: Mapping[str, Scalar],
) -> tuple[tuple[Scalar, ...], tuple[Scalar, ...]]:
    """Where a copy of an operand begins, given a row or column and a place along the contracted
    axes, which has `digits` where the operand is no matrix, and, of an image, which tap of its
    windows it brings."""
    if operand.walk is not None:
        return operand.walk.coords(outer, digits, batch)
    pair = (inner, outer) if operand.major is Major.K else (outer, inner)
    return (*pair, *present(batch, operand.batch)), ()


def offset(
    strides: Strides,
    row: Scalar,
    column: Scalar,
    batch: tuple[Scalar, ...],
    *,
    widen: bool = True,
) -> Scalar:
    """The element's offset from the start of its buffer."""
    parts = [(row, strides.row), (column, strides.column)]
    if strides.digits:
        parts = [*_digits_of_number(row, strides.digits), (column, strides.column)]
    parts += list(zip(batch, strides.batch, strict=True))
    terms = [(wide(index) if widen else index) * stride for index, stride in parts if stride]
    return total(strides.offset, *terms)


def _digits_of_number(
    number: Scalar, digits: Sequence[tuple[int, int]]
) -> list[tuple[Scalar, int]]:
    """What a number is made of, with the stride of each."""
    found: list[tuple[Scalar, int]] = []
    below = 1
    for size, stride in reversed(digits):
        digit = number // below if below > 1 else number
        below *= size
        found.insert(0, (digit if len(found) == len(digits) - 1 else digit % size, stride))
    return found
