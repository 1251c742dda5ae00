"""Tiny graphs as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dims import Shape, Symbol
from weft.foundation.errors import Unimplemented
from weft.foundation.json_fields import write_scalar
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Check,
    Const,
    DynamicShrink,
    DynamicUpdate,
    Expand,
    Flip,
    Gather,
    Graph,
    Input,
    Iota,
    Opaque,
    Pad,
    Permute,
    Reduce,
    Reshape,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
    operands,
    value_ids,
)

Json: TypeAlias = dict[str, Any]
Codec: TypeAlias = Callable[[Any], Any]
"""Writes the op of an `Opaque`; its counterpart reads it back."""


def dumps(graph: Graph, encode_op: Codec | None = None) -> str:
    """The graph as JSON text, one op and one value on a line."""
    document = to_json(graph, encode_op)
    parts = []
    for key, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n    ".join(json.dumps(row) for row in value)
            parts.append(f'  "{key}": [\n    {rows}\n  ]')
        elif key in ("values", "constants") and value:
            rows = ",\n    ".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f'  "{key}": {{\n    {rows}\n  }}')
        else:
            parts.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def to_json(graph: Graph, encode_op: Codec | None = None) -> Json:
    """The graph as a JSON document."""
    values = graph.values
    names = _value_names(graph, values)
    ops = [_op_document(v, names, graph, encode_op) for v in values if not isinstance(v, Input)]
    unused = [i for i in graph.inputs if i not in names]
    document: Json = {
        "inputs": [i.name for i in graph.inputs],
        "outputs": {name: names[value] for name, value in graph.outputs},
        "ops": ops,
        "values": {
            names.get(v, getattr(v, "name", "")): {
                "dtype": v.dtype.name,
                "shape": write_shape(v.shape),
            }
            for v in (*values, *unused)
        },
    }
    if graph.constants:
        document["constants"] = {n: _encode(a) for n, a in graph.constants.items()}
    return document


def _value_names(graph: Graph, values: Sequence[Value]) -> dict[Value, str]:
    """Inputs under their own names, other values under the names of the file or their ids."""
    ids = value_ids(values)
    names: dict[Value, str] = {v: v.name for v in values if isinstance(v, Input)}
    taken = {*names.values(), *(i.name for i in graph.inputs)}
    for value in values:
        if value not in names:
            name = graph.names.get(value, ids[value])
            while name in taken:
                name += "_"
            names[value] = name
            taken.add(name)
    return names


def write_shape(shape: Shape) -> list[int | str]:
    """Sizes as numbers, symbols by their names."""
    return [d.name if isinstance(d, Symbol) else d for d in shape]


def _encode(array: NDArray[Any]) -> str:
    if array.dtype.itemsize > 1 and array.dtype.byteorder != "|":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _op_document(
    value: Value, names: Mapping[Value, str], graph: Graph, encode: Codec | None
) -> Json:
    kind, fields, attrs = _form(value, encode)
    made: Json = {"op": kind, "name": graph.op_names.get(value, names[value]), **fields}
    made["inputs"] = [names[x] for x in operands(value)]
    made["outputs"] = [names[value]]
    if isinstance(value, Reduce):
        made["axes"] = list(value.axes)
    if attrs:
        made["attrs"] = attrs
    return made


def _form(value: Value, encode: Codec | None) -> tuple[str, Json, Json]:
    """The op, its kind or function, and its attributes."""
    match value:
        case Unary(fn=fn):
            return "Unary", {"fn": str(fn)}, {}
        case Cast(dtype=dtype):
            return "Unary", {"fn": "cast"}, {"dtype": dtype.name}
        case Binary(fn=fn):
            return "Binary", {"fn": str(fn)}, {}
        case Where():
            return "Binary", {"fn": "where"}, {}
        case Reduce(fn=reduce_fn, acc=acc):
            return "Reduce", {"fn": str(reduce_fn)}, {"acc": acc.name}
        case Const(value=scalar, dtype=dtype):
            attrs = {"value": write_scalar(scalar), "dtype": dtype.name}
            return "Leaf", {"kind": "const"}, attrs
        case Iota(axis=axis, dtype=dtype, shape=shape):
            attrs = {"axis": axis, "dtype": dtype.name, "new_shape": write_shape(shape)}
            return "Leaf", {"kind": "iota"}, attrs
        case Gather(axis=axis):
            return "Gather", {}, {"axis": axis}
        case Check(rule=rule, code=code, size=size):
            return "Check", {}, {"rule": str(rule), "code": code, "size": size}
        case Words(shape=shape):
            return "Words", {}, {"new_shape": write_shape(shape)}
        case Opaque(op=op, result=result):
            if encode is None:
                raise Unimplemented(str(op), "writing it as JSON needs the codec of its ops")
            more: Json = {} if value.base is None else {"base": value.base}
            more |= {"workspace": value.workspace} if value.workspace else {}
            more |= {"pairs": list(value.pairs)} if value.pairs else {}
            more |= {"site": value.site} if value.site else {}
            return "Opaque", {}, {"op": encode(op), "result": result, **more}
        case _:
            kind, attrs = _movement(value)
            return "Movement", {"kind": kind}, attrs


def _movement(value: Value) -> tuple[str, Json]:
    match value:
        case Reshape(shape=shape):
            return "reshape", {"new_shape": write_shape(shape)}
        case Permute(perm=perm):
            return "permute", {"perm": list(perm)}
        case Expand(shape=shape):
            return "expand", {"new_shape": write_shape(shape)}
        case Pad(low=low, high=high, value=fill):
            attrs = {"low": list(low), "high": list(high), "value": write_scalar(fill.value)}
            return "pad", attrs
        case Shrink(start=start, size=size):
            return "shrink", {"start": list(start), "size": write_shape(size)}
        case Flip(axes=axes):
            return "flip", {"axes": list(axes)}
        case View(shape=shape, index=index):
            return "view", {"new_shape": write_shape(shape), "index": [str(e) for e in index]}
        case DynamicShrink(size=size):
            return "dynamic_shrink", {"size": write_shape(size)}
        case DynamicUpdate():
            return "dynamic_update", {}
        case Barrier():
            return "barrier", {}
    raise Unimplemented(type(value).__name__, "it has no JSON form")
