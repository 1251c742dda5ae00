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

from collections.abc import Sequence
from typing import Final

import numpy as np

from weft.core_ir.builder import ModuleBuilder
from weft.core_ir.canonicalise import canonical
from weft.core_ir.gradient_rules import GRADIENTS
from weft.core_ir.instructions import BINARY, GRADIENT
from weft.core_ir.ir import CoreOperation, Module
from weft.core_ir.types import dtype_name, show_shape
from weft.core_ir.verify import verify
from weft.foundation.calls import told_outside
from weft.foundation.errors import SpecViolation, UserError

NO_GRADIENT: Final = "E5001"
FAILS_VERIFICATION: Final = "E5002"
AXIS: Final = "E5003"
SHAPE: Final = "E5004"
NOT_DIFFERENTIABLE: Final = "E5005"
_AXIS_CODES: Final = frozenset({"E3004", "E3005", "E3008", "E3009"})
_STRUCTURE: Final = frozenset({"E4001", "E4002", "E4003"})


@told_outside
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
    inputs = _find_inputs(source, wrt)
    start = _find_output(source, output)
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


def _find_inputs(module: Module, wrt: Sequence[str] | None) -> list[int]:
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


def _find_output(module: Module, output: int | None) -> int:
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
    if kind.size == 0:
        raise SpecViolation(
            SHAPE,
            f"the output %{start} has the shape {show_shape(kind.shape)} and no elements",
            "differentiate another output",
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
