"""PTIR as bincode (version 1 defaults): little-endian, u64 lengths, u32 enum tags, no field names.

One description of the layout serves both directions: a `Writer` and a `Reader` have the same
methods, and the functions below walk the structure with either. Reading is bounds-checked: a length
that the remaining bytes cannot hold is refused before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from weft.foundation import limits
from weft.foundation.dtypes import ALL
from weft.foundation.errors import SpecViolation
from weft.ptir.codecs.wire import from_wire, last_ids, to_wire
from weft.ptir.ir import (
    SPEC_VERSION,
    ElementRef,
    Function,
    HintKind,
    HintPolicy,
    HintRegion,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
)
from weft.ptir.literal import ScalarLiteral, ScalarTag, TensorLiteral
from weft.ptir.op import CORE, Op
from weft.ptir.schema import (
    INFER,
    Attr,
    Attributes,
    AttrKind,
    AttrMap,
    Bool,
    Choice,
    Dimension,
    DTypeOf,
    Float,
    Isize,
    ListOf,
    LiteralOf,
    Maybe,
    NewDimension,
    Pair,
    ScalarOf,
    SchemaKind,
    ShapeOf,
    String,
    Usize,
    WireEnum,
)
from weft.ptir.types import Dim, Symbol, TensorType, TupleType, ValueType

Item = TypeVar("Item")
_TAG = struct.Struct("<I").pack
_SIZE = struct.Struct("<Q").pack


def encode(program: Program) -> bytes:
    """The bincode bytes of a program."""
    writer = Writer()
    writer.program(to_wire(program))
    return bytes(writer.out)


def decode(data: bytes) -> Program:
    """The program of bincode bytes. Files from before hints existed are recognised by trying."""
    try:
        return from_wire(Reader(data, hints=True).program())
    except SpecViolation as error:
        if error.code == "SpecVersionMismatch":
            raise
        try:
            return from_wire(Reader(data, hints=False).program())
        except SpecViolation:
            raise error from None


def _unfit(value: Any) -> SpecViolation:
    why = f"{value} does not fit the field that holds it in bincode"
    return SpecViolation("InvalidAttributeValue", why)


class Writer:
    """Appends values to a byte string."""

    def __init__(self) -> None:
        self.out = bytearray()

    def pack(self, layout: str, value: Any) -> None:
        try:
            self.out += struct.pack(layout, value)
        except struct.error:
            raise _unfit(value) from None

    # Nearly all of a program is tags and sizes: these two do without a layout to look up.

    def tag(self, value: int) -> None:
        try:
            self.out += _TAG(value)
        except struct.error:
            raise _unfit(value) from None

    def size(self, value: int) -> None:
        try:
            self.out += _SIZE(value)
        except struct.error:
            raise _unfit(value) from None

    def string(self, value: str) -> None:
        raw = value.encode()
        self.size(len(raw))
        self.out += raw

    def listed(self, items: Sequence[Item], write: Callable[[Item], None]) -> None:
        self.size(len(items))
        for item in items:
            write(item)

    def program(self, program: Program) -> None:
        self.string(SPEC_VERSION)
        self.string(program.entry)
        self.listed(program.functions, self.function)
        self.listed(program.regions, self.region)

    def function(self, function: Function) -> None:
        self.string(function.name)
        self.listed(function.parameters, self.value_type)
        self.listed(function.parameter_ids, self.tag)
        self.listed(function.results, self.value_type)
        self.listed(function.body, self.instruction)
        self.listed(function.hints, self.hint)
        self.listed(function.result_ids, self.tag)

    def region(self, region: Region) -> None:
        self.size(region.id)
        self.listed(region.parameters, self.value_type)
        self.listed(region.body, self.instruction)
        self.listed(region.results, self.value_type)

    def hint(self, hint: HintRegion) -> None:
        self.tag(hint.id)
        self.member(hint.kind)
        self.member(hint.policy)
        self.listed(hint.inputs, self.tag)
        self.listed(hint.exports, self.tag)
        self.listed(hint.body, self.instruction)
        self.attrs(hint.attrs)

    def instruction(self, instruction: Instruction) -> None:
        self.tag(instruction.id)
        self.op(instruction.op)
        self.listed(instruction.operands, self.operand)
        self.value_type(instruction.output)

    def op(self, op: Op) -> None:
        if op.tag is None:
            raise SpecViolation("UnknownOp", f"{op.name} has no place in bincode")
        self.tag(op.tag)
        for name, kind in op.schema().items():
            self.value(kind, getattr(op, name))

    def operand(self, operand: Operand) -> None:
        if isinstance(operand, Ref):
            self.tag(0)
            self.tag(operand.id)
        elif isinstance(operand, ElementRef):
            self.tag(1)
            self.tag(operand.id)
            self.size(operand.index)
        else:
            self.tag(2)
            self.literal(operand)

    def value_type(self, kind: ValueType) -> None:
        if isinstance(kind, TensorType):
            self.tag(0)
            self.spec(kind)
        else:
            self.tag(1)
            self.listed(kind.elements, self.value_type)

    def spec(self, kind: TensorType) -> None:
        self.tag(kind.dtype.index)
        self.listed(kind.shape, self.dim)

    def dim(self, dim: Dim) -> None:
        if isinstance(dim, Symbol):
            self.tag(1)
            self.string(dim.name)
        else:
            self.tag(0)
            self.size(dim)

    def literal(self, literal: TensorLiteral) -> None:
        self.spec(literal.type)
        self.size(len(literal.data))
        self.out += literal.data

    def member(self, member: WireEnum) -> None:
        self.tag(list(type(member)).index(member))

    def scalar(self, scalar: ScalarLiteral) -> None:
        self.tag(ScalarTag.ORDER.index(scalar.tag))
        if isinstance(scalar.value, complex):
            self.pack("<d", scalar.value.real)
            self.pack("<d", scalar.value.imag)
        else:
            self.pack(_SCALAR_LAYOUTS[scalar.tag], scalar.value)

    def attrs(self, attrs: AttrMap) -> None:
        self.size(len(attrs))
        for name, attr in attrs:
            self.string(name)
            self.member(attr.kind)
            write = self.string if attr.kind in _TEXT else partial(self.pack, _LAYOUTS[attr.kind])
            if isinstance(attr.value, tuple):
                self.listed(attr.value, write)
            else:
                write(attr.value)

    def value(self, kind: SchemaKind, value: Any) -> None:
        match kind:
            case Maybe():
                self.pack("<B", value is not None)
                if value is not None:
                    self.value(kind.inner, value)
            case ListOf():
                self.listed(value, lambda item: self.value(kind.inner, item))
            case Pair():
                for item in value:
                    self.value(kind.inner, item)
            case Usize():
                self.size(value)
            case Isize():
                self.pack("<q", value)
            case Bool():
                self.pack("<B", value)
            case Float():
                self.pack("<d", value)
            case String():
                self.string(value)
            case Choice():
                self.member(value)
            case DTypeOf():
                self.tag(value.index)
            case Dimension():
                self.dim(value)
            case ShapeOf():
                self.listed(value, self.dim)
            case NewDimension():
                self.tag(1 if value is INFER else 0)
                if value is not INFER:
                    self.dim(value)
            case ScalarOf():
                self.scalar(value)
            case LiteralOf():
                self.literal(value)
            case Attributes():
                self.attrs(value)


_SCALAR_LAYOUTS = {
    ScalarTag.I1: "<B",
    ScalarTag.SIGNED: "<q",
    ScalarTag.UNSIGNED: "<Q",
    ScalarTag.FLOAT: "<d",
}
_TEXT = (AttrKind.STRING, AttrKind.STRING_ARRAY)
_LAYOUTS = {
    AttrKind.I64: "<q",
    AttrKind.I64_ARRAY: "<q",
    AttrKind.F64: "<d",
    AttrKind.F64_ARRAY: "<d",
    AttrKind.BOOL: "<B",
    AttrKind.BOOL_ARRAY: "<B",
}


@cache
def _members(enum: type[WireEnum]) -> tuple[WireEnum, ...]:
    return tuple(enum)


class Reader:
    """Takes values off a byte string."""

    def __init__(self, data: bytes, *, hints: bool) -> None:
        self.data = data
        self.at = 0
        self.hints = hints

    def bad(self, why: str, code: str = "MalformedBincode") -> SpecViolation:
        return SpecViolation(code, why, where=f"byte {self.at}")

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise self.bad(f"the file ends where {count} more bytes are needed")
        start, self.at = self.at, self.at + count
        return self.data[start : self.at]

    def unpack(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self.take(struct.calcsize(layout)))
        return value

    def tag(self, count: int = 2**32, what: str = "tag") -> int:
        value = int.from_bytes(self.take(4), "little")
        if value >= count:
            raise self.bad(f"{value} is not a {what}")
        return value

    def size(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def flag(self) -> bool:
        value = self.unpack("<B")
        if value > 1:
            raise self.bad(f"{value} is neither true nor false")
        return bool(value)

    def string(self) -> str:
        raw = self.take(self.size())
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self.bad("a string is not UTF-8") from None

    def listed(self, read: Callable[[], Item]) -> tuple[Item, ...]:
        count = self.size()
        if count > len(self.data) - self.at:
            raise self.bad(f"a list claims {count} items, more than the bytes that are left")
        return tuple(read() for _ in range(count))

    def program(self) -> Program:
        version = self.string() or SPEC_VERSION
        if version != SPEC_VERSION:
            raise SpecViolation(
                "SpecVersionMismatch",
                f"the file is of version {version[:40]!r}, expected {SPEC_VERSION!r}",
            )
        program = Program(self.string(), self.listed(self.function), self.listed(self.region))
        if self.at != len(self.data):
            raise self.bad(f"{len(self.data) - self.at} bytes are left over after the program")
        return program

    def function(self) -> Function:
        return Function(
            self.string(),
            self.listed(self.value_type),
            self.listed(self.tag),
            self.listed(self.value_type),
            self.listed(self.instruction),
            self.listed(self.hint) if self.hints else (),
            self.listed(self.tag),
        )

    def region(self) -> Region:
        region_id = self.size()
        parameters = self.listed(self.value_type)
        body = self.listed(self.instruction)
        results = self.listed(self.value_type)
        return Region(region_id, parameters, body, results, last_ids(body, len(results)))

    def hint(self) -> HintRegion:
        return HintRegion(
            self.tag(),
            self.member(HintKind),
            self.member(HintPolicy),
            self.listed(self.tag),
            self.listed(self.tag),
            self.listed(self.instruction),
            self.attrs(),
        )

    def instruction(self) -> Instruction:
        return Instruction(self.tag(), self.op(), self.listed(self.operand), self.value_type())

    def op(self) -> Op:
        tag = self.tag()
        if tag not in CORE:
            raise self.bad(f"there is no op with tag {tag}", "UnknownOp")
        cls = CORE[tag]
        return cls(**{name: self.value(kind) for name, kind in cls.schema().items()})

    def operand(self) -> Operand:
        match self.tag(3, "kind of operand"):
            case 0:
                return Ref(self.tag())
            case 1:
                return ElementRef(self.tag(), self.size())
            case _:
                return self.literal()

    def value_type(self, depth: int = 0) -> ValueType:
        if depth > limits.Limits.nesting:
            raise self.bad("a tuple type nests too deep", "NestingTooDeep")
        if self.tag(2, "kind of type") == 0:
            return self.spec()
        return TupleType(self.listed(lambda: self.value_type(depth + 1)))

    def spec(self) -> TensorType:
        return TensorType(ALL[self.tag(len(ALL), "dtype")], self.listed(self.dim))

    def dim(self) -> Dim:
        return Symbol(self.string()) if self.tag(2, "kind of dimension") else self.size()

    def literal(self) -> TensorLiteral:
        return TensorLiteral(self.spec(), self.take(self.size()))

    def member(self, enum: type[WireEnum]) -> Any:
        members = _members(enum)
        return members[self.tag(len(members), enum.__name__)]

    def scalar(self) -> ScalarLiteral:
        tag = ScalarTag.ORDER[self.tag(len(ScalarTag.ORDER), "kind of scalar")]
        if tag == ScalarTag.COMPLEX:
            return ScalarLiteral(tag, complex(self.unpack("<d"), self.unpack("<d")))
        if tag == ScalarTag.I1:
            return ScalarLiteral(tag, self.flag())
        return ScalarLiteral(tag, self.unpack(_SCALAR_LAYOUTS[tag]))

    def attrs(self) -> AttrMap:
        found = self.listed(lambda: (self.string(), self.attr()))
        if len(dict(found)) != len(found):
            raise self.bad("a map has the same key twice")
        return tuple(sorted(found, key=lambda item: item[0]))

    def attr(self) -> Attr:
        kind: AttrKind = self.member(AttrKind)

        def read() -> Any:
            if kind in _TEXT:
                return self.string()
            if kind in (AttrKind.BOOL, AttrKind.BOOL_ARRAY):
                return self.flag()
            return self.unpack(_LAYOUTS[kind])

        return Attr(kind, self.listed(read) if kind.value.endswith("Array") else read())

    def value(self, kind: SchemaKind) -> Any:
        match kind:
            case Maybe():
                return self.value(kind.inner) if self.flag() else None
            case ListOf():
                return self.listed(lambda: self.value(kind.inner))
            case Pair():
                return (self.value(kind.inner), self.value(kind.inner))
            case Usize():
                return self.size()
            case Isize():
                return self.unpack("<q")
            case Bool():
                return self.flag()
            case Float():
                return self.unpack("<d")
            case String():
                return self.string()
            case Choice():
                return self.member(kind.enum)
            case DTypeOf():
                return ALL[self.tag(len(ALL), "dtype")]
            case Dimension():
                return self.dim()
            case ShapeOf():
                return self.listed(self.dim)
            case NewDimension():
                return INFER if self.tag(2, "kind of new dimension") else self.dim()
            case ScalarOf():
                return self.scalar()
            case LiteralOf():
                return self.literal()
            case Attributes():
                return self.attrs()
