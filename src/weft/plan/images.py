"""When a convolution on a CPU copies its image once, with a padded border, instead of packing every
window.

A result at place p takes from the image what lies at stride * p + dilation * t, for each tap t of
the window. Elements that a stride leads to from the same tap are a *phase*: what is apart by the
stride in the image lies side by side there, so that every tap is a shift of one phase. Over a block
of results, lines of all phases follow one another in scratch, flat: a vector of results takes its
neighbours from wherever a tap shifts it to, across the ends of lines too. Results beyond the end
of a line come out as well, and are not used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import Final

from weft.foundation.index_expr import Axis, Expr, axes_of, coefficient, linear
from weft.foundation.records import dataclass
from weft.foundation.whole_numbers import round_up
from weft.plan.blocks import BLOCK, SCRATCH_BYTES, even_blocks, rounds
from weft.plan.ir import MmaPlan
from weft.region.ir import (
    AxisIndex,
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
from weft.target.target import Target

IMAGE: Final = "image"
"""Where a plan keeps an operand that is such an image (`CacheRead.where`)."""
NEAR_BYTES: Final = 640 << 10
"""What a block may take of a second cache."""
_FAR: Final = 1.25
"""How much longer a block takes that does not stay there."""
_PACK_WEIGHT, _TURN_WEIGHT, _PACK_PIXEL, _SUM = 4.0, 0.75, 0.25, 0.25
"""Multiply-adds of a vector that take as long as packing a weight one by one or in a turned tile of
them, packing an element of the image, and keeping a sum."""
_STRIDED: Final = 4.0
"""How much longer packing an element takes where a stride leads to it."""
_TURNED_ROWS: Final = 4
"""Rows of weights of the smallest tiles that are turned."""
_TILES: Final = {
    False: ((6, 2), (4, 3), (3, 4), (2, 4), (1, 4)),
    True: ((8, 3), (12, 2), (6, 4), (4, 4), (3, 4), (2, 4), (1, 4)),
}
"""Channels by vectors of results that 16 vector registers hold, and 32."""
_BUSY: Final = 10
"""Sums that are on their way at once when units for multiply-adds never wait."""
_LOAD: Final = 0.25
"""Multiply-adds that take as long as a load: a tile of a x b vectors loads a + b for a * b."""
_LEAST_SHARE: Final = 0.4
"""Of the results that are computed, those that are used, in a block that may be taken."""
_ROWS: Final = (256, 128, 64, 32, 16)
"""Rows of weights of blocks: few of them and all results read less than many and a few results."""
_MOST_PHASES: Final = 16
"""Phases of an image: as many as strides of 4 along two axes make."""
_MOST_DEPTH: Final = 640
"""Summed elements of a block, so that sums stay near the truth; a channel has all its taps."""
_MOST_STEPS: Final = 64
"""Blocks of channels, one after the other; each adds to all sums of its results once more."""


_NARROW: Final = 128
"""Bits of vectors with which the products take so long that packing windows may cost less than
what a copy of the image computes in vain."""
_PACK_WINDOW, _PACK_STRIDED, _SHORT_LOOPS = 4.5, 14.0, 0.12
"""For such vectors: multiply-adds of a vector that take as long as packing an element of a window,
and one that a stride leads to; and how much longer products take tap by tap. Counted by llvm-mca
for a Neoverse-N1: a copy takes 0.69 of the cycles for 7 x 7 windows of 3 channels and 64 filters,
0.87 for 3 x 3 and 64 filters at 56 x 56, 0.88 for 80 at 27 x 27, 1.06 for 128 at 28 x 28, 1.10 for
256 at 14 x 14, and 1.09 for 512 at 7 x 7, all of them without the time for memory."""
LINE: Final = 64
"""Bytes that come from memory together."""
_FAR_LINE: Final = 30.0
"""Multiply-adds that take as long as a line from beyond the second cache: 12 GB/s, for two
multiply-adds a cycle at 2.85 GHz. Weights of 512 filters at 7 x 7 were read nine times, a line for
one of nine numbers each time: 85 MB."""


@dataclass(frozen=True)
class Phase:
    """The taps `first`, `first + step`, ... of a window, `count` of them, each of them `shift`
    places after the one before it."""

    first: int
    step: int
    count: int
    shift: int


@dataclass(frozen=True)
class Window:
    """One axis of results and the axis of the taps along it."""

    place: str
    tap: str
    stride: int
    dilation: int
    taps: int

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The taps by the phase that they take from, in order."""
        # Tap t reads dilation * t elements further. Taps that are stride / gcd(stride, dilation)
        # apart are a whole number of strides apart in the image, and so are of one phase.
        step = self.stride // math.gcd(self.stride, self.dilation)
        shift = self.dilation * step // self.stride
        firsts = range(min(step, self.taps))
        counts = (-(-(self.taps - first) // step) for first in firsts)
        return tuple(Phase(n, step, count, shift) for n, count in zip(firsts, counts, strict=True))

    @cached_property
    def reach(self) -> int:
        """Places that a line has beyond its results."""
        return max((phase.count - 1) * phase.shift for phase in self.phases)


@dataclass(frozen=True)
class Image:
    """What of a contraction is what: the side that has windows, and its axes."""

    side: str
    """A or B."""
    windows: tuple[Window, ...]
    """Outermost first; neighbours along the last are neighbours in memory."""
    channels: tuple[str, ...]
    """The summed axes that are no taps."""
    others: tuple[str, ...]
    """Axes of the image's side that have no window: whole images, one after the other."""

    @cached_property
    def taps(self) -> int:
        """Taps of a channel."""
        return math.prod(window.taps for window in self.windows)

    @cached_property
    def planes(self) -> int:
        """Phases of a channel."""
        return math.prod(len(window.phases) for window in self.windows)

    def phases(self) -> Iterator[tuple[Phase, ...]]:
        """Every combination of the phases of all windows."""
        return product(*(window.phases for window in self.windows))

    def extents(self, places: Sequence[int]) -> list[int]:
        """The sizes of a plane that holds what so many places of each window need."""
        pairs = zip(places, self.windows, strict=True)
        return [count + window.reach for count, window in pairs]


def image_of(kernel: Kernel, tensors: Mapping[str, Tensor]) -> Image | None:
    """The image of a convolution; None where no operand is one."""
    roles = kernel.roles
    if kernel.pattern is not Pattern.CONV or roles is None:
        return None
    for side, read, axes in (("A", roles.lhs, roles.m), ("B", roles.rhs, roles.n)):
        found = _find_image(kernel, tensors, side, read, axes)
        if found is not None:
            return found
    return None


def _find_image(
    kernel: Kernel, tensors: Mapping[str, Tensor], side: str, read: str, axes: tuple[str, ...]
) -> Image | None:
    value = _factor(kernel, read)
    made = _values_behind(kernel, value) if value else []
    source = kernel.let(read).expr
    if not made or not isinstance(source, Read) or kernel.roles is None:
        return None
    windows = _find_windows(kernel, source, axes)
    strides = row_major(tensors[source.tensor].shape)
    address = linear(source.index, strides)
    if not windows or coefficient(address, windows[-1].place) != windows[-1].stride:
        return None
    if not all(_shifts(expr, windows) for let in made for expr in _exprs(let)):
        return None
    taps, places = {w.tap for w in windows}, {w.place for w in windows}
    if _other_reads(kernel, value, taps | places):
        return None
    channels = tuple(name for name in kernel.roles.k if name not in taps)
    others = tuple(name for name in axes if name not in places)
    found = Image(side, windows, channels, others)
    return found if len(list(found.phases())) <= _MOST_PHASES else None


def _find_windows(kernel: Kernel, source: Read, axes: Sequence[str]) -> tuple[Window, ...]:
    """The axes of results and taps that an index has as a sum, in the order of the results; where
    it has several sums in one, its guards have them apart, or those with equal factors are one."""
    assert kernel.roles is not None
    found: dict[str, Window] = {}
    for expr in (*source.index, *(guard.expr for guard in source.guards)):
        names = [term.name for term, _ in expr.terms if isinstance(term, Axis)]
        if len(names) != 2 or len(expr.terms) != 2:
            continue
        tap = next((name for name in names if name in kernel.roles.k), "")
        place = next((name for name in names if name in axes), "")
        steps = coefficient(expr, place), coefficient(expr, tap)
        if place and tap and min(steps) > 0 and place not in found:
            found[place] = Window(place, tap, *steps, kernel.sizes[tap])
    taken = {window.tap for window in found.values()}
    for expr, place, tap in product(source.index, axes, kernel.roles.k):
        alike = coefficient(expr, place) == coefficient(expr, tap) > 0
        if alike and place not in found and tap not in taken:
            found[place] = Window(place, tap, 1, 1, kernel.sizes[tap])
            taken.add(tap)
    return tuple(found[name] for name in axes if name in found)


def _factor(kernel: Kernel, read: str) -> str:
    """The value that is multiplied, of the side that a read belongs to."""
    assert kernel.roles is not None
    total = kernel.let(kernel.roles.contraction).expr
    made = kernel.let(total.value).expr if isinstance(total, Reduce) else None
    if not isinstance(made, Binary) or made.fn != "mul":
        return ""
    sides = (made.lhs, made.rhs)
    return next(
        (s for s in sides if any(let.name == read for let in _values_behind(kernel, s))), ""
    )


def _values_behind(kernel: Kernel, value: str) -> list[Let]:
    """A value and all that it is computed from; nothing where a part may not be computed twice."""
    found: dict[str, Let] = {}
    stack = [value]
    while stack:
        let = kernel.let(stack.pop())
        if not isinstance(let.expr, Read | Const | AxisIndex | Unary | Cast | Binary | Select):
            return []
        if isinstance(let.expr, Read) and let.expr.places:
            return []
        found[let.name] = let
        stack += [name for name in operands(let) if name not in found]
    return list(found.values())


def _exprs(let: Let) -> list[Expr]:
    match let.expr:
        case Read(index=index, guards=guards):
            return [*index, *(guard.expr for guard in guards)]
        case AxisIndex(expr=expr):
            return [expr]
    return []


def _shifts(expr: Expr, windows: Sequence[Window]) -> bool:
    """Whether an expression depends on results and taps through what they lead to alone."""
    divided = {name for t, _ in expr.terms if not isinstance(t, Axis) for name in _divided_axes(t)}
    for window in windows:
        if {window.place, window.tap} & divided:
            return False
        place, tap = coefficient(expr, window.place), coefficient(expr, window.tap)
        if place * window.dilation != tap * window.stride:
            return False
    return True


def _divided_axes(term: object) -> frozenset[str]:
    value = getattr(term, "value", None)
    return axes_of(value) if isinstance(value, Expr) else frozenset()


def _other_reads(kernel: Kernel, image: str, axes: set[str]) -> bool:
    """Whether the other factor depends on places of the image."""
    assert kernel.roles is not None
    total = kernel.let(kernel.roles.contraction).expr
    made = kernel.let(total.value).expr if isinstance(total, Reduce) else None
    assert isinstance(made, Binary)
    other = made.rhs if made.lhs == image else made.lhs
    return bool(axes & set(kernel.let(other).axes) & {*kernel.roles.m, *kernel.roles.n})


def steps_of(image: Image) -> tuple[str, ...]:
    """The summed axes, taps inside channels: a product goes through them in this order, but for
    taps of different phases."""
    return *image.channels, *(window.tap for window in image.windows)


def memory_follows_steps(
    kernel: Kernel, image: Image, strides_of: Callable[[str], Sequence[int]]
) -> bool:
    """Whether the weights of a row lie side by side in memory, in tensors of such strides, taps
    inside channels: then they are read in vectors, and turned. One by one, packing 64 rows of 2304
    takes half as long as their products with 56 results."""
    assert kernel.roles is not None
    names = steps_of(image)
    wanted = list(row_major(tuple(kernel.sizes[name] for name in names)))
    source = kernel.let(_filter_read(kernel, image)).expr
    if not isinstance(source, Read):
        return False
    address = linear(source.index, strides_of(source.tensor))
    return [coefficient(address, name) for name in names] == wanted


# -- sizes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageBlock:
    """A block: so many rows of weights, lines of results and channels, by register tiles of so many
    rows and results."""

    rows: int
    lines: int
    channels: int
    register_rows: int
    register_results: int


def block_of(kernel: Kernel, image: Image, plan: MmaPlan) -> ImageBlock:
    """What the tile of a plan says: rows, results and summed elements of a block."""
    rows, results, depth = plan.tile
    register = plan.warp_tile
    if image.side == "A":
        rows, results, register = results, rows, register[::-1]
    line = math.prod(kernel.sizes[window.place] for window in image.windows[1:])
    return ImageBlock(rows, results // line, depth // image.taps, *register)


@dataclass(frozen=True)
class _Plane:
    """What a block of so many lines takes of one channel of an image."""

    wanted: int
    """Results that are used."""
    flat: int
    """Results up to the last of these, what lines have beyond their results included."""
    elements: int
    """Of one phase."""


def _plane(kernel: Kernel, image: Image, lines: int) -> _Plane:
    places = places_of(kernel, image, lines)
    extents = image.extents(places)
    # The number of the last result that is wanted, counted in planes with what lines have beyond
    # their results: all before it come out, wanted or not.
    flat = 0
    for count, extent in zip(places, extents, strict=True):
        flat = flat * extent + count - 1
    return _Plane(math.prod(places), flat + 1, math.prod(extents))


def scratch_elements(kernel: Kernel, image: Image, block: ImageBlock) -> tuple[int, int, int]:
    """Of packed weights, of the image, and of sums."""
    plane = _plane(kernel, image, block.lines)
    rows = round_up(block.rows, block.register_rows)
    width = _whole_tiles(block.register_results, plane)
    weights = rows * block.channels * image.taps
    return weights, block.channels * image.planes * plane.elements + width, rows * width


def _whole_tiles(register_results: int, plane: _Plane) -> int:
    """Results of a block, those beyond lines included, in tiles of so many."""
    return round_up(plane.flat, register_results)


def places_of(kernel: Kernel, image: Image, lines: int) -> list[int]:
    return [lines, *(kernel.sizes[window.place] for window in image.windows[1:])]


def results_of(kernel: Kernel, image: Image, block: ImageBlock) -> int:
    """Flat results of a block, in whole register tiles, those beyond lines included."""
    return _whole_tiles(block.register_results, _plane(kernel, image, block.lines))


def image_block(
    kernel: Kernel, image: Image, tensors: Mapping[str, Tensor], target: Target, lanes: int,
    width: int = 0,
) -> ImageBlock | None:  # fmt: skip
    """The block that takes the least time, as estimated; None where none fits a thread. Where the
    weights lie in panels of a width, nothing is packed."""
    shapes = _TILES[(target.limits.vector_registers or 16) >= 32]
    if width:
        shapes = tuple(shape for shape in shapes if shape[0] == width)
    rows = _image_rows(kernel, image)
    lines = kernel.sizes[image.windows[0].place]
    channels = math.prod(kernel.sizes[name] for name in image.channels)
    most = max(1, _MOST_DEPTH // image.taps)
    deep = [c for c in _cuts(channels) if c <= most and channels <= _MOST_STEPS * c]
    work = _Work.of(kernel, image, tensors, target, lanes, lies=bool(width))
    planes = {of_lines: _plane(kernel, image, of_lines) for of_lines in _cuts(lines)}
    least, best = math.inf, None
    for shape in shapes:
        fitting = [
            (of_lines, plane, results)
            for of_lines, plane in planes.items()
            # Few results are wanted where windows are as large as the image.
            if plane.wanted / (results := _whole_tiles(shape[1] * lanes, plane)) >= _LEAST_SHARE
        ]
        for of_rows in dict.fromkeys(even_blocks(rows, n, shape[0]) for n in (rows, *_ROWS)):
            for of_lines, plane, results in fitting:
                for of_channels, time in work.times(shape, of_rows, of_lines, plane, results, deep):
                    if time < least:
                        tile = shape[0], shape[1] * lanes
                        least, best = time, (of_rows, of_lines, of_channels, *tile)
    return None if best is None else ImageBlock(*best)


def saves_time(
    kernel: Kernel, image: Image, block: ImageBlock, tensors: Mapping[str, Tensor], target: Target,
    lanes: int,
) -> bool:  # fmt: skip
    """Whether a copy of the image in such blocks takes less time than packing every window."""
    if target.limits.vector_bits > _NARROW:
        return True
    assert kernel.roles is not None
    rows, lines = _image_rows(kernel, image), kernel.sizes[image.windows[0].place]
    depth = math.prod(kernel.sizes[name] for name in kernel.roles.k)
    places = math.prod(places_of(kernel, image, lines))
    results = -(-lines // block.lines) * results_of(kernel, image, block)
    copied = depth * rows * results / lanes * (1 + _SHORT_LOOPS)
    packing = _PACK_STRIDED if image.windows[-1].stride > 1 else _PACK_WINDOW
    packed = depth * places * (rows / lanes + packing * -(-rows // BLOCK[0]))
    # What is packed at a time are all channels of a tap. In a copy all taps of a channel follow one
    # another, as weights lie in memory.
    item = _sum_bytes(kernel)
    if min(rows, BLOCK[0]) * depth * item > NEAR_BYTES:
        again = min(_weight_step(kernel, image, tensors), LINE // item) - 1
        reads = again * rows * depth * item / LINE * -(-places // BLOCK[1])
        packed += reads * _FAR_LINE
    return copied < packed


def _weight_step(kernel: Kernel, image: Image, tensors: Mapping[str, Tensor]) -> int:
    """How far apart weights lie that are neighbours along the last summed axis."""
    assert kernel.roles is not None
    source = kernel.let(_filter_read(kernel, image)).expr
    if not isinstance(source, Read):
        return 1
    address = linear(source.index, row_major(tensors[source.tensor].shape))
    return max(1, abs(coefficient(address, kernel.roles.k[-1])))


def _filter_read(kernel: Kernel, image: Image) -> str:
    """The read of the side that is no image."""
    assert kernel.roles is not None
    return kernel.roles.rhs if image.side == "A" else kernel.roles.lhs


def _cuts(size: int) -> list[int]:
    """Sizes of equal parts, a few."""
    counts = [count for count in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if count <= size]
    return list(dict.fromkeys(-(-size // count) for count in counts))


def _image_rows(kernel: Kernel, image: Image) -> int:
    assert kernel.roles is not None
    return math.prod(
        kernel.sizes[name] for name in (kernel.roles.n if image.side == "A" else kernel.roles.m)
    )


def _sum_bytes(kernel: Kernel) -> int:
    assert kernel.roles is not None
    return kernel.let(kernel.roles.contraction).dtype.storage_bytes


@dataclass(frozen=True)
class _Work:
    """What all blocks of a convolution have in common."""

    rows: int
    lines: int
    channels: int
    taps: int
    planes: int
    batch: int
    item: int
    """Bytes of a sum."""
    units: int
    lanes: int
    pixel: float
    """What packing an element of the image takes."""
    lies: bool
    """Whether weights lie in panels."""
    turns: bool
    """Whether those that are packed can be turned."""

    @classmethod
    def of(
        cls, kernel: Kernel, image: Image, tensors: Mapping[str, Tensor], target: Target,
        lanes: int, *, lies: bool,
    ) -> _Work:  # fmt: skip
        assert kernel.roles is not None
        channels = math.prod(kernel.sizes[name] for name in image.channels)
        batch = math.prod(kernel.sizes[name] for name in (*kernel.roles.batch, *image.others))
        lines = kernel.sizes[image.windows[0].place]
        rows, item = _image_rows(kernel, image), _sum_bytes(kernel)
        pixel = _PACK_PIXEL * (_STRIDED if image.planes > 1 else 1.0)
        turns = memory_follows_steps(kernel, image, lambda name: row_major(tensors[name].shape))
        units = target.limits.units
        taps, planes = image.taps, image.planes
        return cls(
            rows, lines, channels, taps, planes, batch, item, units, lanes, pixel, lies, turns
        )

    def times(
        self, shape: tuple[int, int], rows: int, lines: int, plane: _Plane, results: int,
        deep: Sequence[int],
    ) -> Iterator[tuple[int, float]]:  # fmt: skip
        """Multiply-adds of vectors that the blocks of the busiest unit take as long as, for each
        number of channels with which a block finds room."""
        pieces = self.batch * -(-self.rows // rows) * -(-self.lines // lines)
        turns, sums = rounds(pieces, self.units), round_up(rows, shape[0]) * results
        taps, registers = sums // results * self.taps, shape[0] * shape[1]
        # A tile with fewer sums than are on their way waits for its own. A step loads a number for
        # each row, and each of its vectors, for as many products as there are sums.
        slower = max(1.0, _BUSY / registers) * (1 + _LOAD * sum(shape) / registers)
        turned = self.turns and shape[0] % _TURNED_ROWS == 0
        weight = 0.0 if self.lies else _TURN_WEIGHT if turned else _PACK_WEIGHT
        for channels in deep:
            weights = taps * channels
            pixels = channels * self.planes * plane.elements + results
            size = (weights + pixels + sums) * self.item
            if size <= SCRATCH_BYTES:
                once = weights * results / self.lanes * slower
                once += weights * weight + pixels * self.pixel + sums * _SUM
                steps = -(-self.channels // channels)
                yield channels, turns * steps * once * (1.0 if size <= NEAR_BYTES else _FAR)


def image_refusal(kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan) -> str | None:
    """Why a kernel cannot be computed so; None where it can."""
    side = next((cached.tensor for cached in plan.cache if cached.where == IMAGE), None)
    image = image_of(kernel, tensors)
    if image is None or image.side != side:
        return f"{side} is not an image whose neighbours along the results lie side by side"
    block = block_of(kernel, image, plan)
    if min(block.rows, block.lines, block.channels) < 1:
        return "a block is at least a line of results and all taps of a channel"
    if block.register_results % (plan.vectorize.width if plan.vectorize else 1):
        return f"{block.register_results} results of a register tile are not whole vectors"
    size = sum(scratch_elements(kernel, image, block)) * _sum_bytes(kernel)
    if size > SCRATCH_BYTES:
        shown = "x".join(map(str, plan.tile))
        return f"a block of tile {shown} takes {size:,} bytes; {SCRATCH_BYTES:,} is the most"
    return None
