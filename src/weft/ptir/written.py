"""Values of a program that is being written: Python cannot have their numbers yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError, brief
from weft.ptir.types import OfTensorType


@told_methods
class Written(OfTensorType):
    """A value that stands for numbers which exist only when the program runs. Whatever asks Python
    for one is told so."""

    __slots__ = ()

    CHOOSING: ClassVar[str]
    """How a program chooses by such a value."""
    READING: ClassVar[str]
    """How its numbers are had."""
    __array_ufunc__ = None
    """NumPy leaves operators with an array on the left to the value."""

    def __bool__(self) -> bool:
        raise UserError(
            f"{self!r} has no truth value while the program is being written; {self.CHOOSING}"
        )

    def _number(self, *_: object) -> NoReturn:
        raise UserError(
            f"{self!r} has no numbers while the program is being written; {self.READING}"
        )

    __int__ = __float__ = __complex__ = __index__ = __round__ = _number

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NoReturn:
        self._number()


def pair_of_axes(name: str, given: Any) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Axes of the left operand and of the right one, as `dot_general` is given them."""
    pair = tuple(given) if isinstance(given, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(x, Sequence) and not isinstance(x, str) for x in pair):
        raise UserError(
            f"{name} is a pair of lists, axes of the left operand and axes of the right one, "
            f"such as ([1], [0]), not {brief(given)}"
        )
    return tuple(pair[0]), tuple(pair[1])
