"""Tiny graphs as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import Unimplemented
from weft.foundation.json_records import Json
from weft.tiny.ir import Graph, Input, Opaque, Reduce, Value, operand_fields, operands, value_ids
from weft.tiny.text.records import RECORDS, WORDS, write_shape

Codec: TypeAlias = Callable[[Any], Any]
"""Writes the op of an `Opaque`; its counterpart reads it back."""
_SAID: Final = {
    kind: (op, {key: word}) for op, (key, words) in WORDS.items() for word, kind in words.items()
}
"""What the op of a node is called, and the word that tells it from others of the name."""


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


def _encode(array: NDArray[Any]) -> str:
    if array.dtype.itemsize > 1 and array.dtype.byteorder != "|":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _op_document(
    value: Value, names: Mapping[Value, str], graph: Graph, encode: Codec | None
) -> Json:
    kind = type(value)
    op, said = _SAID.get(kind, (kind.__name__, {}))
    if (fn := getattr(value, "fn", None)) is not None:
        said = {"fn": str(fn)}
    made: Json = {"op": op, "name": graph.op_names.get(value, names[value]), **said}
    made["inputs"] = [names[x] for x in operands(value)]
    made["outputs"] = [names[value]]
    if isinstance(value, Reduce):
        made["axes"] = list(value.axes)
    written: Json = dict.fromkeys(operand_fields(kind))
    if isinstance(value, Opaque):
        if encode is None:
            raise Unimplemented(str(value.op), "writing it as JSON needs the codec of its ops")
        written["op"] = encode(value.op)
    attrs = RECORDS.write(value, **written)
    return made | ({"attrs": attrs} if attrs else {})
