"""Programs, types, literals and ops as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from weft.foundation.errors import SpecViolation
from weft.foundation.text import commas, label, quoted
from weft.ptir.ir import SPEC_VERSION, HintRegion, Instruction, Operand, Program
from weft.ptir.literal import ScalarLiteral, TensorLiteral
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.schema import (
    INFER,
    Attr,
    Attributes,
    AttrKind,
    Bool,
    Dimension,
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
)
from weft.ptir.text.decimals import to_decimals
from weft.ptir.types import Dim, Shape, Symbol, TupleType, ValueType


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
        lines.append(f"  return {_ids_text(function.result_ids)}".rstrip())
        for hint in function.hints:
            lines += _hint(hint)
        lines.append("}")
    for region in program.regions:
        lines += [
            "",
            f"region ^{region.id}{_types(region.parameters)} -> {_types(region.results)} {{",
        ]
        lines += [f"  {print_instruction(i)}" for i in region.body]
        lines += [f"  return {_ids_text(region.result_ids)}".rstrip(), "}"]
    return "\n".join(lines) + "\n"


def _hint(hint: HintRegion) -> list[str]:
    head = f"hint {hint.id} {hint.kind} {hint.policy}"
    attrs = f" {_print(Attributes(), hint.attrs)}" if hint.attrs else ""
    return [
        f"  {head} inputs({_ids_text(hint.inputs)}) exports({_ids_text(hint.exports)}){attrs} [",
        *(f"    {print_instruction(i)}" for i in hint.body),
        "  ]",
    ]


def print_instruction(instruction: Instruction) -> str:
    """One instruction on one line."""
    op = instruction.op
    operands = commas(_operand_text(o) for o in instruction.operands)
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
    return f"{kind.dtype}{_shape_text(kind.shape)}"


def _types(kinds: Iterable[ValueType]) -> str:
    return f"({commas(map(print_type, kinds))})"


def _ids_text(ids: Iterable[int]) -> str:
    return commas(f"%{i}" for i in ids)


def _dim_text(dim: Dim) -> str:
    return f"?{label(dim.name)}" if isinstance(dim, Symbol) else str(dim)


def _shape_text(shape: Shape) -> str:
    return f"[{commas(map(_dim_text, shape))}]"


def _operand_text(operand: Operand) -> str:
    return print_literal(operand) if isinstance(operand, TensorLiteral) else str(operand)


def print_literal(literal: TensorLiteral) -> str:
    """A literal in decimals where they are short and exact, else as hex bytes."""
    return f"{print_type(literal.type)}<{to_decimals(literal) or '0x' + literal.data.hex()}>"


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
            return _dim_text(value)
        case ShapeOf():
            return _shape_text(value)
        case NewDimension():
            return "infer" if value is INFER else _dim_text(value)
        case ScalarOf():
            return _scalar_text(value)
        case LiteralOf():
            return print_literal(value)
        case Attributes():
            return "{" + commas(f"{label(name)}={_attr(attr)}" for name, attr in value) + "}"
        case _:
            return str(value)


def _scalar_text(scalar: ScalarLiteral) -> str:
    value = scalar.value
    if isinstance(value, complex):
        return f"complex ({value.real!r}, {value.imag!r})"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{scalar.tag.lower()} {text}"


_ATTR_ITEMS: dict[str, SchemaKind] = {
    "I64": Isize(),
    "F64": Float(),
    "Bool": Bool(),
    "String": String(),
}


def attr_kind(kind: AttrKind) -> SchemaKind:
    """What a custom-call attribute of a class holds."""
    item = _ATTR_ITEMS[kind.value.removesuffix("Array")]
    return ListOf(item) if kind.value.endswith("Array") else item


def _attr(attr: Attr) -> str:
    return f"{attr.kind} {_print(attr_kind(attr.kind), attr.value)}"
