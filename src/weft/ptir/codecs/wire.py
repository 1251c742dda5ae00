"""Conversion between programs in memory and their wire form.

In memory extension and coarse ops are classes and regions name their results; on the wire such an
op is a `CustomCall` and a region's results are its last instructions. Both directions are exact.

Attributes map to the eight custom-call classes by kind; an absent optional attribute is left out.
What the declared type of the result says (how many results there are, a size that depends on data)
is an attribute in memory and not on the wire.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from weft.foundation.errors import SpecViolation, UserError, clipped
from weft.ptir.ir import Function, Instruction, Program, Ref, Region
from weft.ptir.op import BY_TARGET, Op
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.random import Drawing, RngNormal, RngUniform
from weft.ptir.schema import (
    ISIZE_MAX,
    USIZE_MAX,
    Attr,
    AttrKind,
    Bool,
    Choice,
    DTypeOf,
    Float,
    Isize,
    ListOf,
    Maybe,
    Number,
    SchemaKind,
    ShapeOf,
    String,
    Usize,
    attr_of,
)
from weft.ptir.streams import drop_default_streams
from weft.ptir.types import TensorType, ValueType


def to_wire(program: Program) -> Program:
    """The program as others know it: contract ops only, region results last."""
    program = drop_default_streams(program)
    regions = tuple(_results_last(region) for region in program.regions)
    return _map_ops(replace(program, regions=regions), lambda i: encode_call(i.op))


def from_wire(program: Program) -> Program:
    """The program as Weft holds it. A malformed call of a known target stays a call, for
    `verify`."""
    return _map_ops(program, _decode_op)


def _decode_op(instruction: Instruction) -> Op:
    op = instruction.op
    if not isinstance(op, CustomCall):
        return op
    try:
        return decode_call(op, instruction.output)
    except SpecViolation:
        return op


def _map_ops(program: Program, change: Callable[[Instruction], Op]) -> Program:
    def body_of(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        return tuple(i if (op := change(i)) is i.op else replace(i, op=op) for i in body)

    def function_of(function: Function) -> Function:
        hints = tuple(replace(hint, body=body_of(hint.body)) for hint in function.hints)
        return replace(function, body=body_of(function.body), hints=hints)

    return replace(
        program,
        functions=tuple(map(function_of, program.functions)),
        regions=tuple(replace(r, body=body_of(r.body)) for r in program.regions),
    )


def _results_last(region: Region) -> Region:
    """Append identity instructions where the results are not the last instructions in order."""
    count = len(region.result_ids)
    last = tuple(instruction.id for instruction in region.body[len(region.body) - count :])
    if last == region.result_ids:
        return region
    types: dict[int, ValueType] = dict(zip(region.parameter_ids, region.parameters, strict=True))
    types.update((instruction.id, instruction.output) for instruction in region.body)
    fresh = max(types, default=-1) + 1
    copies = tuple(
        _copy(fresh + offset, value_id, types.get(value_id))
        for offset, value_id in enumerate(region.result_ids)
    )
    ids = tuple(copy.id for copy in copies)
    return replace(region, body=region.body + copies, result_ids=ids)


def _copy(new_id: int, value_id: int, kind: ValueType | None) -> Instruction:
    if not isinstance(kind, TensorType):
        raise UserError(
            f"a region returns %{value_id} of type {kind}, which the wire form can only express "
            "as the last instruction; return its elements instead"
        )
    # A broadcast to a tensor's own shape is the identity that every reader knows.
    return Instruction(new_id, BroadcastTo(kind.shape), (Ref(value_id),), kind)


def last_ids(body: tuple[Instruction, ...], count: int) -> tuple[int, ...]:
    """The ids of the last `count` instructions: the results of a region on the wire."""
    return tuple(i.id for i in body[max(0, len(body) - count) :])


STREAMED: dict[str, type[Op]] = {
    "weft.rng_uniform.v1": RngUniform,
    "weft.rng_normal.v1": RngNormal,
}
"""Contract ops that need a custom call when their random stream is not the default one."""

OWN_NAMESPACE = "weft."
"""Targets that begin like this are Weft's own; nobody else makes one up."""
FRONT_ENDS = ("byteir", "byre", "chlo", "mhlo", "pytorch", "shape", "stablehlo", "tf")
"""Namespaces of public front ends, whose targets keep their names and have no version."""
_VERSIONED = re.compile(r"[A-Za-z_]\w*(\.\w+)+\.v[0-9]+", re.ASCII)
_OF_A_FRONT_END = re.compile(rf"({'|'.join(FRONT_ENDS)})(\.\w+)+", re.ASCII)
_USIZE_DIGITS = len(str(USIZE_MAX))


def encode_call(op: Op) -> Op:
    """The contract op that carries `op` on the wire: a custom call where one is needed."""
    target = op.call_target
    if target is None and isinstance(op, Drawing) and op.stream is not None:
        target = f"weft.{op.name}.v1"
    if target is None:
        return op
    attrs: dict[str, Attr] = {}
    for name, kind in op.call_attributes().items():
        value = getattr(op, name)
        if value is not None:
            attrs[name] = _encode(kind, value)
    return CustomCall(target, tuple(sorted(attrs.items())))


def decode_call(call: CustomCall, output: ValueType) -> Op:
    """The op that a custom call with this declared type stands for; the call itself when its target
    is not known.

    Raises a violation when the target is known and the attributes are not what it takes.
    """
    cls = STREAMED.get(call.target) or BY_TARGET.get(call.target)
    if cls is None:
        return call
    kinds = cls.call_attributes()
    given = dict(call.attrs)
    unknown = sorted(set(given) - set(kinds))
    if unknown:
        raise SpecViolation(
            "InvalidAttributeValue",
            f"{call.target} has no attribute {clipped(unknown[0], 40)!r}",
            f"its attributes are {', '.join(kinds) or 'none'}",
        )
    values = {
        name: _decode(kinds[name], attr, f"{name} of {call.target}") for name, attr in given.items()
    }
    values.update(cls.declared_attributes(output))
    missing = [f.name for f in dataclasses.fields(cls) if _is_required(f) and f.name not in values]
    if missing:
        raise SpecViolation(
            "InvalidAttributeValue", f"{call.target} needs the attribute {missing[0]!r}"
        )
    return cls(**values)


def is_target(name: str) -> bool:
    """Whether a target is named `namespace.name.vN`, or as public front ends name theirs."""
    return bool(_VERSIONED.fullmatch(name) or _OF_A_FRONT_END.fullmatch(name))


def check_call(call: CustomCall, output: ValueType) -> None:
    """The rules for a custom call that can be checked: the name of the target, its attributes where
    Weft knows it, and that Weft knows it if it has one of Weft's own names."""
    decoded = decode_call(call, output)
    if not is_target(call.target):
        why = f"the target {clipped(call.target, 60)!r} is not named namespace.name.vN"
        raise SpecViolation("InvalidAttributeValue", why, "name it like acme.fused_norm.v1")
    if isinstance(decoded, CustomCall) and call.target.startswith(OWN_NAMESPACE):
        close = get_close_matches(call.target, [*STREAMED, *BY_TARGET], 1, 0.8)
        hint = f"did you mean {close[0]!r}?" if close else "a newer Weft may know it"
        why = f"Weft has no op with the target {clipped(call.target, 60)!r}"
        raise SpecViolation("UnknownCustomCall", why, hint)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    optional = isinstance(field.metadata["kind"], Maybe)
    return field.default is dataclasses.MISSING and not optional


def _encode(kind: SchemaKind, value: Any) -> Attr:
    match kind:
        case Maybe():
            return _encode(kind.inner, value)
        case Bool():
            return Attr(AttrKind.BOOL, value)
        case Usize() | Isize():
            return Attr(AttrKind.I64, _check_64_bits(value))
        case Float():
            return Attr(AttrKind.F64, value)
        case Number():
            return attr_of(value)
        case String():
            return Attr(AttrKind.STRING, value)
        case Choice() | DTypeOf():
            return Attr(AttrKind.STRING, str(value))
        case ShapeOf() if not all(isinstance(dim, int) for dim in value):
            return Attr(AttrKind.STRING_ARRAY, tuple(map(str, value)))
        case ShapeOf() | ListOf(Usize()) | ListOf(Isize()):
            return Attr(AttrKind.I64_ARRAY, tuple(map(_check_64_bits, value)))
        case ListOf(Float()):
            return Attr(AttrKind.F64_ARRAY, tuple(value))
        case ListOf(String()):
            return Attr(AttrKind.STRING_ARRAY, tuple(value))
    raise SpecViolation("InvalidAttributeValue", f"{kind} cannot be a custom-call attribute")


def _check_64_bits(value: int) -> int:
    if value > ISIZE_MAX:
        raise SpecViolation("InvalidAttributeValue", f"{value} does not fit a 64-bit attribute")
    return value


_CLASSES: dict[type, frozenset[AttrKind]] = {
    Bool: frozenset({AttrKind.BOOL}),
    Usize: frozenset({AttrKind.I64}),
    Isize: frozenset({AttrKind.I64}),
    Float: frozenset({AttrKind.F64, AttrKind.I64}),
    Number: frozenset({AttrKind.BOOL, AttrKind.I64, AttrKind.F64}),
    String: frozenset({AttrKind.STRING}),
    Choice: frozenset({AttrKind.STRING}),
    DTypeOf: frozenset({AttrKind.STRING}),
    ShapeOf: frozenset({AttrKind.I64_ARRAY, AttrKind.STRING_ARRAY}),
}
_ARRAYS = {
    Usize: AttrKind.I64_ARRAY,
    Isize: AttrKind.I64_ARRAY,
    Float: AttrKind.F64_ARRAY,
    String: AttrKind.STRING_ARRAY,
}


def _decode(kind: SchemaKind, attr: Attr, what: str) -> Any:
    inner = kind.inner if isinstance(kind, Maybe) else kind
    if isinstance(inner, ListOf):
        classes = frozenset({_ARRAYS[type(inner.inner)]})
    else:
        classes = _CLASSES[type(inner)]
    if attr.kind not in classes:
        wanted = " or ".join(sorted(c.value for c in classes))
        raise SpecViolation(
            "InvalidAttributeValue",
            f"attribute {what} is of class {attr.kind.value}, not {wanted}",
        )
    if isinstance(inner, ShapeOf) and attr.kind is AttrKind.STRING_ARRAY:
        return tuple(map(_parse_dim, attr.value))
    return attr.value


def _parse_dim(text: str) -> int | str:
    if not re.fullmatch("[0-9]+", text):
        return text
    if len(text) > _USIZE_DIGITS:
        raise SpecViolation("InvalidAttributeValue", f"{clipped(text, 40)} is not a dimension")
    return int(text)
