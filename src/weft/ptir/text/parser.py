"""Programs and ops from text. Structure is checked, meaning is not; every complaint has a line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from weft.foundation.dtypes import BY_NAME, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.text import TokenStream, commas
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
from weft.ptir.literal import ScalarLiteral, ScalarTag, TensorLiteral
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
from weft.ptir.text.decimals import from_decimals
from weft.ptir.text.printer import attr_kind, print_type
from weft.ptir.types import Dim, Shape, Symbol, TensorType, TupleType, ValueType

MAX_NESTING = 64
U32_MAX = 2**32 - 1
_TENSOR = re.compile(r'[a-z][a-z0-9_]*\[[^]"#]*\]')
"""A tensor type in which no name is quoted: it ends at the first bracket."""
_SCALAR_KINDS: dict[str, SchemaKind] = {
    ScalarTag.I1: Bool(),
    ScalarTag.SIGNED: Isize(),
    ScalarTag.UNSIGNED: Usize(),
    ScalarTag.FLOAT: Float(),
}


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
        self.tensors: dict[str, TensorType] = {}
        """Types by how they are written: most of a program's are the same few."""
        self.plain: dict[str, Op] = {}
        """Ops without attributes, by name."""

    def program(self) -> Program:
        tokens = self.tokens
        version = tokens.name("the version")
        if not version.startswith("ptir."):
            raise SpecViolation(
                "SpecVersionMismatch",
                f"the text begins with {version[:40]!r}, but a program begins with "
                f"{SPEC_VERSION!r}",
            )
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
        is_plain = self.tokens.current.text != "{"
        if is_plain and mnemonic in self.plain:
            return self.plain[mnemonic]
        cls, fixed = SPELLINGS[mnemonic]
        kinds = {n: k for n, k in cls.all_attributes().items() if n not in fixed}
        given = self.op_attributes(mnemonic, kinds)
        for name in kinds:
            if name not in given and name not in _optional(cls):
                self.tokens.reject(f"{mnemonic} needs the attribute {name!r}", offset)
        try:
            op = cls.make([self.type_of(o) for o in operands], **fixed, **given)
        except SpecViolation as error:
            raise error.at(self.tokens.where(offset)) from None
        if is_plain and not kinds:
            self.plain[mnemonic] = op
        return op

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
        return self.tensor_type()

    def tensor_type(self) -> TensorType:
        written = _TENSOR.match(self.tokens.text, self.tokens.current.offset)
        if written is None:
            return TensorType(self.dtype(), self.shape())
        found = self.tensors.get(written[0])
        if found is None:
            found = self.tensors[written[0]] = TensorType(self.dtype(), self.shape())
        else:
            self.tokens.continue_at(written.end())
        return found

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
            return from_decimals(texts, kind)
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
            value = self.value(attr_kind(kind))
            try:
                return name, Attr(kind, attr_kind(kind).check(value))
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
