"""The form of a kernel (map, rows, product, attention, ...), for planning and code generation.

    Form = Map(crossing) | Row(rows) | Product(rows, problem, epilogue)
         | Convolution(rows, problem, epilogue, windows) | Attention(rows, parts)
         | Stream(rows, parts) | Staged(slide, batch, rings) | Whole(op)

A form is found once, when a kernel is finished (`forms.find`), and says nothing that does not
follow from the kernel and the shapes of its tensors; verification finds it again and compares.
What comes later reads it and looks at the body only for what it computes. Tensors lie row-major;
axes and Lets are named as the kernel names them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.records import dataclass


@dataclass(frozen=True)
class Rows:
    """A row is a point of the axes that no reduction removes."""

    reduced: tuple[str, ...]
    """The axes that some reduction removes, in order."""
    regular: bool
    """Whether all reductions run over the same axes, and results live over all or none of them."""
    columns: str | None = None
    """The axis of columns, where nothing is done but to sum over them and neighbours along it are
    neighbours in memory."""
    walked: str | None = None
    """The axis that sums of columns run along, where rows are reduced too (`row_reads`)."""


class Crossing(NamedTuple):
    """The axis that results are contiguous along, and the one that an operand is."""

    columns: str
    rows: str


@dataclass(frozen=True)
class MatrixAxes:
    """The axes of a product, outermost first, those of one element left out of the batch. Rows,
    columns and contracted axes are those that act as one in every tensor; outer axes of rows and
    columns that do not are batch axes."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """A batch axis, of `step` elements, of which element f is those matrices whose windows have
    the taps `step * t + f` of `taps` alone. Tap t of theirs is `shift * f` further on in the
    image."""

    axis: str
    step: int
    taps: int
    shift: int

    def count(self, number: int) -> int:
        """How many taps a phase has."""
        return (self.taps + self.step - 1 - number) // self.step


@dataclass(frozen=True)
class Moved:
    """An axis of an image that windows move over, the dimension `dim` of its tensor. Tap t of the
    window at place p is the element `step * p + dilation * t + start` of the `size` elements from
    `origin` on, and zero outside of them. A place or tap without a name is the only one."""

    dim: int
    place: str
    tap: str
    step: int
    dilation: int
    start: int
    size: int
    origin: int
    phase: Phase | None = None
    """Where not every matrix has the same taps."""

    def counts(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The number of taps of each phase."""
        if self.phase is None:
            return (sizes[self.tap],) if self.tap else (1,)
        return tuple(self.phase.count(number) for number in range(self.phase.step))


@dataclass(frozen=True)
class Image:
    """An operand, `lhs` or `rhs`, that is windows of an image: dimensions of images, then those
    that windows move over, then the channels. `images` and then places of the windows are rows, or
    columns, or what is summed over; taps and then channels the other of the two."""

    side: str
    images: tuple[str, ...]
    moved: tuple[Moved, ...]
    channels: str
    is_summed: bool
    """Whether taps and channels are summed over, not places."""
    elements: int
    """Of its tensor."""
    advance: int = 0
    """Elements from place to place along the last dimension of the tensor, where neighbours share
    channels there; 0 where the channels have that dimension for themselves."""

    @property
    def places(self) -> tuple[str, ...]:
        return (*self.images, *(axis.place for axis in self.moved if axis.place))

    @property
    def taps(self) -> tuple[str, ...]:
        return tuple(axis.tap for axis in self.moved if axis.tap)


@dataclass(frozen=True)
class Problem:
    """The sizes of a contraction of two operands that are read, the dtype of the operands (of A,
    where they differ), and how they lie in memory."""

    batch: int
    m: int
    n: int
    k: int
    dtype: DType
    layouts: tuple[str, str]
    aligned: bool
    """Whether every pitch and offset of the operands is a multiple of 16 bytes."""
    grains: tuple[int, int]
    """Of each operand the bytes that all of them are multiples of, those that the copy engine asks
    for at a time at most."""
    axes: MatrixAxes
    image: Image | None = None
    """Where an operand is no matrix in memory, but windows of an image."""
    scattered: bool = False
    """Whether rows follow one another in the operands only, not in what is stored."""

    def tiles(self, rows: int, columns: int) -> int:
        return self.batch * -(-self.m // rows) * -(-self.n // columns)


@dataclass(frozen=True)
class Windows:
    """Of a convolution: the axes of the result that tiles run along, the axes of the window that
    belong to them, the summed channels, and the axes of the result that are left: images."""

    rows: str
    columns: str
    window_rows: str
    window_columns: str
    channels: tuple[str, ...]
    images: tuple[str, ...]


@dataclass(frozen=True)
class AttentionParts:
    """The parts of an attention, by the names of their Lets, and its axes."""

    scores: str
    x: str
    top: str
    total: str
    mixed: str
    batch: tuple[str, ...]
    query: str
    key: str
    depth: tuple[str, ...]
    value: tuple[str, ...]
    """The axes of a mixed value."""


@dataclass(frozen=True)
class StreamParts:
    """The parts of a stream, by the names of their Lets, and its axes: a kernel keeps rows and goes
    through columns, once for every point of the group."""

    products: tuple[str, ...]
    """Of rows and columns; powers are made of the first."""
    x: str
    shift: str
    """What the powers are made of: exp(x - shift)."""
    power: str
    results: tuple[str, ...]
    """Sums over columns."""
    batch: tuple[str, ...]
    row: str
    group: tuple[str, ...]
    column: str


# -- forms ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Map:
    """Every point by itself. Results go along one axis and an operand along another, where there
    is a crossing."""

    crossing: Crossing | None
    rows: ClassVar[Rows] = Rows((), regular=True)


@dataclass(frozen=True)
class Row:
    """Reductions of rows, or of columns side by side."""

    rows: Rows


@dataclass(frozen=True)
class Product:
    """A contraction, and what happens to it before it is stored, in the words of the plan language
    (`forms.epilogue`). It has a problem where both operands are read, without padding."""

    rows: Rows
    problem: Problem | None
    epilogue: tuple[str, ...]


@dataclass(frozen=True)
class Convolution(Product):
    """A contraction of windows with its epilogue; of 3 x 3 windows at unit steps what is what, or
    why it is no such convolution."""

    windows: Windows | str


@dataclass(frozen=True)
class Attention:
    """Scores, their softmax, and the mixed values."""

    rows: Rows
    parts: AttentionParts


@dataclass(frozen=True)
class Stream:
    """Products of rows and columns, powers of them, and what these sum up to over the columns: the
    gradients of an attention."""

    rows: Rows
    parts: StreamParts


@dataclass(frozen=True)
class Ring:
    """What the results of one row need of a local. Along its own `axis` they need the rows from
    `low` to `high`, counted from their own row, where it is so long; `depth` of them are alive at a
    time where each is computed as late as can be. Its `batch` axes are those of the results."""

    local: str
    batch: tuple[str, ...]
    axis: str
    low: int
    high: int
    depth: int


@dataclass(frozen=True)
class Staged:
    """Stages that follow one another row by row. All of them move along `slide`, an axis of the
    results, at the same pace; `batch` are the axes outside of it, and a row is what is inside."""

    slide: str
    batch: tuple[str, ...]
    rings: tuple[Ring, ...]
    rows: ClassVar[Rows] = Rows((), regular=True)

    @property
    def warm_up(self) -> int:
        """Rows that are computed before the first of the results."""
        return max(ring.high - ring.low for ring in self.rings)


@dataclass(frozen=True)
class Whole:
    """An op that no kernel language expresses."""

    op: str
    rows: ClassVar[Rows] = Rows((), regular=True)


Form: TypeAlias = Map | Row | Product | Convolution | Attention | Stream | Staged | Whole


def kind_of(form: Form) -> str:
    """The name of a form: its class, and columns for rows that are nothing but sums of them."""
    if isinstance(form, Row) and form.rows.columns is not None:
        return "columns"
    return type(form).__name__.lower()
