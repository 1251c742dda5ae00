"""The reference interpreter: PTIR's meaning, executed with NumPy.

It runs static programs that verify. There is no recursion: calls of regions are frames on a list,
and a value is dropped after its last use.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from weft.foundation import limits
from weft.foundation.errors import (
    ExecutionError,
    InternalError,
    ResourceExceeded,
    SpecViolation,
    WeftError,
)
from weft.ptir.ir import Body, ElementRef, Instruction, Operand, Program, Ref
from weft.ptir.op import Array, EvalContext, RegionRun, Value
from weft.ptir.specialise import check_values
from weft.ptir.streams import assign_streams
from weft.ptir.types import TupleType, ValueType

Observer: TypeAlias = Callable[[Body, Instruction, float], None]
"""Told after every instruction how many seconds it took."""


@dataclass(frozen=True)
class _Step:
    instruction: Instruction
    dead: tuple[int, ...]
    """Values that nothing reads after this instruction."""


@dataclass
class _Frame:
    body: Body
    steps: tuple[_Step, ...]
    values: dict[int, Value]
    position: int = 0
    running: RegionRun | None = None
    """The control-flow instruction at `position`, waiting for a region's results."""

    def results(self) -> tuple[Value, ...]:
        return tuple(self.values[value_id] for value_id in self.body.result_ids)


@dataclass
class Interpreter:
    """A program prepared for running. Preparing checks sizes, so that nothing is allocated for a
    program that would exceed the limits."""

    program: Program
    bounds: limits.Limits = field(default_factory=limits.current)

    def __post_init__(self) -> None:
        self.program = assign_streams(self.program)
        self._steps = {body.label: _steps_of_body(body) for body in self.program.bodies}
        check_values(self.program, self.bounds)

    def run(
        self,
        inputs: Sequence[Value],
        seed: int = 0,
        observer: Observer | None = None,
        execution: Callable[[int], int] | None = None,
    ) -> tuple[Value, ...]:
        """The results of the entry function. `execution` counts the draws of a run that this one is
        a part of."""
        with np.errstate(all="ignore"):
            return _Run(self, seed, observer, execution).run(inputs)

    def frame(self, body: Body, args: Sequence[Value]) -> _Frame:
        values = dict(zip(body.parameter_ids, args, strict=True))
        return _Frame(body, self._steps[body.label], values)


def _steps_of_body(body: Body) -> tuple[_Step, ...]:
    last: dict[int, int] = {}
    for position, instruction in enumerate(body.body):
        last[instruction.id] = position
        last.update(dict.fromkeys(instruction.uses, position))
    keep = set(body.result_ids)
    dead: dict[int, list[int]] = {}
    for value_id, position in last.items():
        if value_id not in keep:
            dead.setdefault(position, []).append(value_id)
    return tuple(
        _Step(instruction, tuple(dead.get(position, ())))
        for position, instruction in enumerate(body.body)
    )


class _Run:
    def __init__(
        self,
        interpreter: Interpreter,
        seed: int,
        observer: Observer | None,
        execution: Callable[[int], int] | None,
    ) -> None:
        self.interpreter = interpreter
        self.program = interpreter.program
        self.seed = seed
        self.observer = observer
        self.execution = execution or self._execution
        self.drawn: Counter[int] = Counter()
        self.region_calls = 0

    def run(self, inputs: Sequence[Value]) -> tuple[Value, ...]:
        frames = [self.interpreter.frame(self.program.main, inputs)]
        while True:
            frame = frames[-1]
            if frame.position < len(frame.steps):
                called = self._step(frame)
                if called is not None:
                    frames.append(called)
                continue
            results = frames.pop().results()
            if not frames:
                return results
            called = self._resume(frames[-1], results)
            if called is not None:
                frames.append(called)

    def _step(self, frame: _Frame) -> _Frame | None:
        instruction = frame.steps[frame.position].instruction
        args = tuple(_operand_value(operand, frame.values) for operand in instruction.operands)
        context = EvalContext(instruction.output, self.seed, self.execution)
        if instruction.op.regions:
            frame.running = instruction.op.run_regions(context, *args)
            return self._resume(frame, None)
        started = time.perf_counter()
        try:
            value = instruction.op.evaluate(context, *args)  # type: ignore[arg-type]
        except (SpecViolation, MemoryError) as error:
            raise self._locate_error(error, frame) from None
        if self.observer is not None:
            self.observer(frame.body, instruction, time.perf_counter() - started)
        self._finish(frame, value)
        return None

    def _resume(self, frame: _Frame, results: tuple[Value, ...] | None) -> _Frame | None:
        """Hand a region's results to the waiting instruction; a frame if it calls another one."""
        if frame.running is None:
            raise InternalError("a region returned to an instruction that did not call it")
        try:
            call = frame.running.send(results)  # type: ignore[arg-type]
        except StopIteration as done:
            frame.running = None
            self._finish(frame, done.value)
            return None
        except (SpecViolation, MemoryError) as error:
            raise self._locate_error(error, frame) from None
        self.region_calls += 1
        if self.region_calls > self.interpreter.bounds.loop_steps:
            place = self.program.place(frame.body, frame.steps[frame.position].instruction)
            raise ExecutionError(
                f"{place} ran {self.region_calls - 1:,} region calls without ending; "
                "raise WEFT_MAX_LOOP_STEPS if this is meant"
            )
        return self.interpreter.frame(self.program.regions_by_id[call.region], call.args)

    def _locate_error(self, error: SpecViolation | MemoryError, frame: _Frame) -> WeftError:
        """The error with the instruction that the frame is at."""
        place = self.program.place(frame.body, frame.steps[frame.position].instruction)
        if isinstance(error, SpecViolation):
            return error.at(place)
        return ResourceExceeded(f"out of memory in {place}")

    def _finish(self, frame: _Frame, value: Value) -> None:
        step = frame.steps[frame.position]
        _check_type(value, step.instruction.output, step.instruction)
        frame.values[step.instruction.id] = value
        for dead in step.dead:
            del frame.values[dead]
        frame.position += 1

    def _execution(self, stream: int) -> int:
        self.drawn[stream] += 1
        return self.drawn[stream] - 1


def _operand_value(operand: Operand, values: dict[int, Value]) -> Value:
    if isinstance(operand, Ref):
        return values[operand.id]
    if isinstance(operand, ElementRef):
        return values[operand.id][operand.index]
    return operand.array


def _check_type(value: Value, kind: ValueType, instruction: Instruction) -> None:
    if isinstance(kind, TupleType):
        if isinstance(value, tuple) and len(value) == len(kind.elements):
            for part, part_kind in zip(value, kind.elements, strict=True):
                _check_type(part, part_kind, instruction)
            return
    elif isinstance(value, np.ndarray):
        array: Array = value
        if array.dtype == kind.dtype.numpy and array.shape == kind.shape:
            return
    found = f"{getattr(value, 'dtype', '')}{getattr(value, 'shape', '')}" or str(type(value))
    raise InternalError(f"{instruction.summary} made {found}, declared as {kind}")
