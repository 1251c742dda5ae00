"""Vectorisation of many scalar instructions whose results are concatenated to one vector.

`concat(f(x0, y0), f(x1, y1), ...)` is `f(concat(x0, x1, ...), concat(y0, y1, ...))`, element by
element, and so on through what the numbers are made of: until they are one number again and again,
constants, or elements of one vector. Of numbers that come again, each is computed once, and then
taken to where it belongs. Hundreds of instructions are a few then. What has to be put together in
the end is no more numbers than before, so that there is never more to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np

from weft.foundation.dtypes import I1
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.literal import from_array, literal
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.indexing import DynamicSlice, Take
from weft.ptir.ops.movement import BroadcastTo, Concat, Reshape, Slice
from weft.ptir.passes.rewrite import Match, New, Replacement, Rule
from weft.ptir.types import TensorType

FEWEST: Final = 8
"""From so many numbers on."""
MOST_STEPS: Final = 64
"""How many functions are looked through, one after the other."""
_NEUTRAL: Final = {"mul": 1.0, "div": 1.0, "add": -0.0, "sub": 0.0}
"""On the right, they leave every float as it is, a zero's sign included."""
MOST_KINDS: Final = 8
"""Of how many functions numbers may be that are put together."""
Numbers: TypeAlias = tuple[Operand, ...]


def _name_of(number: Operand) -> object:
    return number.id if isinstance(number, Ref) else number


def _concat_of_numbers(match: Match) -> Replacement | None:
    kinds = {match.type(operand) for operand in match.operands}
    count = len(match.operands)
    one = all(isinstance(k, TensorType) and k.shape == (1,) for k in kinds)
    if count < FEWEST or len(kinds) > 1 or not one:
        return None
    if _Joined(match).vector(match.operands, 0) is None:
        return None
    # The last of what was made is the value itself.
    last = match.made.pop()
    return New(last.op, last.operands)


class _Joined:
    """Vectors of numbers, as they are made."""

    def __init__(self, match: Match) -> None:
        self.match = match
        self._known: dict[tuple[object, ...], Operand | None] = {}
        self._left = len(match.operands)
        """How many more numbers may be put together as they stand."""

    def vector(self, numbers: Numbers, depth: int) -> Operand | None:
        """The numbers side by side; None where that would be more work than before."""
        numbers = tuple(map(self._bare, numbers))
        key = tuple(map(_name_of, numbers))
        if key not in self._known:
            self._known[key] = self._vector(numbers, depth)
        return self._known[key]

    def _bare(self, number: Operand) -> Operand:
        """A number without changes of its shape."""
        while True:
            made = self.match.definition(number)
            if made is None or not isinstance(made.op, Reshape) or not self._is_one(made):
                return number
            number = made.operands[0]

    def _is_one(self, made: Instruction) -> bool:
        kind = self.match.type(made.operands[0])
        return isinstance(kind, TensorType) and kind.is_static and kind.size == 1

    def _vector(self, numbers: Numbers, depth: int) -> Operand | None:
        first = numbers[0]
        if all(number == first for number in numbers):
            return self.match.emit(BroadcastTo((len(numbers),)), self._of_rank_1(first))
        found = self._constants(numbers) or self._elements(numbers)
        found = found or self._distinct_numbers(numbers, depth)
        if found is None and depth < MOST_STEPS:
            found = self._function(numbers, depth)
            found = found or self._kinds(numbers, depth)
        if found is None and depth and len(numbers) <= self._left:
            self._left -= len(numbers)
            found = self.match.emit(Concat(0), *map(self._of_rank_1, numbers))
        return found

    def _of_rank_1(self, number: Operand) -> Operand:
        if self.match.tensor(number).shape == (1,):
            return number
        return self.match.emit(Reshape((1,)), number)

    def _constants(self, numbers: Numbers) -> Operand | None:
        found = [self.match.literal(number) for number in numbers]
        known = [one.array.reshape(1) for one in found if one is not None]
        if len(known) < len(numbers):
            return None
        return self.match.emit(Constant(from_array(np.concatenate(known))))

    def _elements(self, numbers: Numbers) -> Operand | None:
        """Numbers that are elements of one vector."""
        found = [self._place(number) for number in numbers]
        known = [place for place in found if place is not None]
        if len(known) < len(numbers) or len({tensor for tensor, _ in known}) > 1:
            return None
        (tensor, first), places = known[0], [place for _, place in known]
        if places == list(range(first, first + len(places))):
            return self.match.emit(Slice((first,), (len(places),)), tensor)
        return self._take_elements(tensor, places)

    def _distinct_numbers(self, numbers: Numbers, depth: int) -> Operand | None:
        """Numbers that come twice or more often on average: the distinct ones, then each place."""
        places: dict[object, int] = {}
        order = [places.setdefault(_name_of(number), len(places)) for number in numbers]
        if 2 * len(places) > len(numbers):
            return None
        firsts = tuple(numbers[order.index(place)] for place in range(len(places)))
        vector = self.vector(firsts, depth + 1)
        return None if vector is None else self._take_elements(vector, order)

    def _take_elements(self, vector: Operand, places: Sequence[int]) -> Operand:
        return self.match.emit(Take(), vector, literal(np.asarray(places, np.int32)))

    def _place(self, number: Operand) -> tuple[Operand, int] | None:
        """The vector that a number is taken from, and where."""
        made = self.match.definition(number)
        if made is None or not isinstance(made.op, Slice | DynamicSlice):
            return None
        tensor = made.operands[0]
        kind = self.match.type(tensor)
        if not isinstance(kind, TensorType) or kind.rank != 1 or not kind.is_static:
            return None
        if isinstance(made.op, Slice):
            return tensor, made.op.starts[0]
        at = self.match.literal(made.operands[1])
        return None if at is None else (tensor, min(max(int(at.array[0]), 0), kind.size - 1))

    def _function(self, numbers: Numbers, depth: int) -> Operand | None:
        """Where all numbers are one function of others."""
        made = [self.match.definition(number) for number in numbers]
        first = next((one for one in made if one is not None and self._is_plain(one)), None)
        if first is None:
            return None
        kinds = [self.match.type(operand) for operand in first.operands]
        known = []
        for number, one in zip(numbers, made, strict=True):
            alike = one is not None and (one.op, one.output) == (first.op, first.output)
            operands = one.operands if one is not None and alike else self._neutral(number, first)
            if [self.match.type(operand) for operand in operands] != kinds:
                return None
            known.append(operands)
        vectors: list[Operand] = []
        for side in zip(*known, strict=True):
            vector = self.vector(side, depth + 1)
            if vector is None:
                return None
            vectors.append(vector)
        return self.match.emit(first.op, *vectors)

    def _kinds(self, numbers: Numbers, depth: int) -> Operand | None:
        """Numbers of a few kinds: those of each are put together, and then all are put where they
        belong."""
        groups: dict[object, list[int]] = {}
        for place, number in enumerate(numbers):
            made = self.match.definition(number)
            plain = made is not None and self._is_plain(made)
            groups.setdefault((made.op, made.output) if made and plain else None, []).append(place)
        if not 1 < len(groups) <= min(MOST_KINDS, len(numbers) // FEWEST):
            return None
        vectors = [
            self.vector(tuple(numbers[place] for place in places), depth + 1)
            for places in groups.values()
        ]
        known = [vector for vector in vectors if vector is not None]
        if len(known) < len(groups):
            return None
        order = np.argsort(np.concatenate(list(groups.values())))
        return self._take_elements(self.match.emit(Concat(0), *known), order.tolist())

    def _neutral(self, number: Operand, made: Instruction) -> Numbers:
        """Operands of which a function makes a number itself, to the bit; none where there are
        none. Other rules have left it out."""
        kind, neutral = made.output, _NEUTRAL.get(made.op.mnemonic)
        if neutral is None or not isinstance(kind, TensorType) or not kind.dtype.is_float:
            return ()
        one = literal(np.full(kind.static_shape, neutral), kind.dtype)
        return number, one

    @staticmethod
    def _is_plain(made: Instruction) -> bool:
        """Whether an instruction computes numbers, and cannot fail."""
        kind = made.output
        plain = made.op.elementwise and not (made.op.random or made.op.regions or made.op.foreign)
        whole = isinstance(kind, TensorType) and (kind.dtype.is_float or kind.dtype is I1)
        return plain and whole


RULE: Final = Rule(
    "function-of-numbers",
    "concat(f(x0, y0), f(x1, y1), ...) of many numbers",
    "f(concat(x0, x1, ...), concat(y0, y1, ...))",
    ("concat",),
    _concat_of_numbers,
)
