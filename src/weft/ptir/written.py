"""The common interface of all writers of PTIR, and their values with Python's operators.

There is one way to write PTIR: an emitter appends ops by name and hands out values. `Symbolic` is
what all these values are, whoever the emitter is: terms of rules and passes, values of the builder
and handles of a session. Formulas that all of them share are in `weft.ptir.library`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn, Protocol, Self, TypeAlias, TypeVar

import numpy as np

from weft.foundation.calls import told_methods
from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import UserError, brief
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import Dim, OfTensorType

Number: TypeAlias = bool | int | float | complex
Data: TypeAlias = Number | Sequence[Any] | np.ndarray[Any, Any] | np.generic | TensorLiteral
"""What may stand beside a value; a number takes the dtype and the shape of the value."""
V_co = TypeVar("V_co", covariant=True)


class Emits(Protocol[V_co]):
    """What appends instructions: the arena of lazy tensors, a body that is built, or an editor."""

    def emit(self, name: str, *operands: Any, **attrs: Any) -> V_co:
        """The op called `name`; a number takes the dtype and shape of the first value."""
        ...

    def literal(self, value: Any, dtype: DType) -> V_co: ...


@told_methods
class Symbolic(OfTensorType):
    """A value of a program that is being written: its operators append instructions."""

    __slots__ = ()

    @property
    @abstractmethod
    def emitter(self) -> Emits[Self]:
        """What the instructions are appended by."""

    def apply(self, name: str, *others: Self | Data, **attrs: Any) -> Self:
        """The op called `name`, with this value as its first operand."""
        return self.emitter.emit(name, self, *others, **attrs)

    # -- operators -------------------------------------------------------------------------------

    def __add__(self, other: Self | Data) -> Self:
        return self.emitter.emit("add", self, other)

    def __radd__(self, other: Data) -> Self:
        return self.emitter.emit("add", other, self)

    def __sub__(self, other: Self | Data) -> Self:
        return self.emitter.emit("sub", self, other)

    def __rsub__(self, other: Data) -> Self:
        return self.emitter.emit("sub", other, self)

    def __mul__(self, other: Self | Data) -> Self:
        return self.emitter.emit("mul", self, other)

    def __rmul__(self, other: Data) -> Self:
        return self.emitter.emit("mul", other, self)

    def __truediv__(self, other: Self | Data) -> Self:
        return self.emitter.emit("div", self, other)

    def __rtruediv__(self, other: Data) -> Self:
        return self.emitter.emit("div", other, self)

    def __pow__(self, other: Self | Data) -> Self:
        return self.emitter.emit("pow", self, other)

    def __neg__(self) -> Self:
        return self.emitter.emit("neg", self)

    def __abs__(self) -> Self:
        return self.emitter.emit("abs", self)

    def __lt__(self, other: Self | Data) -> Self:
        return self.emitter.emit("compare", self, other, op="less")

    def __le__(self, other: Self | Data) -> Self:
        return self.emitter.emit("compare", self, other, op="less_equal")

    def __gt__(self, other: Self | Data) -> Self:
        return self.emitter.emit("compare", self, other, op="greater")

    def __ge__(self, other: Self | Data) -> Self:
        return self.emitter.emit("compare", self, other, op="greater_equal")

    def __and__(self, other: Self | Data) -> Self:
        return self.emitter.emit("bitwise_and", self, other)

    def __or__(self, other: Self | Data) -> Self:
        return self.emitter.emit("bitwise_or", self, other)

    def __xor__(self, other: Self | Data) -> Self:
        return self.emitter.emit("bitwise_xor", self, other)

    def __invert__(self) -> Self:
        return self.emitter.emit("bitwise_not", self)

    # -- other types -----------------------------------------------------------------------------

    def like(self, number: Number) -> Self:
        """A value of this type with one number everywhere."""
        return self.full(number, self.shape)

    def full(self, number: Number, dims: Iterable[Dim], dtype: DType | None = None) -> Self:
        """One number everywhere, in the dtype of this value unless another is given."""
        return self.emitter.literal(number, dtype or self.dtype).broadcast_to(dims)

    def cast(self, dtype: DType | str) -> Self:
        """The value in another dtype; itself where it has it already."""
        wanted = as_dtype(dtype)
        return self if wanted is self.dtype else self.emitter.emit("cast", self, dtype=wanted)

    def reshape(self, dims: Iterable[Dim]) -> Self:
        """The same elements in another shape; itself where it has it already."""
        shape = tuple(dims)
        return self if shape == self.shape else self.emitter.emit("reshape", self, new_shape=shape)

    def broadcast_to(self, dims: Iterable[Dim]) -> Self:
        """The value repeated to a shape; itself where it has it already."""
        shape = tuple(dims)
        return (
            self
            if shape == self.shape
            else self.emitter.emit("broadcast_to", self, result_shape=shape)
        )

    def transpose(self, perm: Sequence[int]) -> Self:
        """The axes in another order; itself where that is the order already."""
        order = tuple(perm)
        if order == tuple(range(self.rank)):
            return self
        return self.emitter.emit("transpose", self, perm=order)


@told_methods
class Written(Symbolic):
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
