"""Choosing memory layouts of intermediate tensors.

Matrix units want the contracted axes of an operand to follow one another. A value that a
contraction sums over two axes which do not (the heads and the depth of an attention's result, with
the sequence between them) is stored with them together, innermost:

    (head, row, depth), summed over head and depth   ->   stored as (row, head, depth)

Images between convolutions are stored with their channels last:

    y[n, c, h, w]    ->    y[n, h, w, c]

Matrix units sum over channels, and read those of one pixel side by side. A model that is written
with its channels first has nothing to gain from that order but at its ends: the values between its
convolutions, and whatever reads and makes them element by element, by windows or by products along
the channels, take the other one. What a program is given and hands out stays as it is.

Channels are one axis or several: a norm of groups sees its image as y[n, g, c, h, w], which a
convolution reads at [n, k / C, k % C, h, w]; images that are joined are read at [n, C * g + c - K,
h, w], each where it is. Axes of a tensor and axes of a reader that make up one another are the same
channels, and the tensor is stored with them as one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Final, TypeAlias, TypeVar

from weft.foundation.dims import static
from weft.foundation.dtypes import BF16, F16
from weft.foundation.index_expr import Axis, Expr, axes_of, linear
from weft.foundation.records import dataclass, replace
from weft.poly_view.ir import Access, BlockKind, PolyBlock, Scop
from weft.region.ir import row_major
from weft.region.writing.emit import makes_up
from weft.target.target import Target


@dataclass(frozen=True)
class Layout:
    """An order of atoms; the last `together` of them are one axis of the tensor."""

    order: tuple[int, ...]
    together: int

    def shape(self, block: PolyBlock) -> tuple[int, ...]:
        """Of the tensor. Atoms of one axis of the value that follow one another are one axis too,
        as in tensors without a layout: kernels that hand it on see the same axes."""
        kept, dims = len(self.order) - self.together, dims_of(block)
        sizes: list[int] = []
        for number, place in enumerate(self.order):
            before = self.order[number - 1] if 0 < number < kept else None
            follows = before is not None and place == before + 1 and dims[place] == dims[before]
            if follows or number > kept:
                sizes[-1] *= block.shape[place]
            else:
                sizes.append(block.shape[place])
        return tuple(sizes)


def dims_of(block: PolyBlock) -> list[int]:
    """Which axis of a block's value each of its atoms is part of; each is one where that is not so
    simple."""
    sizes = tuple(static(size) for size in block.value.shape)
    if not makes_up(sizes, block.shape):
        return list(range(len(block.shape)))
    dims: list[int] = []
    for number, size in enumerate(sizes):
        extent = 1
        while extent != size:
            extent *= block.shape[len(dims)]
            dims.append(number)
    return [*dims, *range(len(sizes), len(sizes) + len(block.shape) - len(dims))]


def contraction_layouts(
    blocks: Mapping[str, PolyBlock], fixed: Collection[str]
) -> dict[str, Layout]:
    """Layouts for blocks that a contraction reads with its summed axes apart; the first contraction
    that asks decides. Blocks in `fixed` stay as they are."""
    found: dict[str, Layout] = {}
    for block in blocks.values():
        if block.kind is not BlockKind.CONTRACTION:
            continue
        for access in block.accesses:
            if access.tensor in blocks and access.tensor not in fixed:
                layout = _find_layout(block, access)
                if layout is not None:
                    found.setdefault(access.tensor, layout)
    return found


def _find_layout(block: PolyBlock, access: Access) -> Layout | None:
    axes = [expr.single_axis for expr in access.map]
    if None in axes or access.guards:
        return None
    names = [axis.name for axis in axes if axis is not None]
    summed = [axis.name for axis in block.reduce_axes if axis.name in names]
    if len(set(names)) != len(names) or len(summed) < 2:
        return None
    places = [names.index(name) for name in summed]
    if places == list(range(places[0], places[0] + len(places))):
        return None
    others = [place for place in range(len(names)) if place not in places]
    return Layout((*others, *places), len(places))


_T = TypeVar("_T")
Readers: TypeAlias = Mapping[str, list[tuple[PolyBlock, Access]]]
"""What reads a block or an input, and how, by its name."""
_WORTH: Final = 1 << 22
"""Products of a convolution from which the order of its images matters."""
_LINE: Final = 8
"""16-bit elements of a line of memory."""
_FEWEST: Final = 16
"""Channels of an image; fewer are no line of their own."""
_KINDS: Final = (BlockKind.EWISE, BlockKind.REDUCE, BlockKind.MOVEMENT, BlockKind.CONTRACTION)
COUNTED: Final = frozenset({"iota", "words", "check"})
"""What counts the elements of a block in the order of its axes."""


def with_channels_last(scop: Scop, target: Target) -> Scop:
    """The view with the channels of images last, on a machine whose copies want them so."""
    if not target.has("mma.sync"):
        return scop
    images = _Images(scop, fixed_blocks(scop))
    images.spread()
    orders = {name: images.order(name) for name in images.channels if images.can_turn(name)}
    for name, order in _products_read_across(scop, images).items():
        orders.setdefault(name, order)
    turned = {name: order for name, order in orders.items() if order != tuple(range(len(order)))}
    return turn_axes(scop, turned) if turned else scop


def _products_read_across(scop: Scop, images: _Images) -> dict[str, tuple[int, ...]]:
    """Products, with the roundings behind them, in the order in which all their readers go through
    them: the slope of a matrix that is multiplied turned round would be turned in every step of its
    optimiser, through shared memory, which took five times as long as reading it."""
    found: dict[str, tuple[int, ...]] = {}
    for block in scop.blocks:
        if block.kind is not BlockKind.CONTRACTION:
            continue
        chain = _round_trip(block, images)
        orders = {_reading_order(*read) for read in images.readers.get(chain[-1].name, ())}
        if len(orders) != 1 or any(b.name in images.fixed for b in chain):
            continue
        order = orders.pop()
        if order is not None and block.shape[order[-1]] % _LINE == 0:
            found.update({each.name: order for each in chain})
    return found


def _round_trip(block: PolyBlock, images: _Images) -> list[PolyBlock]:
    """A block, and what is made of it alone, element by element."""
    chain = [block]
    while len(reads := images.readers.get(chain[-1].name, [])) == 1:
        reader, access = reads[0]
        in_place = tuple(range(len(chain[-1].shape)))
        others = [a for a in reader.accesses if a is not access]
        if _reading_order(reader, access) != in_place or any(a.map for a in others):
            break
        chain.append(reader)
    return chain


def _reading_order(reader: PolyBlock, access: Access) -> tuple[int, ...] | None:
    """The axes of a tensor in the order of those of an elementwise block that reads all of it."""
    held = [expr.single_axis for expr in access.map]
    places = {axis.name: n for n, axis in enumerate(reader.axes)}
    if reader.kind is not BlockKind.EWISE or access.guards or len(held) != len(places):
        return None
    names = [axis.name for axis in held if axis is not None]
    if {*names} != {*places}:
        return None
    return tuple(sorted(range(len(names)), key=lambda n: places[names[n]]))


@dataclass
class _Images:
    """The blocks that are images, and which of their axes, by number, are channels."""

    scop: Scop
    fixed: Collection[str]
    channels: dict[str, frozenset[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.readers = readers_of(self.scop)
        self.waiting: list[str] = []

    def spread(self) -> None:
        """From convolutions to all that their images are read by or made of."""
        for block in self.scop.blocks:
            image = _image_access(self.scop, block)
            if image is not None:
                self._note(block, _result_channels(block, image))
                self._note_read(block, image, _summed_channels(self.scop, block, image))
        while self.waiting:
            block = self.scop.by_name[self.waiting.pop()]
            places = self.channels[block.name]
            for reader, access in self.readers.get(block.name, ()):
                self._note(reader, _channels_of_reader(self.scop, reader, access, places))
            names = {block.out_axes[place].name for place in places}
            for access in block.accesses:
                self._note_read(block, access, _operand_channels(self.scop, block, access, names))

    def _note(self, block: PolyBlock, names: Collection[str]) -> None:
        places = frozenset(n for n, axis in enumerate(block.out_axes) if axis.name in names)
        if len(places) == len(names):
            self._note_places(block.name, places)

    def _note_read(self, reader: PolyBlock, access: Access, names: Collection[str]) -> None:
        found = [
            same
            for same in _axes_read_unchanged(self.scop, reader, access)
            if same.names <= {*names}
        ]
        if {*names} == {name for same in found for name in same.names}:
            self._note_places(access.tensor, frozenset(n for same in found for n in same.places))

    def _note_places(self, name: str, places: frozenset[int]) -> None:
        """The channels of a block, if it has other axes as well; what comes first holds."""
        block = self.scop.by_name.get(name)
        if block is None or block.kind not in _KINDS or name in self.channels:
            return
        if places and len(block.out_axes) > len(places):
            self.channels[name] = places
            self.waiting.append(name)

    def order(self, name: str) -> tuple[int, ...]:
        """Channels last; the others as the first convolution that reads the image goes through
        them, or as they are."""
        places = self.channels[name]
        others = [n for n in range(len(self.scop.by_name[name].shape)) if n not in places]
        for reader, access in self.readers.get(name, ()):
            if access is _image_access(self.scop, reader):
                order = [axis.name for axis in reader.out_axes]
                own = [[order.index(a) for a in axes_of(e) if a in order] for e in access.map]
                if all(len(own[n]) == 1 for n in others):
                    others.sort(key=lambda n: own[n][0])
                    break
        return (*others, *sorted(places))

    def can_turn(self, name: str) -> bool:
        """Whether a block is free to lie in another order, has whole lines of channels, and no
        product sums over its channels and its places as they lie."""
        block, places = self.scop.by_name[name], self.channels[name]
        count = math.prod(block.shape[place] for place in places)
        if name in self.fixed or block.fn in COUNTED or count < _FEWEST or count % _LINE:
            return False
        summed = [_summed_places(self.scop, *read) for read in self.readers.get(name, ())]
        return all(found <= places or not found & places for found in summed)


def readers_of(scop: Scop) -> Readers:
    """What reads every block and input."""
    found: dict[str, list[tuple[PolyBlock, Access]]] = {}
    for block in scop.blocks:
        for access in block.accesses:
            found.setdefault(access.tensor, []).append((block, access))
    return found


def fixed_blocks(scop: Scop) -> set[str]:
    """Blocks that lie as they are: those that are handed out, updates and ops that are carried
    whole with what they read, and what indices are read from."""
    found = {access.tensor for _, access, _ in scop.outputs}
    found.update(param.access.tensor for param in scop.params)
    for block in scop.blocks:
        if block.kind not in _KINDS:
            found.update([block.name, str(block.base), *(a.tensor for a in block.accesses)])
    return found


def _image_access(scop: Scop, block: PolyBlock) -> Access | None:
    """What a convolution on matrix units reads by windows; of gradients of filters, whose places
    are summed over, nothing."""
    sizes = {axis.name: axis.size for axis in block.axes}
    if block.attrs is None or block.attrs.pattern != "conv" or math.prod(sizes.values()) < _WORTH:
        return None
    if not all(_half(scop, access) for access in block.accesses):
        return None
    summed = set(block.attrs.reduce_idx)
    for access in block.accesses:
        plain = {
            place for same in _axes_read_unchanged(scop, block, access) for place in same.places
        }
        windows = [axes_of(expr) for n, expr in enumerate(access.map) if n not in plain]
        taps = {name for names in windows for name in names & summed}
        places = {name for names in windows for name in names - summed}
        if taps and _points(sizes, taps) <= _points(sizes, places):
            return access
    return None


def _half(scop: Scop, access: Access) -> bool:
    held = scop.by_name.get(access.tensor)
    return (held.dtype if held is not None else scop.inputs[access.tensor][0]) in (BF16, F16)


def _points(sizes: Mapping[str, int], names: Collection[str]) -> int:
    return math.prod(sizes[name] for name in names)


@dataclass(frozen=True)
class _Same:
    """Axes of a reader and axes of a tensor, by number, that are the same elements."""

    names: frozenset[str]
    places: tuple[int, ...]


def _axes_read_unchanged(scop: Scop, reader: PolyBlock, access: Access) -> list[_Same]:
    """What a block reads as it is: one axis by one, one axis by the digits of it that a tensor has
    as axes; and, but for contractions, whose windows look alike, several axes as one, or a part."""
    held, found = scop.by_name.get(access.tensor), list[_Same]()
    shape = held.shape if held is not None else scop.inputs[access.tensor][1]
    sizes = {axis.name: axis.size for axis in reader.axes}
    places_of = {a.name: n for n, expr in enumerate(access.map) if (a := expr.single_axis)}
    if len(places_of) == len(access.map):
        # As nearly all are read: each axis of the tensor is one of the reader.
        return [_Same(frozenset({n}), (places_of[n],)) for n in sizes if n in places_of]
    used = [axes_of(expr) for expr in access.map]
    for name in sizes:
        places = [n for n, names in enumerate(used) if name in names]
        whole = linear([access.map[n] for n in places], row_major(tuple(shape[n] for n in places)))
        alone = whole.single_axis
        if alone is not None and alone.name == name:
            found.append(_Same(frozenset({name}), tuple(places)))
    if reader.attrs is None:
        known = {name for same in found for name in same.names}
        for place, names in enumerate(used):
            apart = known.isdisjoint(names) and sum(not names.isdisjoint(u) for u in used) == 1
            if apart and _is_counted(access.map[place], sizes):
                found.append(_Same(names, (place,)))
    return found


def _is_counted(expr: Expr, sizes: Mapping[str, int]) -> bool:
    """Whether an expression goes through neighbours one by one, the last of its axes fastest."""
    steps = sorted((factor, term.name) for term, factor in expr.terms if isinstance(term, Axis))
    if not steps or len(steps) < len(expr.terms):
        return False
    count = 1
    for step, name in steps:
        if step != count:
            return False
        count *= sizes[name]
    return True


def _summed_channels(scop: Scop, block: PolyBlock, access: Access) -> set[str]:
    """The channels of an image that a contraction reads: of its plain axes those that it sums over,
    and those that the other operand has as well."""
    assert block.attrs is not None
    names = {name for same in _axes_read_unchanged(scop, block, access) for name in same.names}
    return names & {*block.attrs.reduce_idx, *block.attrs.batch_idx}


def _result_channels(block: PolyBlock, image: Access) -> set[str]:
    """The channels of a contraction's result: what only the other operand has, or both have."""
    assert block.attrs is not None
    sides = (block.attrs.lhs_idx, block.attrs.rhs_idx)
    other = sides[1] if image is block.accesses[0] else sides[0]
    return {*other, *block.attrs.batch_idx}


def _channels_of_reader(
    scop: Scop, reader: PolyBlock, access: Access, places: Collection[int]
) -> set[str]:
    """The channels of a block that reads an image."""
    found = [
        same for same in _axes_read_unchanged(scop, reader, access) if {*same.places} <= {*places}
    ]
    names = {name for same in found for name in same.names}
    if {*places} != {place for same in found for place in same.places}:
        return set()
    if reader.attrs is None:
        return names if names <= {axis.name for axis in reader.out_axes} else set()
    return (
        _result_channels(reader, access)
        if names == _summed_channels(scop, reader, access)
        else set()
    )


def _operand_channels(scop: Scop, block: PolyBlock, access: Access, names: set[str]) -> set[str]:
    """The channels of what a block with channels reads."""
    if block.attrs is None:
        return names
    return (
        _summed_channels(scop, block, access) if names == _result_channels(block, access) else set()
    )


def _summed_places(scop: Scop, block: PolyBlock, access: Access) -> set[int]:
    """The axes of a tensor that a contraction sums over as they lie."""
    if block.attrs is None:
        return set()
    summed = {*block.attrs.reduce_idx}
    found = _axes_read_unchanged(scop, block, access)
    return {place for same in found if same.names <= summed for place in same.places}


# -- blocks in another order ---------------------------------------------------------------------


def turn_axes(scop: Scop, orders: Mapping[str, tuple[int, ...]]) -> Scop:
    """The view with the axes of some blocks in another order."""

    def read(access: Access) -> Access:
        order = orders.get(access.tensor)
        return access if order is None else replace(access, map=_reorder(access.map, order))

    def turned(block: PolyBlock) -> PolyBlock:
        if any(access.tensor in orders for access in block.accesses):
            block = replace(block, accesses=tuple(map(read, block.accesses)))
        return _with_order(block, orders[block.name]) if block.name in orders else block

    shapes = {name: _joined_shape(scop.by_name[name], order) for name, order in orders.items()}
    return replace(
        scop,
        shapes={**scop.shapes, **shapes},
        blocks=tuple(map(turned, scop.blocks)),
        outputs=tuple((name, read(access), axes) for name, access, axes in scop.outputs),
        params=tuple(replace(param, access=read(param.access)) for param in scop.params),
    )


def _joined_shape(block: PolyBlock, order: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that a block is stored with: what was one axis of its value, and lies together,
    still is."""
    dims, sizes, before = dims_of(block), list[int](), -1
    for place in order:
        if sizes and place == before + 1 and dims[place] == dims[before]:
            sizes[-1] *= block.shape[place]
        else:
            sizes.append(block.shape[place])
        before = place
    return tuple(sizes)


def _with_order(block: PolyBlock, order: tuple[int, ...]) -> PolyBlock:
    own = _reorder(block.out_axes, order)
    kept = iter(own)
    axes = tuple(axis if axis.reduce else next(kept) for axis in block.axes)
    attrs = block.attrs
    if attrs is not None:
        attrs = replace(attrs, out_idx=tuple(axis.name for axis in own))
    return replace(block, axes=axes, attrs=attrs)


def _reorder(values: tuple[_T, ...], order: tuple[int, ...]) -> tuple[_T, ...]:
    return tuple(values[place] for place in order)
