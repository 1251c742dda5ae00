"""The ONNX graph being written: nodes by name, each with the type of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from onnx.defs import get_schema

from weft.foundation.dtypes import F32, I1, SI8, SI64, UI8, DType
from weft.foundation.errors import Unimplemented
from weft.interop.onnx.tensors import NUMBER
from weft.ptir.types import Dim, Symbol, TensorType

Array = NDArray[Any]
OPSET: Final = 21
"""The version of the operators that are written."""


@dataclass(frozen=True)
class Edge:
    """A value of the graph: its name and its type."""

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank


Written: TypeAlias = "Edge | tuple[Written, ...]"
"""What a PTIR value is in the graph: a tuple is the values of its elements."""


def flattened(value: Written) -> list[Edge]:
    """The tensors of a value, in order."""
    if isinstance(value, Edge):
        return [value]
    return [leaf for element in value for leaf in flattened(element)]


def number_of(dtype: DType) -> int:
    """What ONNX calls a dtype."""
    return NUMBER[dtype]


_WORDS: Final = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float", "f64": "double", "i1": "bool",
    "fp8_e4m3": "float8e4m3fn", "fp8_e5m2": "float8e5m2",
}  # fmt: skip
_EXACT: Final = frozenset({
    "ArgMax", "ArgMin", "Concat", "Equal", "Expand", "Gather", "GatherElements", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Pad", "ReduceMax", "ReduceMin",
    "Reshape", "Slice", "Tile", "TopK", "Transpose", "Where",
})  # fmt: skip
"""Operators that give elements as they are: any dtype that holds them will do."""


def _type_word(dtype: DType) -> str:
    """How ONNX's tables of types write a dtype."""
    name = dtype.name.replace("si", "int").replace("ui", "uint")
    return f"tensor({_WORDS.get(dtype.name, name)})"


@cache
def _dtypes_taken(op: str, count: int) -> tuple[frozenset[str], ...]:
    """The dtypes that an operator takes in each of so many places."""
    places = get_schema(op, OPSET).inputs
    return tuple(frozenset(places[min(k, len(places) - 1)].types) for k in range(count))


def _dtype_instead(op: str, dtype: DType) -> DType:
    """The dtype in which an operator computes what it does not take itself."""
    if dtype.is_float and dtype.bits < 32:
        return F32
    if op in _EXACT and dtype.bits <= 4:
        return SI8 if dtype.is_signed else UI8
    raise Unimplemented(op, f"ONNX has it, but not for {dtype}")


def info(edge: Edge) -> ValueInfoProto:
    """An input or output of a graph."""
    dims = [dim if isinstance(dim, int) else dim.name for dim in edge.shape]
    return helper.make_tensor_value_info(edge.name, number_of(edge.dtype), dims)


class Page:
    """Nodes in the order they are written. Pages of inner graphs share names and constants."""

    def __init__(self, outer: Page | None = None) -> None:
        self.nodes: list[NodeProto] = []
        self._names: list[int] = [0] if outer is None else outer._names
        self.constants: list[TensorProto] = [] if outer is None else outer.constants
        self._known: dict[Any, Edge] = {} if outer is None else outer._known
        self._sizes: dict[Symbol, tuple[Edge, int]] = {} if outer is None else dict(outer._sizes)
        self._turned: dict[str, tuple[Edge, tuple[int, ...]]] = {}
        self._repeated: dict[str, Edge] = {}
        self._shaped: dict[str, Edge] = {}
        self.line: str = "" if outer is None else outer.line

    def fresh(self, word: str = "v") -> str:
        self._names[0] += 1
        return f"{word}{self._names[0]}"

    def noted(self, edge: Edge) -> Edge:
        """The value; sizes that are seen for the first time are asked of it later."""
        for axis, dim in enumerate(edge.shape):
            if isinstance(dim, Symbol):
                self._sizes.setdefault(dim, (edge, axis))
        return edge

    def nodes_for(
        self, op: str, x: Sequence[Edge | None], kinds: Sequence[TensorType], **attributes: Any
    ) -> list[Edge]:
        """A node with several results. Dtypes that ONNX has no operator for go through others."""
        taken = _dtypes_taken(op, len(x))
        strange = {
            each.dtype
            for each, words in zip(x, taken, strict=True)
            if each is not None and _type_word(each.dtype) not in words
        }
        if not strange:
            return self._node(op, x, kinds, attributes)
        to = {dtype: _dtype_instead(op, dtype) for dtype in strange}
        given = [each and self.cast(each, to.get(each.dtype, each.dtype)) for each in x]
        found = self._node(
            op,
            given,
            [kind.with_dtype(to.get(kind.dtype, kind.dtype)) for kind in kinds],
            attributes,
        )
        return [self.cast(each, kind.dtype) for each, kind in zip(found, kinds, strict=True)]

    def _node(
        self, op: str, x: Sequence[Edge | None], kinds: Sequence[TensorType],
        attributes: Mapping[str, Any],
    ) -> list[Edge]:  # fmt: skip
        made = [Edge(self.fresh(), kind) for kind in kinds]
        names = ["" if each is None else each.name for each in x]
        node = helper.make_node(op, names, [each.name for each in made], name=self.fresh(f"{op}_"))
        node.doc_string = self.line
        for name, value in sorted(attributes.items()):
            node.attribute.append(helper.make_attribute(name, value))
        self.nodes.append(node)
        return made

    def op(self, op: str, *x: Edge | None, like: TensorType, **attributes: Any) -> Edge:
        return self.nodes_for(op, x, [like], **attributes)[0]

    def constant(self, array: Array, dtype: DType) -> Edge:
        """An array as an initialiser; small ones are written once."""
        given = np.ascontiguousarray(np.asarray(array).astype(dtype.numpy, copy=False))
        given = given.reshape(np.shape(array))
        key = (dtype, given.shape, given.tobytes()) if given.nbytes <= 1024 else None
        if key in self._known:
            return self._known[key]
        made = Edge(self.fresh("c"), TensorType(dtype, given.shape))
        self.constants.append(_store_array(given, dtype, made.name))
        if key is not None:
            self._known[key] = made
        return made

    def numbers(self, values: Sequence[int]) -> Edge:
        """Whole numbers as a vector."""
        return self.constant(np.array(values, np.int64), SI64)

    def full(self, value: Any, like: DType) -> Edge:
        """One number, as a tensor without axes."""
        return self.constant(np.asarray(value), like)

    # -- sizes -------------------------------------------------------------------------------------

    def sizes(self, shape: Sequence[Dim]) -> Edge:
        """A shape as a vector."""
        if all(isinstance(dim, int) for dim in shape):
            return self.numbers([int(dim) for dim in shape if isinstance(dim, int)])
        kind = TensorType(SI64, (len(shape),))
        return self.op("Concat", *[self._size(dim) for dim in shape], like=kind, axis=0)

    def _size(self, dim: Dim) -> Edge:
        """One size, as a vector of one."""
        if isinstance(dim, int):
            return self.numbers([dim])
        if dim not in self._sizes:
            raise Unimplemented(f"the size {dim}", "ONNX cannot compute it before its use")
        edge, axis = self._sizes[dim]
        one = TensorType(SI64, (1,))
        return self.op("Shape", edge, like=one, start=axis, end=axis + 1)

    # -- what many rules need ----------------------------------------------------------------------

    def cast(self, x: Edge, dtype: DType) -> Edge:
        """ONNX's own cast, which says nothing of what does not fit."""
        if x.dtype is dtype:
            return x
        more = {"saturate": 0} if dtype.name.startswith("fp8") else {}
        return self.op("Cast", x, like=x.type.with_dtype(dtype), to=number_of(dtype), **more)

    def reshape(self, x: Edge, shape: Sequence[Dim]) -> Edge:
        """What has another shape already gets the last one at once."""
        x = self._shaped.get(x.name, x)
        if x.shape == tuple(shape):
            return x
        found = self._reshape(x, shape)
        self._shaped[found.name] = x
        return found

    def _reshape(self, x: Edge, shape: Sequence[Dim]) -> Edge:
        kind = x.type.with_shape(tuple(shape))
        unknown = [dim for dim in shape if isinstance(dim, Symbol) and dim not in self._sizes]
        if len(unknown) == 1 and 0 not in shape:
            wanted = [-1 if dim == unknown[0] else dim for dim in shape]
            return self.op("Reshape", x, self.sizes(wanted), like=kind)
        return self.op("Reshape", x, self.sizes(shape), like=kind, allowzero=1)

    def transpose(self, x: Edge, perm: Sequence[int]) -> Edge:
        """What is turned already is turned once, or not at all where that undoes it."""
        if x.name in self._turned:
            x, first = self._turned[x.name]
            perm = [first[axis] for axis in perm]
        if list(perm) == list(range(len(perm))):
            return x
        kind = x.type.with_shape(tuple(x.shape[axis] for axis in perm))
        found = self.op("Transpose", x, like=kind, perm=list(perm))
        self._turned[found.name] = (x, tuple(perm))
        return found

    def expand(self, x: Edge, shape: Sequence[Dim]) -> Edge:
        if x.shape == tuple(shape):
            return x
        found = self.op("Expand", x, self.sizes(shape), like=x.type.with_shape(tuple(shape)))
        self._repeated[found.name] = x
        return found

    def unrepeated(self, x: Sequence[Edge], shape: Sequence[Dim]) -> list[Edge]:
        """The operands of an elementwise operator as they were before they were repeated, as far as
        the operator does that itself: one of them has the whole shape."""
        small = [self._repeated.get(each.name, each) for each in x]
        whole = any(each.shape == tuple(shape) for each in small)
        return small if whole else [*x[:1], *small[1:]]

    def where(self, pred: Edge, a: Edge, b: Edge, like: TensorType) -> Edge:
        if like.dtype is not I1:
            return self.op("Where", pred, a, b, like=like)
        # ONNX has it for booleans, but ONNX Runtime has not.
        first = self.op("And", pred, a, like=like)
        other = self.op("And", self.op("Not", pred, like=pred.type), b, like=like)
        return self.op("Or", first, other, like=like)


def _store_array(array: Array, dtype: DType, name: str) -> TensorProto:
    """An initialiser."""
    if dtype.bits == 4:
        return helper.make_tensor(name, number_of(dtype), array.shape, array.reshape(-1).tolist())
    if dtype.numpy.kind == "V" or dtype.name.startswith(("bf16", "fp8")):
        return helper.make_tensor(name, number_of(dtype), array.shape, array.tobytes(), raw=True)
    return numpy_helper.from_array(array, name)
