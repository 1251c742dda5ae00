"""Custom calls: coarse ops under their public names, Weft's own, and those of others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from weft.foundation.dtypes import F64
from weft.interop.stablehlo.bindings import parse_attribute
from weft.interop.stablehlo.reading.calls import CARRIED, CARRIED_PREFIX, TEXT_PREFIX
from weft.interop.stablehlo.writing.page import Page, Ssa, quoted
from weft.ptir.literal import literal
from weft.ptir.ops.constant import CustomCall
from weft.ptir.schema import Attr, AttrKind
from weft.ptir.types import ValueType, leaves

Fields: TypeAlias = Mapping[str, Any]
"""Fields of a custom call that say nothing about its meaning."""


def write_call(
    page: Page, call: CustomCall, x: Sequence[Ssa], output: ValueType, noted: Fields | None = None
) -> list[Ssa]:
    """A custom call, with its attributes in a dictionary."""
    attrs = dict(call.attrs)
    carried = {name: attrs.pop(CARRIED_PREFIX + name, None) for name in CARRIED}
    said = {name: attribute.value for name, attribute in carried.items() if attribute is not None}
    shown = {"call_target_name": quoted(call.target), "has_side_effect": "false"}
    shown.update(_fields_as_text({**CARRIED, **said, **(noted or {})}))
    inside = ", ".join(_dictionary_entry(name, value) for name, value in attrs.items())
    shown["byteir_attrs"] = f"{{{inside}}}"
    return page.ops("stablehlo.custom_call", x, list(leaves(output)), shown)


def _fields_as_text(fields: Fields) -> dict[str, str]:
    called = ", ".join(f"@{quoted(target)}" for target in fields["called_computations"])
    return {
        "api_version": f"{fields['api_version']} : i32",
        "backend_config": fields["backend_record"] or quoted(fields["backend_config"]),
        "called_computations": f"[{called}]",
    }


def _dictionary_entry(name: str, attribute: Attr) -> str:
    """An attribute in the dictionary of a call."""
    if not (name.startswith(TEXT_PREFIX) and attribute.kind is AttrKind.STRING):
        return f"{quoted(name)} = {_attribute_text(attribute)}"
    return f"{quoted(name.removeprefix(TEXT_PREFIX))} = {parse_attribute(attribute.value)}"


def _attribute_text(attribute: Attr) -> str:
    value = attribute.value
    match attribute.kind:
        case AttrKind.I64:
            return f"{value} : i64"
        case AttrKind.F64:
            return _float_text(value)
        case AttrKind.BOOL:
            return str(value).lower()
        case AttrKind.STRING:
            return quoted(value)
        case AttrKind.I64_ARRAY:
            return f"[{', '.join(f'{n} : i64' for n in value)}]"
        case AttrKind.F64_ARRAY:
            return f"[{', '.join(map(_float_text, value))}]"
        case AttrKind.BOOL_ARRAY:
            return f"[{', '.join(str(b).lower() for b in value)}]"
    return f"[{', '.join(map(quoted, value))}]"


def _float_text(value: float) -> str:
    if math.isfinite(value):
        shown = repr(float(value))
        mantissa, _, exponent = shown.partition("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        return f"{mantissa}{f'e{int(exponent):+d}' if exponent else ''} : f64"
    bits = literal(value, F64).data[::-1].hex().upper()
    return f"0x{bits} : f64"
