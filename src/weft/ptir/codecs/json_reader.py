"""PTIR from JSON, checked: structure and ranges, not meaning.

Unknown fields of an object are ignored with a warning, unknown variants and repeated keys are
errors, and every complaint names the path to the offending place. Keys are clipped in paths: a path
is written down for every node, and a key may have megabytes.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, TypeVar

from weft.foundation import limits
from weft.foundation.dtypes import BY_WIRE, DType
from weft.foundation.errors import SpecViolation, WeftWarning, clipped
from weft.ptir.codecs.wire import from_wire, last_ids
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
)
from weft.ptir.literal import ScalarLiteral, ScalarTag, TensorLiteral
from weft.ptir.op import BY_WIRE_NAME, Op
from weft.ptir.schema import (
    INFER,
    ISIZE_MAX,
    ISIZE_MIN,
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
    Pair,
    ScalarOf,
    SchemaKind,
    ShapeOf,
    String,
    Usize,
    WireEnum,
)
from weft.ptir.types import Dim, Shape, Symbol, TensorType, TupleType, ValueType

Item = TypeVar("Item")
Json = Any
_LONG_NUMBER = re.compile(r"[0-9]{4000,}+")
"""A whole number that Python does not convert: it allows 4,300 digits."""


def decode(text: str) -> Program:
    """The program of a JSON text; structure is checked, meaning is not."""
    try:
        data = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_repeats)
    except RecursionError:
        raise SpecViolation("MalformedJson", "the JSON nests too deep") from None
    except ValueError as error:
        long = _LONG_NUMBER.search(text) if "digits" in str(error) else None
        if long is not None:
            digits = long.end() - long.start()
            raise _bad_json(
                f"character {long.start()}", f"a number has {digits:,} digits"
            ) from None
        raise SpecViolation("MalformedJson", f"this is not JSON: {error}") from None
    return from_wire(_program_in(data))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f'the bare number {name} is not JSON; write the string "{name}"')


def _no_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) != len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise SpecViolation("MalformedJson", f"this JSON repeats the key {_quote_text(repeated)}")
    return found


def _quote_text(text: str) -> str:
    return repr(clipped(text, 40))


def _bad_json(path: str, why: str, code: str = "MalformedJson") -> SpecViolation:
    return SpecViolation(code, why, where=path or "the top level")


def _describe(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    if value is None:
        return "null"
    if type(value) in names:
        return names[type(value)]
    text = str(value)
    return text if len(text) <= 30 else text[:27] + "..."


def _object(
    value: Json, path: str, fields: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Json:
    if not isinstance(value, dict):
        raise _bad_json(path, f"expected an object but found {_describe(value)}")
    for name in fields:
        if name not in value:
            raise _bad_json(path, f"the field {name!r} is missing")
    # All fields are there, so that with as many there is none that is unknown: nearly every object.
    if len(value) > len(fields):
        unknown = [name for name in value if name not in fields and name not in optional]
    else:
        unknown = []
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        place = path or "program"
        message = f"{place}: unknown field {_quote_text(unknown[0])}{more} is ignored"
        warnings.warn(message, WeftWarning, 2)
    return value


def _parse_list(value: Json, path: str, item: Callable[[Json, str], Item]) -> tuple[Item, ...]:
    if not isinstance(value, list):
        raise _bad_json(path, f"expected a list but found {_describe(value)}")
    return tuple(item(v, f"{path}[{i}]") for i, v in enumerate(value))


def _integer(value: Json, path: str, low: int = 0, high: int = USIZE_MAX) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad_json(path, f"expected a whole number but found {_describe(value)}")
    if not low <= value <= high:
        raise _bad_json(path, f"{_describe(value)} is not between {low} and {high}")
    return value


def _u32(value: Json, path: str) -> int:
    return _integer(value, path, 0, 2**32 - 1)


def _string(value: Json, path: str) -> str:
    if not isinstance(value, str):
        raise _bad_json(path, f"expected a string but found {_describe(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _bad_json(path, "the string has a lone surrogate and is not text") from None
    return value


def _parse_float(value: Json, path: str) -> float:
    special = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    if isinstance(value, str) and value in special:
        return special[value]
    if value is None:
        raise _bad_json(
            path,
            "null stands where a number is needed; some writers put null for a number that is not "
            'finite, write "NaN", "Infinity" or "-Infinity"',
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad_json(path, f"expected a number but found {_describe(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number):
        raise _bad_json(path, "the number is too large for 64-bit floats")
    return number


def _variant(value: Json, path: str) -> tuple[str, Json]:
    """An externally tagged enum: its tag and its content."""
    if isinstance(value, dict) and len(value) == 1:
        ((tag, content),) = value.items()
        return tag, content
    if isinstance(value, str):
        return value, None
    raise _bad_json(path, f"expected one tagged variant but found {_describe(value)}")


def _enum(value: Json, path: str, enum: type[WireEnum]) -> Any:
    found = _members(enum).get(value) if isinstance(value, str) else None
    if found is not None:
        return found
    names = ", ".join(str(member.value) for member in enum)
    shown = _quote_text(value) if isinstance(value, str) else _describe(value)
    raise _bad_json(path, f"{shown} is not one of {names}")


@cache
def _members(enum: type[WireEnum]) -> dict[str, WireEnum]:
    return {str(member.value): member for member in enum}


_FIELDS = ("entry", "functions")
_OPTIONAL = ("spec_version", "regions")


def _program_in(data: Json) -> Program:
    if isinstance(data, dict) and data and data.keys().isdisjoint(_FIELDS + _OPTIONAL):
        found = ", ".join(_quote_text(name) for name in list(data)[:4])
        raise _bad_json(
            "", f"this JSON is not a program, which has 'entry' and 'functions': it has {found}"
        )
    data = _object(data, "", _FIELDS, _OPTIONAL)
    version = _string(data.get("spec_version", ""), "spec_version") or SPEC_VERSION
    if version != SPEC_VERSION:
        raise SpecViolation(
            "SpecVersionMismatch",
            f"the file is of version {_quote_text(version)}, expected {SPEC_VERSION!r}",
        )
    return Program(
        _string(data["entry"], "entry"),
        _parse_list(data["functions"], "functions", _function_in),
        _parse_list(data.get("regions", []), "regions", _region_in),
    )


def _function_in(data: Json, path: str) -> Function:
    fields = ("name", "parameters", "parameter_ids", "results", "body", "result_ids")
    data = _object(data, path, fields, ("hints",))
    return Function(
        _string(data["name"], f"{path}.name"),
        _parse_list(data["parameters"], f"{path}.parameters", _type_in),
        _parse_list(data["parameter_ids"], f"{path}.parameter_ids", _u32),
        _parse_list(data["results"], f"{path}.results", _type_in),
        _parse_list(data["body"], f"{path}.body", _instruction_in),
        _parse_list(data.get("hints", []), f"{path}.hints", _hint_in),
        _parse_list(data["result_ids"], f"{path}.result_ids", _u32),
    )


def _region_in(data: Json, path: str) -> Region:
    data = _object(data, path, ("id", "parameters", "body", "results"))
    body = _parse_list(data["body"], f"{path}.body", _instruction_in)
    results = _parse_list(data["results"], f"{path}.results", _type_in)
    return Region(
        _integer(data["id"], f"{path}.id"),
        _parse_list(data["parameters"], f"{path}.parameters", _type_in),
        body,
        results,
        last_ids(body, len(results)),
    )


def _hint_in(data: Json, path: str) -> HintRegion:
    fields = ("id", "kind", "policy", "inputs", "exports", "body")
    data = _object(data, path, fields, ("attrs",))
    return HintRegion(
        _u32(data["id"], f"{path}.id"),
        _enum(data["kind"], f"{path}.kind", HintKind),
        _enum(data["policy"], f"{path}.policy", HintPolicy),
        _parse_list(data["inputs"], f"{path}.inputs", _u32),
        _parse_list(data["exports"], f"{path}.exports", _u32),
        _parse_list(data["body"], f"{path}.body", _instruction_in),
        _attrs_in(data.get("attrs", {}), f"{path}.attrs"),
    )


def _instruction_in(data: Json, path: str) -> Instruction:
    data = _object(data, path, ("id", "op", "operands", "output"))
    return Instruction(
        _u32(data["id"], f"{path}.id"),
        _op_in(data["op"], f"{path}.op"),
        _parse_list(data["operands"], f"{path}.operands", _operand_in),
        _type_in(data["output"], f"{path}.output"),
    )


def _op_in(data: Json, path: str) -> Op:
    tag, content = _variant(data, path)
    cls = BY_WIRE_NAME.get(tag)
    if cls is None:
        raise _bad_json(path, f"there is no op {_quote_text(tag)}", "UnknownOp")
    schema = cls.schema()
    path = f"{path}.{tag}"
    if not schema:
        if content is not None:
            raise _bad_json(path, f"{tag} takes no attributes")
        return cls()
    if cls.newtype:
        ((name, kind),) = schema.items()
        if isinstance(kind, Choice):
            return _make_choice_op(tag, _enum(content, path, kind.enum))
        values = {name: _value_in(kind, content, path)}
    else:
        optional = tuple(n for n, k in schema.items() if isinstance(k, Maybe | Attributes))
        content = _object(content, path, tuple(n for n in schema if n not in optional), optional)
        values = {
            name: _value_in(
                kind,
                content.get(name, {} if isinstance(kind, Attributes) else None),
                f"{path}.{name}",
            )
            for name, kind in schema.items()
        }
    return cls(**values)


@cache
def _make_choice_op(wire_name: str, choice: WireEnum) -> Op:
    """An op whose one attribute is a choice: most of a program's are the same few."""
    return BY_WIRE_NAME[wire_name](*[choice])


def _operand_in(data: Json, path: str) -> Operand:
    tag, content = _variant(data, path)
    if tag == "Value":
        return Ref(_u32(content, f"{path}.Value"))
    if tag == "TupleElement":
        content = _object(content, path, ("tuple", "index"))
        return ElementRef(
            _u32(content["tuple"], f"{path}.tuple"), _integer(content["index"], f"{path}.index")
        )
    if tag == "Literal":
        return _literal_in(content, f"{path}.Literal")
    raise _bad_json(path, f"{_quote_text(tag)} is not a kind of operand")


def _type_in(data: Json, path: str, depth: int = 0) -> ValueType:
    if depth > limits.Limits.nesting:
        raise _bad_json(path[:80], "a tuple type nests too deep", "NestingTooDeep")
    tag, content = _variant(data, path)
    if tag == "Tensor":
        return _spec_in(content, path)
    if tag == "Tuple":
        return TupleType(_parse_list(content, path, lambda v, p: _type_in(v, p, depth + 1)))
    raise _bad_json(path, f"{_quote_text(tag)} is not a kind of type")


def _spec_in(data: Json, path: str) -> TensorType:
    data = _object(data, path, ("dtype", "shape"))
    return TensorType(_dtype_in(data["dtype"], f"{path}.dtype"), _shape_in(data["shape"], path))


def _dtype_in(data: Json, path: str) -> DType:
    if not isinstance(data, str) or data not in BY_WIRE:
        shown = _quote_text(data) if isinstance(data, str) else _describe(data)
        raise _bad_json(path, f"{shown} is not a dtype")
    return BY_WIRE[data]


def _shape_in(data: Json, path: str) -> Shape:
    data = _object(data, f"{path}.shape", ("dims",))
    return _parse_list(data["dims"], f"{path}.shape.dims", _dim_in)


def _dim_in(data: Json, path: str) -> Dim:
    tag, content = _variant(data, path)
    if tag == "Static":
        if isinstance(content, int) and content < 0:
            raise _bad_json(
                path, f"dimension {_describe(content)} is negative", "NegativeDimension"
            )
        return _integer(content, path)
    if tag == "Dynamic":
        return Symbol(_string(content, path))
    raise _bad_json(path, f"{_quote_text(tag)} is not a kind of dimension")


def _literal_in(data: Json, path: str) -> TensorLiteral:
    data = _object(data, path, ("spec", "bytes"))
    raw = data["bytes"]
    if not isinstance(raw, list):
        raise _bad_json(f"{path}.bytes", f"expected a list but found {_describe(raw)}")
    try:
        payload = bytes(raw)
    except (TypeError, ValueError):
        raise _bad_json(f"{path}.bytes", "expected numbers from 0 to 255") from None
    # `bytes` takes a boolean for 0 or 1.
    if bool in set(map(type, raw)):
        raise _bad_json(f"{path}.bytes", "expected numbers from 0 to 255 but found a boolean")
    return TensorLiteral(_spec_in(data["spec"], f"{path}.spec"), payload)


def _scalar_in(data: Json, path: str) -> ScalarLiteral:
    tag, content = _variant(data, path)
    path = f"{path}.{clipped(tag, 40)}"
    match tag:
        case ScalarTag.I1:
            if not isinstance(content, bool):
                raise _bad_json(path, f"expected true or false but found {_describe(content)}")
            return ScalarLiteral(tag, content)
        case ScalarTag.SIGNED:
            return ScalarLiteral(tag, _integer(content, path, ISIZE_MIN, ISIZE_MAX))
        case ScalarTag.UNSIGNED:
            return ScalarLiteral(tag, _integer(content, path))
        case ScalarTag.FLOAT:
            return ScalarLiteral(tag, _parse_float(content, path))
        case ScalarTag.COMPLEX:
            content = _object(content, path, ("re", "im"))
            parts = (
                _parse_float(content["re"], f"{path}.re"),
                _parse_float(content["im"], f"{path}.im"),
            )
            return ScalarLiteral(tag, complex(*parts))
    raise _bad_json(path, f"{_quote_text(tag)} is not a kind of scalar")


def _attrs_in(data: Json, path: str) -> AttrMap:
    if not isinstance(data, dict):
        raise _bad_json(path, f"expected an object but found {_describe(data)}")
    return tuple(
        (_string(name, path), _attr_in(data[name], f"{path}.{clipped(name, 40)}"))
        for name in sorted(data)
    )


def _attr_in(data: Json, path: str) -> Attr:
    data = _object(data, path, ("kind", "value"))
    kind: AttrKind = _enum(data["kind"], f"{path}.kind", AttrKind)
    name, value = kind.value, data["value"]
    item = _ATTR_ITEMS[name.removesuffix("Array")]
    if name.endswith("Array"):
        return Attr(kind, _parse_list(value, f"{path}.value", item))
    return Attr(kind, item(value, f"{path}.value"))


def _read_signed(value: Json, path: str) -> int:
    return _integer(value, path, ISIZE_MIN, ISIZE_MAX)


def _bool(value: Json, path: str) -> bool:
    if not isinstance(value, bool):
        raise _bad_json(path, f"expected true or false but found {_describe(value)}")
    return value


_ATTR_ITEMS: dict[str, Callable[[Json, str], Any]] = {
    "I64": _read_signed,
    "F64": _parse_float,
    "Bool": _bool,
    "String": _string,
}


def _value_in(kind: SchemaKind, data: Json, path: str) -> Any:
    match kind:
        case Maybe():
            return None if data is None else _value_in(kind.inner, data, path)
        case ListOf():
            return _parse_list(data, path, lambda v, p: _value_in(kind.inner, v, p))
        case Pair():
            pair = _parse_list(data, path, lambda v, p: _value_in(kind.inner, v, p))
            if len(pair) != 2:
                raise _bad_json(path, f"expected a pair but found {len(pair)} values")
            return pair
        case Usize():
            return _integer(data, path)
        case Isize():
            return _read_signed(data, path)
        case Bool():
            return _bool(data, path)
        case Float():
            return _parse_float(data, path)
        case String():
            return _string(data, path)
        case Choice():
            return _enum(data, path, kind.enum)
        case DTypeOf():
            return _dtype_in(data, path)
        case Dimension():
            return _dim_in(data, path)
        case ShapeOf():
            return _parse_list(_object(data, path, ("dims",))["dims"], f"{path}.dims", _dim_in)
        case NewDimension():
            tag, content = _variant(data, path)
            if tag == "Infer":
                return INFER
            if tag != "Explicit":
                raise _bad_json(path, f"{_quote_text(tag)} is not a kind of new dimension")
            return _dim_in(content, path)
        case ScalarOf():
            return _scalar_in(data, path)
        case LiteralOf():
            return _literal_in(data, path)
        case Attributes():
            return _attrs_in(data, path)
