"""While loops with a known number of steps, rewritten as scans.

    before   while: i < 8 with carries (i, x...), of which i begins at 0 and grows by 1
    after    scan over 8 steps with the same carries

Such a loop has a way back, and a `while` has none: that is what gradients want. StableHLO has no
scan, so every scan of JAX arrives as such a loop.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace

from weft.foundation.dtypes import SI64
from weft.ptir.autodiff.definitions import Definitions, definition, known_number
from weft.ptir.copies import origins
from weft.ptir.ir import Body, Instruction, Operand, Program, Ref, Region
from weft.ptir.ops.control import Scan, While
from weft.ptir.ops.elementwise import BinaryFn, Compare, CompareFn, ElementwiseBinary
from weft.ptir.ops.movement import Iota
from weft.ptir.passes.edit import fresh_ids
from weft.ptir.passes.redundant import dce
from weft.ptir.tape import Environment, Workshop
from weft.ptir.types import TensorType

MOST_STEPS = 1 << 24
"""Loops of more steps stay as they are: a scan would count them in memory."""
_MIRRORED = {
    CompareFn.GREATER: CompareFn.LESS,
    CompareFn.GREATER_EQUAL: CompareFn.LESS_EQUAL,
    CompareFn.LESS: CompareFn.GREATER,
    CompareFn.LESS_EQUAL: CompareFn.GREATER_EQUAL,
    CompareFn.NOT_EQUAL: CompareFn.NOT_EQUAL,
}


def with_counted_loops(program: Program, most: int = MOST_STEPS) -> Program:
    """The program with a scan for every loop that is seen to be counted, and has no more steps than
    `most`."""
    if not any(isinstance(i.op, While) for body in program.bodies for i in body.body):
        return program
    shop = Workshop(program)
    changed = False
    while True:
        found = [
            region for region in shop.regions.values() if _has_counted_loop(region, shop, most)
        ]
        if not found:
            break
        changed = True
        for region in found:
            shop.regions[region.id] = replace(region, body=_body_with_scans(region, shop, most))
    functions = []
    for function in program.functions:
        body = (
            _body_with_scans(function, shop, most)
            if _has_counted_loop(function, shop, most)
            else function.body
        )
        changed = changed or body is not function.body
        functions.append(replace(function, body=body))
    if not changed:
        return program
    regions = tuple(shop.regions[region_id] for region_id in sorted(shop.regions))
    return dce(replace(program, functions=tuple(functions), regions=regions))


def _has_counted_loop(body: Body, shop: Workshop, most: int) -> bool:
    return any(_turns_up_to(i, body, shop, most) is not None for i in body.body)


def _turns_up_to(instruction: Instruction, body: Body, shop: Workshop, most: int) -> int | None:
    steps = _loop_turns(instruction, body, shop.regions)
    return steps if steps is not None and steps <= most else None


def _body_with_scans(body: Body, shop: Workshop, most: int) -> tuple[Instruction, ...]:
    """The instructions of a body, with scans for counted loops."""
    ids = fresh_ids({*body.parameter_ids, *(i.id for i in body.body)})
    made: list[Instruction] = []
    for instruction in body.body:
        steps = _turns_up_to(instruction, body, shop, most)
        if steps is None:
            made.append(instruction)
            continue
        assert isinstance(instruction.op, While)
        count = len(instruction.operands)
        numbers = Iota((steps,), SI64, 0)
        counter = Instruction(next(ids), numbers, (), TensorType(SI64, (steps,)))
        scan = Scan(_with_a_slice(instruction.op.body_region, shop), count, 0)
        operands = (*instruction.operands, Ref(counter.id))
        made += [counter, replace(instruction, op=scan, operands=operands)]
    return tuple(made)


def _with_a_slice(region_id: int, shop: Workshop) -> int:
    """The body of a loop with a further parameter, the number of the step, which it ignores."""
    source = shop.regions[region_id]
    tape = shop.region_tape()
    environment = Environment(tape)
    for value_id, kind in zip(source.parameter_ids, source.parameters, strict=True):
        environment.define(value_id, tape.parameter(kind))
    tape.parameter(TensorType(SI64, ()))
    for instruction in source.body:
        tape.line = shop.line(source, instruction)
        environment.replay(instruction)
    return shop.add_region(tape, [environment.whole(i) for i in source.result_ids]).id


# -- how many steps ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Test:
    """A loop goes on while the carry `counter` compares so with `bound`."""

    counter: int
    fn: CompareFn
    bound: Operand


def _loop_turns(instruction: Instruction, body: Body, regions: Mapping[int, Region]) -> int | None:
    """How often a loop runs; None where that is not seen."""
    op = instruction.op
    if not isinstance(op, While) or not instruction.operands:
        return None
    condition, step = regions[op.cond_region], regions[op.body_region]
    count = len(instruction.operands)
    if origins(condition)[1:] != list(range(count)):
        return None
    test = _find_test(condition, count)
    if test is None:
        return None
    made = {i.id: i for i in body.body}
    start = known_number(instruction.operands[test.counter], made)
    end = _loop_bound(test, condition, step, instruction, made)
    by = _growth(step, test.counter)
    numbers = [operator.index(n) for n in (start, end, by) if hasattr(n, "__index__")]
    if len(numbers) < 3:
        return None
    first, end, by = numbers
    steps = _turn_count(first, end, by, test.fn)
    kind = condition.parameters[test.counter]
    assert isinstance(kind, TensorType)
    # A counter that runs over its end counts on from the other one.
    last = first + by * (steps or 0)
    return steps if kind.dtype.lowest <= last <= kind.dtype.highest else None


def _find_test(condition: Region, count: int) -> _Test | None:
    made = {i.id: i for i in condition.body}
    found = made.get(origins(condition)[0])
    if found is None or not isinstance(found.op, Compare) or found.op.op not in _MIRRORED:
        return None
    left, right = found.operands
    for counter, bound, fn in (
        (left, right, found.op.op),
        (right, left, _MIRRORED[found.op.op]),
    ):
        is_carry = isinstance(counter, Ref) and counter.id < count
        if is_carry and (known_number(bound, made) is not None or _is_carry(bound, count)):
            assert isinstance(counter, Ref)
            return _Test(counter.id, fn, bound)
    return None


def _is_carry(operand: Operand, count: int) -> bool:
    return isinstance(operand, Ref) and operand.id < count


def _loop_bound(
    test: _Test, condition: Region, step: Region, instruction: Instruction, made: Definitions
) -> object:
    """The number that the counter is compared with: in the condition, or carried along."""
    if not _is_carry(test.bound, len(instruction.operands)):
        return known_number(test.bound, {i.id: i for i in condition.body})
    assert isinstance(test.bound, Ref)
    if origins(step)[test.bound.id] != test.bound.id:
        return None
    return known_number(instruction.operands[test.bound.id], made)


def _growth(step: Region, counter: int) -> object:
    """What each step adds to a carry, or None."""
    made = {i.id: i for i in step.body}
    found = definition(Ref(origins(step)[counter]), made)
    if found is None or not isinstance(found.op, ElementwiseBinary):
        return None
    first, second = found.operands
    if found.op.fn is BinaryFn.SUB and first == Ref(counter):
        number = known_number(second, made)
        return None if number is None else -number
    if found.op.fn is not BinaryFn.ADD:
        return None
    if second == Ref(counter):
        first, second = second, first
    return known_number(second, made) if first == Ref(counter) else None


def _turn_count(start: int, end: int, by: int, fn: CompareFn) -> int | None:
    """How often `start + by * k` keeps the comparison with `end`, from k = 0 on."""
    if by < 0:
        start, end, by = -start, -end, -by
        fn = _MIRRORED[fn]
    if fn is CompareFn.LESS_EQUAL:
        end, fn = end + 1, CompareFn.LESS
    if fn is CompareFn.NOT_EQUAL and by and end >= start and (end - start) % by == 0:
        fn = CompareFn.LESS
    if fn is not CompareFn.LESS or not by:
        return None
    return max(0, -((start - end) // by))
