"""Every instruction of Core IR: its operands, its attributes, and what it means in one line.

The table is all that the reader, the printer, the records and the surface language know about an
opcode. Type rules (`infer`), gradients (`gradient`) and the lowering (`to_ptir`) are tables of
their own, and a test keeps them complete. Operands come before attributes, both in the order in
which the second encoding writes them.

Core v1 is what the specification lists. Beyond it there are two extensions, which a module must
switch on by name: `div` for division, and `gradient` for what gradients are made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from weft.core_ir.literals import Data
from weft.core_ir.types import as_dtype, dtype_name
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError, clipped
from weft.foundation.text import label

DIV: Final = "div"
GRADIENT: Final = "gradient"
EXTENSIONS: Final = (DIV, GRADIENT)
I64_MIN: Final = -(2**63)
I64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Padding:
    """How a convolution pads height and width: `Valid`, `Same`, or `Custom` with its pairs."""

    kind: str
    pairs: tuple[tuple[int, ...], ...] = ()

    def __str__(self) -> str:
        if self.kind != "Custom":
            return self.kind
        return f"Custom([{', '.join(str(list(pair)) for pair in self.pairs)}])"


VALID: Final = Padding("Valid")
SAME: Final = Padding("Same")

Attribute: TypeAlias = tuple[int, ...] | int | bool | str | DType | Padding | Data


class Kind(Enum):
    """What an attribute can be."""

    WHOLES = "a list of whole numbers of 64 bits"
    WHOLE = "a whole number of 64 bits"
    FLAG = "true or false"
    TEXT = "a name"
    DTYPE = "a dtype"
    PADDING = "Valid, Same or Custom with pairs of numbers"
    DATA = "a number or nested lists of numbers"


@dataclass(frozen=True)
class Instruction:
    """One row of the table."""

    opcode: str
    operands: tuple[str, ...]
    attributes: Mapping[str, Kind]
    meaning: str
    extension: str = ""
    """The extension it belongs to; empty for Core v1."""
    defaults: Mapping[str, Attribute] = field(default_factory=dict)
    """What an attribute is that is left out."""

    @property
    def call(self) -> str:
        """Its name in the surface language: `expand_dims` for `ExpandDims`."""
        words = self.opcode.replace("MatMul", "Matmul")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).lower()


_X: Final = ("input",)
_PAIR: Final = ("lhs", "rhs")
_REDUCTION: Final = {"axes": Kind.WHOLES, "keepdims": Kind.FLAG}
_WINDOW: Final = {"strides": Kind.WHOLES, "padding": Kind.PADDING}
_WINDOW_DEFAULTS: Final[Mapping[str, Attribute]] = {"strides": (1, 1), "padding": VALID}
_BACKWARD: Final = {"shape": Kind.WHOLES, **_WINDOW}


def _instruction_rows() -> Iterable[Instruction]:
    row = Instruction
    value = {"value": Kind.DATA}
    data = {"data": Kind.DATA, "dtype": Kind.DTYPE, "shape": Kind.WHOLES}
    yield row("Input", (), {"name": Kind.TEXT}, "an argument of the module")
    yield row("ConstI64", (), value, "a scalar i64")
    yield row("ConstF32", (), value, "a scalar f32")
    yield row("ConstF64", (), value, "a scalar f64")
    yield row("ConstTensor", (), data, "a constant of any dtype and shape")
    yield row("Add", _PAIR, {}, "`lhs + rhs`, broadcasting; integers wrap")
    yield row("Sub", _PAIR, {}, "`lhs - rhs`, broadcasting; integers wrap")
    yield row("Mul", _PAIR, {}, "`lhs * rhs`, broadcasting; integers wrap")
    yield row("Div", _PAIR, {}, "`lhs / rhs`, broadcasting; integers truncate toward zero", DIV)
    keep: Mapping[str, Attribute] = {"keepdims": False}
    yield row("Sum", _X, _REDUCTION, "the sum over axes, over all for `[]`", defaults=keep)
    yield row("Mean", _X, _REDUCTION, "the sum divided by how many it adds up", defaults=keep)
    yield row("Reshape", _X, {"new_shape": Kind.WHOLES}, "the same elements in another shape")
    yield row("Transpose", _X, {"permutation": Kind.WHOLES}, "axis i is axis `permutation[i]`")
    yield row("ExpandDims", _X, {"axes": Kind.WHOLES}, "axes of size 1 put in")
    yield row("Squeeze", _X, {"axes": Kind.WHOLES}, "axes of size 1 taken out")
    yield row("Index", _X, {"indices": Kind.WHOLES}, "one element")
    ranges = {"starts": Kind.WHOLES, "ends": Kind.WHOLES, "steps": Kind.WHOLES}
    yield row("Slice", _X, ranges, "every step-th element from start to before end, clamped")
    yield row("Gather", ("input", "indices"), {}, "rows of `input`, in the shape of `indices`")
    yield row("Dot", _PAIR, {}, "inner product of vectors and matrices")
    yield row("MatMul", _PAIR, {}, "product of the last two axes; the others broadcast")
    yield row(
        "Conv2d",
        ("input", "filter"),
        _WINDOW,
        "convolution of NHWC with HWCF",
        defaults=_WINDOW_DEFAULTS,
    )
    yield row("Relu", _X, {}, "`x` where `x > 0`, else 0")
    yield row("Neg", _X, {}, "`-x`")
    yield row("Exp", _X, {}, "`e^x`")
    yield row("Log", _X, {}, "the natural logarithm")
    yield from _gradient_rows()


def _gradient_rows() -> Iterable[Instruction]:
    """What the gradients of Core v1 need beyond it. The gradients of these stay among them."""

    def row(
        opcode: str,
        operands: tuple[str, ...],
        attributes: Mapping[str, Kind],
        meaning: str,
        defaults: Mapping[str, Attribute] | None = None,
    ) -> Instruction:
        return Instruction(opcode, operands, attributes, meaning, GRADIENT, defaults or {})

    place = {"shape": Kind.WHOLES, "starts": Kind.WHOLES, "steps": Kind.WHOLES}
    yield row("BroadcastTo", _X, {"shape": Kind.WHOLES}, "`input` repeated, aligned at the right")
    yield row("Reciprocal", _X, {}, "`1 / x`")
    yield row("ReluBackward", ("input", "gradient"), {}, "`gradient` where `input > 0`, else 0")
    yield row(
        "SliceBackward", ("gradient",), place, "zeros with `gradient` where a slice would read"
    )
    yield row(
        "GatherBackward",
        ("gradient", "indices"),
        {"rows": Kind.WHOLE},
        "zeros with rows of `gradient` added where a gather would read",
    )
    yield row(
        "Conv2dBackwardInput",
        ("gradient", "filter"),
        _BACKWARD,
        "the gradient of a convolution for its input, of that `shape`",
        _WINDOW_DEFAULTS,
    )
    yield row(
        "Conv2dBackwardFilter",
        ("input", "gradient"),
        _BACKWARD,
        "the gradient of a convolution for its filter, of that `shape`",
        _WINDOW_DEFAULTS,
    )


INSTRUCTIONS: Final = {row.opcode: row for row in _instruction_rows()}
BINARY: Final = ("Add", "Sub", "Mul", "Div")
"""What `BinOp` stands for."""
COMMUTATIVE: Final = frozenset({"Add", "Mul"})
CONSTANTS: Final = frozenset({"ConstI64", "ConstF32", "ConstF64", "ConstTensor"})


def instruction(opcode: str) -> Instruction:
    """The row of an opcode."""
    if opcode not in INSTRUCTIONS:
        raise SpecViolation("E0102", f"there is no opcode {str(opcode)[:40]!r}", near(opcode))
    return INSTRUCTIONS[opcode]


def near(opcode: str) -> str:
    """The opcode that was probably meant."""
    folded = re.sub(r"[^a-z0-9]", "", str(opcode)[:40].lower())
    for known in INSTRUCTIONS:
        if known.lower() == folded:
            return f"it is written {known}"
    return f"the opcodes are {', '.join(INSTRUCTIONS)}"


# -- attributes ----------------------------------------------------------------------------------


def checked_attributes(
    opcode: str, given: Mapping[str, Any], read_data: Callable[[Any], Data]
) -> dict[str, Attribute]:
    """The attributes of an instruction, each of its kind, sorted by name."""
    row = instruction(opcode)
    for name in given:
        if name not in row.attributes:
            known = ", ".join(row.attributes) or "none"
            raise UserError(f"{opcode} has no attribute {name!r}; its attributes are {known}")
    found: dict[str, Attribute] = {**row.defaults}
    for name, kind in row.attributes.items():
        if name in given:
            value = given[name]
            found[name] = read_data(value) if kind is Kind.DATA else _of_kind(kind, name, value)
        elif name not in found and kind is not Kind.TEXT:
            raise UserError(f"{opcode} needs the attribute {name!r}, {kind.value}")
    return dict(sorted(found.items()))


def _of_kind(kind: Kind, name: str, value: Any) -> Attribute:
    match kind:
        case Kind.WHOLES if _is_list(value) and all(map(_is_whole_number, value)):
            return tuple(int(item) for item in value)
        case Kind.WHOLE if _is_whole_number(value):
            return int(value)
        case Kind.FLAG if isinstance(value, bool):
            return value
        case Kind.TEXT if isinstance(value, str):
            return value
        case Kind.DTYPE:
            return as_dtype(value)
        case Kind.PADDING:
            return _padding(value)
    raise UserError(f"attribute {name!r} must be {kind.value}, not {_brief(value)}")


def _padding(value: Any) -> Padding:
    if isinstance(value, Padding):
        return value
    if value in ("Valid", "Same"):
        return Padding(value)
    if _is_list(value) and all(
        _is_list(pair) and all(map(_is_whole_number, pair)) for pair in value
    ):
        return Padding("Custom", tuple(tuple(int(n) for n in pair) for pair in value))
    raise UserError(f"padding must be {Kind.PADDING.value}, not {_brief(value)}")


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_whole_number(value: Any) -> bool:
    """Whether it is a whole number of 64 bits, as all numbers in attributes are."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return False
    return I64_MIN <= int(value) <= I64_MAX


def _brief(value: Any) -> str:
    try:
        return clipped(repr(value), 60)
    except ValueError:
        return "a number of thousands of digits"


def wholes(attributes: Mapping[str, Attribute], name: str) -> tuple[int, ...]:
    """An attribute that is a list of numbers."""
    return cast("tuple[int, ...]", attributes[name])


def flag(attributes: Mapping[str, Attribute], name: str) -> bool:
    """An attribute that is true or false."""
    return cast(bool, attributes[name])


def padding_of(attributes: Mapping[str, Attribute]) -> Padding:
    return cast(Padding, attributes["padding"])


def data_of(attributes: Mapping[str, Attribute]) -> Data:
    """The data of a constant, whatever its attribute is called."""
    return cast(Data, attributes["data"] if "data" in attributes else attributes["value"])


def show_attribute(value: Attribute) -> str:
    """An attribute as text, data aside."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    if isinstance(value, DType):
        return dtype_name(value)
    return label(value) if isinstance(value, str) else str(value)
