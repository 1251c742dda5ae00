"""PTIR as text that reads back to an equal program.

    ptir.v0.4
    entry @main

    func @main(%0: f32[2, ?B]) -> (f32[2]) {
      %1 = exp(%0) : f32[2, ?B]
      %2 = reduce_sum(%1) {axes=[1], keepdims=false} : f32[2]
      return %2
    }

    region ^0(f32[2]) -> (f32[2]) { ... }

An instruction is `%id = op(operands) {attributes} : type`; absent optional attributes are left out.
Literals are `f32[2]<1.0, -2.5>`, or hex bytes where decimals would be long or lose bits. Negative
axes are accepted and stored as the wire stores them. Comments run from `#` to the end of the line.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.foundation.dtypes import BY_NAME, I1, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.text import TokenStream, commas, label, quoted
from weft.ptir.codecs.wire import from_wire
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
    operand_type,
)
from weft.ptir.literal import ScalarLiteral, ScalarTag, TensorLiteral, from_array
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.schema import (
    INFER,
    USIZE_MAX,
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
    Number,
    Pair,
    ScalarOf,
    SchemaKind,
    ShapeOf,
    String,
    Usize,
    WireEnum,
)
from weft.ptir.types import Dim, Shape, Symbol, TensorType, TupleType, ValueType

SHORT_LITERAL = 8
MAX_NESTING = 64
U32_MAX = 2**32 - 1


# -- printing ------------------------------------------------------------------------------------


def print_program(program: Program) -> str:
    """The text of a program; `parse_program` reads it back."""
    lines = [SPEC_VERSION, f"entry @{label(program.entry)}"]
    for function in program.functions:
        if len(function.parameter_ids) != len(function.parameters):
            raise SpecViolation(
                "SignatureMismatch",
                f"{len(function.parameters)} parameter types but {len(function.parameter_ids)} "
                "ids cannot be written as text",
                where=function.label,
            )
        pairs = zip(function.parameter_ids, function.parameters, strict=True)
        parameters = commas(f"%{i}: {print_type(t)}" for i, t in pairs)
        lines += [
            "",
            f"func @{label(function.name)}({parameters}) -> {_types(function.results)} {{",
        ]
        lines += [f"  {print_instruction(i)}" for i in function.body]
        lines.append(f"  return {_ids(function.result_ids)}".rstrip())
        for hint in function.hints:
            lines += _hint(hint)
        lines.append("}")
    for region in program.regions:
        lines += [
            "",
            f"region ^{region.id}{_types(region.parameters)} -> {_types(region.results)} {{",
        ]
        lines += [f"  {print_instruction(i)}" for i in region.body]
        lines += [f"  return {_ids(region.result_ids)}".rstrip(), "}"]
    return "\n".join(lines) + "\n"


def _hint(hint: HintRegion) -> list[str]:
    head = f"hint {hint.id} {hint.kind} {hint.policy}"
    attrs = f" {_print(Attributes(), hint.attrs)}" if hint.attrs else ""
    return [
        f"  {head} inputs({_ids(hint.inputs)}) exports({_ids(hint.exports)}){attrs} [",
        *(f"    {print_instruction(i)}" for i in hint.body),
        "  ]",
    ]


def print_instruction(instruction: Instruction) -> str:
    """One instruction on one line."""
    op = instruction.op
    operands = commas(_operand(o) for o in instruction.operands)
    attributes = print_attributes(op)
    middle = f" {{{attributes}}}" if attributes else ""
    kind = print_type(instruction.output)
    return f"%{instruction.id} = {op.mnemonic}({operands}){middle} : {kind}"


def print_attributes(op: Op) -> str:
    """The attributes of an op that its name does not already say."""
    fixed = SPELLINGS[op.mnemonic][1]
    shown = {
        name: (kind, getattr(op, name))
        for name, kind in op.all_attributes().items()
        if name not in fixed and getattr(op, name) is not None
    }
    return commas(f"{name}={_print(kind, value)}" for name, (kind, value) in shown.items())


def print_op(op: Op) -> str:
    """An op on its own: its name and its attributes."""
    attributes = print_attributes(op)
    return f"{op.mnemonic} {{{attributes}}}" if attributes else op.mnemonic


def print_type(kind: ValueType) -> str:
    if isinstance(kind, TupleType):
        return _types(kind.elements)
    return f"{kind.dtype}{_shape(kind.shape)}"


def _types(kinds: Iterable[ValueType]) -> str:
    return f"({commas(map(print_type, kinds))})"


def _ids(ids: Iterable[int]) -> str:
    return commas(f"%{i}" for i in ids)


def _dim(dim: Dim) -> str:
    return f"?{label(dim.name)}" if isinstance(dim, Symbol) else str(dim)


def _shape(shape: Shape) -> str:
    return f"[{commas(map(_dim, shape))}]"


def _operand(operand: Operand) -> str:
    return print_literal(operand) if isinstance(operand, TensorLiteral) else str(operand)


def print_literal(literal: TensorLiteral) -> str:
    """A literal in decimals where they are short and exact, else as hex bytes."""
    return f"{print_type(literal.type)}<{_decimals(literal) or '0x' + literal.data.hex()}>"


def _decimals(literal: TensorLiteral) -> str:
    if len(literal.data) > SHORT_LITERAL * literal.type.dtype.storage_bytes:
        return ""
    try:
        texts = [_element(value, literal.type.dtype) for value in literal.array.reshape(-1)]
        same = _from_decimals(texts, literal.type)
    except (SpecViolation, UserError, ValueError, OverflowError):
        return ""
    return commas(texts) if same.data == literal.data else ""


def _element(value: Any, dtype: DType) -> str:
    if dtype is I1:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_complex:
        return f"({float(value.real)!r}, {float(value.imag)!r})"
    return repr(float(value))


def _print(kind: SchemaKind, value: Any) -> str:
    match kind:
        case Maybe():
            return _print(kind.inner, value)
        case ListOf():
            return f"[{commas(_print(kind.inner, item) for item in value)}]"
        case Pair():
            return f"({commas(_print(kind.inner, item) for item in value)})"
        case Bool():
            return "true" if value else "false"
        case String():
            return quoted(value)
        case Float():
            return repr(value)
        case Number():
            return str(value).lower() if isinstance(value, bool) else repr(value)
        case Dimension():
            return _dim(value)
        case ShapeOf():
            return _shape(value)
        case NewDimension():
            return "infer" if value is INFER else _dim(value)
        case ScalarOf():
            return _scalar(value)
        case LiteralOf():
            return print_literal(value)
        case Attributes():
            return "{" + commas(f"{label(name)}={_attr(attr)}" for name, attr in value) + "}"
        case _:
            return str(value)


def _scalar(scalar: ScalarLiteral) -> str:
    value = scalar.value
    if isinstance(value, complex):
        return f"complex ({value.real!r}, {value.imag!r})"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{scalar.tag.lower()} {text}"


_SCALAR_KINDS: dict[str, SchemaKind] = {
    ScalarTag.I1: Bool(),
    ScalarTag.SIGNED: Isize(),
    ScalarTag.UNSIGNED: Usize(),
    ScalarTag.FLOAT: Float(),
}
_ATTR_ITEMS: dict[str, SchemaKind] = {
    "I64": Isize(),
    "F64": Float(),
    "Bool": Bool(),
    "String": String(),
}


def _attr_kind(kind: AttrKind) -> SchemaKind:
    item = _ATTR_ITEMS[kind.value.removesuffix("Array")]
    return ListOf(item) if kind.value.endswith("Array") else item


def _attr(attr: Attr) -> str:
    return f"{attr.kind} {_print(_attr_kind(attr.kind), attr.value)}"


# -- parsing -------------------------------------------------------------------------------------


def parse_program(text: str) -> Program:
    """The program of a text; structure is checked, meaning is not."""
    return from_wire(_Parser(text).program())


def parse_op(text: str) -> Op:
    """The op that `print_op` printed."""
    parser = _Parser(text)
    op = parser.op(())
    if not parser.tokens.at_end:
        parser.tokens.fail("expected the end")
    return op


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = TokenStream(text)
        self.types: dict[int, ValueType] = {}

    def program(self) -> Program:
        tokens = self.tokens
        version = tokens.name("the version")
        if version != SPEC_VERSION:
            raise SpecViolation(
                "SpecVersionMismatch",
                f"the file is of version {version[:40]!r}, expected {SPEC_VERSION!r}",
            )
        tokens.expect("entry")
        entry = self.symbol("@")
        functions: list[Function] = []
        regions: list[Region] = []
        while not tokens.at_end:
            if tokens.accept("func"):
                functions.append(self.function())
            elif tokens.accept("region"):
                regions.append(self.region())
            else:
                tokens.fail("expected 'func' or 'region'")
        return Program(entry, tuple(functions), tuple(regions))

    def symbol(self, mark: str) -> str:
        self.tokens.expect(mark)
        return self.tokens.label()

    def function(self) -> Function:
        name = self.symbol("@")
        parameters = self.tokens.listed(self.parameter, "(", ")")
        self.types = dict(parameters)
        self.tokens.expect("->")
        results = self.tokens.listed(self.value_type, "(", ")")
        body, result_ids = self.body()
        hints: list[HintRegion] = []
        while self.tokens.accept("hint"):
            hints.append(self.hint())
        self.tokens.expect("}")
        return Function(
            name,
            tuple(kind for _, kind in parameters),
            tuple(value_id for value_id, _ in parameters),
            tuple(results),
            body,
            tuple(hints),
            result_ids,
        )

    def region(self) -> Region:
        self.tokens.expect("^")
        region_id = self.number_up_to(USIZE_MAX, "a region id")
        parameters = tuple(self.tokens.listed(self.value_type, "(", ")"))
        self.types = dict(enumerate(parameters))
        self.tokens.expect("->")
        results = tuple(self.tokens.listed(self.value_type, "(", ")"))
        body, result_ids = self.body()
        self.tokens.expect("}")
        return Region(region_id, parameters, body, results, result_ids)

    def parameter(self) -> tuple[int, ValueType]:
        value_id = self.value_id()
        self.tokens.expect(":")
        return value_id, self.value_type()

    def value_id(self) -> int:
        self.tokens.expect("%")
        return self.number_up_to(U32_MAX, "a value id")

    def number_up_to(self, most: int, what: str) -> int:
        offset = self.tokens.current.offset
        number = self.tokens.integer(what)
        if not 0 <= number <= most:
            self.tokens.reject(f"{number} is not {what}: it must be from 0 to {most}", offset)
        return number

    def body(self) -> tuple[tuple[Instruction, ...], tuple[int, ...]]:
        self.tokens.expect("{")
        instructions: list[Instruction] = []
        while self.tokens.current.text == "%":
            instructions.append(self.instruction())
        self.tokens.expect("return")
        ids: list[int] = []
        while self.tokens.current.text == "%":
            ids.append(self.value_id())
            if not self.tokens.accept(","):
                break
        return tuple(instructions), tuple(ids)

    def hint(self) -> HintRegion:
        tokens = self.tokens
        hint_id = self.number_up_to(U32_MAX, "a hint id")
        kind: Any = self.choice(HintKind)
        policy: Any = self.choice(HintPolicy)
        tokens.expect("inputs")
        inputs = tuple(tokens.listed(self.value_id, "(", ")"))
        tokens.expect("exports")
        exports = tuple(tokens.listed(self.value_id, "(", ")"))
        attrs: AttrMap = self.attributes() if tokens.current.text == "{" else ()
        tokens.expect("[")
        body: list[Instruction] = []
        while not tokens.accept("]"):
            body.append(self.instruction())
        return HintRegion(hint_id, kind, policy, inputs, exports, tuple(body), attrs)

    def instruction(self) -> Instruction:
        value_id = self.value_id()
        self.tokens.expect("=")
        offset = self.tokens.current.offset
        mnemonic = self.mnemonic()
        operands = tuple(self.tokens.listed(self.operand, "(", ")"))
        op = self.made(mnemonic, operands, offset)
        self.tokens.expect(":")
        output = self.value_type()
        self.types[value_id] = output
        return Instruction(value_id, op, operands, output)

    def op(self, operands: Sequence[Operand]) -> Op:
        offset = self.tokens.current.offset
        return self.made(self.mnemonic(), operands, offset)

    def mnemonic(self) -> str:
        offset, name = self.tokens.current.offset, self.tokens.name("an op")
        if name not in SPELLINGS:
            self.tokens.reject(f"there is no op {name[:40]!r}", offset, "UnknownOp")
        return name

    def made(self, mnemonic: str, operands: Sequence[Operand], offset: int) -> Op:
        cls, fixed = SPELLINGS[mnemonic]
        kinds = {n: k for n, k in cls.all_attributes().items() if n not in fixed}
        given = self.op_attributes(mnemonic, kinds)
        for name in kinds:
            if name not in given and name not in _optional(cls):
                self.tokens.reject(f"{mnemonic} needs the attribute {name!r}", offset)
        try:
            return cls.make([self.type_of(o) for o in operands], **fixed, **given)
        except SpecViolation as error:
            raise error.at(self.tokens.where(offset)) from None

    def op_attributes(self, mnemonic: str, kinds: Mapping[str, SchemaKind]) -> dict[str, Any]:
        given: dict[str, Any] = {name: None for name, k in kinds.items() if isinstance(k, Maybe)}
        seen: set[str] = set()

        def item() -> None:
            offset = self.tokens.current.offset
            name = self.tokens.name("an attribute")
            if name not in kinds:
                known = commas(kinds) or "none"
                self.tokens.reject(
                    f"{mnemonic} has no attribute {name!r}; its attributes are {known}", offset
                )
            if name in seen:
                self.tokens.reject(f"the attribute {name!r} is given twice", offset)
            self.tokens.expect("=")
            given[name] = self.value(kinds[name])
            seen.add(name)

        if self.tokens.current.text == "{":
            self.tokens.listed(item, "{", "}")
        return given

    def type_of(self, operand: Operand) -> ValueType:
        try:
            return operand_type(operand, self.types)
        except SpecViolation:
            return TupleType(())

    def operand(self) -> Operand:
        if self.tokens.current.text != "%":
            return self.literal()
        value_id = self.value_id()
        if not self.tokens.accept("["):
            return Ref(value_id)
        index = self.number_up_to(USIZE_MAX, "a tuple index")
        self.tokens.expect("]")
        return ElementRef(value_id, index)

    def value_type(self, depth: int = 0) -> ValueType:
        if depth > MAX_NESTING:
            offset = self.tokens.current.offset
            self.tokens.reject("a tuple type nests too deep", offset, "NestingTooDeep")
        if self.tokens.current.text == "(":
            return TupleType(
                tuple(self.tokens.listed(lambda: self.value_type(depth + 1), "(", ")"))
            )
        return TensorType(self.dtype(), self.shape())

    def dtype(self) -> DType:
        if self.tokens.current.text not in BY_NAME:
            self.tokens.fail("expected a dtype")
        return BY_NAME[self.tokens.name()]

    def shape(self) -> Shape:
        return tuple(self.tokens.listed(self.dim))

    def dim(self) -> Dim:
        if self.tokens.accept("?"):
            return Symbol(self.tokens.label())
        offset = self.tokens.current.offset
        size = self.tokens.integer("a dimension")
        if size < 0:
            self.tokens.reject(f"dimension {size} is negative", offset, "NegativeDimension")
        if size > USIZE_MAX:
            self.tokens.reject(f"dimension {size} is more than {USIZE_MAX}", offset)
        return size

    def literal(self) -> TensorLiteral:
        start = self.tokens.current.offset
        kind = self.value_type()
        if not isinstance(kind, TensorType):
            self.tokens.reject("a literal is a tensor, not a tuple", start)
        self.tokens.expect("<")
        if self.tokens.current.kind == "hex":
            blob = self.tokens.take().text[2:]
            self.tokens.expect(">")
            if len(blob) % 2:
                self.tokens.reject("hex bytes come in pairs; one digit is missing", start)
            return TensorLiteral(kind, bytes.fromhex(blob))
        texts: list[str] = []
        while not self.tokens.accept(">"):
            if texts:
                self.tokens.expect(",")
            texts.append(self.element())
        try:
            return _from_decimals(texts, kind)
        except (ValueError, OverflowError, SpecViolation, UserError) as error:
            why = f"these values do not make a {print_type(kind)}: {error}"
            self.tokens.reject(why, start, "LiteralInvalid")

    def element(self) -> str:
        if self.tokens.current.text == "(":
            real, imaginary = self.pair(Float())
            return f"({real!r}, {imaginary!r})"
        if self.tokens.current.kind not in ("number", "name"):
            self.tokens.fail("expected a value")
        return self.tokens.take().text

    def choice(self, enum: type[WireEnum]) -> WireEnum:
        text = self.tokens.current.text
        for member in enum:
            if str(member) == text:
                self.tokens.take()
                return member
        self.tokens.fail("expected one of " + ", ".join(map(str, enum)))

    def pair(self, inner: SchemaKind) -> tuple[Any, Any]:
        items = self.tokens.listed(lambda: self.value(inner), "(", ")")
        if len(items) != 2:
            self.tokens.fail("expected a pair before here")
        return items[0], items[1]

    def attributes(self) -> AttrMap:
        def item() -> tuple[str, Attr]:
            name = self.tokens.label()
            self.tokens.expect("=")
            kind: Any = self.choice(AttrKind)
            offset = self.tokens.current.offset
            value = self.value(_attr_kind(kind))
            try:
                return name, Attr(kind, _attr_kind(kind).check(value))
            except SpecViolation as error:
                self.tokens.reject(error.why, offset, error.code)

        start = self.tokens.current.offset
        found = self.tokens.listed(item, "{", "}")
        if len(dict(found)) != len(found):
            self.tokens.reject("an attribute is given twice", start)
        return tuple(sorted(found, key=lambda pair: pair[0]))

    def scalar(self) -> ScalarLiteral:
        tags = {tag.lower(): tag for tag in ScalarTag.ORDER}
        if self.tokens.current.text not in tags:
            self.tokens.fail("expected one of " + ", ".join(tags))
        tag = tags[self.tokens.name()]
        if tag == ScalarTag.COMPLEX:
            return ScalarLiteral(tag, complex(*self.pair(Float())))
        return ScalarLiteral(tag, self.value(_SCALAR_KINDS[tag]))

    def plain_number(self) -> bool | int | float:
        text = self.tokens.current.text
        if text in ("true", "false"):
            return self.tokens.take().text == "true"
        whole = text.lstrip("+-").isdecimal()
        return self.tokens.integer() if whole else self.tokens.number()

    def value(self, kind: SchemaKind) -> Any:
        tokens = self.tokens
        match kind:
            case Maybe():
                return self.value(kind.inner)
            case ListOf():
                return tuple(tokens.listed(lambda: self.value(kind.inner)))
            case Pair():
                return self.pair(kind.inner)
            case Usize() | Isize():
                return tokens.integer()
            case Bool():
                if tokens.current.text not in ("true", "false"):
                    tokens.fail("expected true or false")
                return tokens.take().text == "true"
            case Float():
                return tokens.number()
            case Number():
                return self.plain_number()
            case String():
                return tokens.string()
            case Choice():
                return self.choice(kind.enum)
            case DTypeOf():
                return self.dtype()
            case Dimension():
                return self.dim()
            case ShapeOf():
                return self.shape()
            case NewDimension():
                return INFER if tokens.accept("infer") else self.dim()
            case ScalarOf():
                return self.scalar()
            case LiteralOf():
                return self.literal()
            case Attributes():
                return self.attributes()


def _optional(cls: type[Op]) -> set[str]:
    """The attributes that may be left out because they have a default."""
    return {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING}


def _from_decimals(texts: list[str], kind: TensorType) -> TensorLiteral:
    """The literal with these elements; raises `ValueError` where one does not parse."""
    dtype = kind.dtype
    if len(texts) != kind.size:
        raise ValueError(f"there are {len(texts)} of them, not {kind.size}")
    if dtype is I1:
        if not {"true", "false"}.issuperset(texts):
            raise ValueError("i1 is written as true and false")
        values: list[Any] = [t == "true" for t in texts]
    elif dtype.is_integer:
        values = [int(t) for t in texts]
        if any(not dtype.lowest <= v <= dtype.highest for v in values):
            raise ValueError(f"they must be from {dtype.lowest} to {dtype.highest}")
    elif dtype.is_complex:
        values = [complex(*map(float, t.strip("()").split(","))) for t in texts]
    else:
        values = [float(t) for t in texts]
        if any(math.isnan(v) for v in values):
            raise ValueError("NaN has many bit patterns; it is written in hex")
    with np.errstate(all="ignore"):
        array = np.array(values, dtype=_wide(dtype)).reshape(kind.static_shape)
        return from_array(array.astype(dtype.numpy))


def _wide(dtype: DType) -> Any:
    if dtype.is_integer or dtype is I1:
        return dtype.numpy
    return np.complex128 if dtype.is_complex else np.float64
