"""Tiny graphs from JSON, with what a file may leave out put in."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation import numeric
from weft.foundation.dims import Dim, Shape, Symbol, static
from weft.foundation.dtypes import BY_NAME, F16, F32, F64, DType
from weft.foundation.errors import SpecViolation, Unimplemented
from weft.foundation.index_text import parse_index
from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.scalar import Fn
from weft.foundation.whole_numbers import in_64_bits, read_whole
from weft.tiny import build
from weft.tiny.ir import (
    Barrier,
    Binary,
    Cast,
    Check,
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
    ReduceFn,
    Reshape,
    Rule,
    Shrink,
    Unary,
    Value,
    View,
    Where,
    Words,
)
from weft.tiny.text.printer import Codec, write_shape
from weft.tiny.verify import BROADCAST, GRAPH, SHAPE

LONGEST_DIM: Final = 1_000
"""How many characters the size or the name of a dim may have."""
_READ: Final = {**BY_NAME, "fp16": F16, "fp32": F32, "fp64": F64}
"""Dtypes by name, the document's own names included."""


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
                _count_operands(fields, inputs, 0)
                value = _read_leaf(fields.text("kind"), attrs)
            case "Gather":
                x, index = _count_operands(fields, inputs, 2)
                value = Gather(x, index, attrs.whole("axis"))
            case "Check":
                value = _read_check(_count_operands(fields, inputs, 1)[0], attrs)
            case "Words":
                (state,) = _count_operands(fields, inputs, 1)
                value = Words(state, _parse_shape(attrs.take("new_shape"), attrs))
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
            found = f"{value.dtype}{write_shape(value.shape)}"
            wanted = f"{dtype}{write_shape(shape or ())}"
            raise SpecViolation(SHAPE, f"{name!r} is {found}, but 'values' says {wanted}")

    def _reduce(
        self, fields: Fields, inputs: Sequence[Value], attrs: Fields, output: str, name: str
    ) -> Value:
        (x,) = _count_operands(fields, inputs, 1)
        axes = tuple(sorted(_parse_axis(a, x.shape, fields) for a in fields.documents("axes")))
        if len(set(axes)) != len(axes):
            fields.fail(f"an axis is reduced twice: {list(axes)}")
        fn = fields.choice("fn", ReduceFn)
        if attrs.has("acc"):
            return Reduce(fn, x, axes, _parse_dtype(attrs, "acc"))
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


def _parse_texts(fields: Fields, name: str) -> dict[str, str]:
    with reading(fields.take(name), f"{fields.where}.{name}") as entries:
        return {key: entries.text(key) for key in entries.names}


def _count_operands(fields: Fields, inputs: Sequence[Value], wanted: int) -> Sequence[Value]:
    """The inputs of an op, which takes so many."""
    if len(inputs) != wanted:
        fields.fail(f"it takes {wanted} inputs, not {len(inputs)}")
    return inputs


def _types(fields: Fields) -> dict[str, tuple[DType, Shape | None]]:
    found: dict[str, tuple[DType, Shape | None]] = {}
    for name, document in Fields(fields.take("values"), "values").rest():
        with reading(document, f"values.{name}") as one:
            shape = _parse_shape(one.take("shape"), one) if one.has("shape") else None
            found[name] = (_parse_dtype(one, "dtype"), shape)
    return found


def _parse_dtype(fields: Fields, name: str) -> DType:
    text = fields.text(name)
    if text not in _READ:
        fields.fail(f"{text!r} is not a dtype; the dtypes are {', '.join(_READ)}")
    return _READ[text]


def _parse_shape(document: Any, fields: Fields) -> Shape:
    if not isinstance(document, list):
        fields.fail("a shape must be a list")
    return tuple(_parse_dim(item, fields) for item in document)


def _parse_dim(item: Any, fields: Fields) -> Dim:
    is_digits = isinstance(item, str) and item.isdecimal() and item.isascii()
    size = read_whole(item) if is_digits else item
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0 and in_64_bits(size):
        return size
    if isinstance(item, str) and len(item) <= LONGEST_DIM and item.removeprefix("?").isidentifier():
        return Symbol(item.removeprefix("?"))
    fields.fail(f"{item!r} is not a size")


def _parse_axis(item: Any, shape: Shape, fields: Fields) -> int:
    """An axis by number, or by the name of the symbol that is its size."""
    if isinstance(item, int) and not isinstance(item, bool):
        if not 0 <= item < len(shape):
            fields.fail(f"{item} is no axis of a value of shape {write_shape(shape)}")
        return item
    places = [k for k, d in enumerate(shape) if isinstance(d, Symbol) and d.name == item]
    if len(places) != 1:
        shown = write_shape(shape)
        fields.fail(f"{item!r} names {len(places)} axes of a value of shape {shown}, not one")
    return places[0]


def _read_leaf(kind: str, attrs: Fields) -> Value:
    dtype = _parse_dtype(attrs, "dtype")
    if kind == "const":
        value = attrs.scalar("value")
        if not numeric.is_number_of(value, dtype):
            attrs.fail(f"{value} is no number of {dtype}")
        return build.const(value, dtype)
    if kind != "iota":
        attrs.fail(f"there is no leaf {kind!r}")
    return Iota(dtype, _parse_shape(attrs.take("new_shape"), attrs), attrs.whole("axis"))


def _read_check(x: Value, attrs: Fields) -> Value:
    rules = {str(rule): rule for rule in Rule}
    name = attrs.text("rule")
    if name not in rules:
        attrs.fail(f"there is no rule {name!r}")
    return Check(x, rules[name], attrs.text("code"), attrs.whole("size"))


def _read_unary(fn: str, inputs: Sequence[Value], attrs: Fields) -> Value:
    (x,) = _count_operands(attrs, inputs, 1)
    return Cast(x, _parse_dtype(attrs, "dtype")) if fn == "cast" else Unary(_fn(fn, attrs), x)


def _read_binary(fn: str, inputs: Sequence[Value], fields: Fields) -> Value:
    """Operands are broadcast to one shape, aligned at the right."""
    _count_operands(fields, inputs, 3 if fn == "where" else 2)
    rank = max(len(x.shape) for x in inputs)
    padded = [(1,) * (rank - len(x.shape)) + tuple(x.shape) for x in inputs]
    shape = []
    for dims in zip(*padded, strict=True):
        wide = dict.fromkeys(d for d in dims if d != 1)
        if len(wide) > 1:
            shown = " and ".join(str(write_shape(x.shape)) for x in inputs)
            raise SpecViolation(BROADCAST, f"the operands have shapes {shown}", where=fields.where)
        shape.append(next(iter(wide), 1))
    sides = [_expand_to(x, shape) for x in inputs]
    return Where(*sides) if fn == "where" else Binary(_fn(fn, fields), *sides)


def _expand_to(x: Value, shape: Sequence[Dim]) -> Value:
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
        _count_operands(attrs, inputs[:least], least)
    else:
        _count_operands(attrs, inputs, 2 if kind == "barrier" else 1)
    x = inputs[0]
    match kind:
        case "reshape":
            return Reshape(x, _parse_shape(attrs.take("new_shape"), attrs))
        case "permute":
            return Permute(x, attrs.wholes("perm"))
        case "expand":
            shape = _parse_shape(attrs.take("new_shape"), attrs)
            return _expand_to(x, shape) if len(x.shape) < len(shape) else Expand(x, shape)
        case "pad":
            fill = build.const(attrs.scalar("value"), x.dtype)
            return Pad(x, attrs.wholes("low"), attrs.wholes("high"), fill)
        case "shrink":
            return Shrink(x, attrs.wholes("start"), _parse_shape(attrs.take("size"), attrs))
        case "flip":
            return Flip(x, attrs.wholes("axes"))
        case "view":
            index = parse_index(list(attrs.texts("index")))
            return View(x, _parse_shape(attrs.take("new_shape"), attrs), index)
        case "dynamic_shrink":
            return DynamicShrink(x, tuple(inputs[1:]), _parse_shape(attrs.take("size"), attrs))
        case "dynamic_update":
            return DynamicUpdate(x, inputs[1], tuple(inputs[2:]))
        case "barrier":
            return Barrier(x, inputs[1])
    attrs.fail(f"there is no movement {kind!r}")
