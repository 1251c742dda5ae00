"""From PTIR to Tiny: one row per op class, in `ROWS`.

A row is a function that builds the op from Tiny values, or the reason why the op stays whole
(`Opaque`). The program is static and verified. Inputs are named in0, in1, ... in the order of the
flattened parameters, results out0, out1, ...; a literal of one repeated element is a constant that
is expanded, one of integers that are equally far apart a counter, and any other literal an input
with data of its own (const0, const1, ...).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation import functions, numeric
from weft.foundation.dims import static
from weft.foundation.dtypes import SI32, SI64, DType, as_dtype
from weft.foundation.errors import InternalError, Unimplemented, UserError
from weft.foundation.fourier_steps import table_of
from weft.foundation.scalar import Fn
from weft.foundation.whole_ops import Fourier, WholeOp
from weft.ptir.composite import Composite
from weft.ptir.ir import ElementRef, Instruction, Operand, Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import EvalContext, Op, RegionSignature
from weft.ptir.ops import (
    bits,
    callback,
    collective,
    complex_parts,
    constant,
    control,
    custom,
    linear_algebra,
    tuples,
)
from weft.ptir.specialise import is_static
from weft.ptir.types import Symbol, TensorType, TupleType, ValueType, leaves
from weft.tiny import (
    build,
    from_ptir_elementwise,
    from_ptir_indexing,
    from_ptir_movement,
    from_ptir_random,
    from_ptir_reduction,
)
from weft.tiny.from_ptir_complex import (
    PART,
    Pair,
    axis_from_pair,
    lower_complex,
    pair_from_axis,
    stored_type,
)
from weft.tiny.from_ptir_row import Rows, Tree
from weft.tiny.ir import Graph, Input, Iota, Opaque, Value, operands

Array: TypeAlias = NDArray[Any]
RUN: Final = "run"
"""The input that a graph with random numbers has besides those of the program."""
_MOST_COUNTED: Final = (1 << 31) - 1
"""The largest number of a literal that is counted."""


def lower_program(program: Program) -> Graph:
    """The entry function of a static program as a Tiny graph."""
    if not is_static(program):
        raise UserError("only a program without dynamic dims can be lowered; specialise it first")
    return _Lowering(program).run()


Whole: TypeAlias = "Value | Pair | tuple[Whole, ...]"
"""What a PTIR value becomes: a Tiny value, a pair for a complex one, a tuple for a tuple."""


@dataclass
class _Lowering:
    program: Program
    values: dict[int, Whole] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    literals: dict[TensorLiteral, Value | Pair] = field(default_factory=dict)
    origin: dict[Value, tuple[int, ...]] = field(default_factory=dict)
    stored: dict[Pair, Value] = field(default_factory=dict)
    """Pairs that a value holds already."""

    def run(self) -> Graph:
        main = self.program.main
        for value_id, kind in zip(main.parameter_ids, main.parameters, strict=True):
            self.values[value_id] = self._parameter(kind)
        for instruction in main.body:
            result = self._instruction(instruction)
            self.values[instruction.id] = result
            self._note(result, instruction.id)
        results = [v for value_id in main.result_ids for v in _flatten_whole(self.values[value_id])]
        outputs = tuple((f"out{n}", self._as_one(value)) for n, value in enumerate(results))
        for number, (_, value) in enumerate(outputs):
            if isinstance(results[number], Pair):
                self._note(value, main.result_ids[0])
        graph = Graph(tuple(self.inputs), outputs, self.origin)
        used = {v.name for v in graph.values if isinstance(v, Input)}
        return replace(graph, constants={n: a for n, a in self.constants.items() if n in used})

    def _parameter(self, kind: ValueType) -> Whole:
        if isinstance(kind, TupleType):
            return tuple(self._parameter(element) for element in kind.elements)
        held = stored_type(kind)
        made = Input(f"in{len(self.inputs)}", held.dtype, held.shape)
        self.inputs.append(made)
        return self._split_pair(made) if kind.dtype.is_complex else made

    def _split_pair(self, value: Value) -> Pair:
        """The pair that a value holds."""
        pair = pair_from_axis(value)
        self.stored[pair] = value
        return pair

    def _as_one(self, value: Value | Pair) -> Value:
        """A value of a graph: a pair as what holds it."""
        if not isinstance(value, Pair):
            return value
        return self.stored[value] if value in self.stored else axis_from_pair(value)

    def _instruction(self, instruction: Instruction) -> Whole:
        op, output = instruction.op, instruction.output
        if isinstance(op, constant.Constant):
            return self._literal(op.value)
        if isinstance(op, tuples.MakeTuple):
            return tuple(self._operand(operand) for operand in instruction.operands)
        args = [
            v for operand in instruction.operands for v in _flatten_whole(self._operand(operand))
        ]
        made = self._taken_apart(op, args, output)
        if made is None:
            return self._whole(instruction, args)
        _check_type(made, output, instruction)
        return made

    def _taken_apart(self, op: Op, args: Sequence[Value | Pair], output: ValueType) -> Whole | None:
        """The op in terms of Tiny values; None where it stays whole."""
        row = ROWS.get(type(op), "Tiny has no row for it")
        plain = [arg for arg in args if not isinstance(arg, Pair)]
        whole = op.whole(*leaves(output)) if isinstance(op, Composite) and not plain else None
        if isinstance(whole, Fourier):
            return self._transform(whole, args[0], next(leaves(output)))
        if len(plain) != len(args) or any(kind.dtype.is_complex for kind in leaves(output)):
            return None if op.regions else lower_complex(op, args, output, ROWS)
        if isinstance(op, Composite):
            return _in_one_piece(op, plain, output)
        if isinstance(row, str):
            return None
        return row(op, [self._run_input(), *plain] if op.random else plain, output)

    def _transform(self, whole: Fourier, x: Value | Pair, kind: TensorType) -> Pair:
        """Transforms that were not decomposed, because the target has a kernel for them."""
        held = stored_type(kind)
        roots = self._known_data(table_of(whole.length).astype(held.dtype.numpy), held.dtype)
        inputs = (self._as_one(x), roots)
        return self._split_pair(Opaque(whole, inputs, 0, held.dtype, held.shape))

    def _known_data(self, data: Array, dtype: DType) -> Input:
        """An input that the program brings along."""
        name = f"const{len(self.constants)}"
        self.constants[name] = data
        return Input(name, dtype, data.shape)

    def _whole(self, instruction: Instruction, args: Sequence[Value | Pair]) -> Whole:
        op, output = instruction.op, instruction.output
        site = instruction.id if op.regions or op.random else 0
        inputs = tuple(self._as_one(arg) for arg in args)
        pairs = tuple(n for n, arg in enumerate(args) if isinstance(arg, Pair))
        found: list[Value | Pair] = []
        for number, kind in enumerate(leaves(output)):
            held = stored_type(kind)
            base = _base(op, number)
            result = Opaque(
                op, inputs, number, held.dtype, held.shape, base, pairs=pairs, site=site
            )
            found.append(self._split_pair(result) if kind.dtype.is_complex else result)
        return _nest_results(output, found)

    def _run_input(self) -> Value:
        """What random numbers depend on besides their stream: the seed of the run, and how often
        it has been in this body before, in the upper half of the second number."""
        made = Input(RUN, SI64, (2,))
        if made not in self.inputs:
            self.inputs.append(made)
        return made

    def _operand(self, operand: Operand) -> Whole:
        if isinstance(operand, TensorLiteral):
            return self._literal(operand)
        found = self.values[operand.id]
        if isinstance(operand, ElementRef):
            if not isinstance(found, tuple):
                raise InternalError(f"{operand} is not an element of a tuple")
            return found[operand.index]
        return found

    def _literal(self, value: TensorLiteral) -> Value | Pair:
        if value not in self.literals:
            self.literals[value] = self._constant(value)
        return self.literals[value]

    def _constant(self, value: TensorLiteral) -> Value | Pair:
        kind, held = value.type, stored_type(value.type)
        if kind.size == 0 or value.is_splat:
            first = value.array.reshape(-1)[:1].reshape(()) if kind.size else np.zeros(())
            if kind.dtype.is_complex:
                sides = (first.real, first.imag)
                parts = (build.splat(float(side), held.dtype, kind.shape) for side in sides)
                return Pair(*parts)
            if not kind.size:
                return build.splat(0, kind.dtype, kind.shape)
            return build.expand(build.scalar(first, kind.dtype), kind.shape)
        counted = _count_steps(value)
        if counted is not None:
            return counted
        made = self._known_data(numeric.as_pairs(value.array), held.dtype)
        return self._split_pair(made) if kind.dtype.is_complex else made

    def _note(self, result: Whole, value_id: int) -> None:
        """Every node that this instruction brought into the graph has it as its origin."""
        tops = [part for value in _flatten_whole(result) for part in _value_parts(value)]
        for top in tops:
            if top in self.origin:
                self.origin[top] = tuple(dict.fromkeys((*self.origin[top], value_id)))
        stack = [value for value in tops if value not in self.origin]
        while stack:
            value = stack.pop()
            if value not in self.origin and not isinstance(value, Input):
                self.origin[value] = (value_id,)
                stack.extend(operands(value))


def _count_steps(value: TensorLiteral) -> Value | None:
    """A literal of integers that are equally far apart, as a counter."""
    kind, numbers = value.type, value.array
    if kind.dtype not in (SI32, SI64) or kind.rank != 1 or np.abs(numbers).max() > _MOST_COUNTED:
        return None
    first, step = int(numbers[0]), int(numbers[1]) - int(numbers[0])
    if (np.diff(numbers) != step).any():
        return None
    counter: Value = Iota(kind.dtype, kind.shape, 0)
    if step == -1:
        return build.binary(Fn.SUB, build.splat(first, kind.dtype, kind.shape), counter)
    steps = counter if step == 1 else build.binary(Fn.MUL, counter, step)
    return steps if first == 0 else build.binary(Fn.ADD, steps, first)


def _value_parts(value: Value | Pair) -> tuple[Value, ...]:
    return value.parts if isinstance(value, Pair) else (value,)


def _base(op: Op, result: int) -> int | None:
    """The operand that a result begins as: the carries of a loop."""
    if isinstance(op, control.While) or (isinstance(op, control.Scan) and result < op.carry_count):
        return result
    return None


def _flatten_whole(whole: Whole) -> list[Value | Pair]:
    if not isinstance(whole, tuple):
        return [whole]
    return [value for element in whole for value in _flatten_whole(element)]


def _nest_results(kind: ValueType, results: list[Value | Pair]) -> Whole:
    """Results, taken from the front of the list, in the shape of a type."""
    if isinstance(kind, TupleType):
        return tuple(_nest_results(element, results) for element in kind.elements)
    return results.pop(0)


def _check_type(made: Whole, output: ValueType, instruction: Instruction) -> None:
    for value, kind in zip(_flatten_whole(made), leaves(output), strict=True):
        wanted = PART[kind.dtype] if isinstance(value, Pair) else kind.dtype
        for part in _value_parts(value):
            if part.dtype is not wanted or part.shape != kind.shape:
                found = f"{part.dtype}{list(part.shape)}"
                raise InternalError(f"{instruction.summary} became {found}, declared as {kind}")


# -- rows ----------------------------------------------------------------------------------------


def _in_one_piece(op: Composite, args: Sequence[Value], output: ValueType) -> Value | None:
    """A composite op that was not decomposed, because the target has a kernel for it."""
    types = [TensorType(arg.dtype, arg.shape) for arg in args]
    whole = op.whole(*types)
    if whole is None or not isinstance(output, TensorType):
        return None
    return Opaque(whole, tuple(args), 0, output.dtype, output.shape)


def _first_operands(op: custom.CustomGradient, args: Sequence[Value], output: ValueType) -> Tree:
    """The results alone: the gradient was taken before."""
    return args[0] if op.results == 1 else tuple(args[: op.results])


def _only_operand(op: Op, args: Sequence[Value], output: ValueType) -> Tree:
    """What a program says of its ranks changes no value, nor what it says of their parts."""
    return args[0]


ROWS: Final[Rows] = {
    **from_ptir_elementwise.ROWS,
    **from_ptir_movement.ROWS,
    **from_ptir_reduction.ROWS,
    **from_ptir_indexing.ROWS,
    **from_ptir_random.ROWS,
    constant.Constant: "the lowering makes it a constant or an input before it looks here",
    constant.CustomCall: "a kernel that only some backends know",
    custom.CustomGradient: _first_operands,
    callback.Callback: "a Python function, which the host calls",
    collective.MarkVarying: _only_operand,
    collective.AssertSame: _only_operand,
    collective.Reshard: _only_operand,
    **dict.fromkeys(
        (collective.AllReduce, collective.AllGather, collective.ReduceScatter, collective.AllToAll,
         collective.CollectivePermute, collective.CollectiveBroadcast, collective.Rank),
        "what ranks exchange, which the host does",
    ),
    tuples.MakeTuple: "the lowering takes it apart before it looks here",
    bits.Bitcast: "bits of another dtype, which the host reads",
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
    arrays = [numeric.as_complex(a) if n in value.pairs else a for n, a in enumerate(args)]
    types = [TensorType(as_dtype(a.dtype), tuple(a.shape)) for a in arrays]
    output = op.result_type(types, _NoRegions())
    with np.errstate(**functions.QUIET):
        result = op.evaluate(EvalContext(output, 0, lambda stream: 0), *arrays)
    for number in _path(output, value.result):
        result = result[number]
    if not isinstance(result, np.ndarray):
        raise InternalError(f"{op.mnemonic} has no result {value.result}")
    return numeric.as_pairs(result)


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


def why_whole(op: object) -> str:
    """Why an op is not taken apart; empty where that depends on its operands."""
    row = ROWS.get(type(op)) if isinstance(op, Op) else None
    return row if isinstance(row, str) else ""
