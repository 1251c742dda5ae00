"""Core IR lowered to PTIR: each operation becomes the few PTIR instructions that mean the same.

`lower` verifies the module and returns the program with `origin`, which names the Core IR value
that each PTIR value was made for; the program's locations carry it too, so that errors of any
backend name the operation. `core_violation` turns a violation met while running back into Core
IR's codes. A result without elements is not computed, unless its indices must be checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from weft.core_ir.instructions import data_of, padding_of, wholes
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.literals import Unreadable
from weft.core_ir.rules.checks import reduced_axes
from weft.core_ir.rules.contraction import Window, windows
from weft.core_ir.rules.indexing import sliced
from weft.core_ir.types import Shape
from weft.core_ir.verify import verify
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import SI64
from weft.foundation.errors import Finding, InternalError, SpecViolation
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral, scalar_literal
from weft.ptir.ops.constant import Constant
from weft.ptir.tape import Workshop, empty_program
from weft.ptir.term import Term
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
        self.shop = Workshop(empty_program(ENTRY))
        self.tape = self.shop.function_tape(self.shop.program.main)
        self.values: dict[int, Term] = {}
        self.origin: dict[int, int] = {}

    def lowered(self) -> Lowered:
        for index, op in enumerate(self.module.inputs):
            self.values[op.value_id] = self.tape.parameter(_result_type(op))
            self.origin[index] = op.value_id
        for position, op in enumerate(self.module.operations):
            if op.opcode != "Input":
                self._operation(position, op)
        return Lowered(self._program(), self.origin)

    def _operation(self, position: int, op: CoreOperation) -> None:
        before = len(self.tape.body)
        self.tape.line = self.module.place(position)
        value = self._lower(op)
        if value.type != _result_type(op):
            raise InternalError(f"{op.summary} was lowered to {value.type}")
        self.values[op.value_id] = value
        self.origin.update((made.id, op.value_id) for made in self.tape.body[before:])

    def _lower(self, op: CoreOperation) -> Term:
        if op.result_type.size == 0 and op.opcode not in _CHECKS_INDICES:
            return self.tape.zeros(_result_type(op))
        if op.opcode in CONSTANTS:
            return self.tape.append(Constant(_readable_data(op)), [])
        return LOWERINGS[op.opcode](op, *(self.values[value_id] for value_id in op.operands))

    def _program(self) -> Program:
        self.tape.line = ""
        program = self.shop.finished(self.tape, [self._result(v) for v in self.module.outputs])
        names = tuple(str(op.attributes.get("name", "")) for op in self.module.inputs)
        return replace(program, input_names=names)

    def _result(self, value_id: int) -> Term:
        """A value that can be returned; a number becomes an instruction, and only one."""
        plain = self.tape.value(self.tape.plain_id(self.values[value_id]))
        self.values[value_id] = plain
        return plain


def _result_type(op: CoreOperation) -> TensorType:
    return TensorType(op.result_type.dtype, op.result_type.shape)


def _readable_data(op: CoreOperation) -> TensorLiteral:
    data = data_of(op.attributes)
    if isinstance(data, Unreadable):
        raise InternalError(f"{op.summary} holds data that do not verify")
    return data


# -- one function for each kind of instruction ---------------------------------------------------

Lower: TypeAlias = Callable[..., Term]


def _elementwise(name: str) -> Lower:
    def lower(op: CoreOperation, *operands: Term) -> Term:
        spread = [x.broadcast_to(op.result_type.shape) for x in operands]
        return spread[0].emitter.emit(name, *spread)

    return lower


def _relu(op: CoreOperation, x: Term) -> Term:
    return _where_positive(x, x)


def _relu_backward(op: CoreOperation, x: Term, gradient: Term) -> Term:
    return _where_positive(x, gradient)


def _where_positive(x: Term, chosen: Term) -> Term:
    zero = x.like(0)
    return chosen.where(x.compare(zero, "greater"), zero)


def _lower_sum(op: CoreOperation, x: Term) -> Term:
    axes = reduced_axes(op.attributes, x.rank, op.opcode)
    return x.sum(axes).reshape(op.result_type.shape)


def _lower_mean(op: CoreOperation, x: Term) -> Term:
    total = _lower_sum(op, x)
    count = math.prod(x.sizes[axis] for axis in reduced_axes(op.attributes, x.rank, op.opcode))
    if count <= x.dtype.highest:
        return total / count
    # More elements than an i32 can count: the division is the same in i64.
    return (total.cast(SI64) / count).cast(x.dtype)


def _reshape(op: CoreOperation, x: Term) -> Term:
    return x.reshape(op.result_type.shape)


def _transpose(op: CoreOperation, x: Term) -> Term:
    return x.transpose([axis % x.rank for axis in wholes(op.attributes, "permutation")])


def _broadcast_to(op: CoreOperation, x: Term) -> Term:
    return x.broadcast_to(op.result_type.shape)


# -- positions -----------------------------------------------------------------------------------


def _lower_index(op: CoreOperation, x: Term) -> Term:
    """A window of one element. Where it would lie outside, an index that any backend rejects when
    it runs stands in its place."""
    indices = wholes(op.attributes, "indices")
    inside = [0 <= index < dim for index, dim in zip(indices, x.sizes, strict=True)]
    starts = [i if ok else 0 for i, ok in zip(indices, inside, strict=True)]
    found = x.slice(starts, [1 if ok else dim for dim, ok in zip(x.sizes, inside, strict=True)])
    for axis, (index, ok) in enumerate(zip(indices, inside, strict=True)):
        if not ok:
            shape = (*found.shape[:axis], 1, *found.shape[axis + 1 :])
            found = found.gather(found.full(index, shape, SI64), axis=axis)
    return found.reshape(())


def _slice(op: CoreOperation, x: Term) -> Term:
    """Along an axis with a step, the axis is cut into pieces of that size and the first element of
    each is taken; the last piece is filled up."""
    ranges = sliced(op.attributes, x.sizes)
    steps = [r.step if r.size > 1 else 1 for r in ranges]
    spans = [r.size * step for r, step in zip(ranges, steps, strict=True)]
    held = [min(s, dim - r.start) for s, r, dim in zip(spans, ranges, x.sizes, strict=True)]
    found = x.slice([r.start for r in ranges], held)
    found = found.pad([0] * x.rank, [s - h for s, h in zip(spans, held, strict=True)])
    cut = [(r.size, step) if step > 1 else (r.size,) for r, step in zip(ranges, steps, strict=True)]
    found = found.reshape([n for piece in cut for n in piece])
    first = [n for piece in cut for n in (piece[0], *(1 for _ in piece[1:]))]
    return found.slice([0] * len(first), first).reshape(op.result_type.shape)


def _slice_backward(op: CoreOperation, gradient: Term) -> Term:
    shape, starts = op.result_type.shape, wholes(op.attributes, "starts")
    steps = wholes(op.attributes, "steps")
    if 0 in gradient.shape:
        return gradient.full(0, shape)
    places = zip(gradient.sizes, shape, starts, steps, strict=True)
    high = [dim - start - (size - 1) * step - 1 for size, dim, start, step in places]
    return gradient.pad(starts, high, [step - 1 for step in steps])


def _gather(op: CoreOperation, x: Term, indices: Term) -> Term:
    return x.take(indices)


def _gather_backward(op: CoreOperation, gradient: Term, indices: Term) -> Term:
    return gradient.full(0, op.result_type.shape).scatter_add(
        indices,
        gradient,
        update_window_dims=tuple(range(indices.rank, gradient.rank)),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
    )


# -- sums of products ----------------------------------------------------------------------------


def _lower_dot(op: CoreOperation, x: Term, y: Term) -> Term:
    return x.dot(y, ([x.rank - 1], [0]))


def _matmul(op: CoreOperation, x: Term, y: Term) -> Term:
    if y.rank == 2:
        return _lower_dot(op, x, y)
    batch = op.result_type.shape[:-2]
    x = x.broadcast_to((*batch, *x.shape[-2:]))
    return x @ y.broadcast_to((*batch, *y.shape[-2:]))


def _operation_windows(op: CoreOperation, image: Shape, kernel: Shape) -> tuple[Window, Window]:
    return windows(image, kernel, wholes(op.attributes, "strides"), padding_of(op.attributes))


def _extract_patches(x: Term, moves: Sequence[Window]) -> Term:
    """Every window as one row `[N, rows, columns, kernel height * kernel width * C]`."""
    return x.extract_patches(
        window=[m.kernel for m in moves],
        strides=[m.stride for m in moves],
        dilation=[1, 1],
        padding=[(m.low, m.high) for m in moves],
        pad_value=scalar_literal(0, x.dtype),
    )


def _conv2d(op: CoreOperation, x: Term, kernel: Term) -> Term:
    moves = _operation_windows(op, x.sizes, kernel.sizes)
    height, width, channels, filters = kernel.sizes
    columns = kernel.reshape((height * width * channels, filters))
    return _extract_patches(x, moves).dot(columns, ([3], [0]))


def _conv2d_backward_filter(op: CoreOperation, x: Term, gradient: Term) -> Term:
    moves = _operation_windows(op, x.sizes, op.result_type.shape)
    found = _extract_patches(x, moves).dot(gradient, ([0, 1, 2], [0, 1, 2]))
    return found.reshape(op.result_type.shape)


def _conv2d_backward_input(op: CoreOperation, gradient: Term, kernel: Term) -> Term:
    """A convolution of the gradient, spread out by the strides, with the kernel turned around.

    Output `o` reads inputs `o * stride - low + k`, so input `i` gathers from a board on which
    output `o` lies at `o * stride - low + kernel - 1`, under windows that move by one. Outputs that
    read nothing but padding lie outside the board and are left out.
    """
    image = op.result_type.shape
    moves = _operation_windows(op, image, kernel.sizes)
    shape, starts, low, high, interior = [image[0]], [0], [0], [0], [0]
    for move, size in zip(moves, image[1:3], strict=True):
        board = size + move.kernel - 1
        offset = move.kernel - 1 - move.low
        first = max(0, -(offset // move.stride))
        last = min(move.positions - 1, (board - 1 - offset) // move.stride)
        if last < first:
            return gradient.full(0, image)
        starts.append(first)
        shape.append(last - first + 1)
        low.append(offset + first * move.stride)
        high.append(board - 1 - offset - last * move.stride)
        interior.append(move.stride - 1)
    used = gradient.slice((*starts, 0), (*shape, gradient.sizes[3]))
    spread = used.pad((*low, 0), (*high, 0), (*interior, 0))
    around = [Window(m.kernel, 1, 0, 0, n) for m, n in zip(moves, image[1:3], strict=True)]
    return _extract_patches(spread, around).dot(_turn_kernel(kernel), ([3], [0]))


def _turn_kernel(kernel: Term) -> Term:
    """The kernel rotated by half a turn, filters and channels exchanged, one column a channel."""
    height, width, channels, filters = kernel.sizes
    places = height * width
    flat = kernel.reshape((places, channels, filters))
    if places > 1:
        flat = flat.take(flat.emitter.literal(np.arange(places - 1, -1, -1), SI64))
    return flat.transpose((0, 2, 1)).reshape((places * filters, channels))


_CHECKS_INDICES: Final = frozenset({"Gather", "GatherBackward"})
CONSTANTS: Final = frozenset({"ConstI64", "ConstF32", "ConstF64", "ConstTensor"})
LOWERINGS: Final[Mapping[str, Lower]] = {
    "Add": _elementwise("add"),
    "Sub": _elementwise("sub"),
    "Mul": _elementwise("mul"),
    "Div": _elementwise("div"),
    "Sum": _lower_sum,
    "Mean": _lower_mean,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _reshape,
    "Squeeze": _reshape,
    "Index": _lower_index,
    "Slice": _slice,
    "Gather": _gather,
    "Dot": _lower_dot,
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
"""Every opcode but constants and `Input`, which becomes a parameter."""
