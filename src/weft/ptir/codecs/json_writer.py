"""PTIR to JSON: enums externally tagged, unit variants bare strings, ids bare numbers.

Numbers that are not finite are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
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
)
from weft.ptir.literal import ScalarLiteral
from weft.ptir.op import Op
from weft.ptir.schema import (
    INFER,
    Attr,
    Attributes,
    AttrKind,
    Choice,
    Dimension,
    DTypeOf,
    Float,
    ListOf,
    LiteralOf,
    Maybe,
    NewDimension,
    Pair,
    ScalarOf,
    SchemaKind,
    ShapeOf,
)
from weft.ptir.types import Dim, Symbol, TensorType, TupleType, ValueType

Json = Any


def encode(program: Program) -> str:
    """The JSON text of a program."""
    return json.dumps(_program_out(to_wire(program)), separators=(",", ":"), allow_nan=False)


def _program_out(program: Program) -> Json:
    return {
        "spec_version": SPEC_VERSION,
        "entry": program.entry,
        "functions": [_function_out(f) for f in program.functions],
        "regions": [
            {
                "id": r.id,
                "parameters": [_type_out(t) for t in r.parameters],
                "body": [_instruction_out(i) for i in r.body],
                "results": [_type_out(t) for t in r.results],
            }
            for r in program.regions
        ],
    }


def _function_out(function: Function) -> Json:
    return {
        "name": function.name,
        "parameters": [_type_out(t) for t in function.parameters],
        "parameter_ids": list(function.parameter_ids),
        "results": [_type_out(t) for t in function.results],
        "body": [_instruction_out(i) for i in function.body],
        "hints": [_hint_out(h) for h in function.hints],
        "result_ids": list(function.result_ids),
    }


def _hint_out(hint: HintRegion) -> Json:
    return {
        "id": hint.id,
        "kind": hint.kind.value,
        "policy": hint.policy.value,
        "inputs": list(hint.inputs),
        "exports": list(hint.exports),
        "body": [_instruction_out(i) for i in hint.body],
        "attrs": _value_out(Attributes(), hint.attrs),
    }


def _instruction_out(instruction: Instruction) -> Json:
    return {
        "id": instruction.id,
        "op": _op_out(instruction.op),
        "operands": [_operand_out(o) for o in instruction.operands],
        "output": _type_out(instruction.output),
    }


def _op_out(op: Op) -> Json:
    schema = op.schema()
    if not schema:
        return op.wire_name
    fields = {name: _value_out(kind, getattr(op, name)) for name, kind in schema.items()}
    return {op.wire_name: next(iter(fields.values())) if op.newtype else fields}


def _operand_out(operand: Operand) -> Json:
    if isinstance(operand, Ref):
        return {"Value": operand.id}
    if isinstance(operand, ElementRef):
        return {"TupleElement": {"tuple": operand.id, "index": operand.index}}
    return {"Literal": _value_out(LiteralOf(), operand)}


def _type_out(kind: ValueType) -> Json:
    if isinstance(kind, TupleType):
        return {"Tuple": [_type_out(element) for element in kind.elements]}
    return {"Tensor": _spec_out(kind)}


def _spec_out(kind: TensorType) -> Json:
    return {"dtype": kind.dtype.wire, "shape": _value_out(ShapeOf(), kind.shape)}


def _dim_out(dim: Dim) -> Json:
    return {"Dynamic": dim.name} if isinstance(dim, Symbol) else {"Static": dim}


def _float_out(value: float) -> Json:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _value_out(kind: SchemaKind, value: Any) -> Json:
    match kind:
        case Maybe():
            return None if value is None else _value_out(kind.inner, value)
        case ListOf():
            return [_value_out(kind.inner, item) for item in value]
        case Pair():
            return [_value_out(kind.inner, item) for item in value]
        case Choice():
            return value.value
        case DTypeOf():
            return value.wire
        case Dimension():
            return _dim_out(value)
        case ShapeOf():
            return {"dims": [_dim_out(dim) for dim in value]}
        case NewDimension():
            return "Infer" if value is INFER else {"Explicit": _dim_out(value)}
        case Float():
            return _float_out(value)
        case ScalarOf():
            return {value.tag: _scalar_out(value)}
        case LiteralOf():
            return {"spec": _spec_out(value.type), "bytes": list(value.data)}
        case Attributes():
            return {name: _attr_out(attr) for name, attr in value}
        case _:
            return value


def _scalar_out(scalar: ScalarLiteral) -> Json:
    if isinstance(scalar.value, complex):
        return {"re": _float_out(scalar.value.real), "im": _float_out(scalar.value.imag)}
    return _float_out(scalar.value) if isinstance(scalar.value, float) else scalar.value


def _attr_out(attr: Attr) -> Json:
    value = attr.value
    if attr.kind is AttrKind.F64:
        value = _float_out(value)
    elif attr.kind is AttrKind.F64_ARRAY:
        value = [_float_out(v) for v in value]
    elif isinstance(value, tuple):
        value = list(value)
    return {"kind": attr.kind.value, "value": value}
