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
from collections.abc import Iterator
from typing import Any, Final, NoReturn

from weft.core_ir.attribute_text import UNPARSABLE, AttributeReader, settle_data
from weft.core_ir.instructions import (
    BINARY,
    CONSTANTS,
    EXTENSIONS,
    I64_MAX,
    INSTRUCTIONS,
    Instruction,
    Kind,
    near,
    show_attribute,
    wholes,
)
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.literals import Unreadable, print_data
from weft.core_ir.types import Shape
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.text import TokenStream
from weft.ptir.literal import TensorLiteral

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
    lines.append(f"outputs: {_ids_text(module.outputs)}".rstrip())
    return "\n".join(lines) + "\n"


def print_operation(op: CoreOperation) -> str:
    """One operation on one line."""
    declared = wholes(op.attributes, "shape") if op.opcode == "ConstTensor" else ()
    shown = ", ".join(
        f"{name}={_attribute_text(value, declared)}" for name, value in op.attributes.items()
    )
    attributes = f" {{{shown}}}" if shown else ""
    return f"%{op.value_id} = {op.opcode} ({_ids_text(op.operands)}){attributes} : {op.result_type}"


def _attribute_text(value: Any, declared: Shape) -> str:
    if isinstance(value, TensorLiteral | Unreadable):
        return print_data(value, declared)
    return show_attribute(value)


def _ids_text(ids: tuple[int, ...]) -> str:
    return ", ".join(f"%{value_id}" for value_id in ids)


# -- parsing -------------------------------------------------------------------------------------


def parse_module(text: str) -> Module:
    """The module of a text in either encoding; structure is checked, meaning is not."""
    return _Parser(text).module()


class _Parser(AttributeReader):
    def __init__(self, text: str) -> None:
        super().__init__(TokenStream(text, UNPARSABLE))
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
                settle_data(opcode, given, kind)
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
        choices = f"one of {', '.join(BINARY)}"
        if name is None:
            self.tokens.reject(f"BinOp needs {choices}", offset)
        if name not in BINARY:
            where = self.tokens.where(offset)
            what = f"BinOp has no operation {str(name)[:40]!r}"
            raise SpecViolation(UNKNOWN_OPCODE, what, f"it is {choices}", where)
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

    # -- slices ----------------------------------------------------------------------------------

    def ranges(self, given: dict[str, Any], expected: Iterator[object]) -> None:
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


_BINOP: Final = Instruction("BinOp", ("lhs", "rhs"), {"op": Kind.TEXT}, "Add, Sub, Mul or Div")
