"""Core IR as text: both encodings are read, the first one is written.

The first:

    %0 = Input () {name=x} : tensor<f32[2, 3]>
    %1 = Sum (%0) {axes=[1], keepdims=false} : tensor<f32[2]>
    %2 = Slice (%1) {ends=[2], starts=[0], steps=[1]} : tensor<f32[2]>
    %3 = Add (%1, %2) : tensor<f32[2]>
    outputs: %3

The second:

    %0 = Input() {name: "x"} : Tensor<f32, [2, 3]>
    %1 = Sum(%0, [1], false) : Tensor<f32, [2]>
    %2 = Slice(%1, [0:2:1]) : Tensor<f32, [2]>
    %3 = BinOp(Add, %1, %2) : Tensor<f32, [2]>
    outputs: %3

They differ in where attributes stand, and may be mixed: what is not a value in the parentheses is
an attribute, in the order of the instruction table. Comments run from `#` to the end of the line.
A first line `extensions: div, gradient` switches extensions on. Printing is byte-stable: attributes
are sorted, numbers are the shortest that read back, and parsing what was printed gives an equal
module.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from weft.core_ir.instructions import (
    BINARY,
    CONSTANTS,
    EXTENSIONS,
    I64_MAX,
    I64_MIN,
    INSTRUCTIONS,
    Instruction,
    Kind,
    Padding,
    near,
    show_attribute,
)
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.literals import (
    Data,
    Numbers,
    Unreadable,
    literal_of,
    literal_of_bytes,
    nested_shape,
    print_data,
)
from weft.core_ir.types import DTYPES, TensorType
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.limits import Limits
from weft.foundation.text import TokenStream
from weft.ptir.literal import TensorLiteral

Item = TypeVar("Item")

UNPARSABLE: Final = "E0101"
UNKNOWN_OPCODE: Final = "E0102"
CONTROL_FLOW: Final = "E0103"
_CONTROL_WORDS: Final = re.compile(
    r"(?:scf|cf|func|affine)\..*|func|function|fn|module|block|region|bb\d*|if|else|while|for|loop"
    r"|scan|br|branch|cond|condbr|cond_br|condbranch|jump|goto|switch|case|phi|return|ret|yield"
    r"|call",
    re.IGNORECASE,
)
_ALIASES: Final = {("ConstTensor", "value"): "data", ("Transpose", "perm"): "permutation"}
"""Names of attributes that other writers use."""
_NUMBERED: Final = re.compile(r"%\s*([0-9]{1,19})(?![0-9])")


# -- printing ------------------------------------------------------------------------------------


def print_module(module: Module) -> str:
    """The text of a module, in the first encoding; `parse_module` reads it back."""
    lines = []
    if module.extensions:
        lines.append(f"extensions: {', '.join(sorted(module.extensions))}")
    lines += map(print_operation, module.operations)
    lines.append(f"outputs: {_values(module.outputs)}".rstrip())
    return "\n".join(lines) + "\n"


def print_operation(op: CoreOperation) -> str:
    """One operation on one line."""
    shown = ", ".join(f"{name}={_value(value)}" for name, value in op.attributes.items())
    attributes = f" {{{shown}}}" if shown else ""
    return f"%{op.value_id} = {op.opcode} ({_values(op.operands)}){attributes} : {op.result_type}"


def _value(value: Any) -> str:
    if isinstance(value, TensorLiteral | Unreadable):
        return print_data(value)
    return show_attribute(value)


def _values(ids: tuple[int, ...]) -> str:
    return ", ".join(f"%{value_id}" for value_id in ids)


# -- parsing -------------------------------------------------------------------------------------


def parse_module(text: str) -> Module:
    """The module of a text in either encoding; structure is checked, meaning is not."""
    return _Parser(text).module()


class _Blob:
    """Data as hex bytes, or numbers, until the type of the constant is known."""

    def __init__(self, numbers: Numbers | None, blob: str = "") -> None:
        self.numbers = numbers
        self.blob = blob


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = TokenStream(text, UNPARSABLE)
        self.names: dict[str, int] = {}
        """Numbers for the values that the text calls by a name."""

    # -- the module ------------------------------------------------------------------------------

    def module(self) -> Module:
        extensions = self.extensions()
        operations: list[CoreOperation] = []
        offsets: list[int] = []
        while self.tokens.current.text == "%":
            offsets.append(self.tokens.current.offset)
            operations.append(self.operation())
        if self.tokens.current.text != "outputs":
            self.unexpected("expected an operation '%id = ...' or 'outputs:'")
        offsets.append(self.tokens.take().offset)
        self.tokens.expect(":")
        outputs = self.outputs()
        if not self.tokens.at_end:
            self.unexpected("expected the end after the outputs")
        ends = [match.start() for match in re.finditer("\n", self.tokens.text)]
        lines = tuple(bisect_right(ends, offset) + 1 for offset in offsets)
        return Module(tuple(operations), tuple(outputs), extensions, lines)

    def extensions(self) -> frozenset[str]:
        if not self.tokens.accept("extensions"):
            return frozenset()
        self.tokens.expect(":")
        names = [self.extension()]
        while self.tokens.accept(","):
            names.append(self.extension())
        return frozenset(names)

    def extension(self) -> str:
        offset, name = self.tokens.current.offset, self.tokens.name("an extension")
        if name not in EXTENSIONS:
            known = ", ".join(EXTENSIONS)
            self.tokens.reject(
                f"there is no extension {name[:40]!r}; the extensions are {known}", offset
            )
        return name

    def outputs(self) -> list[int]:
        found: list[int] = []
        while self.tokens.current.text == "%":
            found.append(self.value_id())
            if not self.tokens.accept(","):
                break
        return found

    def unexpected(self, why: str) -> NoReturn:
        """A complaint that tells blocks and control flow from other text."""
        token = self.tokens.current
        is_block = token.kind == "mark" and token.text in ("^", "{", "}")
        if is_block or (token.kind == "name" and _CONTROL_WORDS.fullmatch(token.text)):
            self.control_flow(token.offset)
        self.tokens.fail(why)

    def control_flow(self, offset: int) -> NoReturn:
        raise SpecViolation(
            CONTROL_FLOW,
            "a Core IR module is a flat list of operations; it has no blocks and no control flow",
            "write PTIR where control flow is needed",
            self.tokens.where(offset),
        )

    # -- operations ------------------------------------------------------------------------------

    def value_id(self) -> int:
        self.tokens.expect("%")
        token = self.tokens.current
        if token.kind == "name":
            self.tokens.take()
            return self.named(token.text)
        number = self.tokens.integer("a value id")
        if not 0 <= number <= I64_MAX:
            self.tokens.reject("a value id is a number from 0 to 2^63 - 1", token.offset)
        return number

    def named(self, name: str) -> int:
        if not self.names:
            numbers = map(int, _NUMBERED.findall(self.tokens.text))
            self.highest = max((n for n in numbers if n < I64_MAX // 2), default=-1)
        return self.names.setdefault(name, self.highest + 1 + len(self.names))

    def operation(self) -> CoreOperation:
        value_id = self.value_id()
        self.tokens.expect("=")
        offset = self.tokens.current.offset
        opcode = self.opcode()
        operands, given = self.arguments(opcode)
        opcode = self.binary(given, offset) if opcode == "BinOp" else opcode
        self.tokens.expect(":")
        kind = self.type()
        try:
            if opcode in CONSTANTS:
                self.settle_data(opcode, given, kind)
            return CoreOperation(value_id, opcode, tuple(operands), given, kind)
        except UserError as error:
            self.tokens.reject(str(error), offset)

    def opcode(self) -> str:
        token = self.tokens.current
        name = self.tokens.name("an opcode")
        if name in INSTRUCTIONS or name == "BinOp":
            return name
        if _CONTROL_WORDS.fullmatch(name):
            self.control_flow(token.offset)
        where = self.tokens.where(token.offset)
        raise SpecViolation(UNKNOWN_OPCODE, f"there is no opcode {name[:40]!r}", near(name), where)

    def binary(self, given: dict[str, Any], offset: int) -> str:
        name = given.pop("op", None)
        if name not in BINARY:
            self.tokens.reject(f"BinOp needs one of {', '.join(BINARY)}", offset)
        return str(name)

    def arguments(self, opcode: str) -> tuple[list[int], dict[str, Any]]:
        """Values and attributes, wherever they stand."""
        row = INSTRUCTIONS.get(opcode, _BINOP)
        operands: list[int] = []
        given: dict[str, Any] = {}
        expected = iter(row.attributes.items())

        def argument() -> None:
            if self.tokens.current.text == "%":
                operands.append(self.value_id())
                return
            name, kind = next(expected, ("", None))
            if kind is None:
                self.tokens.fail(f"{opcode} takes no more attributes; expected a value")
            if opcode == "Slice" and name == "starts":
                self.ranges(given, expected)
            else:
                given[name] = self.attribute(kind)

        if self.tokens.current.text == "(":
            self.listed(argument, "(", ")")
        if self.tokens.current.text == "{":
            self.attributes(row, given)
        return operands, given

    def attributes(self, row: Instruction, given: dict[str, Any]) -> None:
        def item() -> None:
            token = self.tokens.current
            if token.text in ("%", "^"):
                self.control_flow(token.offset)
            name = self.tokens.name("an attribute")
            name = _ALIASES.get((row.opcode, name), name)
            if name not in row.attributes:
                known = ", ".join(row.attributes) or "none"
                self.tokens.reject(
                    f"{row.opcode} has no attribute {name[:40]!r}; its attributes are {known}",
                    token.offset,
                )
            if name in given:
                self.tokens.reject(f"the attribute {name!r} is given twice", token.offset)
            if not self.tokens.accept(":"):
                self.tokens.expect("=")
            given[name] = self.attribute(row.attributes[name])

        self.listed(item, "{", "}")

    # -- attributes ------------------------------------------------------------------------------

    def attribute(self, kind: Kind) -> Any:
        match kind:
            case Kind.WHOLES:
                return self.wholes()
            case Kind.WHOLE:
                return self.whole()
            case Kind.FLAG:
                return self.flag()
            case Kind.TEXT:
                return self.tokens.label()
            case Kind.DTYPE:
                return self.dtype()
            case Kind.PADDING:
                return self.padding()
            case Kind.DATA:
                return self.data()

    def whole(self) -> int:
        offset = self.tokens.current.offset
        number = self.tokens.integer()
        if not I64_MIN <= number <= I64_MAX:
            self.tokens.reject("the number does not fit in 64 bits", offset)
        return number

    def wholes(self) -> tuple[int, ...]:
        """A list; other writers put round brackets around it."""
        if self.tokens.current.text == "(":
            return tuple(self.listed(self.whole, "(", ")"))
        return tuple(self.listed(self.whole))

    def flag(self) -> bool:
        if self.tokens.current.text.lower() not in ("true", "false"):
            self.tokens.fail("expected true or false")
        return self.tokens.take().text.lower() == "true"

    def dtype(self) -> DType:
        token = self.tokens.current
        if token.kind == "name" and token.text not in DTYPES:
            self.tokens.reject(
                f"{token.text[:40]!r} is not a dtype of Core IR; they are {', '.join(DTYPES)}",
                token.offset,
                "E2005",
            )
        return DTYPES[self.tokens.name("a dtype")]

    def padding(self) -> Padding:
        if self.tokens.accept("Custom"):
            self.tokens.expect("(")
            pairs = self.listed(self.wholes)
            self.tokens.expect(")")
            return Padding("Custom", tuple(pairs))
        if self.tokens.current.text not in ("Valid", "Same"):
            self.tokens.fail("expected Valid, Same or Custom([[low, high], [low, high]])")
        return Padding(self.tokens.take().text)

    def ranges(self, given: dict[str, Any], expected: Any) -> None:
        """`[0:2, 1:9:2]`, or a plain list of starts."""
        found = self.listed(self.range)
        starts = [item[0] for item in found]
        if all(len(item) == 1 for item in found) and found:
            given["starts"] = starts
            return
        if any(len(item) == 1 for item in found):
            self.tokens.fail("expected start:end or start:end:step for every axis before here")
        given["starts"] = starts
        for position, name in enumerate(("ends", "steps"), start=1):
            given[name] = [item[position] if position < len(item) else 1 for item in found]
            next(expected)

    def range(self) -> list[int]:
        bounds = [self.whole()]
        while len(bounds) < 3 and self.tokens.accept(":"):
            bounds.append(self.whole())
        return bounds

    def data(self) -> _Blob:
        """Hex bytes, a number, or nested lists of numbers."""
        tokens = self.tokens
        if tokens.current.kind == "hex":
            return _Blob(None, tokens.take().text[2:])
        start = tokens.current.offset
        rows: list[Any] = []
        stack = [rows]
        while True:
            if tokens.current.text in ("[", "("):
                if len(stack) > Limits.rank + 1:
                    tokens.fail(f"expected lists that nest at most {Limits.rank} deep")
                tokens.take()
                stack.append([])
                if tokens.current.text not in ("]", ")"):
                    continue
            else:
                stack[-1].append(self.number())
            while len(stack) > 1 and not self.more(stack):
                closed = stack.pop()
                stack[-1].append(closed)
            if len(stack) == 1:
                break
        end = tokens.current.offset
        texts: list[str] = []
        shape = nested_shape(rows[0], texts.append)
        return _Blob(Numbers(tuple(texts), shape, tokens.text[start:end].strip()))

    def more(self, stack: list[list[Any]]) -> bool:
        """Whether another item follows in the innermost list; its end is taken."""
        if self.tokens.accept(",") and self.tokens.current.text not in ("]", ")"):
            return True
        if not self.tokens.accept("]"):
            self.tokens.expect(")")
        return False

    def number(self) -> str:
        if self.tokens.current.kind != "number":
            self.tokens.fail("expected a number")
        return self.tokens.take().text

    def settle_data(self, opcode: str, given: dict[str, Any], kind: TensorType) -> None:
        """Data become a tensor of the declared type; what the type says need not be repeated."""
        if opcode == "ConstTensor":
            given.setdefault("dtype", kind.dtype)
            given.setdefault("shape", kind.shape)
        name = "data" if opcode == "ConstTensor" else "value"
        found = given.get(name)
        if isinstance(found, _Blob):
            shape = tuple(given.get("shape", ()))
            given[name] = _data(found, given.get("dtype", kind.dtype), shape)

    # -- types and lists -------------------------------------------------------------------------

    def type(self) -> TensorType:
        if self.tokens.current.text not in ("tensor", "Tensor"):
            self.tokens.fail("expected a type such as tensor<f32[2, 3]>")
        self.tokens.take()
        self.tokens.expect("<")
        dtype = self.dtype()
        self.tokens.accept(",")
        shape = tuple(self.listed(self.dim))
        self.tokens.expect(">")
        return TensorType(dtype, shape)

    def dim(self) -> int:
        if self.tokens.current.text == "?":
            self.tokens.reject(
                "a dim is a number; Core IR has no dynamic dims",
                self.tokens.current.offset,
                "E3006",
            )
        return self.whole()

    def listed(self, item: Callable[[], Item], open_: str = "[", close: str = "]") -> list[Item]:
        """Items between two marks; a comma may follow the last."""
        self.tokens.expect(open_)
        items: list[Item] = []
        while not self.tokens.accept(close):
            if items:
                self.tokens.expect(",")
                if self.tokens.accept(close):
                    break
            items.append(item())
        return items


_BINOP: Final = Instruction("BinOp", ("lhs", "rhs"), {"op": Kind.TEXT}, "Add, Sub, Mul or Div")


def _data(found: _Blob, dtype: DType, shape: tuple[int, ...]) -> Data:
    if found.numbers is not None:
        return literal_of(found.numbers, dtype)
    if len(found.blob) % 2:
        return Unreadable(f"0x{found.blob}", "E4005", "hex bytes come in pairs; a digit is missing")
    return literal_of_bytes(bytes.fromhex(found.blob), dtype, shape, f"0x{found.blob}")
