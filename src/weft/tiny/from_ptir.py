"""From PTIR to Tiny: one row per op class, in `ROWS`.

A row is a function that builds the op from Tiny values, or the reason why the op stays whole
(`Opaque`). The program is static and verified. Inputs are named in0, in1, ... in the order of the
flattened parameters, results out0, out1, ...; a literal of one repeated element is a constant that
is expanded, and any other literal an input with data of its own (const0, const1, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions
from weft.foundation.dims import static
from weft.foundation.dtypes import SI64, as_dtype
from weft.foundation.errors import InternalError, Unimplemented, UserError
from weft.foundation.whole_ops import WholeOp
from weft.ptir.ir import ElementRef, Instruction, Operand, Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import EvalContext, Op, RegionSignature
from weft.ptir.ops import complex_parts, constant, control, linear_algebra, tuples
from weft.ptir.specialise import is_static
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType, leaves
from weft.tiny import (
    build,
    from_ptir_elementwise,
    from_ptir_indexing,
    from_ptir_movement,
    from_ptir_reduction,
)
from weft.tiny.from_ptir_row import Rows, Tree
from weft.tiny.ir import Graph, Input, Opaque, Value, operands

Array: TypeAlias = NDArray[Any]
RUN: Final = "run"
"""The input that a graph with random numbers has besides those of the program."""


def lower_program(program: Program) -> Graph:
    """The entry function of a static program as a Tiny graph."""
    if not is_static(program):
        raise UserError("only a program without dynamic dims can be lowered; specialise it first")
    return _Lowering(program).run()


@dataclass
class _Lowering:
    program: Program
    values: dict[int, Tree] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    literals: dict[TensorLiteral, Value] = field(default_factory=dict)
    origin: dict[Value, tuple[int, ...]] = field(default_factory=dict)

    def run(self) -> Graph:
        main = self.program.main
        for value_id, kind in zip(main.parameter_ids, main.parameters, strict=True):
            self.values[value_id] = self._parameter(kind)
        for instruction in main.body:
            result = self._instruction(instruction)
            self.values[instruction.id] = result
            self._note(result, instruction.id)
        results = [v for value_id in main.result_ids for v in _flat(self.values[value_id])]
        outputs = tuple((f"out{n}", value) for n, value in enumerate(results))
        graph = Graph(tuple(self.inputs), outputs, self.origin)
        used = {v.name for v in graph.values if isinstance(v, Input)}
        return replace(graph, constants={n: a for n, a in self.constants.items() if n in used})

    def _parameter(self, kind: ValueType) -> Tree:
        if isinstance(kind, TupleType):
            return tuple(self._parameter(element) for element in kind.elements)
        made = Input(f"in{len(self.inputs)}", kind.dtype, kind.shape)
        self.inputs.append(made)
        return made

    def _instruction(self, instruction: Instruction) -> Tree:
        op, output = instruction.op, instruction.output
        args = [v for operand in instruction.operands for v in _flat(self._operand(operand))]
        if isinstance(op, constant.Constant):
            return self._literal(op.value)
        if isinstance(op, tuples.MakeTuple):
            return tuple(self._operand(operand) for operand in instruction.operands)
        row = ROWS.get(type(op), "Tiny has no row for it")
        if not isinstance(row, str):
            made = row(op, [self._run(), *args] if op.random else args, output)
            if made is not None:
                _check(made, output, instruction)
                return made
        results = [
            Opaque(op, tuple(args), n, kind.dtype, kind.shape)
            for n, kind in enumerate(leaves(output))
        ]
        return _nested(output, results)

    def _run(self) -> Value:
        """What random numbers depend on besides their stream: the seed of the run, and how often
        it has been in this body before, in the upper half of the second number."""
        made = Input(RUN, SI64, (2,))
        if made not in self.inputs:
            self.inputs.append(made)
        return made

    def _operand(self, operand: Operand) -> Tree:
        if isinstance(operand, TensorLiteral):
            return self._literal(operand)
        found = self.values[operand.id]
        if isinstance(operand, ElementRef):
            if not isinstance(found, tuple):
                raise InternalError(f"{operand} is not an element of a tuple")
            return found[operand.index]
        return found

    def _literal(self, value: TensorLiteral) -> Value:
        kind = value.type
        if kind.size == 0:
            return build.splat(0, kind.dtype, kind.shape)
        if value.is_splat:
            first = build.scalar(value.array.reshape(-1)[:1].reshape(()), kind.dtype)
            return build.expand(first, kind.shape)
        if value not in self.literals:
            name = f"const{len(self.constants)}"
            self.constants[name] = value.array
            self.literals[value] = Input(name, kind.dtype, kind.shape)
        return self.literals[value]

    def _note(self, result: Tree, value_id: int) -> None:
        """Every node that this instruction brought into the graph has it as its origin."""
        for top in _flat(result):
            if top in self.origin:
                self.origin[top] = tuple(dict.fromkeys((*self.origin[top], value_id)))
        stack = [value for value in _flat(result) if value not in self.origin]
        while stack:
            value = stack.pop()
            if value not in self.origin and not isinstance(value, Input):
                self.origin[value] = (value_id,)
                stack.extend(operands(value))


def _flat(tree: Tree) -> list[Value]:
    if not isinstance(tree, tuple):
        return [tree]
    return [value for element in tree for value in _flat(element)]


def _nested(kind: ValueType, results: list[Opaque]) -> Tree:
    """Results, taken from the front of the list, in the shape of a type."""
    if isinstance(kind, TupleType):
        return tuple(_nested(element, results) for element in kind.elements)
    return results.pop(0)


def _check(made: Tree, output: ValueType, instruction: Instruction) -> None:
    for value, kind in zip(_flat(made), leaves(output), strict=True):
        if value.dtype is not kind.dtype or value.shape != kind.shape:
            found = f"{value.dtype}{list(value.shape)}"
            raise InternalError(f"{instruction.summary} became {found}, declared as {kind}")


# -- rows ----------------------------------------------------------------------------------------

ROWS: Final[Rows] = {
    **from_ptir_elementwise.ROWS,
    **from_ptir_movement.ROWS,
    **from_ptir_reduction.ROWS,
    **from_ptir_indexing.ROWS,
    constant.Constant: "the lowering makes it a constant or an input before it looks here",
    constant.CustomCall: "a kernel that only some backends know",
    tuples.MakeTuple: "the lowering takes it apart before it looks here",
    control.Cond: "control flow",
    control.While: "control flow",
    control.Scan: "control flow",
    **dict.fromkeys(
        (complex_parts.Real, complex_parts.Imag, complex_parts.Conj, complex_parts.Complex),
        "takes pairs apart or makes them",
    ),
    **dict.fromkeys(
        (linear_algebra.Cholesky, linear_algebra.Qr, linear_algebra.Eigh, linear_algebra.Svd,
         linear_algebra.Lu, linear_algebra.TriangularSolve),
        "a factorisation, which the host computes",
    ),
}  # fmt: skip
"""Every op class of PTIR: how it is built from Tiny values, or why it stays whole."""


# -- the meaning of what stays whole -------------------------------------------------------------


class _NoRegions:
    """The scope in which the result type of a whole op is found: it has no regions or symbols."""

    def region(self, region_id: int) -> RegionSignature:
        raise Unimplemented("control flow", "a Tiny graph has no regions")

    def is_bound(self, symbol: Symbol) -> bool:
        return True


def evaluate_opaque(value: Opaque, args: Sequence[Array]) -> Array:
    """One result of an op that stayed whole, by its own meaning."""
    op = value.op
    if isinstance(op, WholeOp):
        return op.evaluate(*args).reshape([static(dim) for dim in value.shape])
    if not isinstance(op, Op):
        raise InternalError(f"{op!r} is not a PTIR op")
    if op.random or op.regions:
        raise Unimplemented(op.mnemonic, "it needs the run around it, not just its operands")
    types = [TensorType(as_dtype(a.dtype), tuple(a.shape)) for a in args]
    output = op.result_type(types, _NoRegions())
    with np.errstate(**functions.QUIET):
        result = op.evaluate(EvalContext(output, 0, lambda stream: 0), *args)
    for number in _path(output, value.result):
        result = result[number]
    if not isinstance(result, np.ndarray):
        raise InternalError(f"{op.mnemonic} has no result {value.result}")
    return result


def _path(kind: ValueType, leaf: int) -> list[int]:
    """The element indices that lead to the n-th leaf of a type."""
    if not isinstance(kind, TupleType):
        return []
    for number, element in enumerate(kind.elements):
        count = sum(1 for _ in leaves(element))
        if leaf < count:
            return [number, *_path(element, leaf)]
        leaf -= count
    raise InternalError(f"{kind} has no leaf {leaf}")


def opaque_name(value: Opaque) -> str:
    """The name of an op that stayed whole, and why, for reports."""
    op = value.op
    if not isinstance(op, Op):
        return op.name if isinstance(op, WholeOp) else str(op)
    row = ROWS.get(type(op))
    return f"{op.mnemonic}: {row}" if isinstance(row, str) else op.mnemonic
