"""The backend "toy": eleven ops, three dtypes, plain NumPy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.conversion import require_legal
from weft.foundation.dtypes import F32, I1, SI32
from weft.foundation.errors import Unimplemented
from weft.ptir import Instruction, Op, Program, TensorLiteral, TensorType
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind
from weft.ptir.ops.constant import CustomCall

Array = NDArray[Any]
Shape = tuple[int, ...]
AXPY = "toy.axpy.v1"
"""The custom call `a * x + y`."""

FUNCTIONS: dict[str, Callable[..., Array]] = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "reciprocal": np.reciprocal,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
COMPARISONS: dict[str, Callable[..., Array]] = {
    "less": np.less,
    "less_equal": np.less_equal,
    "equal": np.equal,
    "greater_equal": np.greater_equal,
    "greater": np.greater,
    "not_equal": np.not_equal,
}


def window(op: Any, x: Array) -> Array:
    ends = np.add(op.starts, op.sizes).astype(int)
    index: Any = (..., *map(slice, op.starts, ends))
    return np.asarray(x[index])


KERNELS: dict[str, Callable[[Any, list[Array], Shape], Array]] = {
    "Constant": lambda op, args, shape: op.value.array,
    "ElementwiseUnary": lambda op, args, shape: FUNCTIONS[op.mnemonic](*args),
    "ElementwiseBinary": lambda op, args, shape: FUNCTIONS[op.mnemonic](*args),
    "Compare": lambda op, args, shape: COMPARISONS[str(op.op)](*args),
    "Select": lambda op, args, shape: np.where(*args),
    "StopGradient": lambda op, args, shape: args[0],
    "Reshape": lambda op, args, shape: args[0].reshape(shape),
    "Transpose": lambda op, args, shape: args[0].transpose(op.perm),
    "BroadcastTo": lambda op, args, shape: np.broadcast_to(args[0], shape),
    "Slice": lambda op, args, shape: window(op, args[0]),
    "Concat": lambda op, args, shape: np.concatenate(args, op.axis),
    "CustomCall": lambda op, args, shape: args[0] * args[1] + args[2],
}


class ToyExecutable:
    """A program that is carried out one instruction after the other."""

    def __init__(self, program: Program) -> None:
        self.main = program.main

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        values = dict(zip(self.main.parameter_ids, inputs, strict=True))
        for instruction in self.main.body:
            started = time.perf_counter()
            values[instruction.id] = self.result(instruction, values)
            if observer is not None:
                observer(self.main, instruction, time.perf_counter() - started)
        return [values[value_id] for value_id in self.main.result_ids]

    def result(self, instruction: Instruction, values: dict[int, Array]) -> Array:
        kind = tensor_type(instruction)
        args = [
            operand.array if isinstance(operand, TensorLiteral) else values[operand.id]
            for operand in instruction.operands
        ]
        with np.errstate(all="ignore"):
            array = KERNELS[instruction.op.wire_name](instruction.op, args, kind.static_shape)
        return np.asarray(array, kind.dtype.numpy)


def tensor_type(instruction: Instruction) -> TensorType:
    """The type of a result that must be a tensor."""
    if not isinstance(instruction.output, TensorType):
        raise Unimplemented(instruction.op.mnemonic, "the toy backend has no tuples")
    return instruction.output


class ToyBackend:
    """Every member of `weft.driver.backends.Backend`."""

    name = "toy"
    dtypes = frozenset({F32, SI32, I1})
    ops = frozenset(KERNELS)
    hints = frozenset[HintKind]()

    def supports(self, op: Op) -> bool:
        return isinstance(op, CustomCall) and op.target == AXPY

    def compile(self, program: Program) -> ToyExecutable:
        """Refuse what the members above rule out, and what they cannot say."""
        require_legal(program, self)
        for kind in program.main.parameters:
            if not isinstance(kind, TensorType):
                raise Unimplemented(f"parameter {kind}", "the toy backend has no tuples")
        for instruction in program.main.body:
            name, kind = instruction.op.mnemonic, tensor_type(instruction)
            if instruction.op.elementwise and name in ("erf", "rsqrt"):
                raise Unimplemented(name, "the toy backend does not know this function")
            if name == "div" and kind.dtype is not F32:
                raise Unimplemented(name, "the toy backend divides f32 only")
        return ToyExecutable(program)

    def allocate(self, kind: TensorType) -> Array:
        return np.empty(kind.static_shape, kind.dtype.numpy)

    def store(self, array: Array) -> Array:
        return array

    def read_storage(self, storage: Array, kind: TensorType) -> Array:
        return np.array(storage)


BACKEND = ToyBackend()
