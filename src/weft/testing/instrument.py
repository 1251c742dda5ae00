"""Instrumenting a program: every value as a result, prefixes, and regions on their own.

Everything here works on *settled* programs: without symbols, and with explicit random streams, so
that leaving an instruction out changes no random number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from weft.driver.execute import run
from weft.driver.inputs import check_inputs
from weft.foundation.errors import InternalError
from weft.ptir.ir import Function, Instruction, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import EvalContext, Value
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.streams import assign_streams
from weft.ptir.types import TupleType, ValueType

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A settled program with one value for each parameter; tuples are not flattened."""

    program: Program
    arguments: tuple[Value, ...]

    @property
    def inputs(self) -> list[Array]:
        """The arguments as `weft.run` takes them."""
        return [array for value in self.arguments for array in flatten_arrays(value)]

    @property
    def main(self) -> Function:
        return self.program.main


def settle(program: Program, inputs: Sequence[Any]) -> Case:
    """The program for the sizes of these inputs."""
    arrays = check_inputs(program, inputs)
    sizes = bind_shapes(program.main.parameters, [array.shape for array in arrays])
    settled = assign_streams(specialise(program, sizes))
    flat = iter(arrays)
    return Case(settled, tuple(nest(kind, flat) for kind in settled.main.parameters))


def nest(kind: ValueType, flat: Iterator[Array]) -> Value:
    """The next arrays as a value of this type."""
    if isinstance(kind, TupleType):
        return tuple(nest(element, flat) for element in kind.elements)
    return next(flat)


def flatten_arrays(value: Value) -> list[Array]:
    if isinstance(value, tuple):
        return [array for element in value for array in flatten_arrays(element)]
    return [value]


def returning(program: Program, instructions: Sequence[Instruction]) -> Program:
    """The program with these instructions as its results."""
    main = program.main
    return program.with_main(
        replace(
            main,
            result_ids=tuple(i.id for i in instructions),
            results=tuple(i.output for i in instructions),
            hints=(),
        )
    )


def instrumented(program: Program) -> Program:
    """The program that returns the value of every instruction of its entry function."""
    return returning(program, program.main.body)


def prefix(program: Program, count: int) -> Program:
    """The first `count` instructions, of which the last is returned."""
    body = program.main.body[:count]
    shorter = program.with_main(replace(program.main, body=body, hints=()))
    return returning(shorter, body[-1:])


def all_values(case: Case, *, seed: int = 0) -> dict[int, Value]:
    """Every value of the entry function by id, as the reference computes it."""
    main = case.main
    flat = iter(run(instrumented(case.program), case.inputs, backend="reference", seed=seed))
    values: dict[int, Value] = dict(zip(main.parameter_ids, case.arguments, strict=True))
    for instruction in main.body:
        values[instruction.id] = nest(instruction.output, flat)
    return values


def value_of(operand: Operand, values: Mapping[int, Value]) -> Value:
    if isinstance(operand, TensorLiteral):
        return operand.array
    value = values[operand.id]
    return value if isinstance(operand, Ref) else value[operand.index]


def region_calls(
    case: Case, instruction: Instruction, values: Mapping[int, Value], *, seed: int = 0
) -> Iterator[tuple[int, Case]]:
    """What a control-flow instruction runs, one region after the other: each region as a program of
    its own, with the arguments that the reference gives it."""
    arguments = [value_of(operand, values) for operand in instruction.operands]
    context = EvalContext(instruction.output, seed, lambda stream: 0)
    running = instruction.op.run_regions(context, *arguments)
    try:
        call = next(running)
        while True:
            region = as_program(case.program, call.region)
            inner = Case(region, call.args)
            yield call.region, inner
            flat = iter(run(region, inner.inputs, backend="reference", seed=seed))
            call = running.send(tuple(nest(kind, flat) for kind in region.main.results))
    except StopIteration:
        return


def as_program(program: Program, region_id: int) -> Program:
    """A region as the entry function of a program."""
    region = program.regions_by_id.get(region_id)
    if region is None:
        raise InternalError(f"region ^{region_id} does not exist")
    name = f"region{region_id}"
    function = Function(
        name, region.parameters, region.parameter_ids, region.results, region.body, (),
        region.result_ids,
    )  # fmt: skip
    lines = {
        (function.label, value_id): line
        for (label, value_id), line in program.locations.items()
        if label == region.label
    }
    return Program(name, (function,), program.regions, {**program.locations, **lines})
