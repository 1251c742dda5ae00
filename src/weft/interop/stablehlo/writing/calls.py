"""Custom calls: coarse ops under their public names, Weft's own, and those of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from weft.foundation.dtypes import F64
from weft.foundation.errors import Unimplemented
from weft.interop.stablehlo.reading.calls import CARRIED, CARRIED_PREFIX
from weft.interop.stablehlo.writing.page import Page, Ssa, quoted
from weft.ptir.literal import literal
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.quantisation import Dequantize, Quantize
from weft.ptir.schema import Attr, AttrKind
from weft.ptir.types import TensorType, ValueType, leaves

_USUAL: Final = {"api_version": "1 : i32", "backend_config": '""', "called_computations": "[]"}


def write_call(page: Page, call: CustomCall, x: Sequence[Ssa], output: ValueType) -> list[Ssa]:
    """A custom call, with its attributes in a dictionary."""
    attrs = dict(call.attrs)
    fields = {name: attrs.pop(CARRIED_PREFIX + name, None) for name in CARRIED}
    shown = {"call_target_name": quoted(call.target), "has_side_effect": "false"}
    for name, value in fields.items():
        shown[name] = _USUAL[name] if value is None else _field(name, value)
    inside = ", ".join(f"{quoted(name)} = {_text(value)}" for name, value in attrs.items())
    shown["byteir_attrs"] = f"{{{inside}}}"
    return page.ops("stablehlo.custom_call", x, list(leaves(output)), shown)


def _field(name: str, attribute: Attr) -> str:
    if name == "api_version":
        return f"{attribute.value} : i32"
    if name == "called_computations":
        return f"[{', '.join('@' + quoted(target) for target in attribute.value)}]"
    return _text(attribute)


def _text(attribute: Attr) -> str:
    value = attribute.value
    match attribute.kind:
        case AttrKind.I64:
            return f"{value} : i64"
        case AttrKind.F64:
            return _float(value)
        case AttrKind.BOOL:
            return str(value).lower()
        case AttrKind.STRING:
            return quoted(value)
        case AttrKind.I64_ARRAY:
            return f"[{', '.join(f'{n} : i64' for n in value)}]"
        case AttrKind.F64_ARRAY:
            return f"[{', '.join(map(_float, value))}]"
        case AttrKind.BOOL_ARRAY:
            return f"[{', '.join(str(b).lower() for b in value)}]"
    return f"[{', '.join(map(quoted, value))}]"


def _float(value: float) -> str:
    if math.isfinite(value):
        shown = repr(float(value))
        mantissa, _, exponent = shown.partition("e")
        mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
        return f"{mantissa}{f'e{int(exponent):+d}' if exponent else ''} : f64"
    bits = literal(value, F64).data[::-1].hex().upper()
    return f"0x{bits} : f64"


def write_quantisation(
    page: Page, op: Quantize | Dequantize, x: list[Ssa], kind: TensorType
) -> Ssa:
    """The coarse ops of the same meaning, which always have a zero point."""
    value, scale, *rest = x
    dtype = op.output_dtype if isinstance(op, Quantize) else value.dtype
    if dtype.bits not in (8, 16) or not dtype.is_integer:
        raise Unimplemented(op.mnemonic, f"StableHLO text has no form of it for {dtype}")
    zero = rest[0] if rest else page.full(0, scale.type.with_dtype(dtype))
    name = "byteir.quantize" if isinstance(op, Quantize) else "byteir.dequantize"
    attrs: tuple[tuple[str, Any], ...] = ()
    if op.axis is not None:
        attrs = (("axis", Attr(AttrKind.I64, op.axis)),)
    return write_call(page, CustomCall(name, attrs), [value, scale, zero], kind)[0]
