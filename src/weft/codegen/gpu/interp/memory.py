"""Shared memory, barriers and the TMA engine in the interpreter.

Shared memory remembers, for every byte, whether an asynchronous copy is still going to write it,
which warp's plain store has not been fenced yet, and (`races.py`) who touched it last.
Touching a byte too early is a `Hazard`: on a GPU it would be a wrong number now and then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.races import Hazard, Races
from weft.codegen.gpu.interp.scalars import Value
from weft.codegen.gpu.ir.swizzle import Swizzle
from weft.foundation.dtypes import DType

Array = NDArray[Any]
COPY_LINE = 16
"""Bytes at multiples of which the copy engine begins."""
_NUMBER = 4
"""Bytes of a number that is counted in."""
_LANES = 32
_MOST_KEPT = 1 << 25
"""Bytes of numbers that are kept at a time."""
POISON = 0xFF
"""What memory holds that nobody has written: NaN in every float dtype."""


class Expansions:
    """The bytes that vectors of addresses stand for. Vectors are made once for many turns and
    blocks (`scalars.Memo`), so what is made from them is kept by their identity."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, int], tuple[Any, Array]] = {}
        self._bytes = 0

    def addresses(self, value: Value, start: int) -> Array:
        """A byte address for every lane, counted from `start`."""
        if isinstance(value, int):
            return np.full(_LANES, value + start)
        if not start:
            return value
        key = (id(value), start, 0)
        return self._kept[key][1] if key in self._kept else self._keep(key, value, value + start)

    def bytes_from(self, first: Array, count: int, size: int) -> Array:
        """The numbers of `count` bytes from each address, of `size` that there are."""
        key = (id(first), count, 1)
        if key in self._kept:
            return self._kept[key][1]
        if first.size and count and not in_bounds(first, size - count + 1):
            raise Hazard(f"shared memory is used at byte {first.max() + count - 1} of {size}")
        return self._keep(key, first, first[..., None] + np.arange(count))

    def _keep(self, key: tuple[int, int, int], source: Array, made: Array) -> Array:
        # All at once: what a loop uses again it makes again in its next turn.
        if self._bytes > _MOST_KEPT:
            self._kept.clear()
            self._bytes = 0
        self._bytes += made.nbytes
        self._kept[key] = (source, made)
        return made


@dataclass
class SharedMemory:
    """The bytes of one block."""

    size: int
    warps: int
    expansions: Expansions = field(default_factory=Expansions)
    bytes: Array = field(init=False)
    awaited: Array = field(init=False)
    unfenced: Array = field(init=False)
    loading: Array = field(init=False)
    """Bytes that loads of a warp, counted from 1, may not have read yet when a copy begins."""

    def __post_init__(self) -> None:
        self.bytes = np.full(-(-self.size // _NUMBER) * _NUMBER, POISON, np.uint8)
        self.awaited = np.zeros(self.size, bool)
        self.unfenced = np.zeros(self.size, np.int16)
        self.loading = np.zeros(self.size, np.int16)
        self.races = Races(self.warps, self.size)

    def places(self, start: Array | int, count: int) -> Array:
        """The numbers of `count` bytes from each start."""
        return self.expansions.bytes_from(np.asarray(start), count, self.size)

    def load(self, start: Array | int, count: int, what: str) -> Array:
        """`count` bytes from each start."""
        return self._load_bytes(self.places(start, count), what)

    def load_each(self, start: Array, count: int, warp: int, what: str, lanes: Array) -> Array:
        """The same, read by some lanes of a warp, each for itself: it is noted, too."""
        places = self.places(start, count)
        self.races.reads(warp, places, what, lanes)
        return self._load_bytes(places, what)

    def check_readable(self, start: Array, count: int, what: str) -> None:
        """`count` bytes from each start are there, and the plain stores that made them fenced."""
        self._check_there(self.places(start, count), what)
        self.check_fenced(start, what)

    def _load_bytes(self, places: Array, what: str) -> Array:
        self._check_there(places, what)
        found: Array = self.bytes[places]
        return found

    def _check_there(self, places: Array, what: str) -> None:
        if np.count_nonzero(self.awaited[places]):
            raise Hazard(f"{what} reads shared memory that a copy has not written yet")

    def note_load(
        self,
        start: Array | int,
        count: int,
        warp: int,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """A warp reads `count` bytes from each start: it must have met whoever wrote them. `lanes`
        are those that read for themselves."""
        self.races.reads(warp, self.places(start, count), what, lanes)

    def store(
        self,
        start: Array | int,
        data: Array,
        warp: int,
        what: str,
        lanes: Array | None = None,
    ) -> None:
        """Plain stores of one warp, together or of each lane for itself."""
        places = self.places(start, data.shape[-1])
        if np.count_nonzero(self.awaited[places]):
            raise Hazard(f"{what} writes shared memory that a copy is going to write")
        self.races.writes(warp, places, what, lanes)
        self.bytes[places] = data
        self.unfenced[places] = warp + 1

    def count(self, start: Array, warp: int) -> None:
        """Lanes of one warp add one to the numbers that begin at these bytes."""
        places = self.places(start, _NUMBER)
        if (start % _NUMBER).any():
            raise Hazard("a number that is counted in begins inside a word")
        if self.awaited[places].any():
            raise Hazard("a number is counted in that a copy is going to write")
        self.races.counts(warp, places)
        np.add.at(self.bytes.view(np.uint32), start // _NUMBER, 1)
        self.unfenced[places] = warp + 1

    def fence(self, warp: int) -> None:
        for pending in (self.unfenced, self.loading):
            pending[pending == warp + 1] = 0

    def note_staged(self, start: Array, count: int, warp: int) -> None:
        """A warp takes what a copy has brought."""
        self.loading[self.places(start, count)] = warp + 1

    def check_loaded(self, places: Array) -> None:
        if np.count_nonzero(self.loading[places]):
            raise Hazard("a copy overwrites what loads read that no proxy fence has ordered")

    def announce(self, places: Array, warp: int) -> None:
        """A copy that a warp asked for may write these bytes from now on: what they held is
        gone."""
        self.races.check_free(warp, places, "a copy")
        self._await(places)

    def announce_from_afar(self, places: Array, known: Array | None) -> None:
        """The same for a copy that another block asked for, which knows so much of this one."""
        self.races.check_unread(places, known)
        self._await(places)

    def _await(self, places: Array) -> None:
        # Who wrote before does not count any more: the barrier of the copy is what orders those who
        # come after.
        self.races.forget(places)
        self.bytes[places] = POISON
        self.awaited[places] = True

    def arrive(self, places: Array, data: Array) -> None:
        """A copy has written its bytes."""
        self.bytes[places] = data
        self.awaited[places] = False

    def check_fenced(self, places: Array, what: str) -> None:
        if np.count_nonzero(self.unfenced[places]):
            raise Hazard(f"{what} reads plain stores that no proxy fence has ordered")


@dataclass
class Mbarrier:
    """A barrier with a phase."""

    arrivals: int
    phase: int = 0
    pending: int = field(init=False)
    bytes: int = 0
    coming: dict[int, Array] = field(default_factory=dict)
    known: dict[int, Array] = field(default_factory=dict)
    """What those knew who arrived in this phase, and in the phases before, by their blocks."""

    def __post_init__(self) -> None:
        self.pending = self.arrivals

    def arrive(self, count: int, what: str, known: Array, block: int) -> None:
        if count > self.pending:
            raise Hazard(f"{what}: more arrivals than the barrier expects in a phase")
        self.pending -= count
        self.coming[block] = join_knowledge(self.coming.get(block), known)
        self.turn()

    def expect(self, count: int) -> None:
        self.bytes += count

    def counted(self, count: int) -> None:
        self.bytes -= count
        self.turn()

    def turn(self) -> None:
        """Begin the next phase when everything has come."""
        # Both: arrivals may come before the bytes that they announce, and bytes before the last
        # arrival.
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.arrivals
            for block, coming in self.coming.items():
                self.known[block] = join_knowledge(self.known.get(block), coming)
            self.coming.clear()

    def passes(self, parity: int) -> bool:
        """Whether the phase of this parity is complete."""
        # A barrier knows only whether its phase is even. A wait for parity p passes as soon as the
        # phase that has it is over, and until the one after it is, which has the other parity.
        return self.phase & 1 != parity


@dataclass
class NamedBarrier:
    """A meeting point of a number of threads."""

    here: int = 0
    meetings: int = 0
    coming: Array | None = None
    known: Array | None = None
    """What those know who have come to this meeting, and to those before."""
    coming_afar: dict[int, Array] = field(default_factory=dict)
    afar: dict[int, Array] = field(default_factory=dict)
    """The same, of other blocks."""

    def arrive(
        self, lanes: int, threads: int, known: Array, afar: Mapping[int, Array] | None = None
    ) -> int:
        """Come to the meeting; the number of meetings after which one may go on."""
        goal = self.meetings + 1
        self.here += lanes
        self.coming = join_knowledge(self.coming, known)
        for block, seen in (afar or {}).items():
            self.coming_afar[block] = join_knowledge(self.coming_afar.get(block), seen)
        if self.here > threads:
            raise Hazard("a named barrier is used by more threads than it says")
        if self.here == threads:
            self.here = 0
            self.meetings += 1
            self.known, self.coming = join_knowledge(self.known, self.coming), None
            self.afar = dict(self.coming_afar)
        return goal


def in_bounds(places: Array, size: int) -> bool:
    """Whether all places are in [0, size)."""
    # Reductions by name: the methods of arrays take twice as long for so few numbers.
    least, most = np.minimum.reduce(places, None), np.maximum.reduce(places, None)
    return bool(least >= 0 and most < size)


def join_knowledge(first: Array | None, second: Array) -> Array:
    """What two know together."""
    return second if first is None else np.maximum(first, second)


def swizzled(swizzle: Swizzle, places: Array) -> Array:
    """Where bytes really lie, by the pattern of their addresses."""
    mask = (1 << swizzle.bits) - 1
    # The number of the 128-byte line, modulo the pieces that are permuted, is added without carry
    # to the number of the 16-byte piece in it. It is its own inverse, as bits 4 to 6 do not change
    # bits 7 to 9.
    found: Array = places ^ (((places >> 7) & mask) << 4)
    return found


def box_elements(found: ir.TensorMap, coords: tuple[int, ...]) -> tuple[Array, Array]:
    """Element offsets of a box in its buffer, contiguous axis last, and which are in the tensor."""
    if coords[0] * found.dtype.storage_bytes % COPY_LINE:
        raise Hazard(f"a copy begins at element {coords[0]}, which is not a whole line of 16 bytes")
    strides = (1, *found.strides)
    offset = np.full(tuple(reversed(found.box)), found.offset, np.int64)
    inside = np.ones(offset.shape, bool)
    rank = len(found.box)
    for axis, (start, extent) in enumerate(zip(coords, found.box, strict=True)):
        index = start + np.arange(extent)
        shape = [1] * rank
        shape[rank - 1 - axis] = extent
        offset = offset + (index * strides[axis]).reshape(shape)
        inside = inside & ((index >= 0) & (index < found.sizes[axis])).reshape(shape)
    return offset, inside


def window_elements(
    found: ir.TensorMap, coords: tuple[int, ...], taps: tuple[int, ...]
) -> tuple[Array, Array]:
    """Element offsets of the places of an image from some place on, channels last, and which of
    them are in the image: those of one tap of their windows."""
    window = found.window
    assert window is not None
    channels, count = found.box
    if coords[0] * found.dtype.storage_bytes % COPY_LINE:
        raise Hazard(f"a copy begins at channel {coords[0]}, which is not a whole line of 16 bytes")
    ends = [size + upper for size, upper in zip(found.sizes[1:], window.upper, strict=False)]
    for at, low, end, step in zip(coords[1:], window.lower, ends, window.steps, strict=False):
        if not low <= at < end or (at - low) % step:
            raise Hazard(f"no window lies at {at}: they begin at {low}, {step} apart, before {end}")
    here, offsets, inside = list(coords[1:]), [], []
    for _ in range(count):
        places = [at + tap for at, tap in zip(here, (*taps, 0), strict=True)]
        known = zip(places, found.sizes[1:], strict=True)
        inside.append(all(0 <= at < size for at, size in known))
        strides = zip(places, found.strides, strict=True)
        offsets.append(found.offset + sum(at * stride for at, stride in strides))
        # The axis next to the channels moves first; the image last.
        _move_on(here, window, ends)
    channel = coords[0] + np.arange(channels)
    there = (channel >= 0) & (channel < found.sizes[0])
    return np.array(offsets)[:, None] + channel, np.array(inside)[:, None] & there


def _move_on(here: list[int], window: ir.Window, ends: list[int]) -> None:
    """To the next place, or the next image."""
    for axis, step in enumerate(window.steps):
        here[axis] += step
        if here[axis] < ends[axis]:
            return
        here[axis] = window.lower[axis]
    here[-1] += 1


def box_places(found: ir.TensorMap, start: int) -> Array:
    """The shared bytes of a box: rows one after the other, pieces permuted."""
    count = int(np.prod(found.box)) * found.dtype.storage_bytes
    return swizzled(found.swizzle, start + np.arange(count))


def as_bytes(values: Array) -> Array:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)


def from_bytes(data: Array, dtype: DType) -> Array:
    """Bytes (last axis) as elements."""
    return np.ascontiguousarray(data).view(dtype.numpy)
