"""The public display form: what other PTIR implementations print. It loses literal operands' bytes
and is for eyes and for comparing with their output; `weft.ptir.text` is the form that reads
back."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from weft.ptir.codecs.wire import to_wire
from weft.ptir.ir import (
    SPEC_VERSION,
    ElementRef,
    Function,
    HintRegion,
    Instruction,
    Operand,
    Program,
    Ref,
    Region,
)
from weft.ptir.literal import ScalarLiteral
from weft.ptir.op import Op
from weft.ptir.schema import (
    INFER,
    Attr,
    Attributes,
    AttrMap,
    Choice,
    Dimension,
    DTypeOf,
    ListOf,
    LiteralOf,
    Maybe,
    NewDimension,
    Pair,
    RegionId,
    ScalarOf,
    SchemaKind,
    ShapeOf,
)
from weft.ptir.types import Dim, Shape, Symbol, TensorType, ValueType


def encode(program: Program) -> str:
    """The display text of a program."""
    program = to_wire(program)
    lines = [f"program @{program.entry} (spec_version = {SPEC_VERSION}) {{"]
    for function in program.functions:
        lines += _function_lines(function)
    for region in program.regions:
        lines += _region(region)
    return "\n".join([*lines, "}", ""])


def _function_lines(function: Function) -> list[str]:
    ids = function.parameter_ids
    lines = [f"  func @{function.name} {{"]
    if function.parameters:
        lines.append("    params:")
        lines += [
            f"      %{i} : {_type_text(t)}" for i, t in zip(ids, function.parameters, strict=False)
        ]
    lines.append("    body:")
    lines += [f"      {_instruction(i)}" for i in function.body]
    if function.hints:
        lines.append("    hints:")
        for hint in function.hints:
            lines += _hint(hint)
    lines.append("    results:")
    results = zip(function.result_ids, function.results, strict=False)
    lines += [f"      %{i} : {_type_text(t)}" for i, t in results]
    return [*lines, "  }"]


def _hint(hint: HintRegion) -> list[str]:
    head = f"fused_hint id={hint.id} kind={hint.kind.value} policy={hint.policy.value}"
    attrs = [f"          {name} = {_attr(attr)}" for name, attr in hint.attrs]
    return [
        f"      {head} {{",
        f"        inputs: [{_refs(hint.inputs)}]",
        f"        exports: [{_refs(hint.exports)}]",
        *(["        attrs:", *attrs] if attrs else []),
        "        body:",
        *(f"          {_instruction(i)}" for i in hint.body),
        "      }",
    ]


def _region(region: Region) -> list[str]:
    return [
        f"  region ^r{region.id} {{",
        "    params:",
        *(f"      %arg{i} : {_type_text(t)}" for i, t in enumerate(region.parameters)),
        "    body:",
        *(f"      {_instruction(i)}" for i in region.body),
        "    results:",
        *(f"      %res{i} : {_type_text(t)}" for i, t in enumerate(region.results)),
        "  }",
    ]


def _refs(ids: Iterable[int]) -> str:
    return ", ".join(f"%{i}" for i in ids)


def _instruction(instruction: Instruction) -> str:
    operands = ", ".join(_operand_text(o) for o in instruction.operands)
    call = f"({operands})" if instruction.operands else ""
    return (
        f"%{instruction.id} = {_op_text(instruction.op)}{call} -> {_type_text(instruction.output)}"
    )


def _op_text(op: Op) -> str:
    fields = [(name, _debug(kind, getattr(op, name))) for name, kind in op.schema().items()]
    if not fields:
        return op.wire_name
    if op.newtype:
        return f"{op.wire_name}({fields[0][1]})"
    record = "{ " + ", ".join(f"{name}: {value}" for name, value in fields) + " }"
    return (
        f"{op.wire_name}({op.spec_name} {record})" if op.spec_name else f"{op.wire_name} {record}"
    )


def _operand_text(operand: Operand) -> str:
    if isinstance(operand, Ref | ElementRef):
        return str(operand)
    return f"literal(dtype={operand.type.dtype.wire}, shape={_dims_text(operand.type.shape)})"


def _type_text(kind: ValueType) -> str:
    if isinstance(kind, TensorType):
        return f"tensor<{kind.dtype.wire} x {_dims_text(kind.shape)}>"
    return f"tuple<{', '.join(_type_text(element) for element in kind.elements)}>"


def _dims_text(shape: Shape) -> str:
    return "x".join(map(str, shape)) if shape else "[]"


def _attr(attr: Attr) -> str:
    value = attr.value
    shown = (
        _list_text(_scalar_text(v) for v in value)
        if isinstance(value, tuple)
        else _scalar_text(value)
    )
    return f"{attr.kind.value}({shown})"


def _attrs(attrs: AttrMap) -> str:
    return "{" + ", ".join(f"{_string(name)}: {_attr(attr)}" for name, attr in attrs) + "}"


def _list_text(items: Iterable[str]) -> str:
    return "[" + ", ".join(items) + "]"


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return debug_float(value)
    return _string(value) if isinstance(value, str) else str(value)


def _string(text: str) -> str:
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
    return '"' + "".join(escapes.get(c) or _character(c) for c in text) + '"'


def _character(character: str) -> str:
    return character if character.isprintable() else f"\\u{{{ord(character):x}}}"


def debug_float(value: float) -> str:
    """A float the way Rust's Debug prints it: shortest digits, an exponent only when far from 1."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == 0 or 1e-4 <= abs(value) < 1e16:
        return repr(value)
    # Python's shortest digits are Rust's; only where an exponent begins and how it is written
    # differ.
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    first, rest = str(digits[0]), "".join(map(str, digits[1:]))
    scale = int(exponent) + len(digits) - 1
    return f"{'-' * sign}{first}{'.' * bool(rest)}{rest}e{scale}"


def _dim_text(dim: Dim) -> str:
    return f"Dynamic({_string(dim.name)})" if isinstance(dim, Symbol) else f"Static({dim})"


def _shape_text(shape: Shape) -> str:
    return "Shape { dims: " + _list_text(_dim_text(dim) for dim in shape) + " }"


def _literal_text(scalar: ScalarLiteral) -> str:
    if isinstance(scalar.value, complex):
        parts = (debug_float(scalar.value.real), debug_float(scalar.value.imag))
        return f"Complex {{ re: {parts[0]}, im: {parts[1]} }}"
    return f"{scalar.tag}({_scalar_text(scalar.value)})"


def _debug(kind: SchemaKind, value: Any) -> str:
    match kind:
        case Maybe():
            return "None" if value is None else f"Some({_debug(kind.inner, value)})"
        case ListOf():
            return _list_text(_debug(kind.inner, item) for item in value)
        case Pair():
            return f"({_debug(kind.inner, value[0])}, {_debug(kind.inner, value[1])})"
        case Choice():
            return str(value.value)
        case DTypeOf():
            return str(value.wire)
        case RegionId():
            return f"RegionId({value})"
        case Dimension():
            return _dim_text(value)
        case ShapeOf():
            return _shape_text(value)
        case NewDimension():
            return "Infer" if value is INFER else f"Explicit({_dim_text(value)})"
        case ScalarOf():
            return _literal_text(value)
        case LiteralOf():
            fields = f"dtype: {value.type.dtype.wire}, shape: {_shape_text(value.type.shape)}"
            spec = f"TensorSpec {{ {fields} }}"
            return f"TensorLiteral {{ spec: {spec}, bytes: {_list_text(map(str, value.data))} }}"
        case Attributes():
            return _attrs(value)
        case _:
            return _scalar_text(value)
