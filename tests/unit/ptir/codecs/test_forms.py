"""Every op, with every kind of attribute, through every form: what is read equals what was
written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cases import each
from weft.foundation.dtypes import BF16, F32, SI4
from weft.foundation.errors import SpecViolation
from weft.ptir import (
    ElementRef,
    Function,
    HintRegion,
    Instruction,
    Op,
    Program,
    Ref,
    ScalarLiteral,
    Symbol,
    TupleType,
    all_ops,
    dumps,
    literal,
    loads,
    tensor,
)
from weft.ptir.codecs.wire import encode_call
from weft.ptir.ir import HintKind, HintPolicy
from weft.ptir.schema import (
    INFER,
    ISIZE_MAX,
    ISIZE_MIN,
    USIZE_MAX,
    Attributes,
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
    attr_map,
)

FORMS = ("json", "bincode", "text")
ATTRS = attr_map(
    {
        "i64": ISIZE_MIN,
        "f64": math.nan,
        "bool": True,
        "string": 'line "one"\nä\0',
        "i64s": [1, -2],
        "f64s": [math.inf, -0.0, 0.1],
        "bools": [False, True],
        "strings": ["", "x"],
        "none": [],
        "a b": 1,
    }
)


def samples(kind: SchemaKind) -> list[Any]:
    """A few values of a kind, the extreme ones included."""
    match kind:
        case Maybe():
            return [None, *samples(kind.inner)]
        case ListOf():
            return [(), tuple(samples(kind.inner))]
        case Pair():
            return [tuple(samples(kind.inner)[:2])]
        case Usize():
            return [3, 0, USIZE_MAX]
        case Isize():
            return [-1, ISIZE_MIN, ISIZE_MAX]
        case Bool():
            return [True, False]
        case Float():
            return [0.1, -0.0, math.inf, -math.inf, 1e-300]
        case Number():
            return [True, 3, -1, 0.1, math.inf]
        case Dimension():
            return [3, Symbol("B")]
        case String():
            return ["plain", 'quote " and \\ and \n and ä and \0']
        case Choice():
            return list(kind.enum)
        case DTypeOf():
            return [F32, BF16, SI4]
        case ShapeOf():
            return [(), (2, Symbol("B"), USIZE_MAX, Symbol("not a word"))]
        case NewDimension():
            return [INFER, 0, Symbol("B")]
        case ScalarOf():
            return [
                ScalarLiteral("I1", True),
                ScalarLiteral("Signed", ISIZE_MIN),
                ScalarLiteral("Unsigned", USIZE_MAX),
                ScalarLiteral("Float", math.nan),
                ScalarLiteral("Float", 0.1),
                ScalarLiteral("Complex", complex(-0.0, math.inf)),
            ]
        case LiteralOf():
            return [literal([1.0, 2.0]), literal(True)]
        case Attributes():
            return [(), ATTRS]
    raise AssertionError(f"no samples of {kind}")


def variants(cls: type[Op]) -> Iterator[Op]:
    """The op with each attribute in turn at each of its samples."""
    kinds = cls.all_attributes()
    first = {name: samples(kind)[0] for name, kind in kinds.items()}
    yield cls(**first)
    for name, kind in kinds.items():
        for value in samples(kind):
            if name == "stream" and value == 0:
                continue  # the default stream of this instruction, which is not written
            yield cls(**{**first, name: value})


def program_of(op: Op) -> Program:
    kind = tensor("f32", [2])
    operands = (Ref(0), ElementRef(1, 3), literal([1, 2], "si8"))
    instruction = Instruction(7, op, operands, TupleType((kind, tensor("i1", ["?B"]))))
    hint = HintRegion(
        4, HintKind.DOT_EPILOGUE, HintPolicy.REQUIRED, (0, 1), (7,), (instruction,), ATTRS
    )
    parameters = (kind, TupleType(()))
    function = Function(
        "main", parameters, (0, 1), (instruction.output,), (instruction,), (hint,), (7,)
    )
    return Program("main", (function,))


def wire_cannot_carry(op: Op) -> bool:
    """Attributes of custom calls are 64-bit signed; shapes with symbols are text."""
    values = [getattr(op, name) for name in op.call_attributes()]
    lists = [value if isinstance(value, tuple) else (value,) for value in values]
    flat = [v for one in lists if not any(isinstance(v, Symbol) for v in one) for v in one]
    return USIZE_MAX in flat and (
        op.call_target is not None or getattr(op, "stream", None) is not None
    )


@each("cls", all_ops())
@each("form", FORMS)
def test_every_attribute_of_every_op_survives(cls: type[Op], form: str) -> None:
    count = 0
    for op in variants(cls):
        program = program_of(op)
        if form != "text" and wire_cannot_carry(op):
            with pytest.raises(SpecViolation, match="does not fit a 64-bit attribute"):
                dumps(program, form)
            continue
        count += 1
        written = dumps(program, form)
        read = loads(written)
        if form == "text" or cls.call_attributes() == cls.all_attributes():
            assert read == program
        else:  # what the output declares is not what this output declares
            assert encode_call(read.main.body[0].op) == encode_call(op)
        assert dumps(read, form) == written
    assert count
    assert dumps(program_of(next(variants(cls))), "display")
