"""Gradients: the gradient of a module is a module.

It computes what the module computes, and then the gradient of one of its outputs for the wanted
inputs: reverse mode, one rule for each instruction, contributions added where a value is used more
than once. Rules are written in Core IR itself, with the instructions of the extension `gradient`
where Core v1 has no word (`ReluBackward`, `SliceBackward`, ...); their own rules stay among them,
so gradients of gradients are gradients of a module.

    outputs of the gradient = outputs of the module, then a gradient for each wanted input

Identical modules give identical gradients. Operands of an integer dtype carry none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from weft.core_ir.builder import ModuleBuilder
from weft.core_ir.canonicalise import canonical
from weft.core_ir.instructions import BINARY, GRADIENT, Attribute, wholes
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.rules.checks import normal_axes, reduced_axes
from weft.core_ir.rules.indexing import sliced
from weft.core_ir.types import Shape, dtype_name, show_shape
from weft.core_ir.verify import verify
from weft.foundation.axes import inverse
from weft.foundation.errors import SpecViolation, UserError

NO_GRADIENT: Final = "E5001"
FAILS_VERIFICATION: Final = "E5002"
AXIS: Final = "E5003"
SHAPE: Final = "E5004"
NOT_DIFFERENTIABLE: Final = "E5005"
_AXIS_CODES: Final = frozenset({"E3004", "E3005", "E3008", "E3009"})
_STRUCTURE: Final = frozenset({"E4001", "E4002", "E4003"})


def gradient(
    module: Module,
    wrt: Sequence[str] | None = None,
    *,
    output: int | None = None,
    seed: str | None = None,
    assume_verified: bool = False,
) -> Module:
    """The module with the gradients of one output for the inputs named in `wrt`.

    Without `wrt`, for every input of a float dtype. `output` is the position of the output, where
    there are several. It must be a scalar, unless `seed` names a new input, of the output's type,
    that holds the gradient to begin with.
    """
    if not assume_verified:
        verify(module)
    source = canonical(module)
    inputs = _wanted(source, wrt)
    start = _chosen(source, output)
    b = ModuleBuilder(source, extensions=[GRADIENT])
    gradients = {start: _seed(b, source, start, seed)}
    active = _depending_on(source, inputs)
    for position in range(len(source.operations) - 1, -1, -1):
        if source.operations[position].value_id in active:
            _differentiate(b, source, position, gradients)
    found = [gradients[i] if i in gradients else b.full(0.0, b.type(i)) for i in inputs]
    made = b.build(*source.outputs, *found)
    try:
        verify(made)
    except SpecViolation as error:
        why = f"the gradient module fails verification: {error.code} {error.why}"
        raise SpecViolation(FAILS_VERIFICATION, why, error.hint, error.where) from None
    return _inputs_first(canonical(made))


def _wanted(module: Module, wrt: Sequence[str] | None) -> list[int]:
    """The ids of the inputs to differentiate for."""
    by_name = {str(op.attributes.get("name", "")): op for op in module.inputs}
    if wrt is None:
        return [op.value_id for op in module.inputs if op.result_type.dtype.is_float]
    found = []
    for name in wrt:
        op = by_name.get(name)
        if op is None:
            known = ", ".join(by_name) or "none"
            raise UserError(f"there is no input {name!r} to differentiate for; there are {known}")
        if not op.result_type.dtype.is_float:
            raise SpecViolation(
                NOT_DIFFERENTIABLE,
                f"input {name!r} is {dtype_name(op.result_type.dtype)}, which has no gradient",
                "only f32 and f64 inputs have gradients",
                module.place(module.operations.index(op)),
            )
        found.append(op.value_id)
    return found


def _depending_on(module: Module, inputs: Sequence[int]) -> set[int]:
    """The values that change when one of the inputs does."""
    found = set(inputs)
    for op in module.operations:
        if not found.isdisjoint(op.operands):
            found.add(op.value_id)
    return found


def _chosen(module: Module, output: int | None) -> int:
    """The id of the output that is differentiated."""
    count = len(module.outputs)
    if output is None and count != 1:
        raise UserError(f"the module has {count} outputs; say which one to differentiate")
    position = 0 if output is None else output
    if not 0 <= position < count:
        raise UserError(f"there is no output {position}; the module has {count}")
    return module.outputs[position]


def _seed(b: ModuleBuilder, module: Module, start: int, seed: str | None) -> int:
    """The gradient of the output for itself."""
    kind = b.type(start)
    where = module.line(len(module.operations))
    if not kind.dtype.is_float:
        raise SpecViolation(
            NOT_DIFFERENTIABLE,
            f"the output %{start} is {dtype_name(kind.dtype)}, which has no gradient",
            "only f32 and f64 outputs have gradients",
            where,
        )
    if seed is not None:
        if any(op.attributes.get("name") == seed for op in module.inputs):
            raise UserError(f"there is an input {seed!r} already; the seed needs another name")
        return b.input(seed, kind.dtype, kind.shape)
    if kind.shape:
        raise SpecViolation(
            SHAPE,
            f"the output %{start} has the shape {show_shape(kind.shape)}; a gradient begins at a "
            "scalar",
            "add Sum (axes=[]) to it, or name a seed",
            where,
        )
    return b.constant(np.ones((), kind.dtype.numpy), kind.dtype)


def _differentiate(
    b: ModuleBuilder, module: Module, position: int, gradients: dict[int, int]
) -> None:
    """Hand the gradient of one value on to its operands."""
    op = module.operations[position]
    if op.value_id not in gradients or op.opcode == "Input":
        return
    rule = GRADIENTS.get(op.opcode)
    if rule is None:
        raise SpecViolation(
            NO_GRADIENT,
            f"{op.opcode} has no gradient",
            "multiply by a Reciprocal instead" if op.opcode in BINARY else "",
            module.place(position),
        )
    try:
        parts = rule(b, op, gradients[op.value_id])
        for value_id, part in zip(op.operands, parts, strict=True):
            if part is not None:
                known = gradients.get(value_id)
                gradients[value_id] = part if known is None else b.emit("Add", known, part)
    except SpecViolation as error:
        raise _in_gradient(error, op).at(module.place(position)) from None


def _in_gradient(error: SpecViolation, op: CoreOperation) -> SpecViolation:
    """A violation met while a gradient was built, which a module that verifies cannot cause."""
    if error.code in _STRUCTURE:
        code = FAILS_VERIFICATION
    else:
        code = AXIS if error.code in _AXIS_CODES else SHAPE
    return SpecViolation(
        code, f"the gradient of {op.opcode} cannot be built: {error.code} {error.why}", error.hint
    )


def _inputs_first(module: Module) -> Module:
    """The seed, which is made last, where the inputs are."""
    others = tuple(op for op in module.operations if op.opcode != "Input")
    return Module((*module.inputs, *others), module.outputs, module.extensions)


# -- rules: the gradient of each operand from that of the result ---------------------------------

Rule: TypeAlias = Callable[[ModuleBuilder, CoreOperation, int], Sequence[int | None]]


def _reduced(b: ModuleBuilder, g: int, shape: Shape) -> int:
    """A gradient summed over the axes along which an operand of `shape` was broadcast."""
    wide = b.shape(g)
    extra = len(wide) - len(shape)
    axes = [
        axis
        for axis, dim in enumerate(wide)
        if axis < extra or (shape[axis - extra] == 1 and dim != 1)
    ]
    summed = b.emit("Sum", g, axes=axes, keepdims=False) if axes else g
    return _reshaped(b, summed, shape)


def _reshaped(b: ModuleBuilder, g: int, shape: Shape) -> int:
    kind = b.type(g)
    if kind.shape == shape:
        return g
    # Reshape takes positive dims only; what has no elements has no gradient to move.
    return (
        b.full(0.0, kind.with_shape(shape)) if 0 in shape else b.emit("Reshape", g, new_shape=shape)
    )


def _add(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [_reduced(b, g, b.shape(x)) for x in op.operands]


def _sub(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    lhs, rhs = op.operands
    return [_reduced(b, g, b.shape(lhs)), _reduced(b, b.emit("Neg", g), b.shape(rhs))]


def _mul(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    lhs, rhs = op.operands
    return [
        _reduced(b, b.emit("Mul", g, rhs), b.shape(lhs)),
        _reduced(b, b.emit("Mul", g, lhs), b.shape(rhs)),
    ]


def _sum(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [_spread(b, op, g)]


def _mean(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    shape = b.shape(op.operands[0])
    count = 1
    for axis in reduced_axes(op.attributes, len(shape), op.opcode):
        count *= shape[axis]
    dtype = b.type(g).dtype
    share = b.constant(np.asarray(1.0 / count if count else 0.0, dtype.numpy), dtype)
    return [_spread(b, op, b.emit("Mul", g, share))]


def _spread(b: ModuleBuilder, op: CoreOperation, g: int) -> int:
    """The gradient of a reduction repeated over the axes that it took away."""
    shape = b.shape(op.operands[0])
    axes = reduced_axes(op.attributes, len(shape), op.opcode)
    kept = tuple(1 if axis in axes else dim for axis, dim in enumerate(shape))
    if 0 in shape:
        return b.full(0.0, b.type(op.operands[0]))
    column = _reshaped(b, g, kept)
    return b.emit("BroadcastTo", column, shape=shape) if kept != shape else column


def _relu(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [b.emit("ReluBackward", op.operands[0], g)]


def _neg(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [b.emit("Neg", g)]


def _exp(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [b.emit("Mul", g, op.value_id)]


def _log(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [b.emit("Mul", g, b.emit("Reciprocal", op.operands[0]))]


def _reciprocal(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    square = b.emit("Mul", op.value_id, op.value_id)
    return [b.emit("Neg", b.emit("Mul", g, square))]


def _relu_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [None, b.emit("ReluBackward", op.operands[0], g)]


# -- movement and positions ----------------------------------------------------------------------


def _reshape(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [_reshaped(b, g, b.shape(op.operands[0]))]


def _transpose(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    permutation = wholes(op.attributes, "permutation")
    normal = normal_axes(permutation, len(permutation), op.opcode)
    return [b.emit("Transpose", g, permutation=inverse(normal))]


def _broadcast_to(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [_reduced(b, g, b.shape(op.operands[0]))]


def _index(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    shape = b.shape(op.operands[0])
    ones = (1,) * len(shape)
    starts = wholes(op.attributes, "indices")
    element = _reshaped(b, g, ones)
    return [b.emit("SliceBackward", element, shape=shape, starts=starts, steps=ones)]


def _slice(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    shape = b.shape(op.operands[0])
    ranges = sliced(op.attributes, shape)
    starts, steps = [r.start for r in ranges], [r.step for r in ranges]
    return [b.emit("SliceBackward", g, shape=shape, starts=starts, steps=steps)]


def _slice_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    starts, steps = wholes(op.attributes, "starts"), wholes(op.attributes, "steps")
    sizes = b.shape(op.operands[0])
    places = zip(starts, sizes, steps, strict=True)
    ends = [start + (size - 1) * step + 1 if size else start for start, size, step in places]
    return [b.emit("Slice", g, starts=starts, ends=ends, steps=steps)]


def _gather(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    x, indices = op.operands
    return [b.emit("GatherBackward", g, indices, rows=b.shape(x)[0]), None]


def _gather_backward(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    return [b.emit("Gather", g, op.operands[1]), None]


# -- sums of products ----------------------------------------------------------------------------


def _dot(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    lhs, rhs = op.operands
    match len(b.shape(lhs)), len(b.shape(rhs)):
        case 1, 1:
            return [b.emit("Mul", g, rhs), b.emit("Mul", g, lhs)]
        case 2, 1:
            return [b.emit("Mul", _column(b, g), rhs), b.emit("Dot", g, lhs)]
        case 1, 2:
            return [b.emit("Dot", rhs, g), b.emit("Mul", _column(b, lhs), g)]
    return _matmul(b, op, g)


def _column(b: ModuleBuilder, x: int) -> int:
    return b.emit("ExpandDims", x, axes=[1])


def _matmul(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    lhs, rhs = op.operands
    for_lhs = _reduced(b, b.emit("MatMul", g, _turned(b, rhs)), b.shape(lhs))
    if len(b.shape(rhs)) == 2 and 0 not in b.shape(lhs) + b.shape(rhs):
        # One product of tall matrices instead of one a batch that are then added up.
        lhs, g = _flat(b, lhs), _flat(b, g)
    return [for_lhs, _reduced(b, b.emit("MatMul", _turned(b, lhs), g), b.shape(rhs))]


def _turned(b: ModuleBuilder, x: int) -> int:
    """The last two axes exchanged."""
    rank = len(b.shape(x))
    return b.emit("Transpose", x, permutation=[*range(rank - 2), rank - 1, rank - 2])


def _flat(b: ModuleBuilder, x: int) -> int:
    """A batch of matrices as one, row under row."""
    shape = b.shape(x)
    return x if len(shape) == 2 else b.emit("Reshape", x, new_shape=(-1, shape[-1]))


def _conv2d(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    x, kernel = op.operands
    return [
        b.emit("Conv2dBackwardInput", g, kernel, shape=b.shape(x), **_moves(op)),
        b.emit("Conv2dBackwardFilter", x, g, shape=b.shape(kernel), **_moves(op)),
    ]


def _conv2d_backward_input(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    outer, kernel = op.operands
    return [
        b.emit("Conv2d", g, kernel, **_moves(op)),
        b.emit("Conv2dBackwardFilter", g, outer, shape=b.shape(kernel), **_moves(op)),
    ]


def _conv2d_backward_filter(b: ModuleBuilder, op: CoreOperation, g: int) -> Sequence[int | None]:
    x, outer = op.operands
    return [
        b.emit("Conv2dBackwardInput", outer, g, shape=b.shape(x), **_moves(op)),
        b.emit("Conv2d", x, g, **_moves(op)),
    ]


def _moves(op: CoreOperation) -> dict[str, Attribute]:
    """How the kernel moves, the same forwards and backwards."""
    return {name: op.attributes[name] for name in ("strides", "padding")}


GRADIENTS: Final[Mapping[str, Rule]] = {
    "Add": _add,
    "Sub": _sub,
    "Mul": _mul,
    "Sum": _sum,
    "Mean": _mean,
    "Reshape": _reshape,
    "Transpose": _transpose,
    "ExpandDims": _reshape,
    "Squeeze": _reshape,
    "Index": _index,
    "Slice": _slice,
    "Gather": _gather,
    "Dot": _dot,
    "MatMul": _matmul,
    "Conv2d": _conv2d,
    "Relu": _relu,
    "Neg": _neg,
    "Exp": _exp,
    "Log": _log,
    "BroadcastTo": _broadcast_to,
    "Reciprocal": _reciprocal,
    "ReluBackward": _relu_backward,
    "SliceBackward": _slice_backward,
    "GatherBackward": _gather_backward,
    "Conv2dBackwardInput": _conv2d_backward_input,
    "Conv2dBackwardFilter": _conv2d_backward_filter,
}
"""Every opcode that has operands but `Div`, to which the specification gives no gradient."""
