"""What a comparator of `sort` asks for, where it compares keys one after the other.

A comparator is a region on two elements of every operand. Its comparisons of a value made of the
first elements with the same value made of the second are the keys; what it makes of them by logic
is tried with every key smaller, equal and larger. If that is an order by one key, then by another
among equals, and so on, the operands can be sorted by the keys; else the comparator itself must
be run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import I1
from weft.interop.stablehlo.records import HloBlock, HloOp
from weft.ptir.literal import TensorLiteral

MOST_KEYS: Final = 6
"""How many keys are tried in every combination."""
MOST_OPERATIONS: Final = 256
"""How long a comparator may be that is tried."""
_HOLDS: Final[Mapping[str, tuple[int, ...]]] = {
    "LT": (-1,),
    "LE": (-1, 0),
    "EQ": (0,),
    "NE": (-1, 1),
    "GE": (0, 1),
    "GT": (1,),
}
_LOGIC: Final[Mapping[str, Callable[..., bool]]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a is not b,
    "not": lambda a: not a,
    "select": lambda p, a, b: a if p else b,
}


@dataclass(frozen=True)
class Key:
    """One thing that operands are sorted by."""

    value: int
    """The value of the comparator that holds it, made of the first elements."""
    total: bool
    """Whether floats are compared by IEEE 754's total order."""
    descending: bool = False


class _Other(Exception):
    """The comparator is none of those that are understood."""


def keys_of(block: HloBlock) -> list[Key] | None:
    """The keys in the order of their weight; None where there are none."""
    try:
        return _Comparator(block).keys()
    except _Other:
        return None


def word(op: HloOp, name: str) -> str:
    """The word in an attribute that is one of a list."""
    return str(op.attributes.get(name, "")).rstrip(">").rpartition(" ")[2]


@dataclass(frozen=True)
class _Asked:
    """A comparison of a key: which one, and for which order of the elements it holds."""

    key: int
    holds: tuple[int, ...]


class _Comparator:
    def __init__(self, block: HloBlock) -> None:
        self.block = block
        self.made = {result: op for op in block.ops for result in op.results}
        self.numbers: dict[Any, int] = {}
        self.forms: dict[int, tuple[int, int]] = {}
        """For each value a number for what it is, and one for what it is with the two elements
        exchanged."""
        self.found: dict[int, Key] = {}

    def keys(self) -> list[Key]:
        asked = self._comparisons()
        left, fixed, order = list(self.found), dict[int, int](), list[Key]()
        while left:
            answers = [self._answers(asked, fixed, left, key) for key in left]
            if len(set[bool]().union(*(side for pair in answers for side in pair))) == 1:
                break
            heaviest = next((n for n, pair in enumerate(answers) if _decides(pair)), None)
            if heaviest is None:
                raise _Other
            key = left.pop(heaviest)
            order.append(replace(self.found[key], descending=answers[heaviest][0] == {False}))
            fixed[key] = 0
        if not order:
            raise _Other
        return order

    def _answers(
        self, asked: Mapping[int, _Asked], fixed: Mapping[int, int], left: Sequence[int], key: int
    ) -> tuple[set[bool], set[bool]]:
        """What the comparator says where a key is smaller, and where it is larger."""
        others = [other for other in left if other != key]
        found: tuple[set[bool], set[bool]] = (set(), set())
        for rest in itertools.product((-1, 0, 1), repeat=len(others)):
            states = {**fixed, **dict(zip(others, rest, strict=True))}
            for side, state in enumerate((-1, 1)):
                found[side].add(self._holds(asked, {**states, key: state}))
        return found

    def _holds(self, asked: Mapping[int, _Asked], states: Mapping[int, int]) -> bool:
        values: dict[int, bool] = {}
        for op in self.block.ops:
            (result,) = op.results
            if result in asked:
                values[result] = states[asked[result].key] in asked[result].holds
            elif op.name in _LOGIC and all(operand in values for operand in op.operands):
                values[result] = _LOGIC[op.name](*(values[operand] for operand in op.operands))
            elif op.name == "constant" and op.attributes["value"].type.dtype is I1:
                values[result] = bool(op.attributes["value"].array)
        if self.block.returned[0] not in values:
            raise _Other
        return values[self.block.returned[0]]

    # -- comparisons of keys ---------------------------------------------------------------------

    def _comparisons(self) -> dict[int, _Asked]:
        asked = {}
        if len(self.block.ops) > MOST_OPERATIONS:
            raise _Other
        for op in self.block.ops:
            if len(op.results) != 1 or op.blocks:
                raise _Other
            if op.name == "compare":
                found = self._read_comparison(op)
                if found is not None:
                    asked[op.results[0]] = found
        if not 0 < len(self.found) <= MOST_KEYS:
            raise _Other
        return asked

    def _read_comparison(self, op: HloOp) -> _Asked | None:
        left, right = op.operands
        form, exchanged = self._form(left)
        if form == exchanged or self._form(right) != (exchanged, form):
            return None
        holds = _HOLDS[word(op, "comparison_direction")]
        if not self._is_first(left):
            left, form, holds = right, exchanged, tuple(-state for state in holds)
            if not self._is_first(left):
                return None
        total = word(op, "compare_type") == "TOTALORDER"
        number = self._number((form, total))
        self.found.setdefault(number, Key(left, total))
        return _Asked(number, holds)

    def _is_first(self, value: int) -> bool:
        """Whether a value is made of first elements only."""
        arguments = self.block.arguments
        used = [v for v in self._below(value) if v in arguments]
        return all(arguments.index(v) % 2 == 0 for v in used)

    def _below(self, value: int) -> set[int]:
        found, stack = set[int](), [value]
        while stack:
            top = stack.pop()
            if top not in found:
                found.add(top)
                stack.extend(self.made[top].operands if top in self.made else ())
        return found

    def _form(self, value: int) -> tuple[int, int]:
        if value not in self.forms:
            self.forms[value] = self._new_form(value)
        return self.forms[value]

    def _new_form(self, value: int) -> tuple[int, int]:
        own: Any
        other: Any
        if value in self.block.arguments:
            place = self.block.arguments.index(value)
            own, other = ("argument", place), ("argument", place ^ 1)
        elif value not in self.made:
            own = other = ("outside", value)
        else:
            op = self.made[value]
            said = (
                op.name,
                tuple(sorted((k, _spell_attribute(v)) for k, v in op.attributes.items())),
            )
            parts = [self._form(operand) for operand in op.operands]
            own, other = ((said, tuple(part[side] for part in parts)) for side in (0, 1))
        return self._number(own), self._number(other)

    def _number(self, form: Any) -> int:
        return self.numbers.setdefault(form, len(self.numbers))


def _spell_attribute(attribute: Any) -> str:
    if isinstance(attribute, TensorLiteral):
        return f"{attribute.type} {attribute.data.hex()}"
    return str(attribute)


def _decides(answers: tuple[set[bool], set[bool]]) -> bool:
    """Whether a key, where it is not equal, settles the matter."""
    less, greater = answers
    return len(less) == len(greater) == 1 and less != greater


# -- parts of a comparator -----------------------------------------------------------------------


def part_of(block: HloBlock, value: int) -> HloBlock:
    """The block without what a value does not need; it returns that value."""
    made = {result: op for op in block.ops for result in op.results}
    needed, stack = set[int](), [value]
    while stack:
        top = stack.pop()
        if top not in needed:
            needed.add(top)
            stack.extend(made[top].operands if top in made else ())
    ops = tuple(op for op in block.ops if op.results[0] in needed)
    return replace(block, ops=ops, returned=(value,))


def canonical_source(block: HloBlock, value: int) -> int | None:
    """The argument that a value is, but for zeros that all become +0 and NaNs that all become one:
    what makes the total order of floats the order of PTIR. None where it is anything else."""
    made = {result: op for op in block.ops for result in op.results}
    steps = set[str]()
    while value in made:
        op = made[value]
        if op.name != "select":
            return None
        test, constant, rest = op.operands
        step = _match_comparison(made, test, constant, _skip_selects(made, rest))
        if step is None:
            return None
        steps.add(step)
        value = rest
    return value if steps == {"zero", "nan"} and value in block.arguments else None


def _skip_selects(made: Mapping[int, HloOp], value: int) -> int:
    """What is left of a value when its selects are taken off."""
    while value in made and made[value].name == "select":
        value = made[value].operands[2]
    return value


def _match_comparison(
    made: Mapping[int, HloOp], test: int, constant: int, source: int
) -> str | None:
    compared, number = made.get(test), _constant(made, constant)
    if compared is None or compared.name != "compare" or number is None:
        return None
    left, right = compared.operands
    if _skip_selects(made, left) != source:
        return None
    match word(compared, "comparison_direction"):
        case "EQ" if _constant(made, right) == 0.0 and number == 0.0 and not np.signbit(number):
            return "zero"
        case "NE" if left == right and np.isnan(number):
            return "nan"
    return None


def _constant(made: Mapping[int, HloOp], value: int) -> float | None:
    op = made.get(value)
    if op is None or op.name != "constant":
        return None
    data = op.attributes["value"]
    return float(data.array) if data.type.rank == 0 and not data.type.dtype.is_complex else None
