"""The PTIR session: the language in which functional ops are captured.

    s = Session.here()
    x, y = s.import_(a), s.import_(b)
    total = (x + y) * s.scalar(2.0, x.dtype)
    return s.export(total.reduce_mean([1]))

A handle is a value of the session with a method for every op; a Python number beside a handle takes
its dtype and is broadcast to its shape. Two handles must have the same type: nothing is promoted
here, so what is written is the program. The library forms of `weft.ptir.library` take handles too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from weft.foundation.axes import normalise_axes
from weft.foundation.calls import told_methods
from weft.foundation.dims import Dim, shape_of
from weft.foundation.dtypes import F32, SI64, DType, as_dtype
from weft.foundation.errors import OutOfRange, SpecViolation, UserError, a_type, brief
from weft.foundation.lines import Line, user_line
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import arena_for, current
from weft.ops.graph.forms import broadcast_form, cast_form, element_form, form, form_of
from weft.ops.graph.node import Fragment, Node, canonical
from weft.ops.numbers import PYTHON, Number, number
from weft.ops.tensor import Tensor
from weft.ptir import library
from weft.ptir.literal import literal
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.schema import USIZES
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.ptir.written import Written, pair_of_axes

Like: TypeAlias = "Handle | Number"


@told_methods
class Session:
    """Emits instructions into an arena, all of them for one line of the user's code."""

    __slots__ = ("arena", "line")

    def __init__(self, arena: Arena, line: Line | None = None) -> None:
        self.arena = arena
        self.line = line

    @classmethod
    def here(cls) -> Session:
        """A session in the arena in force, for the user's current line."""
        return cls(current(), user_line())

    @classmethod
    def of(cls, *tensors: Tensor | None) -> Session:
        """A session for the user's current line, on the backend of the first of these tensors."""
        first = next((tensor for tensor in tensors if tensor is not None), None)
        return cls(current() if first is None else arena_for(first._node), user_line())

    # -- in and out ------------------------------------------------------------------------------

    def import_(self, tensor: Tensor) -> Handle:
        """A tensor as a value of this session."""
        if not isinstance(tensor, Tensor):
            raise UserError(
                f"a tensor is imported, not {a_type(tensor)}; make one with weft.asarray"
            )
        return Handle(self, tensor._node)

    def export(self, handle: Handle, *, requires_grad: bool = False) -> Tensor:
        """A value of this session as a tensor, lazy until it is read."""
        if isinstance(self._node(handle, ()).type, TupleType):
            raise UserError(f"{handle!r} is a tuple; export its elements, one by one")
        return Tensor(handle.node, requires_grad)

    def scalar(self, value: Number, dtype: DType | str) -> Handle:
        """A rank-0 constant."""
        return self.literal(value, dtype)

    def literal(self, value: Any, dtype: DType | str) -> Handle:
        """A constant: part of the program, not an instruction."""
        wanted = as_dtype(dtype)
        made = number(value, wanted) if type(value) in PYTHON else literal(value, wanted)
        return Handle(self, self.arena.constant(made))

    def full(self, value: Number, dtype: DType | str, dims: Iterable[Dim]) -> Handle:
        """A tensor with the same number everywhere."""
        return self.broadcast_to(self.literal(value, dtype), dims)

    def iota(self, dtype: DType | str, dims: Iterable[Dim], axis: int) -> Handle:
        """0, 1, 2, ... along one axis."""
        return self.emit("iota", shape=shape_of(dims), dtype=as_dtype(dtype), axis=axis)

    # -- instructions ----------------------------------------------------------------------------

    def emit(self, name: str, *operands: Like, **attrs: Any) -> Handle:
        """The op called `name`. A number takes the dtype and shape of the first handle."""
        nodes = tuple([o.node if type(o) is Handle else self._node(o, operands) for o in operands])
        types = tuple([node.type for node in nodes])
        for key, value in attrs.items():
            if type(value) is list:
                attrs[key] = tuple(value)
        made = form(name, types, attrs)
        return Handle(self, self.arena.emit(made, nodes, self.line))

    def append(self, op: Op, *operands: Handle, fragments: tuple[Fragment, ...] = ()) -> Handle:
        """An op that is already made; a control-flow op brings its regions."""
        nodes = tuple(self._node(operand, operands) for operand in operands)
        if not isinstance(op, Op):
            raise UserError(f"an op that is made is appended, not {a_type(op)}; emit takes names")
        made = form_of(op, tuple(node.type for node in nodes), fragments)
        return Handle(self, self.arena.emit(made, nodes, self.line))

    def _node(self, operand: Any, operands: Sequence[Any]) -> Node:
        """The node of an operand; a number is one like the first handle beside it."""
        if isinstance(operand, Handle):
            return operand.node
        if isinstance(operand, Tensor):
            raise UserError(
                "a tensor is not an operand of a session; make a handle of it with import_"
            )
        if not isinstance(operand, Number):
            raise UserError(
                f"a handle or a number is wanted here, not {brief(operand)}; "
                "make one of an array with literal(array, dtype)"
            )
        model = next((o for o in operands if isinstance(o, Handle)), None)
        if model is None:
            raise UserError(
                f"the number {brief(operand)} has no dtype, since no operand is a handle; make it "
                "a handle with scalar(value, dtype)"
            )
        return self.full(operand, model.dtype, model.shape).node

    def cast(self, x: Handle, dtype: DType | str) -> Handle:
        """`x` itself where it has that dtype already."""
        return self._cast(self._handle(x), dtype)

    def _cast(self, x: Handle, dtype: DType | str) -> Handle:
        wanted = as_dtype(dtype)
        kind = x.tensor
        if kind.dtype is wanted:
            return x
        return Handle(self, self.arena.emit(cast_form(kind, wanted), (x.node,), self.line))

    def broadcast_to(self, x: Handle, dims: Iterable[Dim]) -> Handle:
        """`x` itself where it has that shape already."""
        return self._broadcast_to(self._handle(x), dims)

    def _broadcast_to(self, x: Handle, dims: Iterable[Dim]) -> Handle:
        shape = shape_of(dims)
        kind = x.tensor
        if kind.shape == shape:
            return x
        return Handle(self, self.arena.emit(broadcast_form(kind, shape), (x.node,), self.line))

    def _handle(self, x: Any) -> Handle:
        return x if type(x) is Handle else Handle(self, self._node(x, ()))

    def concat(self, values: Sequence[Handle], axis: int) -> Handle:
        return self.emit("concat", *values, axis=axis)

    def select(self, condition: Handle, on_true: Handle, on_false: Handle) -> Handle:
        return self.emit("select", condition, on_true, on_false)


@told_methods
class Handle(Written):
    """A value of a session. Every op is a method: `x.exp()`, `x.add(y)`, `x.sort(axis=0, ...)`."""

    __slots__ = ("emitter", "node")

    CHOOSING = "choose by it with select, or with weft.cond"
    READING = "export it, and read the tensor"

    emitter: Session

    def __init__(self, session: Session, node: Node) -> None:
        self.emitter = session
        self.node = node

    @property
    def type(self) -> ValueType:
        return self.node.type

    @property
    def tensor(self) -> TensorType:
        kind = self.node.type
        if isinstance(kind, TupleType):
            raise UserError(f"{self!r} is a tuple; take an element of it first")
        return kind

    @property
    def session(self) -> Session:
        return self.emitter

    def __repr__(self) -> str:
        return f"<%{self.node.id} : {self.node.type}>"

    # -- tuples ----------------------------------------------------------------------------------

    def __getitem__(self, index: int) -> Handle:
        """An element of a tuple."""
        node = self.node
        count = self._count()
        if not isinstance(index, int) or not 0 <= index < count:
            raise OutOfRange(
                "TupleElementInvalid", f"{self!r} has no element {brief(index)}", f"it has {count}"
            )
        made = element_form(canonical(node.type), index)
        return Handle(self.session, self.session.arena.emit(made, (node,), self.session.line))

    def __iter__(self) -> Iterator[Handle]:
        return iter([self[index] for index in range(self._count())])

    def __len__(self) -> int:
        return self._count()

    def _count(self) -> int:
        """How many elements a tuple has."""
        kind = self.node.type
        if not isinstance(kind, TupleType):
            raise UserError(
                f"{self!r} is not a tuple; parts of a tensor are taken with slice or take"
            )
        return len(kind.elements)

    # -- every op --------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Callable[..., Handle]:
        """The op called `name`, with this handle as its first operand."""
        if name not in SPELLINGS:
            raise AttributeError(f"there is no op called {name!r}")
        return partial(self.session.emit, name, self)

    def compare(self, op: str, other: Like) -> Handle:
        """`op` is less, less_equal, equal, greater_equal, greater or not_equal."""
        return self.session.emit("compare", self, other, op=op)

    def cast(self, dtype: DType | str) -> Handle:
        return self.emitter._cast(self, dtype)

    def reshape(self, dims: Iterable[Any]) -> Handle:
        """`self` itself where it has that shape already."""
        if isinstance(dims, Sequence) and tuple(dims) == self.shape:
            return self
        return self.session.emit("reshape", self, new_shape=dims)

    def transpose(self, perm: Sequence[int]) -> Handle:
        return self.session.emit("transpose", self, perm=perm)

    def broadcast_to(self, dims: Iterable[Dim]) -> Handle:
        return self.emitter._broadcast_to(self, dims)

    def broadcast(self, dims: Iterable[Dim], axes: Sequence[int]) -> Handle:
        """Repeated to the shape `dims`, in which axis `i` of this value is axis `axes[i]`."""
        shape = shape_of(dims)
        places = normalise_axes(axes, len(shape))
        if len(places) != self.rank:
            raise SpecViolation(
                "BroadcastRankMismatch",
                f"{list(axes)} names {len(places)} axes, but {self.type} has {self.rank}",
                "name one axis of the result for each",
            )
        order = sorted(range(self.rank), key=lambda axis: places[axis])
        size = {place: self.shape[axis] for axis, place in enumerate(places)}
        aligned = [size.get(place, 1) for place in range(len(shape))]
        return self.transpose(order).reshape(aligned).broadcast_to(shape)

    def slice(self, starts: Sequence[int], limits: Sequence[int]) -> Handle:
        """From `starts` up to, and without, `limits`."""
        first, last = USIZES.check(starts), USIZES.check(limits)
        if len(first) != len(last):
            raise UserError(f"slice has {len(first)} starts and {len(last)} limits; give as many")
        sizes = tuple(limit - start for start, limit in zip(first, last, strict=True))
        return self.session.emit("slice", self, starts=first, sizes=sizes)

    def concat(self, other: Handle, axis: int) -> Handle:
        return self.session.emit("concat", self, other, axis=axis)

    def reduce_sum(self, axes: Sequence[int], keepdims: bool = False, **attrs: Any) -> Handle:
        return self.session.emit("reduce_sum", self, axes=axes, keepdims=keepdims, **attrs)

    def reduce_max(self, axes: Sequence[int], keepdims: bool = False) -> Handle:
        return self.session.emit("reduce_max", self, axes=axes, keepdims=keepdims)

    def reduce_min(self, axes: Sequence[int], keepdims: bool = False) -> Handle:
        return self.session.emit("reduce_min", self, axes=axes, keepdims=keepdims)

    def reduce_mean(self, axes: Sequence[int], keepdims: bool = False) -> Handle:
        """The sum times 1/n, in f32 at least: a sum may be out of range where the mean is not. An n
        that is not known yet is counted when the program runs."""
        axes = normalise_axes(axes, self.rank)
        sizes = [self.shape[axis] for axis in axes]
        narrow = self.dtype.is_float and self.dtype.bits < 32
        total = self.reduce_sum(axes, keepdims, out_dtype=F32 if narrow else None)
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) < len(sizes):
            ones = self.session.full(1, SI64, sizes)
            count = ones.reduce_sum(range(len(sizes))).cast(total.dtype)
            return (total / count.broadcast_to(total.shape)).cast(self.dtype)
        number = math.prod(known)
        return (total * (1.0 / number if number else float("nan"))).cast(self.dtype)

    def dot_general(
        self,
        other: Handle,
        *,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        accum_dtype: DType | None = None,
        out_dtype: DType | None = None,
    ) -> Handle:
        """`contract` and `batch` are (axes of self, axes of other), paired by position."""
        paired, batched = pair_of_axes("contract", contract), pair_of_axes("batch", batch)
        return self.session.emit(
            "dot_general", self, other, batch_lhs=batched[0], batch_rhs=batched[1],
            contract_lhs=paired[0], contract_rhs=paired[1],
            accum_dtype=accum_dtype, out_dtype=out_dtype,
        )  # fmt: skip

    def softmax(self, axis: int = -1) -> Handle:
        """The canonical stable softmax."""
        return library.softmax(self, axis)
