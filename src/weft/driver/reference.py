"""The reference backend: PTIR's own interpreter, which defines what programs mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import ANY
from weft.foundation.errors import Unimplemented
from weft.ptir.interp import Interpreter, Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import CORE, Op, Value
from weft.ptir.ops.constant import CustomCall
from weft.ptir.types import TensorType, TupleType, ValueType

Array = NDArray[Any]


class ReferenceExecutable:
    """A program with its interpreter."""

    def __init__(self, program: Program) -> None:
        self._parameters = program.main.parameters
        self._interpreter = Interpreter(program)

    def execute(
        self, inputs: Sequence[Array], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Array]:
        flat = iter(inputs)
        values = [_nest(kind, flat) for kind in self._parameters]
        results = self._interpreter.run(values, seed, observer)
        taken = {id(array) for array in inputs}
        return [_copy_unless_own(array, taken) for value in results for array in _flatten(value)]


def _nest(kind: ValueType, flat: Iterator[Array]) -> Value:
    if isinstance(kind, TupleType):
        return tuple(_nest(element, flat) for element in kind.elements)
    return next(flat)


def _flatten(value: Value) -> list[Array]:
    if isinstance(value, tuple):
        return [array for element in value for array in _flatten(element)]
    return [value]


def _copy_unless_own(array: Array, taken: set[int]) -> Array:
    """A result the caller may keep and change: not a view, not an input, not a constant."""
    fresh = array.base is None and array.flags.writeable and array.flags.c_contiguous
    if fresh and id(array) not in taken:
        taken.add(id(array))
        return array
    return np.array(array, order="C", copy=True)


class ReferenceBackend:
    """Runs every op on every dtype its table defines."""

    name = "reference"
    dtypes = ANY
    ops = frozenset(cls.wire_name for cls in CORE.values())
    hints: frozenset[HintKind] = frozenset()
    """It runs one instruction at a time, so that several are never one kernel."""
    interprets = True
    """Nothing is compiled, so that one program for several sizes would gain nothing."""

    def supports(self, op: Op) -> bool:
        return not isinstance(op, CustomCall)

    def compile(self, program: Program) -> ReferenceExecutable:
        for body in program.bodies:
            for instruction in body.body:
                if isinstance(instruction.op, CustomCall):
                    target = f"custom call {instruction.op.target!r}"
                    raise Unimplemented(target, "the reference backend does not know this target")
        return ReferenceExecutable(program)

    def allocate(self, kind: TensorType) -> Array:
        return np.empty(kind.static_shape, kind.dtype.numpy)

    def store(self, array: Array) -> Array:
        return array

    def read_storage(self, storage: Array, kind: TensorType) -> Array:
        return storage


BACKEND = ReferenceBackend()
