"""Tiny as JSON, both ways without loss: document 2's section 12.1, extended.

A document is `{"ops": [...], "values": {name: {"dtype", "shape"}}}`. Dtypes are written as in the
document (fp16, bf16, fp32) and read under either name. A size is a number, or a string: a name for
a symbol, digits for a number. Beside the document's fields there are

- `inputs` and `outputs` (`{result name: value name}`). Without them every value that no op makes is
  an input, and every value that no op reads is a result under its own name;
- `constants`: the data of inputs that are not handed in, in base64, row-major, little-endian;
- ops `Leaf` (kinds `const` and `iota`), `Gather`, `Check`, `Words` and `Opaque` (written by the
  caller's codec); movements `flip`, `dynamic_shrink`, `dynamic_update` and `barrier`; `Unary`
  `cast`; `Reduce` with attribute `acc`.

What a file may leave out is put in when it is read: types in `values`; broadcasts of operands
(aligned at the right) and leading axes of `expand`; the accumulator of a reduction (f32 for floats
under 32 bits, cast back). `axes` of a reduction are numbers or names of symbols. Names of ops and
values are kept beside the graph; values without one are v0, v1, ... in topological order.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dims import Dim, Shape, Symbol, static
from weft.foundation.dtypes import BY_NAME, F16, F32, F64, DType
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.foundation.index_text import parse_index
from weft.foundation.json_fields import Fields, parse, reading, write_scalar
from weft.tiny import build
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
    Fn,
    Gather,
    Graph,
    Input,
    Iota,
    Opaque,
    Pad,
    Permute,
    Reduce,
    ReduceFn,
    Reshape,
    Rule,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
    operands,
    value_ids,
)
from weft.tiny.verify import BROADCAST, GRAPH, SHAPE

Json: TypeAlias = dict[str, Any]
Codec: TypeAlias = Callable[[Any], Any]
"""Writes the op of an `Opaque`; its counterpart reads it back."""

_WRITTEN: Final = {F16: "fp16", F32: "fp32", F64: "fp64"}
LONGEST_DIM: Final = 1_000
"""How many characters the size or the name of a dim may have."""
_READ: Final = {**BY_NAME, **{name: dtype for dtype, name in _WRITTEN.items()}}


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


def loads(text: str, decode_op: Codec | None = None) -> Graph:
    """The graph that a JSON text describes."""
    return from_json(parse(text, "Tiny file"), decode_op)


# -- writing -------------------------------------------------------------------------------------


def to_json(graph: Graph, encode_op: Codec | None = None) -> Json:
    """The graph as a JSON document."""
    values = graph.values
    names = _names(graph, values)
    ops = [_op(v, names, graph, encode_op) for v in values if not isinstance(v, Input)]
    unused = [i for i in graph.inputs if i not in names]
    document: Json = {
        "inputs": [i.name for i in graph.inputs],
        "outputs": {name: names[value] for name, value in graph.outputs},
        "ops": ops,
        "values": {
            names.get(v, getattr(v, "name", "")): {
                "dtype": write_dtype(v.dtype),
                "shape": _write_shape(v.shape),
            }
            for v in (*values, *unused)
        },
    }
    if graph.constants:
        document["constants"] = {n: _encode(a) for n, a in graph.constants.items()}
    return document


def _names(graph: Graph, values: Sequence[Value]) -> dict[Value, str]:
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


def write_dtype(dtype: DType) -> str:
    """The document's name of a dtype."""
    return _WRITTEN.get(dtype, dtype.name)


def _write_shape(shape: Shape) -> list[int | str]:
    return [d.name if isinstance(d, Symbol) else d for d in shape]


def _encode(array: NDArray[Any]) -> str:
    if array.dtype.itemsize > 1 and array.dtype.byteorder != "|":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def _op(value: Value, names: Mapping[Value, str], graph: Graph, encode: Codec | None) -> Json:
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
            return "Unary", {"fn": "cast"}, {"dtype": write_dtype(dtype)}
        case Binary(fn=fn):
            return "Binary", {"fn": str(fn)}, {}
        case Where():
            return "Binary", {"fn": "where"}, {}
        case Reduce(fn=reduce_fn, acc=acc):
            return "Reduce", {"fn": str(reduce_fn)}, {"acc": write_dtype(acc)}
        case Const(value=scalar, dtype=dtype):
            attrs = {"value": write_scalar(scalar), "dtype": write_dtype(dtype)}
            return "Leaf", {"kind": "const"}, attrs
        case Iota(axis=axis, dtype=dtype, shape=shape):
            attrs = {"axis": axis, "dtype": write_dtype(dtype), "new_shape": _write_shape(shape)}
            return "Leaf", {"kind": "iota"}, attrs
        case Gather(axis=axis):
            return "Gather", {}, {"axis": axis}
        case Check(rule=rule, code=code, size=size):
            return "Check", {}, {"rule": str(rule), "code": code, "size": size}
        case Words(shape=shape):
            return "Words", {}, {"new_shape": _write_shape(shape)}
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
            return "reshape", {"new_shape": _write_shape(shape)}
        case Permute(perm=perm):
            return "permute", {"perm": list(perm)}
        case Expand(shape=shape):
            return "expand", {"new_shape": _write_shape(shape)}
        case Pad(low=low, high=high, value=fill):
            attrs = {"low": list(low), "high": list(high), "value": write_scalar(fill.value)}
            return "pad", attrs
        case Shrink(start=start, size=size):
            return "shrink", {"start": list(start), "size": _write_shape(size)}
        case Flip(axes=axes):
            return "flip", {"axes": list(axes)}
        case View(shape=shape, index=index):
            return "view", {"new_shape": _write_shape(shape), "index": [str(e) for e in index]}
        case DynamicShrink(size=size):
            return "dynamic_shrink", {"size": _write_shape(size)}
        case DynamicUpdate():
            return "dynamic_update", {}
        case Barrier():
            return "barrier", {}
    raise Unimplemented(type(value).__name__, "it has no JSON form")


# -- reading -------------------------------------------------------------------------------------


def from_json(document: Any, decode_op: Codec | None = None) -> Graph:
    """The graph that a JSON document describes, with what it leaves out put in."""
    with reading(document, "the graph") as fields:
        return _Reader(fields, decode_op).run()


class _Reader:
    """Reads one document; values are known by name once their op has been read."""

    def __init__(self, fields: Fields, decode: Codec | None) -> None:
        self.fields, self.decode = fields, decode
        self.types = _types(fields)
        self.values: dict[str, Value] = {}
        self.used: set[str] = set()
        self.names: dict[Value, str] = {}
        self.op_names: dict[Value, str] = {}
        self.named: set[str] = set()
        self.inputs: list[Input] = []

    def run(self) -> Graph:
        encoded = _texts(self.fields, "constants") if self.fields.has("constants") else {}
        declared = self.fields.texts("inputs") if self.fields.has("inputs") else None
        for name in declared or ():
            self.inputs.append(self._input(name))
        self.fields.items("ops", self._op)
        if declared is None:
            made = [v for v in self.values.values() if isinstance(v, Input)]
            self.inputs = [v for v in made if v.name not in encoded]
        constants = {name: self._constant(name, text) for name, text in encoded.items()}
        for name in self.types:
            if name not in self.values:
                raise SpecViolation(GRAPH, f"'values' has the type of {name!r}, which no op makes")
        return Graph(tuple(self.inputs), self._outputs(), {}, constants, self.names, self.op_names)

    def _outputs(self) -> tuple[tuple[str, Value], ...]:
        if self.fields.has("outputs"):
            named = _texts(self.fields, "outputs")
            return tuple((name, self._value(source)) for name, source in named.items())
        made = (n for n, v in self.values.items() if not isinstance(v, Input))
        return tuple((name, self.values[name]) for name in made if name not in self.used)

    def _constant(self, name: str, text: str) -> NDArray[Any]:
        kind = self._input(name)
        shape = [static(d) for d in kind.shape]
        try:
            data = base64.b64decode(text, validate=True)
        except ValueError:
            raise SpecViolation(GRAPH, f"the constant {name!r} is not base64") from None
        if len(data) != prod(shape) * kind.dtype.numpy.itemsize:
            why = f"the constant {name!r} has {len(data)} bytes, which are not {kind.dtype}{shape}"
            raise SpecViolation(GRAPH, why)
        raw = np.frombuffer(data, kind.dtype.numpy.newbyteorder("<"))
        return raw.astype(kind.dtype.numpy).reshape(shape)

    def _input(self, name: str) -> Input:
        if name not in self.types or self.types[name][1] is None:
            raise SpecViolation(GRAPH, f"the input {name!r} has no type in 'values'")
        dtype, shape = self.types[name]
        made = Input(name, dtype, shape or ())
        self.values.setdefault(name, made)
        return made

    def _value(self, name: str) -> Value:
        if name not in self.values:
            self._input(name)
        self.used.add(name)
        return self.values[name]

    def _op(self, fields: Fields) -> None:
        op, name = fields.text("op"), fields.text("name", "")
        if name in self.named:
            fields.fail(f"two ops are called {name!r}")
        inputs = [self._value(x) for x in fields.texts("inputs")]
        outputs = fields.texts("outputs")
        if len(outputs) != 1:
            fields.fail("an op makes one value")
        (output,) = outputs
        attrs = Fields(fields.take("attrs") if fields.has("attrs") else {}, f"{fields.where}.attrs")
        match op:
            case "Movement":
                value: Value = _read_movement(fields.text("kind"), inputs, attrs)
            case "Unary":
                value = _read_unary(fields.text("fn"), inputs, attrs)
            case "Binary":
                value = _read_binary(fields.text("fn"), inputs, fields)
            case "Reduce":
                value = self._reduce(fields, inputs, attrs, output, name)
            case "Leaf":
                _operands(fields, inputs, 0)
                value = _read_leaf(fields.text("kind"), attrs)
            case "Gather":
                x, index = _operands(fields, inputs, 2)
                value = Gather(x, index, attrs.whole("axis"))
            case "Check":
                value = _read_check(_operands(fields, inputs, 1)[0], attrs)
            case "Words":
                (state,) = _operands(fields, inputs, 1)
                value = Words(state, _shape(attrs.take("new_shape"), attrs))
            case "Opaque":
                value = self._opaque(inputs, attrs, output)
            case _:
                fields.fail(f"there is no op {op!r}")
        attrs.done()
        self._define(output, name, value)

    def _define(self, output: str, name: str, value: Value) -> None:
        if output in self.values:
            raise SpecViolation(GRAPH, f"the value {output!r} is made twice")
        if output in self.types:
            self._check(output, value)
        self.values[output] = value
        self.names[value] = output
        self._name_op(value, name)

    def _name_op(self, value: Value, name: str) -> None:
        """The first value that an op makes has its name: the reduction, not the cast back."""
        if name and name not in self.named:
            self.op_names[value] = name
            self.named.add(name)

    def _check(self, name: str, value: Value) -> None:
        dtype, shape = self.types[name]
        if dtype is not value.dtype or shape != value.shape:
            found = f"{write_dtype(value.dtype)}{_write_shape(value.shape)}"
            wanted = f"{write_dtype(dtype)}{_write_shape(shape or ())}"
            raise SpecViolation(SHAPE, f"{name!r} is {found}, but 'values' says {wanted}")

    def _reduce(
        self, fields: Fields, inputs: Sequence[Value], attrs: Fields, output: str, name: str
    ) -> Value:
        (x,) = _operands(fields, inputs, 1)
        axes = tuple(sorted(_axis(a, x.shape, fields) for a in fields.documents("axes")))
        if len(set(axes)) != len(axes):
            fields.fail(f"an axis is reduced twice: {list(axes)}")
        fn = fields.choice("fn", ReduceFn)
        if attrs.has("acc"):
            return Reduce(fn, x, axes, _dtype(attrs, "acc"))
        acc = numeric.accumulator_dtype(x.dtype)
        total = Reduce(fn, build.cast(x, acc), axes, acc)
        self._name_op(total, name)
        return build.cast(total, self.types[output][0] if output in self.types else x.dtype)

    def _opaque(self, inputs: Sequence[Value], attrs: Fields, output: str) -> Value:
        if self.decode is None:
            raise Unimplemented("an opaque op", "reading it from JSON needs the codec of its ops")
        if output not in self.types:
            raise SpecViolation(GRAPH, f"the value {output!r} has no type in 'values'")
        dtype, shape = self.types[output]
        return Opaque(
            self.decode(attrs.take("op")),
            tuple(inputs),
            attrs.whole("result"),
            dtype,
            shape or (),
            attrs.whole("base") if attrs.has("base") else None,
            attrs.whole("workspace", 0),
            attrs.wholes("pairs", ()),
            attrs.whole("site", 0),
        )


def _texts(fields: Fields, name: str) -> dict[str, str]:
    with reading(fields.take(name), f"{fields.where}.{name}") as entries:
        return {key: entries.text(key) for key in entries.names}


def _operands(fields: Fields, inputs: Sequence[Value], wanted: int) -> Sequence[Value]:
    """The inputs of an op, which takes so many."""
    if len(inputs) != wanted:
        fields.fail(f"it takes {wanted} inputs, not {len(inputs)}")
    return inputs


def _types(fields: Fields) -> dict[str, tuple[DType, Shape | None]]:
    found: dict[str, tuple[DType, Shape | None]] = {}
    for name, document in Fields(fields.take("values"), "values").rest():
        with reading(document, f"values.{name}") as one:
            shape = _shape(one.take("shape"), one) if one.has("shape") else None
            found[name] = (_dtype(one, "dtype"), shape)
    return found


def _dtype(fields: Fields, name: str) -> DType:
    text = fields.text(name)
    if text not in _READ:
        fields.fail(f"{text!r} is not a dtype; the dtypes are {', '.join(_READ)}")
    return _READ[text]


def _shape(document: Any, fields: Fields) -> Shape:
    if not isinstance(document, list):
        fields.fail("a shape must be a list")
    return tuple(_dim(item, fields) for item in document)


def _dim(item: Any, fields: Fields) -> Dim:
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        return item
    if isinstance(item, str) and 0 < len(item) <= LONGEST_DIM:
        if item.isdecimal() and item.isascii():
            return int(item)
        if item.removeprefix("?").isidentifier():
            return Symbol(item.removeprefix("?"))
    fields.fail(f"{item!r} is not a size")


def _axis(item: Any, shape: Shape, fields: Fields) -> int:
    """An axis by number, or by the name of the symbol that is its size."""
    if isinstance(item, int) and not isinstance(item, bool):
        if not 0 <= item < len(shape):
            fields.fail(f"{item} is no axis of a value of shape {_write_shape(shape)}")
        return item
    places = [k for k, d in enumerate(shape) if isinstance(d, Symbol) and d.name == item]
    if len(places) != 1:
        shown = _write_shape(shape)
        fields.fail(f"{item!r} names {len(places)} axes of a value of shape {shown}, not one")
    return places[0]


def _read_leaf(kind: str, attrs: Fields) -> Value:
    dtype = _dtype(attrs, "dtype")
    if kind == "const":
        value = attrs.scalar("value")
        if not numeric.is_number_of(value, dtype):
            attrs.fail(f"{value} is no number of {dtype}")
        return build.const(value, dtype)
    if kind != "iota":
        attrs.fail(f"there is no leaf {kind!r}")
    return Iota(dtype, _shape(attrs.take("new_shape"), attrs), attrs.whole("axis"))


def _read_check(x: Value, attrs: Fields) -> Value:
    rules = {str(rule): rule for rule in Rule}
    name = attrs.text("rule")
    if name not in rules:
        attrs.fail(f"there is no rule {name!r}")
    return Check(x, rules[name], attrs.text("code"), attrs.whole("size"))


def _read_unary(fn: str, inputs: Sequence[Value], attrs: Fields) -> Value:
    (x,) = _operands(attrs, inputs, 1)
    return Cast(x, _dtype(attrs, "dtype")) if fn == "cast" else Unary(_fn(fn, attrs), x)


def _read_binary(fn: str, inputs: Sequence[Value], fields: Fields) -> Value:
    """Operands are broadcast to one shape, aligned at the right."""
    _operands(fields, inputs, 3 if fn == "where" else 2)
    rank = max(len(x.shape) for x in inputs)
    padded = [(1,) * (rank - len(x.shape)) + tuple(x.shape) for x in inputs]
    shape = []
    for dims in zip(*padded, strict=True):
        wide = dict.fromkeys(d for d in dims if d != 1)
        if len(wide) > 1:
            shown = " and ".join(str(_write_shape(x.shape)) for x in inputs)
            raise SpecViolation(BROADCAST, f"the operands have shapes {shown}", where=fields.where)
        shape.append(next(iter(wide), 1))
    sides = [_expanded(x, shape) for x in inputs]
    return Where(*sides) if fn == "where" else Binary(_fn(fn, fields), *sides)


def _expanded(x: Value, shape: Sequence[Dim]) -> Value:
    """`x` with missing leading axes, expanded; nothing that it is already."""
    if len(x.shape) < len(shape):
        x = Reshape(x, ((1,) * (len(shape) - len(x.shape)) + tuple(x.shape)))
    return x if x.shape == tuple(shape) else Expand(x, tuple(shape))


def _fn(name: str, fields: Fields) -> Fn:
    try:
        return Fn(name)
    except ValueError:
        fields.fail(f"there is no function {name!r}")


def _read_movement(kind: str, inputs: Sequence[Value], attrs: Fields) -> Value:
    if kind in ("dynamic_shrink", "dynamic_update"):
        least = 1 if kind == "dynamic_shrink" else 2
        _operands(attrs, inputs[:least], least)
    else:
        _operands(attrs, inputs, 2 if kind == "barrier" else 1)
    x = inputs[0]
    match kind:
        case "reshape":
            return Reshape(x, _shape(attrs.take("new_shape"), attrs))
        case "permute":
            return Permute(x, attrs.wholes("perm"))
        case "expand":
            shape = _shape(attrs.take("new_shape"), attrs)
            return _expanded(x, shape) if len(x.shape) < len(shape) else Expand(x, shape)
        case "pad":
            fill = build.const(attrs.scalar("value"), x.dtype)
            return Pad(x, attrs.wholes("low"), attrs.wholes("high"), fill)
        case "shrink":
            return Shrink(x, attrs.wholes("start"), _shape(attrs.take("size"), attrs))
        case "flip":
            return Flip(x, attrs.wholes("axes"))
        case "view":
            index = parse_index(list(attrs.texts("index")))
            return View(x, _shape(attrs.take("new_shape"), attrs), index)
        case "dynamic_shrink":
            return DynamicShrink(x, tuple(inputs[1:]), _shape(attrs.take("size"), attrs))
        case "dynamic_update":
            return DynamicUpdate(x, inputs[1], tuple(inputs[2:]))
        case "barrier":
            return Barrier(x, inputs[1])
    attrs.fail(f"there is no movement {kind!r}")
