"""Tiny graphs from JSON, with what a file may leave out put in."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dims import Dim, Shape, Symbol, static
from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.json_records import Json
from weft.foundation.scalar import Fn
from weft.tiny import build
from weft.tiny.ir import (
    Binary,
    Const,
    Expand,
    Graph,
    Input,
    Opaque,
    Pad,
    Reduce,
    ReduceFn,
    Reshape,
    Unary,
    Value,
    Where,
    operand_fields,
    takes_several,
)
from weft.tiny.text.printer import Codec
from weft.tiny.text.records import (
    NODES,
    RECORDS,
    WORDS,
    read_dtype,
    read_shape,
    write_shape,
)
from weft.tiny.verify import BROADCAST, GRAPH, SHAPE


def loads(text: str, decode_op: Codec | None = None) -> Graph:
    """The graph that a JSON text describes."""
    return from_json(parse(text, "Tiny file"), decode_op)


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
        encoded = _parse_texts(self.fields, "constants") if self.fields.has("constants") else {}
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
            named = _parse_texts(self.fields, "outputs")
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
        kind, given = _read_kind(fields, op)
        given |= _read_operands(kind, inputs, fields)
        if kind is Reduce:
            value = self._reduce(fields, given["x"], attrs, output, name)
        else:
            if kind is Opaque:
                given |= self._opaque(attrs, output)
            value = _make_node(kind, RECORDS.read_fields(kind, attrs, **given), attrs)
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
            found = f"{value.dtype}{write_shape(value.shape)}"
            wanted = f"{dtype}{write_shape(shape or ())}"
            raise SpecViolation(SHAPE, f"{name!r} is {found}, but 'values' says {wanted}")

    def _reduce(self, fields: Fields, x: Value, attrs: Fields, output: str, name: str) -> Value:
        axes = tuple(sorted(_parse_axis(a, x.shape, fields) for a in fields.documents("axes")))
        if len(set(axes)) != len(axes):
            fields.fail(f"an axis is reduced twice: {list(axes)}")
        fn = fields.choice("fn", ReduceFn)
        if attrs.has("acc"):
            return RECORDS.read(Reduce, attrs, fn=fn, x=x, axes=axes)
        acc = numeric.accumulator_dtype(x.dtype)
        total = Reduce(fn, build.cast(x, acc), axes, acc)
        self._name_op(total, name)
        return build.cast(total, self.types[output][0] if output in self.types else x.dtype)

    def _opaque(self, attrs: Fields, output: str) -> Json:
        """The op, and the type of what it makes."""
        if self.decode is None:
            raise Unimplemented("an opaque op", "reading it from JSON needs the codec of its ops")
        if output not in self.types:
            raise SpecViolation(GRAPH, f"the value {output!r} has no type in 'values'")
        dtype, shape = self.types[output]
        return {"op": self.decode(attrs.take("op")), "dtype": dtype, "shape": shape or ()}


def _parse_texts(fields: Fields, name: str) -> dict[str, str]:
    with reading(fields.take(name), f"{fields.where}.{name}") as entries:
        return {key: entries.text(key) for key in entries.names}


def _types(fields: Fields) -> dict[str, tuple[DType, Shape | None]]:
    found: dict[str, tuple[DType, Shape | None]] = {}
    for name, document in Fields(fields.take("values"), "values").rest():
        with reading(document, f"values.{name}") as one:
            shape = read_shape(one, "shape") if one.has("shape") else None
            found[name] = (read_dtype(one, "dtype"), shape)
    return found


def _parse_axis(item: Any, shape: Shape, fields: Fields) -> int:
    """An axis by number, or by the name of the symbol that is its size."""
    if isinstance(item, int) and not isinstance(item, bool):
        if not 0 <= item < len(shape):
            fields.fail(f"{item} is not an axis of a value of shape {write_shape(shape)}")
        return item
    places = [k for k, d in enumerate(shape) if isinstance(d, Symbol) and d.name == item]
    if len(places) != 1:
        shown = write_shape(shape)
        fields.fail(f"{item!r} names {len(places)} axes of a value of shape {shown}, not one")
    return places[0]


def _read_kind(fields: Fields, op: str) -> tuple[type, Json]:
    """The node that an op is, and the function that it computes, if there are several."""
    if op in NODES:
        return NODES[op], {}
    if op not in WORDS:
        fields.fail(f"there is no op {op!r}")
    key, words = WORDS[op]
    word = fields.text(key)
    if word not in words:
        fields.fail(f"there is no {'function' if key == 'fn' else op.lower()} {word!r}")
    kind = words[word]
    return kind, {"fn": Fn(word)} if kind in (Unary, Binary) else {}


def _read_operands(kind: type, inputs: Sequence[Value], fields: Fields) -> Json:
    """The inputs of an op as fields of its node."""
    names = operand_fields(kind)
    several = takes_several(kind)
    least = len(names) - several
    if len(inputs) < least or (len(inputs) > least and not several):
        fields.fail(f"it takes {least} inputs, not {len(inputs)}")
    found: list[Any] = [*(_in_one_shape(inputs, fields) if kind in (Binary, Where) else inputs)]
    if several:
        found[least:] = [tuple(found[least:])]
    return dict(zip(names, found, strict=True))


def _in_one_shape(inputs: Sequence[Value], fields: Fields) -> list[Value]:
    """Operands in one shape, aligned at the right."""
    rank = max(len(x.shape) for x in inputs)
    padded = [(1,) * (rank - len(x.shape)) + tuple(x.shape) for x in inputs]
    shape = []
    for dims in zip(*padded, strict=True):
        wide = dict.fromkeys(d for d in dims if d != 1)
        if len(wide) > 1:
            shown = " and ".join(str(write_shape(x.shape)) for x in inputs)
            raise SpecViolation(BROADCAST, f"the operands have shapes {shown}", where=fields.where)
        shape.append(next(iter(wide), 1))
    return [_expand_to(x, shape) for x in inputs]


def _expand_to(x: Value, shape: Sequence[Dim]) -> Value:
    """`x` with missing leading axes, expanded; nothing that it is already."""
    if len(x.shape) < len(shape):
        x = Reshape(x, ((1,) * (len(shape) - len(x.shape)) + tuple(x.shape)))
    return x if x.shape == tuple(shape) else Expand(x, tuple(shape))


def _make_node(kind: type, found: Json, attrs: Fields) -> Value:
    """The node that has these fields: its numbers have the dtype that they are of, and `expand` has
    the leading axes that its operand may lack."""
    if kind is Const:
        return _make_number(found["value"], found["dtype"], attrs)
    if kind is Pad:
        found["value"] = _make_number(found["value"], found["x"].dtype, attrs)
    if kind is Expand and len(found["x"].shape) < len(found["shape"]):
        return _expand_to(**found)
    made: Value = kind(**found)
    return made


def _make_number(value: Any, dtype: DType, attrs: Fields) -> Const:
    if not numeric.is_number_of(value, dtype):
        attrs.fail(f"{value} is not a number of {dtype}")
    return build.const(value, dtype)
