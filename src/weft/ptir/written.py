"""Values of a program that is being written: Python cannot have their numbers yet."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from weft.foundation.calls import told_methods
from weft.foundation.errors import UserError
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
