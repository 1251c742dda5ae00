"""Convolutions in channels-first layout (planes), with the pooling behind them.

    y[i, o, p, q] = max over u, v of f(sum over c, r, s of
                        x[i, c, 2p + u + r + start, 2q + v + s - 1] * w[o, r, s, c])

Neighbours in memory are neighbours along lines of an image, not channels of a place. Matrix units
take such lines as they are: products of every tap of a line are made for all its columns, and are
added up one column further on each. So there is no copy of the image with its channels last, and
results are planes again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.index_expr import Expr, Guard, axis, coefficient, linear
from weft.foundation.records import dataclass
from weft.region.forms.multiplied import multiplies_reads
from weft.region.ir import (
    Binary,
    Cast,
    Const,
    Kernel,
    Let,
    Pattern,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    operands,
    row_major,
)

POOL: Final = 2
"""Lines and columns of a pool's windows."""
TAPS: Final = 3
"""Along a line."""
FILTERS: Final = 64
"""That a tile has."""
COLUMNS: Final = 64
"""Of each line of an image that a tile has."""
STEP: Final = COLUMNS - 16
"""Columns from tile to tile: eight at either side, the last of which lacks a neighbour in this
tile, are the other one's."""
DEPTH: Final = 64
"""Channels that are summed over in a step."""
SLICE: Final = 16
"""Those of an instruction."""
LINE: Final = 8
"""16-bit elements of a line of memory."""
_DIMS: Final = 4
"""Of an image: images, channels, lines, columns."""
_MOST_LINES: Final = 5
"""Taps across lines."""
_MOST_CHANNELS: Final = 128
"""With more, the filters of all taps do not fit a unit."""
_ELEMENTS: Final = (Const, Unary, Cast, Binary, Select)


@dataclass(frozen=True)
class Planes:
    """What of a kernel is what, by the names of its Lets and axes."""

    image: str
    filters: str
    fold: str
    """The result: the largest element of a window of the pool."""
    images: str
    """Nothing where there is one."""
    line: str
    column: str
    row: str
    """The axis of the filters."""
    channels: str
    taps: tuple[str, str]
    """Across lines, and along them."""
    start: int
    """The line of the first tap of the first result."""


class _Moved(NamedTuple):
    """The axes of `2 * place + element + tap`."""

    place: str
    element: str
    tap: str


def find_planes(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Planes | None:
    """The convolution of planes that a kernel is, with its pool; None where it is none."""
    roles = kernel.roles
    if roles is None or len(kernel.outputs) != 1 or kernel.params or kernel.stages:
        return None
    fold, total = kernel.let(kernel.outputs[0].value), kernel.let(roles.contraction)
    if not is_pool(kernel, fold) or total.dtype is not F32 or not multiplies_reads(kernel):
        return None
    for image, filters in ((roles.lhs, roles.rhs), (roles.rhs, roles.lhs)):
        found = _of_sides(kernel, tensors, fold, image, filters)
        if found is not None and _is_whole(kernel, tensors, found):
            return found
    return None


def is_pool(kernel: Kernel, let: Let) -> bool:
    """Whether a Let is the largest of some results of a convolution each."""
    roles, fold = kernel.roles, let.expr
    if roles is None or kernel.pattern is not Pattern.CONV or not isinstance(fold, Reduce):
        return False
    return fold.fn == "max" and {*fold.axes} < {*roles.m} | {*roles.n}


def _of_sides(
    kernel: Kernel, tensors: Mapping[str, Tensor], fold: Let, image: str, filters: str
) -> Planes | None:
    """What the axes of a kernel are, if one operand is the image and the other the filters."""
    read, other = kernel.let(image).expr, kernel.let(filters).expr
    if not isinstance(read, Read) or not isinstance(other, Read) or len(read.index) != _DIMS:
        return None
    if read.places or other.places or other.guards or read.fill != 0:
        return None
    assert isinstance(fold.expr, Reduce)
    assert kernel.roles is not None
    pooled, summed = {*fold.expr.axes}, {*kernel.roles.k}
    images, channels = read.index[0].single_axis, read.index[1].single_axis
    alone = read.index[0].is_constant and tensors[read.tensor].shape[0] == 1
    down, along = read.index[2:]
    lines, columns = (
        _match_pool_axis(expr, ({*fold.axes}, pooled, summed)) for expr in (down, along)
    )
    rows = [name for name in fold.axes if coefficient(_address(other, tensors), name)]
    if (
        (images is None and not alone)
        or channels is None
        or lines is None
        or columns is None
        or len(rows) != 1
    ):
        return None
    inside = zip((down, along), tensors[read.tensor].shape[2:], strict=True)
    guards = {Guard(expr, size) for expr, size in inside}
    # Lines of results are as long as those of the image: the middle tap is at the result's own
    # column.
    if not {*kernel.open_guards(read)} <= guards or along.constant != -(TAPS // 2):
        return None
    if {lines.element, columns.element} != pooled or {
        channels.name,
        lines.tap,
        columns.tap,
    } != summed:
        return None
    place = (
        images.name if images is not None else "",
        lines.place,
        columns.place,
        rows[0],
        channels.name,
    )
    return Planes(image, filters, fold.name, *place, (lines.tap, columns.tap), down.constant)


def _address(read: Read, tensors: Mapping[str, Tensor]) -> Expr:
    return linear(read.index, row_major(tensors[read.tensor].shape))


def _match_pool_axis(expr: Expr, kinds: Sequence[set[str]]) -> _Moved | None:
    found = [[name for name in kind if coefficient(expr, name)] for kind in kinds]
    if any(len(names) != 1 for names in found):
        return None
    place, element, tap = (names[0] for names in found)
    made = axis(place) * POOL + axis(element) + axis(tap)
    return _Moved(place, element, tap) if (expr - made).is_constant else None


def _is_whole(kernel: Kernel, tensors: Mapping[str, Tensor], found: Planes) -> bool:
    """Whether the sizes are those of a kernel that there is, and nothing follows the sums but
    functions of elements and of numbers of the filters."""
    sizes, (down, along) = kernel.sizes, found.taps
    image, filters = kernel.let(found.image), kernel.let(found.filters)
    assert isinstance(filters.expr, Read)
    width = width_of(kernel, tensors, found)
    pools = [sizes[name] for name in sizes if name in _pooled_axes(kernel, found)]
    if image.dtype is not filters.dtype or image.dtype not in (F16, BF16):
        return False
    if width % LINE or POOL * sizes[found.column] != width or pools != [POOL, POOL]:
        return False
    if sizes[along] != TAPS or sizes[down] > _MOST_LINES or sizes[found.row] > FILTERS:
        return False
    address = _address(filters.expr, tensors)
    steps = [coefficient(address, name) for name in (found.row, down, along)]
    if coefficient(address, found.channels) != 1 or any(s <= 0 or s % LINE for s in steps):
        return False
    few = sizes[found.channels] <= _MOST_CHANNELS and address.constant == 0
    return few and _stores_planes(kernel, tensors, found) and _of_elements(kernel, found)


def _pooled_axes(kernel: Kernel, found: Planes) -> tuple[str, ...]:
    fold = kernel.let(found.fold).expr
    assert isinstance(fold, Reduce)
    return fold.axes


def width_of(kernel: Kernel, tensors: Mapping[str, Tensor], found: Planes) -> int:
    """Columns of the image, and of the sums."""
    read = kernel.let(found.image).expr
    assert isinstance(read, Read)
    return tensors[read.tensor].shape[-1]


def windows_of(width: int) -> int:
    """Tiles that a line of so many columns is made of."""
    return 1 + max(0, -(-(width - COLUMNS) // STEP))


def used_share(kernel: Kernel, tensors: Mapping[str, Tensor], found: Planes) -> float:
    """Of the products that tiles make, those that are wanted."""
    width, channels = width_of(kernel, tensors, found), kernel.sizes[found.channels]
    deep = -(-channels // SLICE) * SLICE if channels < DEPTH else -(-channels // DEPTH) * DEPTH
    across = width / (windows_of(width) * COLUMNS)
    return across * channels / deep * kernel.sizes[found.row] / FILTERS


def _stores_planes(kernel: Kernel, tensors: Mapping[str, Tensor], found: Planes) -> bool:
    """Whether lines of results are neighbours in memory, and begin at pairs."""
    (output,), fold = kernel.outputs, kernel.let(found.fold)
    axes = [name for name in (found.images, found.row, found.line) if name]
    if {name for name in fold.axes if kernel.sizes[name] > 1 or name in axes} != {
        *axes,
        found.column,
    }:
        return False
    place = linear(output.index, row_major(tensors[output.tensor].shape))
    steps = [coefficient(place, name) for name in axes]
    even = all(step % POOL == 0 for step in (*steps, place.constant))
    whole = output.base is None and fold.dtype in (F16, BF16)
    return whole and even and coefficient(place, found.column) == 1


def _of_elements(kernel: Kernel, found: Planes) -> bool:
    """Whether what lies between sums and fold is made of elements, and of numbers of filters."""
    for let in between(kernel, found):
        if isinstance(let.expr, Read):
            plain = not let.expr.places and not let.expr.guards
            if let.axes != (found.row,) or not plain:
                return False
        elif not isinstance(let.expr, _ELEMENTS):
            return False
    return True


def pools_first(kernel: Kernel, found: Planes) -> bool:
    """Whether what is made of the sums is never less for a larger sum: the largest of the results
    is then the one that is made of the largest sum, to the bit."""
    assert kernel.roles is not None
    growing = {kernel.roles.contraction}
    for let in between(kernel, found):
        used = [name in growing for name in operands(let)]
        if any(used):
            growing.add(let.name)
            if not _grows(let, used):
                return False
    return kernel.let(found.fold).dtype in (BF16, F16) and len(growing) > 1


def _grows(let: Let, used: Sequence[bool]) -> bool:
    """Whether a value is never less where those operands that are `used` are larger."""
    match let.expr:
        # Rounding keeps the order of two numbers, or makes them equal.
        case Cast() | Unary(fn="relu"):
            return let.dtype in (BF16, F16, F32)
        # What is beside the sums is a number of the filter, the same for a whole window.
        case Binary(fn="add" | "max" | "min"):
            return True
        case Binary(fn="sub"):
            return not used[1]
        case _:
            return False


def between(kernel: Kernel, found: Planes) -> list[Let]:
    """What is made of the sums before the fold, in order."""
    fold = kernel.let(found.fold).expr
    assert isinstance(fold, Reduce)
    assert kernel.roles is not None
    wanted, stack = set[str](), [fold.value]
    while stack:
        name = stack.pop()
        if name != kernel.roles.contraction and name not in wanted:
            wanted.add(name)
            stack += operands(kernel.let(name))
    return [let for let in kernel.body if let.name in wanted]
