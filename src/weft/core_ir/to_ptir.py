"""Core IR lowered to PTIR: each operation becomes the few PTIR instructions that mean the same.

`lower` verifies the module and returns the program with `origin`, which names the Core IR value
that each PTIR value was made for; the program's locations carry it too, so that errors of any
backend name the operation. `core_violation` turns a violation met while running back into Core
IR's codes. A result without elements is not computed, unless its indices must be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from weft.core_ir.instructions import data_of, padding_of, wholes
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.literals import Unreadable
from weft.core_ir.ptir_writer import Value, Writer
from weft.core_ir.rules.checks import reduced_axes
from weft.core_ir.rules.contraction import Window, windows
from weft.core_ir.rules.indexing import sliced
from weft.core_ir.types import Shape
from weft.core_ir.verify import verify
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import SI64
from weft.foundation.errors import Finding, InternalError, SpecViolation
from weft.ptir.ir import Function, Program, Ref
from weft.ptir.literal import TensorLiteral, scalar_literal
from weft.ptir.types import TensorType

ENTRY: Final = "main"
INDEX_OUT_OF_RANGE: Final = "E6001"
_OUT_OF_RANGE: Final = ("GatherIndexOutOfBounds", "ScatterIndexOutOfBounds")


@dataclass(frozen=True)
class Lowered:
    """A program, and for each of its values the Core IR value it was made for."""

    program: Program
    origin: Mapping[int, int]


@told_outside
def to_ptir(module: Module) -> Program:
    """The PTIR program that a module means. The module is verified first."""
    return lower(module).program


@told_outside
def lower(module: Module) -> Lowered:
    """The program, with where its values come from."""
    verify(module)
    return _Lowering(module).lowered()


def core_violation(error: SpecViolation, program: Program) -> SpecViolation:
    """A violation met while running a lowered module, in Core IR's words where it has them."""
    places = frozenset(program.locations.values())
    return SpecViolation.of([_core_finding(finding, places) for finding in error.findings])


def _core_finding(finding: Finding, places: frozenset[str]) -> Finding:
    place = next((p for p in places if finding.where.endswith(f"({p})")), finding.where)
    if finding.code in _OUT_OF_RANGE:
        hint = "indices count from 0 and do not wrap"
        return Finding(INDEX_OUT_OF_RANGE, place, finding.why, hint)
    return Finding(finding.code, place, finding.why, finding.hint)


class _Lowering:
    def __init__(self, module: Module) -> None:
        self.module = module
        self.writer = Writer(len(module.inputs))
        self.values: dict[int, Value] = {}
        self.origin: dict[int, int] = {}
        self.places: dict[int, str] = {}

    def lowered(self) -> Lowered:
        for index, op in enumerate(self.module.inputs):
            self.values[op.value_id] = Value(Ref(index), op.result_type.dtype, op.result_type.shape)
            self.origin[index] = op.value_id
        for position, op in enumerate(self.module.operations):
            if op.opcode != "Input":
                self._operation(position, op)
        return Lowered(self._program(), self.origin)

    def _operation(self, position: int, op: CoreOperation) -> None:
        before = len(self.writer.body)
        operands = [self.values[value_id] for value_id in op.operands]
        if op.result_type.size == 0 and op.opcode not in _CHECKS_INDICES:
            value = self.writer.full(0, op.result_type.dtype, op.result_type.shape)
        else:
            value = LOWERINGS[op.opcode](self.writer, op, *operands)
        if (value.dtype, value.shape) != (op.result_type.dtype, op.result_type.shape):
            raise InternalError(f"{op.summary} was lowered to {value.dtype}{list(value.shape)}")
        self.values[op.value_id] = value
        for made in self.writer.body[before:]:
            self.origin[made.id] = op.value_id
            self.places[made.id] = self.module.place(position)

    def _program(self) -> Program:
        results = [self._result(value_id) for value_id in self.module.outputs]
        types = [
            TensorType(op.result_type.dtype, op.result_type.shape) for op in self.module.inputs
        ]
        function = Function(
            ENTRY,
            tuple(types),
            tuple(range(len(types))),
            tuple(TensorType(value.dtype, value.shape) for value in results),
            tuple(self.writer.body),
            (),
            tuple(value.operand.id for value in results if isinstance(value.operand, Ref)),
        )
        locations = {(function.label, value_id): place for value_id, place in self.places.items()}
        names = tuple(str(op.attributes.get("name", "")) for op in self.module.inputs)
        return Program(ENTRY, (function,), (), locations, input_names=names)

    def _result(self, value_id: int) -> Value:
        value = self.values[value_id]
        if isinstance(value.operand, TensorLiteral):
            value = self.writer.constant(value.operand)
            self.values[value_id] = value
        return value


# -- one function for each kind of instruction ---------------------------------------------------

Lower: TypeAlias = Callable[..., Value]


def _constant(w: Writer, op: CoreOperation) -> Value:
    data = data_of(op.attributes)
    if isinstance(data, Unreadable):
        raise InternalError(f"{op.summary} holds data that do not verify")
    return w.constant(data)


def _elementwise(name: str) -> Lower:
    def lower(w: Writer, op: CoreOperation, *operands: Value) -> Value:
        return w.emit(name, *(w.broadcast_to(x, op.result_type.shape) for x in operands))

    return lower


def _relu(w: Writer, op: CoreOperation, x: Value) -> Value:
    return _where_positive(w, x, x)


def _relu_backward(w: Writer, op: CoreOperation, x: Value, gradient: Value) -> Value:
    return _where_positive(w, x, gradient)


def _where_positive(w: Writer, x: Value, chosen: Value) -> Value:
    zero = w.full(0, x.dtype, x.shape)
    return w.emit("select", w.emit("compare", x, zero, op="greater"), chosen, zero)


def _sum(w: Writer, op: CoreOperation, x: Value) -> Value:
    axes = reduced_axes(op.attributes, x.rank, op.opcode)
    total = w.emit("reduce_sum", x, axes=axes, keepdims=False) if axes else x
    return w.reshape(total, op.result_type.shape)


def _mean(w: Writer, op: CoreOperation, x: Value) -> Value:
    total = _sum(w, op, x)
    count = math.prod(x.shape[axis] for axis in reduced_axes(op.attributes, x.rank, op.opcode))
    if count <= x.dtype.highest:
        return w.emit("div", total, w.full(count, x.dtype, total.shape))
    # More elements than an i32 can count: the division is the same in i64.
    wide = w.emit("cast", total, dtype=SI64)
    return w.emit("cast", w.emit("div", wide, w.full(count, SI64, total.shape)), dtype=x.dtype)


def _reshape(w: Writer, op: CoreOperation, x: Value) -> Value:
    return w.reshape(x, op.result_type.shape)


def _transpose(w: Writer, op: CoreOperation, x: Value) -> Value:
    return w.transpose(x, tuple(axis % x.rank for axis in wholes(op.attributes, "permutation")))


def _broadcast_to(w: Writer, op: CoreOperation, x: Value) -> Value:
    return w.broadcast_to(x, op.result_type.shape)


# -- positions -----------------------------------------------------------------------------------


def _index(w: Writer, op: CoreOperation, x: Value) -> Value:
    """A window of one element. Where it would lie outside, an index that any backend rejects when
    it runs stands in its place."""
    indices = wholes(op.attributes, "indices")
    inside = [0 <= index < dim for index, dim in zip(indices, x.shape, strict=True)]
    starts = tuple(i if ok else 0 for i, ok in zip(indices, inside, strict=True))
    sizes = tuple(1 if ok else dim for dim, ok in zip(x.shape, inside, strict=True))
    found = w.slice(x, starts, sizes)
    for axis, (index, ok) in enumerate(zip(indices, inside, strict=True)):
        if not ok:
            shape = (*found.shape[:axis], 1, *found.shape[axis + 1 :])
            found = w.emit("gather", found, w.full(index, SI64, shape), axis=axis)
    return w.reshape(found, ())


def _slice(w: Writer, op: CoreOperation, x: Value) -> Value:
    """Along an axis with a step, the axis is cut into pieces of that size and the first element of
    each is taken; the last piece is filled up."""
    ranges = sliced(op.attributes, x.shape)
    steps = [r.step if r.size > 1 else 1 for r in ranges]
    spans = [r.size * step for r, step in zip(ranges, steps, strict=True)]
    held = tuple(min(s, dim - r.start) for s, r, dim in zip(spans, ranges, x.shape, strict=True))
    found = w.slice(x, tuple(r.start for r in ranges), held)
    none = (0,) * x.rank
    found = w.pad(found, none, tuple(s - h for s, h in zip(spans, held, strict=True)), none)
    cut = [(r.size, step) if step > 1 else (r.size,) for r, step in zip(ranges, steps, strict=True)]
    found = w.reshape(found, tuple(n for piece in cut for n in piece))
    first = tuple(n for piece in cut for n in (piece[0], *(1 for _ in piece[1:])))
    return w.reshape(w.slice(found, (0,) * len(first), first), op.result_type.shape)


def _slice_backward(w: Writer, op: CoreOperation, gradient: Value) -> Value:
    shape, starts = op.result_type.shape, wholes(op.attributes, "starts")
    steps = wholes(op.attributes, "steps")
    if 0 in gradient.shape:
        return w.full(0, gradient.dtype, shape)
    places = zip(gradient.shape, shape, starts, steps, strict=True)
    high = tuple(dim - start - (size - 1) * step - 1 for size, dim, start, step in places)
    return w.pad(gradient, starts, high, tuple(step - 1 for step in steps))


def _gather_backward(w: Writer, op: CoreOperation, gradient: Value, indices: Value) -> Value:
    return w.emit(
        "scatter_add",
        w.full(0, gradient.dtype, op.result_type.shape),
        indices,
        gradient,
        update_window_dims=tuple(range(indices.rank, gradient.rank)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )


# -- sums of products ----------------------------------------------------------------------------


def _dot(w: Writer, op: CoreOperation, x: Value, y: Value) -> Value:
    return w.dot(x, y, ((x.rank - 1,), (0,)), ((), ()))


def _matmul(w: Writer, op: CoreOperation, x: Value, y: Value) -> Value:
    if y.rank == 2:
        return _dot(w, op, x, y)
    batch = op.result_type.shape[:-2]
    x = w.broadcast_to(x, (*batch, *x.shape[-2:]))
    y = w.broadcast_to(y, (*batch, *y.shape[-2:]))
    axes = tuple(range(len(batch)))
    return w.dot(x, y, ((x.rank - 1,), (y.rank - 2,)), (axes, axes))


def _windows(op: CoreOperation, image: Shape, kernel: Shape) -> tuple[Window, Window]:
    return windows(image, kernel, wholes(op.attributes, "strides"), padding_of(op.attributes))


def _patches(w: Writer, x: Value, moves: Sequence[Window]) -> Value:
    """Every window as one row `[N, rows, columns, kernel height * kernel width * C]`."""
    return w.emit(
        "extract_patches",
        x,
        window=[m.kernel for m in moves],
        strides=[m.stride for m in moves],
        dilation=[1, 1],
        padding=[(m.low, m.high) for m in moves],
        pad_value=scalar_literal(0, x.dtype),
    )


def _conv2d(w: Writer, op: CoreOperation, x: Value, kernel: Value) -> Value:
    moves = _windows(op, x.shape, kernel.shape)
    height, width, channels, filters = kernel.shape
    columns = w.reshape(kernel, (height * width * channels, filters))
    return w.dot(_patches(w, x, moves), columns, ((3,), (0,)), ((), ()))


def _conv2d_backward_filter(w: Writer, op: CoreOperation, x: Value, gradient: Value) -> Value:
    moves = _windows(op, x.shape, op.result_type.shape)
    found = w.dot(_patches(w, x, moves), gradient, ((0, 1, 2), (0, 1, 2)), ((), ()))
    return w.reshape(found, op.result_type.shape)


def _conv2d_backward_input(w: Writer, op: CoreOperation, gradient: Value, kernel: Value) -> Value:
    """A convolution of the gradient, spread out by the strides, with the kernel turned around.

    Output `o` reads inputs `o * stride - low + k`, so input `i` gathers from a board on which
    output `o` lies at `o * stride - low + kernel - 1`, under windows that move by one. Outputs that
    read nothing but padding lie outside the board and are left out.
    """
    image = op.result_type.shape
    moves = _windows(op, image, kernel.shape)
    shape, starts, low, high, interior = [image[0]], [0], [0], [0], [0]
    for move, size in zip(moves, image[1:3], strict=True):
        board = size + move.kernel - 1
        offset = move.kernel - 1 - move.low
        first = max(0, -(offset // move.stride))
        last = min(move.positions - 1, (board - 1 - offset) // move.stride)
        if last < first:
            return w.full(0, gradient.dtype, image)
        starts.append(first)
        shape.append(last - first + 1)
        low.append(offset + first * move.stride)
        high.append(board - 1 - offset - last * move.stride)
        interior.append(move.stride - 1)
    used = w.slice(gradient, (*starts, 0), (*shape, gradient.shape[3]))
    spread = w.pad(used, (*low, 0), (*high, 0), (*interior, 0))
    around = [Window(m.kernel, 1, 0, 0, n) for m, n in zip(moves, image[1:3], strict=True)]
    return w.dot(_patches(w, spread, around), _turned(w, kernel), ((3,), (0,)), ((), ()))


def _turned(w: Writer, kernel: Value) -> Value:
    """The kernel rotated by half a turn, filters and channels exchanged, one column a channel."""
    height, width, channels, filters = kernel.shape
    places = height * width
    flat = w.reshape(kernel, (places, channels, filters))
    if places > 1:
        backwards = w.literal(np.arange(places - 1, -1, -1), SI64)
        flat = w.emit("take", flat, backwards)
    return w.reshape(w.transpose(flat, (0, 2, 1)), (places * filters, channels))


_CHECKS_INDICES: Final = frozenset({"Gather", "GatherBackward"})
LOWERINGS: Final[Mapping[str, Lower]] = {
    **dict.fromkeys(("ConstI64", "ConstF32", "ConstF64", "ConstTensor"), _constant),
    "Add": _elementwise("add"),
    "Sub": _elementwise("sub"),
    "Mul": _elementwise("mul"),
    "Div": _elementwise("div"),
    "Sum": _sum,
    "Mean": _mean,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _reshape,
    "Squeeze": _reshape,
    "Index": _index,
    "Slice": _slice,
    "Gather": lambda w, op, x, indices: w.emit("take", x, indices),
    "Dot": _dot,
    "MatMul": _matmul,
    "Conv2d": _conv2d,
    "Relu": _relu,
    "Neg": _elementwise("neg"),
    "Exp": _elementwise("exp"),
    "Log": _elementwise("log"),
    "BroadcastTo": _broadcast_to,
    "Reciprocal": _elementwise("reciprocal"),
    "ReluBackward": _relu_backward,
    "SliceBackward": _slice_backward,
    "GatherBackward": _gather_backward,
    "Conv2dBackwardInput": _conv2d_backward_input,
    "Conv2dBackwardFilter": _conv2d_backward_filter,
}
"""Every opcode but `Input`, which becomes a parameter."""
