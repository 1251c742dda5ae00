"""A program in higher precision: every float becomes f64, every complex cf64.

The reference backend on the widened program gives what `weft.testing.tolerance` calls exact. A cast
to a narrower float rounds nothing there; casts to integers, comparisons and everything else that
jumps stay, and agree with the original as long as they are fed values that are exact in both.

Some ops mean something else in another dtype and keep theirs, between casts:

- random ops, whose numbers depend on the dtype: `cast(rng_uniform f32)`, and other ops that are
  bound to their dtype, as `nextafter` is, whose result is a neighbour in it,
- operands and results for which f64 is not defined: the quantised ones of `quantize`,
- maxima of nothing, which for fp8_e4m3 (it has no infinity) are -448.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dtypes import CF64, F64, FLOATS, FP8_E4M3, DType
from weft.ptir.ir import Body, Function, Instruction, Operand, Program, Ref, operand_type
from weft.ptir.literal import ScalarLiteral, TensorLiteral, from_array
from weft.ptir.op import Op
from weft.ptir.ops.elementwise import BinaryFn, Cast, ElementwiseBinary
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.reduce_kind import ReduceKind
from weft.ptir.ops.reduction import Reduce, SegmentKind, SegmentReduce
from weft.ptir.ops.window import ReduceWindow
from weft.ptir.types import TensorType, TupleType, ValueType

Array = NDArray[Any]


def wide_dtype(dtype: DType) -> DType:
    """f64 for a float, cf64 for a complex dtype, any other dtype itself."""
    if dtype.is_complex:
        return CF64
    return F64 if dtype.is_float else dtype


def widen_type(kind: ValueType) -> ValueType:
    if isinstance(kind, TupleType):
        return TupleType(tuple(widen_type(element) for element in kind.elements))
    return kind.with_dtype(wide_dtype(kind.dtype))


def widen_arrays(arrays: Iterable[Array]) -> list[Array]:
    """Inputs of the original program as inputs of the widened one; nothing is lost."""
    return [_widen_array(np.asarray(array)) for array in arrays]


def _widen_array(array: Array) -> Array:
    if array.dtype.kind == "c":
        return array.astype(np.complex128)
    # ml_dtypes' narrow floats have no kind of their own.
    floating = array.dtype.kind == "f" or np.dtype(array.dtype).name.startswith(("bf", "float8"))
    return array.astype(np.float64) if floating else array


def widen_program(program: Program) -> Program:
    """The program with every float computation in f64. Hints are left out."""
    functions = tuple(_Widening(body).function() for body in program.functions)
    regions = []
    for region in program.regions:
        body = _Widening(region).body()
        parameters, results = _types(region.parameters), _types(region.results)
        regions.append(replace(region, parameters=parameters, results=results, body=body))
    return replace(program, functions=functions, regions=tuple(regions))


def _types(kinds: Sequence[ValueType]) -> tuple[ValueType, ...]:
    return tuple(widen_type(kind) for kind in kinds)


def widen_op(op: Op) -> Op:
    """The op with the dtypes, literals and padding values of its attributes widened."""
    changes: dict[str, Any] = {}
    for name in op.all_attributes():
        value = getattr(op, name)
        if isinstance(value, DType):
            changes[name] = wide_dtype(value)
        elif isinstance(value, TensorLiteral):
            changes[name] = widen_literal(value)
    return dataclasses.replace(op, **changes) if changes else op


def widen_literal(value: TensorLiteral) -> TensorLiteral:
    wide = wide_dtype(value.type.dtype)
    return value if wide is value.type.dtype else from_array(_widen_array(value.array))


def _rounded_scalars(op: Op, operand: DType) -> Op:
    """A padding value is rounded to the dtype it fills before anything is computed."""
    changes = {
        name: ScalarLiteral(value.tag, value.fill(operand).astype(np.float64).item())
        for name in op.all_attributes()
        if isinstance(value := getattr(op, name), ScalarLiteral) and value.tag == "Float"
    }
    return dataclasses.replace(op, **changes) if changes and operand.is_float else op


class _Widening:
    """One body on its way to f64."""

    def __init__(self, body: Body) -> None:
        self._source = body
        self._made: list[Instruction] = []
        self._types: dict[int, ValueType] = dict(
            zip(body.parameter_ids, body.parameters, strict=True)
        )
        ids = [*body.parameter_ids, *(instruction.id for instruction in body.body)]
        self._free = max(ids, default=-1) + 1

    def function(self) -> Function:
        source = self._source
        if not isinstance(source, Function):
            raise TypeError(f"{source.label} is not a function")
        parameters, results = _types(source.parameters), _types(source.results)
        return replace(source, parameters=parameters, results=results, body=self.body(), hints=())

    def body(self) -> tuple[Instruction, ...]:
        for instruction in self._source.body:
            self._instruction(instruction)
            self._types[instruction.id] = instruction.output
        return tuple(self._made)

    def _instruction(self, instruction: Instruction) -> None:
        op = instruction.op
        operands = tuple(_widen_operand(operand) for operand in instruction.operands)
        output = widen_type(instruction.output)
        if op.dtype_bound and self._is_widened(instruction):
            self._as_it_is(instruction, operands)
        elif narrow := _narrow_names(op):
            self._partly(instruction, operands, narrow)
        elif output == instruction.output and operands == instruction.operands:
            # Integers throughout, or f64 already.
            self._made.append(replace(instruction, op=widen_op(op)))
        elif self._has_own_lowest(instruction):
            self._extreme(instruction, operands, output)
        else:
            self._make(instruction.id, self._wide(instruction), operands, output)

    def _wide(self, instruction: Instruction) -> Op:
        op = widen_op(instruction.op)
        if not instruction.operands:
            return op
        first = operand_type(instruction.operands[0], self._types)
        return _rounded_scalars(op, first.dtype) if isinstance(first, TensorType) else op

    def _is_widened(self, instruction: Instruction) -> bool:
        kinds = [operand_type(operand, self._types) for operand in instruction.operands]
        return any(widen_type(kind) != kind for kind in (*kinds, instruction.output))

    def _as_it_is(self, instruction: Instruction, operands: Sequence[Operand]) -> None:
        narrow = [
            self._narrow_operand(wide, operand_type(operand, self._types))
            for wide, operand in zip(operands, instruction.operands, strict=True)
        ]
        self._make_wide(instruction.id, instruction.op, narrow, instruction.output)

    def _partly(
        self, instruction: Instruction, operands: Sequence[Operand], narrow: Container[str]
    ) -> None:
        op = instruction.op
        names = (name.strip("?") for name in op.operands)
        given = [
            self._narrow_operand(wide, operand_type(own, self._types)) if name in narrow else wide
            for wide, own, name in zip(operands, instruction.operands, names, strict=False)
        ]
        kept = {name: getattr(op, name) for name in op.all_attributes() if name in narrow}
        output = instruction.output if kept else widen_type(instruction.output)
        self._make_wide(instruction.id, replace(widen_op(op), **kept), given, output)

    def _make_wide(
        self, value: int, op: Op, operands: Sequence[Operand], output: ValueType
    ) -> None:
        """The instruction, and a cast where its output is narrow."""
        wide = widen_type(output)
        if wide == output:
            self._make(value, op, operands, wide)
        else:
            self._make(value, Cast(F64), (self._add(op, operands, output),), wide)

    def _narrow_operand(self, operand: Operand, kind: ValueType) -> Operand:
        """A widened operand in its own dtype again; it holds nothing that this would round."""
        if not isinstance(kind, TensorType) or widen_type(kind) == kind:
            return operand
        return self._add(Cast(kind.dtype), (operand,), kind)

    def _has_own_lowest(self, instruction: Instruction) -> bool:
        """Whether this is a maximum or minimum over fp8_e4m3, perhaps of nothing."""
        op = instruction.op
        extreme = (
            (isinstance(op, Reduce) and op.kind is not ReduceKind.SUM)
            or (isinstance(op, ReduceWindow) and op.reduce is not ReduceKind.SUM)
            or (isinstance(op, SegmentReduce) and op.kind is SegmentKind.MAX)
        )
        if not extreme:
            return False
        operand = operand_type(instruction.operands[0], self._types)
        return isinstance(operand, TensorType) and operand.dtype is FP8_E4M3

    def _extreme(
        self, instruction: Instruction, operands: Sequence[Operand], output: ValueType
    ) -> None:
        found: Operand = self._add(self._wide(instruction), operands, output)
        pairs = ((BinaryFn.MAXIMUM, FP8_E4M3.lowest), (BinaryFn.MINIMUM, FP8_E4M3.highest))
        if not isinstance(output, TensorType) or output.dtype is not F64:
            raise TypeError(f"{instruction.summary} has the output {output}")
        for fn, end in pairs:
            limit: Operand = from_array(np.asarray(end, np.float64))
            if output.rank:
                limit = self._add(BroadcastTo(output.shape), (limit,), output)
            if fn is BinaryFn.MINIMUM:
                self._make(instruction.id, ElementwiseBinary(fn), (found, limit), output)
            else:
                found = self._add(ElementwiseBinary(fn), (found, limit), output)

    def _add(self, op: Op, operands: Sequence[Operand], output: ValueType) -> Ref:
        """An instruction under a new id."""
        self._free += 1
        return self._make(self._free - 1, op, operands, output)

    def _make(self, value: int, op: Op, operands: Sequence[Operand], output: ValueType) -> Ref:
        self._made.append(Instruction(value, op, tuple(operands), output))
        return Ref(value)


def _narrow_names(op: Op) -> set[str]:
    """The operands and attributes of which some floats are allowed, but not f64."""
    return {name for name, allowed in op.dtypes.items() if allowed & FLOATS and F64 not in allowed}


def _widen_operand(operand: Operand) -> Operand:
    return widen_literal(operand) if isinstance(operand, TensorLiteral) else operand
