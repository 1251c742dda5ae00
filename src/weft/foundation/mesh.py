"""A mesh: ranks in rows and columns, with names for their axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Final, TypeAlias

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError, brief
from weft.foundation.partitions import Classes, classes_of

Over: TypeAlias = str | Sequence[str]
"""One axis of a mesh, or several."""
Split: TypeAlias = Mapping[int, Over]
"""Which axes of a tensor are split over which axes of a mesh."""


MOST_RANKS: Final = 1 << 16
"""A mesh keeps a number for each of its ranks."""


@told_methods
@dataclass(frozen=True)
class Mesh:
    """Ranks with a place along each named axis; the last axis counts fastest."""

    axes: tuple[tuple[str, int], ...]
    simulated: bool = False
    rank: int = 0
    """The rank of this process; of a simulated mesh this process is all ranks."""

    def __post_init__(self) -> None:
        if not isinstance(self.axes, tuple) or not self.axes or not all(map(_is_axis, self.axes)):
            raise UserError(
                f"the axes of a mesh are pairs of a name and a size, not {brief(self.axes)}; "
                "weft.mesh(data=-1, model=2) makes a mesh"
            )
        if self.count > MOST_RANKS:
            raise UserError(f"a mesh of {self.count:,} ranks; it has at most {MOST_RANKS:,}")

    @property
    def count(self) -> int:
        """How many ranks there are."""
        return math.prod(size for _, size in self.axes)

    @property
    def shape(self) -> dict[str, int]:
        """The size of each axis by its name."""
        return dict(self.axes)

    def __str__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in self.axes)
        return f"mesh({axes}{', simulated=True' if self.simulated else ''})"

    def names(self, over: Over) -> tuple[str, ...]:
        """The axes that are meant, checked."""
        given: tuple[Any, ...] = (over,)
        if isinstance(over, Sequence) and not isinstance(over, str):
            given = tuple(over)
        for name in given:
            if name not in self.shape:
                known = ", ".join(self.shape)
                raise UserError(f"the mesh has no axis {brief(name)}; its axes are {known}")
        if not given or len(set(given)) < len(given):
            raise UserError(f"over is {brief(over)}; name one axis of the mesh, or several once")
        return given

    def size(self, over: Over) -> int:
        """How many ranks there are along these axes."""
        return math.prod(self.shape[name] for name in self.names(over))

    def places(self, over: Over) -> tuple[int, ...]:
        """For each rank its place along these axes, the first one counting slowest."""
        wanted = self.names(over)
        found = []
        for rank in range(self.count):
            at = self._place(rank)
            place = 0
            for name in wanted:
                place = place * self.shape[name] + at[name]
            found.append(place)
        return tuple(found)

    def classes(self, over: Over) -> Classes:
        """The classes of a value that differs along these axes only."""
        return classes_of(self.places(over))

    def groups(self, over: Over) -> dict[str, Any]:
        """The groups of ranks that differ along these axes only, as attributes of a collective."""
        places = self.places(over)
        rest = [name for name in self.shape if name not in self.names(over)]
        others = self.places(rest) if rest else (0,) * self.count
        order = sorted(range(self.count), key=lambda rank: (others[rank], places[rank]))
        return {"groups": tuple(order), "size": self.size(over)}

    def part(self, shape: Sequence[int], split: Split, rank: int) -> tuple[slice, ...]:
        """Which part of a tensor of this shape belongs to a rank."""
        found = [slice(None)] * len(shape)
        for axis, over in split.items():
            size = shape[axis] // self.size(over)
            place = self.places(over)[rank]
            found[axis] = slice(place * size, (place + 1) * size)
        return tuple(found)

    def checked(self, split: Split, shape: Sequence[int], name: str) -> dict[int, Over]:
        """How a tensor is split, with axes counted from the front; an error where it cannot be."""
        if not isinstance(split, Mapping):
            raise UserError(f"{name} is split by {brief(split)}; write it as {{0: 'data'}}")
        found: dict[int, Over] = {}
        for axis, over in split.items():
            number = _as_number(axis)
            if number is None or not -len(shape) <= number < len(shape):
                raise UserError(
                    f"{name} has shape {list(shape)} and no axis {brief(axis)} to split"
                )
            place = number % len(shape)
            if over is None:
                raise UserError(f"axis {place} of {name} is split over None; leave it out of split")
            count = self.size(over)
            if shape[place] % count:
                raise UserError(
                    f"axis {place} of {name} has size {shape[place]}, which is not a multiple "
                    f"of the {count} ranks along {_axes_text(over)}"
                )
            for other, taken in found.items():
                if both := set(self.names(over)) & set(self.names(taken)):
                    raise UserError(
                        f"axes {other} and {place} of {name} are both split over "
                        f"{', '.join(sorted(both))}; an axis of a mesh splits one of them"
                    )
            found[place] = over
        return found

    def varying(self, classes: Classes) -> list[str]:
        """The axes along which a value of these classes differs."""
        found = []
        for name in self.shape:
            rest = [other for other in self.shape if other != name]
            others = self.places(rest) if rest else (0,) * self.count
            known: dict[int, int] = {}
            if any(known.setdefault(o, c) != c for o, c in zip(others, classes, strict=False)):
                found.append(name)
        return found

    def _place(self, rank: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return found


def _is_axis(given: Any) -> bool:
    if not isinstance(given, tuple) or len(given) != 2 or not isinstance(given[0], str):
        return False
    return type(given[1]) is int and given[1] > 0


def _as_number(axis: Any) -> int | None:
    """An axis as a number, NumPy's numbers included; None where it is none."""
    try:
        return None if isinstance(axis, bool) else index(axis)
    except TypeError:
        return None


def _axes_text(over: Over) -> str:
    return over if isinstance(over, str) else ", ".join(over)
