"""The surface language: expressions that become Core IR modules.

    x: f32[2, 3]; w: f32[3, 4];             declares free variables, which become inputs
    h = relu(x @ w);                        names a value
    sum(h * 0.5, [1], keepdims=true)        the result

    source     = (declaration ';' | binding ';')* expression
    declaration= name ':' dtype ['[' size,* ']']                       without sizes, a scalar
    binding    = name '=' expression
    expression = unary (('+' | '-' | '*' | '/' | '@') unary)*          usual precedence
    unary      = '-' unary | primary ('[' subscript ']')*
    primary    = number | list | dtype '(' number or list ')' | name | call | '(' expression ')'
    call       = function '(' expression,* attribute,* ')'             operands, then attributes
    attribute  = value | name '=' value
    subscript  = (number | [start] ':' [end] [':' step]),* | expression

Functions are the instructions in small letters: `matmul`, `expand_dims`, `conv2d`, `const_i64`. The
operators are `Add`, `Sub`, `Mul`, `Div`, `MatMul` and `Neg`; `x[1, 2]` is `Index`, `x[0:2]` is
`Slice`, `x[i]` with a tensor `i` is `Gather`. A literal is a `ConstTensor`; where it stands beside
an operand that has a dtype it takes that, and otherwise whole numbers are i64 and others f32. Every
operation is checked where it is written, before it is emitted.

One pass, no recursion: brackets are frames on a list, so expressions may nest as deep as they like.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from weft.core_ir.attribute_text import UNPARSABLE, AttributeReader, RawData, settle_data
from weft.core_ir.builder import SCALARS, ModuleBuilder
from weft.core_ir.instructions import INSTRUCTIONS, Instruction
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.rules.checks import positive_dims
from weft.core_ir.surface_tokens import SurfaceTokens
from weft.core_ir.types import DTYPES, TensorType, as_type, dtype_name, scalar, show_shape
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import F32, SI64, DType
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.literal import TensorLiteral

FUNCTIONS: Final = {row.call: row for row in INSTRUCTIONS.values() if row.opcode != "Input"}
_BINARY: Final = {
    "+": ("Add", 1), "-": ("Sub", 1), "*": ("Mul", 2), "/": ("Div", 2), "@": ("MatMul", 2)
}  # fmt: skip
_NEGATE: Final = 3
"""The precedence of the minus in front; those of the others stand beside them."""
_MIXED: Final = frozenset({"Gather", "GatherBackward"})
"""Instructions whose operands differ in dtype."""


@dataclass(frozen=True)
class Literal:
    """A literal that has no dtype yet."""

    rows: Any
    """The text of a number, or nested lists of such texts."""
    offset: int

    @property
    def is_whole(self) -> bool:
        stack = [self.rows]
        while stack:
            top = stack.pop()
            if isinstance(top, list):
                stack.extend(top)
            elif not re.fullmatch(r"-?[0-9]+", top):
                return False
        return True


Operand: TypeAlias = int | Literal


@dataclass(frozen=True)
class _Operator:
    opcode: str
    precedence: int
    offset: int


@dataclass
class _Frame:
    """An open bracket: what has been read since, and what its end will make of it."""

    row: Instruction | None = None
    """The instruction that a call stands for."""
    target: Operand | None = None
    """What a subscript is applied to."""
    offset: int = 0
    operands: list[Operand] = field(default_factory=list)
    operators: list[_Operator] = field(default_factory=list)
    arguments: list[Operand] = field(default_factory=list)


@told_outside
def from_expression(
    source: str,
    variables: Mapping[str, TensorType | str] | None = None,
    *,
    extensions: Iterable[str] = (),
) -> Module:
    """The module that an expression means. `variables` are declared beside those in the text."""
    if not isinstance(source, str):
        raise UserError(f"an expression is text, not {type(source).__name__}")
    parser = _Parser(source, extensions)
    for name, kind in (variables or {}).items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"{name!r} is not the name of a variable")
        parser.declare(name, as_type(kind), 0)
    return parser.module()


class _Parser(AttributeReader):
    def __init__(self, source: str, extensions: Iterable[str]) -> None:
        self.tokens: SurfaceTokens = SurfaceTokens(source)
        self.builder = ModuleBuilder(extensions=extensions)
        self.values: dict[str, Operand] = {}
        self.used: set[int] = set()

    # -- statements ------------------------------------------------------------------------------

    def module(self) -> Module:
        tokens = self.tokens
        while True:
            name = tokens.current
            following = tokens.peek().text if name.kind == "name" else ""
            if following == ":":
                tokens.take()
                tokens.expect(":")
                self.declare(name.text, self.short_type(), name.offset)
            elif following == "=":
                tokens.take()
                tokens.expect("=")
                self.define(name.text, self.expression(), name.offset)
            else:
                result = self.value(self.expression())
                if not tokens.at_end:
                    tokens.fail("expected an operator, ';' or the end")
                return self.finished(result)
            tokens.expect(";")

    def short_type(self) -> TensorType:
        """`f32[2, 3]`, or `f32` alone for a scalar."""
        dtype = self.dtype()
        return TensorType(
            dtype, tuple(self.listed(self.dim)) if self.tokens.current.text == "[" else ()
        )

    def declare(self, name: str, kind: TensorType, offset: int) -> None:
        try:
            positive_dims(kind.shape, "shape")
        except SpecViolation as error:
            raise error.at(self.tokens.where(offset)) from None
        self.define(name, self.builder.input(name, kind.dtype, kind.shape), offset)

    def define(self, name: str, value: Operand, offset: int) -> None:
        if name in self.values:
            self.tokens.reject(f"{name[:40]!r} is defined already", offset, "E4002")
        self.values[name] = value

    def finished(self, result: int) -> Module:
        """Inputs first, those that no expression uses left out, and numbers without gaps."""
        ops, used = self.builder.operations, {*self.used, result}
        inputs = [op for op in ops if op.opcode == "Input" and op.value_id in used]
        others = [op for op in ops if op.opcode != "Input"]
        numbers = {op.value_id: number for number, op in enumerate((*inputs, *others))}
        made = [
            CoreOperation(
                numbers[op.value_id],
                op.opcode,
                tuple(numbers[i] for i in op.operands),
                op.attributes,
                op.result_type,
            )
            for op in (*inputs, *others)
        ]
        return Module(tuple(made), (numbers[result],), self.builder.extensions)

    # -- expressions -----------------------------------------------------------------------------

    def expression(self) -> Operand:
        """Operands and operators in turn until what follows continues no bracket."""
        frames = [_Frame()]
        self.operand(frames)
        while True:
            if self.operator(frames[-1]) or self.opens_gather(frames):
                self.operand(frames)
            elif self.tokens.current.text == "[":
                self.subscript(frames[-1])
            else:
                value = self.settled(frames[-1])
                if len(frames) == 1:
                    return value
                if not self.close(frames, value):
                    self.operand(frames)

    def operand(self, frames: list[_Frame]) -> None:
        """One operand, and every bracket that opens before it."""
        tokens = self.tokens
        while True:
            token, frame = tokens.current, frames[-1]
            if tokens.accept("-"):
                frame.operators.append(_Operator("Neg", _NEGATE, token.offset))
            elif tokens.accept("("):
                frames.append(_Frame(offset=token.offset))
            elif token.kind == "number" or token.text in ("[", "inf", "nan"):
                frame.operands.append(Literal(self.data().rows, token.offset))
                return
            elif token.kind != "name":
                tokens.fail("expected a value")
            elif tokens.peek().text != "(":
                frame.operands.append(self.variable())
                return
            elif self.call(frames):
                return

    def variable(self) -> Operand:
        token = self.tokens.take()
        if token.text not in self.values:
            known = ", ".join(self.values) or "nothing"
            raise SpecViolation(
                "E4001",
                f"{token.text[:40]!r} is not declared; declared is {known}",
                f"write '{token.text[:40]}: f32[2, 3];' in front, with its type",
                self.tokens.where(token.offset),
            )
        return self.values[token.text]

    def call(self, frames: list[_Frame]) -> bool:
        """The beginning of a call; True where it is a whole operand already."""
        token = self.tokens.take()
        self.tokens.expect("(")
        if token.text in DTYPES:
            rows = self.data().rows
            self.tokens.expect(")")
            value = self.constant(Literal(rows, token.offset), DTYPES[token.text])
            frames[-1].operands.append(value)
            return True
        row = FUNCTIONS.get(token.text)
        if row is None:
            known = ", ".join(FUNCTIONS)
            raise SpecViolation(
                "E0102",
                f"there is no function {token.text[:40]!r}",
                f"the functions are {known}",
                self.tokens.where(token.offset),
            )
        if row.operands:
            frames.append(_Frame(row, offset=token.offset))
            return False
        value = self.emit(row, [], self.attributes(row), token.offset)
        frames[-1].operands.append(value)
        return True

    def operator(self, frame: _Frame) -> bool:
        """Take the operator that follows an operand, if one does."""
        token = self.tokens.current
        if token.text not in _BINARY or token.kind != "mark":
            return False
        self.tokens.take()
        opcode, precedence = _BINARY[token.text]
        self.apply(frame, precedence)
        frame.operators.append(_Operator(opcode, precedence, token.offset))
        return True

    def apply(self, frame: _Frame, precedence: int) -> None:
        """Apply the operators that bind at least as strongly, the last first."""
        while frame.operators and frame.operators[-1].precedence >= precedence:
            operator = frame.operators.pop()
            count = len(INSTRUCTIONS[operator.opcode].operands)
            operands = frame.operands[-count:]
            del frame.operands[-count:]
            frame.operands.append(self.applied(operator, operands))

    def applied(self, operator: _Operator, operands: list[Operand]) -> Operand:
        if operator.opcode == "Neg" and isinstance(operands[0], Literal):
            return Literal(_negate_rows(operands[0].rows), operands[0].offset)
        return self.emit(INSTRUCTIONS[operator.opcode], operands, {}, operator.offset)

    def settled(self, frame: _Frame) -> Operand:
        """The value of everything since the bracket opened."""
        self.apply(frame, 0)
        return frame.operands.pop()

    def close(self, frames: list[_Frame], value: Operand) -> bool:
        """End the innermost bracket, or go on to the next operand of a call (then False)."""
        frame = frames[-1]
        if frame.row is not None:
            frame.arguments.append(value)
            if len(frame.arguments) < len(frame.row.operands):
                self.tokens.expect(",")
                return False
            value = self.emit(frame.row, frame.arguments, self.attributes(frame.row), frame.offset)
        elif frame.target is not None:
            self.tokens.expect("]")
            value = self.emit(INSTRUCTIONS["Gather"], [frame.target, value], {}, frame.offset)
        else:
            self.tokens.expect(")")
        frames.pop()
        frames[-1].operands.append(value)
        return True

    def number(self) -> str:
        """The text of a number with its sign."""
        sign = "-" if self.tokens.accept("-") else ""
        if self.tokens.current.text in ("inf", "nan"):
            return sign + self.tokens.take().text
        return sign + super().number()

    # -- attributes and subscripts ---------------------------------------------------------------

    def attributes(self, row: Instruction) -> dict[str, Any]:
        """The attributes of a call up to its end: in order, then by name."""
        given: dict[str, Any] = {}
        names = list(row.attributes)
        first = not row.operands
        while not self.tokens.accept(")"):
            if not first:
                self.tokens.expect(",")
            first = False
            token = self.tokens.current
            if token.text in row.attributes and self.tokens.peek().text == "=":
                self.tokens.take()
                self.tokens.expect("=")
                name = token.text
            elif len(given) < len(names):
                name = names[len(given)]
            else:
                self.tokens.fail(f"{row.call} takes no more attributes; expected ')'")
            if name in given:
                self.tokens.reject(f"the attribute {name!r} is given twice", token.offset)
            given[name] = self.attribute(row.attributes[name])
        return given

    def opens_gather(self, frames: list[_Frame]) -> bool:
        """Take the beginning of a subscript that is a tensor, if one follows an operand."""
        token, following = self.tokens.current, self.tokens.peek()
        if token.text != "[" or following.kind == "number" or following.text in (":", "-"):
            return False
        self.tokens.take()
        frames.append(_Frame(target=frames[-1].operands.pop(), offset=token.offset))
        return True

    def subscript(self, frame: _Frame) -> None:
        """A subscript of positions and ranges, applied to the operand before it."""
        offset = self.tokens.current.offset
        target = self.value(frame.operands.pop())
        items = self.listed(self.range)
        frame.operands.append(self.indexed(target, items, offset))

    def range(self) -> tuple[int | None, ...]:
        """A position `(i,)`, or `(start, end, step)` with None for what is left out."""
        bounds = [self.bound()]
        while len(bounds) < 3 and self.tokens.accept(":"):
            bounds.append(self.bound())
        if len(bounds) == 1:
            if bounds[0] is None:
                self.tokens.fail("expected a position or a range")
            return (bounds[0],)
        return (*bounds, *[None] * (3 - len(bounds)))

    def bound(self) -> int | None:
        if self.tokens.current.text == "-":
            self.tokens.reject(
                "positions count from the start; they are not negative", self.tokens.current.offset
            )
        return self.whole() if self.tokens.current.kind == "number" else None

    def indexed(self, x: int, items: list[tuple[int | None, ...]], offset: int) -> int:
        """Positions for every axis are an `Index`; otherwise a `Slice`, and positions are squeezed
        out of it."""
        shape = self.builder.shape(x)
        positions = [item[0] for item in items if len(item) == 1]
        if len(positions) == len(shape) == len(items):
            return self.emit(INSTRUCTIONS["Index"], [x], {"indices": positions}, offset)
        if len(items) > len(shape):
            why = f"{len(items)} subscripts for {show_shape(shape)}"
            raise SpecViolation("E4006", why, f"at most {len(shape)}", self.tokens.where(offset))
        bounds: dict[str, list[int]] = {"starts": [], "ends": [], "steps": []}
        squeezed: list[int] = []
        for axis, dim in enumerate(shape):
            item = items[axis] if axis < len(items) else (None, None, None)
            if len(item) == 1:
                item = self.single(item[0] or 0, axis, dim, offset)
                squeezed.append(axis)
            for values, bound, default in zip(bounds.values(), item, (0, dim, 1), strict=True):
                values.append(default if bound is None else bound)
        found = self.emit(INSTRUCTIONS["Slice"], [x], bounds, offset)
        if not squeezed:
            return found
        return self.emit(INSTRUCTIONS["Squeeze"], [found], {"axes": squeezed}, offset)

    def single(self, position: int, axis: int, dim: int, offset: int) -> tuple[int, int, int]:
        if position >= dim:
            raise SpecViolation(
                "E3003",
                f"position {position} is outside axis {axis} of size {dim}",
                f"the last is {dim - 1}" if dim else "the axis is empty",
                self.tokens.where(offset),
            )
        return position, position + 1, 1

    # -- emitting --------------------------------------------------------------------------------

    def value(self, operand: Operand, dtype: DType | None = None) -> int:
        """An operand as a value; a literal takes `dtype`, or the default for its kind."""
        if not isinstance(operand, Literal):
            return operand
        default = SI64 if operand.is_whole else F32
        return self.constant(operand, dtype or default)

    def common_dtype(self, operands: list[Operand]) -> DType | None:
        """What the literals among operands become: the dtype of another, or f32 beside an f32."""
        for operand in operands:
            if not isinstance(operand, Literal):
                return self.builder.type(operand).dtype
        whole = all(isinstance(operand, Literal) and operand.is_whole for operand in operands)
        return None if whole else F32

    def constant(self, found: Literal, dtype: DType) -> int:
        data = RawData(found.rows).literal(dtype, ())
        if not isinstance(data, TensorLiteral):
            hint = f"write {dtype_name(dtype)} numbers, in rows of one length"
            raise SpecViolation(data.code, data.why, hint, self.tokens.where(found.offset))
        row, shape = INSTRUCTIONS["ConstTensor"], data.type.static_shape
        return self.emit(row, [], {"data": data, "dtype": dtype, "shape": shape}, found.offset)

    def emit(
        self, row: Instruction, operands: list[Operand], given: dict[str, Any], offset: int
    ) -> int:
        """Append an instruction; what it complains about is said with the place."""
        dtype = None if row.opcode in _MIXED else self.common_dtype(operands)
        ids = [self.value(operand, dtype) for operand in operands]
        self.used.update(ids)
        try:
            settle_data(row.opcode, given, _HELD.get(row.opcode))
            return self.builder.emit(row.opcode, *ids, **given)
        except SpecViolation as error:
            raise error.at(self.tokens.where(offset)) from None
        except UserError as error:
            raise SpecViolation(UNPARSABLE, str(error), "", self.tokens.where(offset)) from None


_HELD: Final = {opcode: scalar(dtype) for dtype, opcode in SCALARS.items()}


def _negate_rows(rows: Any) -> Any:
    if isinstance(rows, list):
        return [_negate_rows(row) for row in rows]
    return rows[1:] if rows.startswith("-") else f"-{rows}"
