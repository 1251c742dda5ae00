"""What the attributes of an op can be. A kind is data: the codecs, the printer and the parser each
walk it, so an attribute that is declared once is read and written in every format.

`check` turns a loosely given value (a list, a dtype name) into the stored one, or raises a
violation.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

from weft.foundation.dtypes import DType, as_dtype
from weft.foundation.errors import SpecViolation, UserError, brief
from weft.foundation.whole_numbers import as_whole
from weft.ptir.literal import ScalarLiteral, TensorLiteral
from weft.ptir.types import Symbol, shape_of

USIZE_MAX: Final = 2**64 - 1
ISIZE_MIN: Final = -(2**63)
ISIZE_MAX: Final = 2**63 - 1


class WireEnum(Enum):
    """An enumeration whose values are the names on the wire; declaration order is the bincode
    tag."""

    def __str__(self) -> str:
        return snake_case(str(self.value))


@cache
def snake_case(camel: str) -> str:
    """`LessEqual` becomes `less_equal`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", camel).lower()


class Infer(Enum):
    """The one dimension of a reshape that is computed from the others."""

    INFER = "Infer"


INFER: Final = Infer.INFER


class AttrKind(WireEnum):
    """The eight classes of custom-call attributes, in tag order."""

    I64 = "I64"
    F64 = "F64"
    BOOL = "Bool"
    STRING = "String"
    I64_ARRAY = "I64Array"
    F64_ARRAY = "F64Array"
    BOOL_ARRAY = "BoolArray"
    STRING_ARRAY = "StringArray"


@dataclass(frozen=True, eq=False, slots=True)
class Attr:
    """One custom-call attribute with its class. Equality is of representation, as for scalars."""

    kind: AttrKind
    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attr) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))


AttrMap: TypeAlias = tuple[tuple[str, Attr], ...]
"""Attributes sorted by name: a map that hashes and prints the same way every time."""


def attr_of(value: Any) -> Attr:
    """The custom-call attribute that holds a plain Python value."""
    if isinstance(value, Attr):
        return value
    for base, scalar, array in _PYTHON_ATTRS:
        if isinstance(value, base):
            return Attr(scalar, value)
        if isinstance(value, list | tuple) and value and all(isinstance(v, base) for v in value):
            return Attr(array, tuple(value))
    if isinstance(value, list | tuple) and not value:
        return Attr(AttrKind.I64_ARRAY, ())
    raise UserError(
        f"{brief(value)} cannot be a custom-call attribute: use ints, floats, bools, strings"
    )


_PYTHON_ATTRS = (
    (bool, AttrKind.BOOL, AttrKind.BOOL_ARRAY),
    (int, AttrKind.I64, AttrKind.I64_ARRAY),
    (float, AttrKind.F64, AttrKind.F64_ARRAY),
    (str, AttrKind.STRING, AttrKind.STRING_ARRAY),
)


def attr_map(attrs: Mapping[str, Any]) -> AttrMap:
    """The sorted attribute map of a plain dictionary."""
    return tuple((name, attr_of(attrs[name])) for name in sorted(attrs))


@dataclass(frozen=True)
class Usize:
    """A whole number from 0 to 2^64 - 1."""

    def check(self, value: Any) -> int:
        return _integer(value, 0, USIZE_MAX)


@dataclass(frozen=True)
class RegionId(Usize):
    """The id of a region."""


@dataclass(frozen=True)
class Isize:
    """A whole number of 64 bits with a sign."""

    def check(self, value: Any) -> int:
        return _integer(value, ISIZE_MIN, ISIZE_MAX)


@dataclass(frozen=True)
class Bool:
    """True or false."""

    def check(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        raise _wrong_attribute(value, "true or false")


@dataclass(frozen=True)
class Float:
    """A 64-bit float."""

    def check(self, value: Any) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError:
                raise _wrong_attribute(value, "a 64-bit float") from None
        raise _wrong_attribute(value, "a number")


@dataclass(frozen=True)
class Number:
    """A truth value, a whole number of 64 bits with a sign, or a 64-bit float; which of them is
    kept."""

    def check(self, value: Any) -> bool | int | float:
        if isinstance(value, bool):
            return value
        if hasattr(value, "__index__"):
            return Isize().check(value)
        return Float().check(value)


@dataclass(frozen=True)
class String:
    """Text."""

    def check(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        raise _wrong_attribute(value, "text")


@dataclass(frozen=True)
class Choice:
    """One of the members of an enumeration."""

    enum: type[WireEnum]

    def check(self, value: Any) -> WireEnum:
        if isinstance(value, self.enum):
            return value
        for member in self.enum if isinstance(value, str) else ():
            if value in (member.value, str(member)):
                return member
        raise _wrong_attribute(value, "one of " + ", ".join(str(member) for member in self.enum))


@dataclass(frozen=True)
class DTypeOf:
    """An element type."""

    def check(self, value: Any) -> DType:
        try:
            return as_dtype(value)
        except UserError as error:
            raise _wrong_attribute(value, "a dtype") from error


@dataclass(frozen=True)
class Maybe:
    """The inner kind, or nothing."""

    inner: SchemaKind

    def check(self, value: Any) -> Any:
        return None if value is None else self.inner.check(value)


@dataclass(frozen=True)
class ListOf:
    """Any number of the inner kind, in order; stored as a tuple."""

    inner: SchemaKind

    def check(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise _wrong_attribute(value, "a list")
        return tuple(self.inner.check(item) for item in value)


@dataclass(frozen=True)
class Pair:
    """Two of the inner kind (the low and the high padding of an axis)."""

    inner: SchemaKind

    def check(self, value: Any) -> tuple[Any, Any]:
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise _wrong_attribute(value, "a pair")
        return (self.inner.check(value[0]), self.inner.check(value[1]))


@dataclass(frozen=True)
class Dimension:
    """A static size or a symbol."""

    def check(self, value: Any) -> int | Symbol:
        try:
            (dim,) = shape_of([value])
        except UserError as error:
            raise _wrong_attribute(value, "a dimension") from error
        return dim if isinstance(dim, Symbol) else _integer(dim, 0, USIZE_MAX)


@dataclass(frozen=True)
class ShapeOf:
    """The dims of a tensor."""

    def check(self, value: Any) -> tuple[int | Symbol, ...]:
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise _wrong_attribute(value, "a list of dimensions")
        return tuple(Dimension().check(dim) for dim in value)


@dataclass(frozen=True)
class NewDimension:
    """A dimension of a reshape: explicit, or inferred (-1 is accepted for that)."""

    def check(self, value: Any) -> int | Symbol | Infer:
        if value is INFER or (isinstance(value, int) and value == -1):
            return INFER
        return Dimension().check(value)


@dataclass(frozen=True)
class ScalarOf:
    """A scalar with its wire class."""

    def check(self, value: Any) -> ScalarLiteral:
        if isinstance(value, ScalarLiteral):
            return value
        raise _wrong_attribute(value, "a scalar literal")


@dataclass(frozen=True)
class LiteralOf:
    """A whole tensor."""

    def check(self, value: Any) -> TensorLiteral:
        if isinstance(value, TensorLiteral):
            return value
        raise _wrong_attribute(value, "a tensor literal")


@dataclass(frozen=True)
class Attributes:
    """A sorted map of custom-call attributes."""

    def check(self, value: Any) -> AttrMap:
        if isinstance(value, Mapping):
            return attr_map(value)
        if isinstance(value, tuple):
            return value
        raise _wrong_attribute(value, "a map of attributes")


SchemaKind: TypeAlias = (
    Usize
    | Isize
    | Bool
    | Float
    | Number
    | String
    | Choice
    | DTypeOf
    | Maybe
    | ListOf
    | Pair
    | Dimension
    | ShapeOf
    | NewDimension
    | ScalarOf
    | LiteralOf
    | Attributes
)

USIZES: Final = ListOf(Usize())
OPTIONAL_DTYPE: Final = Maybe(DTypeOf())
PADDING: Final = ListOf(Pair(Usize()))


@dataclass(frozen=True)
class PerAxis:
    """The same for each axis of the first operand, or for all but `besides` of them."""

    value: Any
    besides: int = 0


def attr(kind: SchemaKind, *, declared: bool = False, usual: Any = None, **default: Any) -> Any:
    """Declare an attribute of an op: a dataclass field that knows its kind. One that is `declared`
    is not on the wire: the declared output type of the instruction says it. `usual` is what the
    builder takes where nothing is said; files always say it."""
    metadata = {"kind": kind, "declared": declared, "usual": usual}
    return dataclasses.field(metadata=metadata, **default)


def _integer(value: Any, low: int, high: int) -> int:
    number = as_whole(value)
    if number is None:
        raise _wrong_attribute(value, "a whole number")
    if low == 0 > number:
        raise _wrong_attribute(value, "a whole number from 0 on")
    if not low <= number <= high:
        raise _wrong_attribute(value, f"a whole number from {low} to {high}")
    return number


def _wrong_attribute(value: Any, wanted: str) -> SpecViolation:
    return SpecViolation("InvalidAttributeValue", f"{brief(value)} is not {wanted}")
