"""Traced Python numbers: arguments of a traced function, and what it computes of them before they
meet a tensor.

A program computes with whole numbers of 64 bits and converts them to the dtype of the tensor beside
them; Python's numbers have no end. So what happens to whole numbers is written down while the
function is traced, and every call goes through it with Python's own arithmetic first: a number that
does not fit where the program puts it is the error that it is without tracing. Numbers with
fractions need no such care: a program computes them in f64, as Python does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from weft.foundation.dtypes import SI64, DType
from weft.foundation.errors import OutOfRange
from weft.foundation.lines import Line, shown
from weft.ops.numbers import number

_MOST_BITS = 64
"""Operands have at most so many bits, so that a power or a shift above needs no computing."""


def _integer_power(base: int, exponent: int) -> int:
    if abs(base) > 1 and exponent > _MOST_BITS:
        raise OverflowError(f"{base} ** {exponent}")
    return int(base**exponent)


def _shift_number(value: int, bits: int) -> int:
    if value and bits > _MOST_BITS:
        raise OverflowError(f"{value} << {bits}")
    return value << bits


_EXACT: Final[dict[str, Callable[..., int]]] = {
    "abs": abs, "add": operator.add, "bitwise_and": operator.and_, "bitwise_not": operator.invert,
    "bitwise_or": operator.or_, "bitwise_xor": operator.xor, "floor_divide": operator.floordiv,
    "maximum": max, "minimum": min, "mul": operator.mul, "neg": operator.neg, "pow": _integer_power,
    "remainder": operator.mod, "shift_left": _shift_number, "shift_right": operator.rshift,
    "sub": operator.sub,
}  # fmt: skip
"""What instructions on whole numbers mean in Python; others are not followed."""


class Step(NamedTuple):
    """A number that is computed, from numbers by their places and from constants."""

    function: Callable[..., int]
    operands: tuple[TracedNumber | int, ...]
    line: Line | None


class Use(NamedTuple):
    """A number that is converted to the dtype of a tensor."""

    place: int
    dtype: DType
    line: Line | None


@dataclass
class Numbers:
    """What a traced function does with the whole numbers among its arguments. Numbers have places:
    arguments and results of steps in the order in which they were met."""

    steps: list[int | Step] = field(default_factory=list)
    """The index of an argument, or a step."""
    uses: list[Use] = field(default_factory=list)

    def argument(self, index: int, dtype: DType) -> TracedNumber:
        """The number that a call has as its leaf `index`, of which the program has one of this
        dtype."""
        fractions = dtype.is_float or dtype.is_complex
        return UNFOLLOWED if fractions else self.place(index)

    def place(self, step: int | Step) -> TracedNumber:
        self.steps.append(step)
        return TracedNumber(self, len(self.steps) - 1)

    def check(self, leaves: Sequence[Any] | Mapping[int, Any], name: str) -> None:
        """Say so where a number of this call does not fit."""
        values: list[int | None] = []
        for step in self.steps:
            if isinstance(step, int):
                values.append(int(leaves[step]))
            else:
                values.append(_carried_out(step, values, name))
        for place, dtype, line in self.uses:
            _check_fits(values[place], dtype, name, line)


class TracedNumber(NamedTuple):
    """What a tensor stands for in the place of a Python number."""

    numbers: Numbers | None
    """None: the number is not followed, as those with fractions are not."""
    place: int

    def used_as(self, dtype: DType, line: Line | None) -> None:
        """It takes the dtype of a tensor beside it."""
        if self.numbers is not None and dtype.is_integer and dtype is not SI64:
            self.numbers.uses.append(Use(self.place, dtype, line))


UNFOLLOWED: Final = TracedNumber(None, 0)
Operand: TypeAlias = "TracedNumber | int | float | complex"


def computed(name: str, operands: Sequence[Operand], line: Line | None) -> TracedNumber:
    """The result of an instruction on numbers, of which at least one is traced."""
    function = _EXACT.get(name)
    numbers = next((x.numbers for x in operands if isinstance(x, TracedNumber)), None)
    given = tuple(x for x in operands if isinstance(x, TracedNumber | int))
    traced = [x for x in given if isinstance(x, TracedNumber)]
    one = len(given) == len(operands) and all(x.numbers is numbers for x in traced)
    if function is None or numbers is None or not one:
        return UNFOLLOWED
    return numbers.place(Step(function, given, line))


def _carried_out(step: Step, values: Sequence[int | None], name: str) -> int | None:
    """The result of a step; None where the program itself reports what is wrong."""
    given = [values[x.place] if isinstance(x, TracedNumber) else x for x in step.operands]
    if None in given:
        return None
    try:
        found = step.function(*given)
    except OverflowError as error:
        why = f"the number {error} is not representable in {SI64}"
        raise _misfit(why, name, step.line) from None
    except (ArithmeticError, ValueError):
        return None
    _check_fits(found, SI64, name, step.line)
    return found


def _check_fits(value: int | None, dtype: DType, name: str, line: Line | None) -> None:
    if value is None:
        return
    try:
        number(value, dtype)
    except OutOfRange as error:
        raise _misfit(error.why, name, line, error.hint) from None


def _misfit(why: str, name: str, line: Line | None, hint: str = "") -> OutOfRange:
    hint = hint or f"{SI64} holds whole numbers from {SI64.lowest} to {SI64.highest}"
    return OutOfRange("LiteralInvalid", f"[{name}] {why}", hint, shown(line))
