"""Custom calls, and the operations that draw random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from weft.foundation.dtypes import F32, F64, I1, SI64
from weft.interop.stablehlo.reading.shapes import broadcast_in_dim, shape_of
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import HloTensor
from weft.ptir.builder import Value
from weft.ptir.calls import decode_call
from weft.ptir.op import BY_TARGET
from weft.ptir.ops.constant import CustomCall
from weft.ptir.schema import attr_map
from weft.ptir.types import TensorType, TupleType, ValueType

CARRIED: Final = {
    "api_version": 1,
    "backend_config": "",
    "backend_record": "",
    "called_computations": (),
}
"""Fields of a custom call that say nothing about its meaning, and what they usually are."""
CARRIED_PREFIX: Final = "mlir."
SEED: Final = "byre.GetSeed"
OFFSET: Final = "byre.NextOffset"
SHAPE_OF: Final = "shape.shape_of"
_DRAWN: Final = ("byteir.rng_uniform", "byteir.rng_normal")
_MOST_NAME: Final = 60


def _custom_call(at: Site) -> Results:
    target = str(at.attr("call_target_name"))
    if at.attr("has_side_effect", False):
        at.refuse(f"the custom call {target[:_MOST_NAME]!r} has a side effect, and PTIR is pure")
    if target in (SEED, OFFSET):
        state = at.b.emit("rng_state")
        return at.reshaped(at.sliced(state, [int(target == OFFSET)], [1]), ())
    if target == SHAPE_OF:
        return shape_of(at)
    if target == "mhlo.erf":
        return at.b.emit("erf", at.x[0])
    if target == "mhlo.topk":
        return _mhlo_top_k(at)
    return _carried_call(at, target)


def _mhlo_top_k(at: Site) -> Results:
    given = at.attr("mhlo.attributes", {})
    found = at.b.emit(
        "top_k", at.x[0], k=int(given["k"]), axis=-1, largest=bool(given.get("largest", True)),
        indices_dtype=at.result(1).dtype,
    )  # fmt: skip
    return list(found)


def _carried_call(at: Site, target: str) -> Results:
    attrs: dict[str, Any] = dict(at.attr("byteir_attrs", {}))
    other = at.attr("mhlo.attributes", {})
    if isinstance(other, Mapping):
        attrs.update(other)
    fields = _fields(at)
    if target not in BY_TARGET:
        attrs.update({CARRIED_PREFIX + name: value for name, value in fields.items()})
    kinds = [_declared(at, target, index) for index in range(len(at.op.types))]
    output = kinds[0] if len(kinds) == 1 else TupleType(tuple(kinds))
    call = CustomCall(target, attr_map(_plain(at, attrs)))
    op = decode_call(call, output)
    if isinstance(op, CustomCall):
        found = at.b.append(op, at.x, output)
    else:
        # Its own rule knows more about sizes than a type with open ones.
        args = at.aligned(at.x) if op.elementwise else at.x
        found = at.b.append(op, args)
        if fields:
            at.reader.keep_fields(at.b, found, fields)
    return [found] if len(kinds) == 1 else list(found)


def _declared(at: Site, target: str, index: int) -> ValueType:
    """The type of a result; what draws numbers has its sizes from its last operand."""
    kind = at.op.types[index]
    if target in _DRAWN and len(at.x) == 5 and isinstance(kind, HloTensor):
        return TensorType(kind.dtype, at.sizes(4))
    return at.kind(index)


def _fields(at: Site) -> dict[str, Any]:
    """The fields of the call itself, where they are not the usual ones: a target that Weft does
    not know carries them as attributes, beside one that it knows they are noted."""
    given = {name: at.attr(name) or usual for name, usual in CARRIED.items()}
    return {name: value for name, value in given.items() if value != CARRIED[name]}


def _plain(at: Site, attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as a custom call of PTIR has them; dense numbers are lists."""
    lists = {name: value for name, value in attrs.items() if isinstance(value, np.ndarray)}
    attrs = {
        **attrs,
        **{n: v.tolist() if v.ndim == 0 else (*v.tolist(),) for n, v in lists.items()},
    }
    for name, value in attrs.items():
        flat = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(v, bool | int | float | str) for v in flat):
            at.refuse(f"the attribute {name[:_MOST_NAME]!r} is no number, text or list of them")
    return dict(attrs)


# -- random numbers ------------------------------------------------------------------------------


def _rng(at: Site) -> Value:
    """Uniform in [a, b), or normal with mean a and deviation b, from a stream of the run."""
    low, high = at.x[0], at.x[1]
    shape, dtype = at.shape(), at.result().dtype
    low, high = (broadcast_in_dim(at, v, [], shape) for v in (low, high))
    if at.word("rng_distribution") == "NORMAL":
        return low + at.b.emit("rng_normal", shape=shape, dtype=dtype) * high
    if dtype.is_float:
        return low + at.b.emit("rng_uniform", shape=shape, dtype=dtype) * (high - low)
    if dtype is I1:
        return at.b.emit("rng_uniform", shape=shape, dtype=F32) < 0.5
    draw = at.b.emit("rng_uniform", shape=shape, dtype=F64)
    width = at.b.cast(at.b.cast(high, SI64) - at.b.cast(low, SI64), F64)
    step = at.b.cast(at.b.emit("floor", draw * width), SI64)
    return at.b.cast(at.b.cast(low, SI64) + step, dtype)


CALLS: Final[Mapping[str, Lowering]] = {
    "custom_call": _custom_call,
    "rng": _rng,
}
