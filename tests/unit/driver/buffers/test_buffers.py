"""Buffer plans: hand-written cases with exact bytes, and random programs on a simulated memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.support.cases import each, one_in
from tests.unit.driver.buffers.case import Case, program_of, unit
from tests.unit.driver.buffers.regions import REGIONS
from tests.unit.driver.buffers.simulated_memory import Overwritten, simulate
from tests.unit.driver.buffers.slots import SLOTS
from tests.unit.driver.buffers.views import VIEWS
from weft.driver.buffers import BufferPlan, Role, plan_buffers
from weft.driver.buffers.arena import Arena
from weft.foundation.errors import UserError
from weft.ptir import (
    Builder,
    ElementRef,
    Instruction,
    Program,
    Ref,
    Region,
    TensorLiteral,
    Value,
    tensor,
)
from weft.ptir.ops.control import Cond
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import verify

CASES = [*SLOTS, *VIEWS, *REGIONS]


def owner(plan: BufferPlan, value: int) -> int:
    return plan.values[value][0].buffer


@each("case", CASES)
def test_hand_written(case: Case) -> None:
    program = program_of(case.build)
    plan = plan_buffers(program)
    simulate(program, plan)
    assert plan.peak_bytes == case.peak
    if case.total is not None:
        assert plan.total_bytes == case.total
    for value, root in case.shares.items():
        assert owner(plan, value) == owner(plan, root), f"%{value} and %{root}"
    for value in case.owns:
        assert plan.buffers[owner(plan, value)].in_arena
        assert all(owner(plan, v) != owner(plan, value) for v in range(value))
    for value, (offset, strides) in case.views.items():
        view = plan.values[value][0]
        assert (view.offset, view.strides) == (offset, strides), f"%{value}"
    for value, offset in case.offsets.items():
        assert plan.buffers[owner(plan, value)].offset == offset, f"%{value}"
    assert plan.returned_inputs == case.returned
    assert plan.constant_bytes == case.constants
    assert tuple(s.bytes for s in plan.scratch.values()) == case.scratch


# -- random programs -----------------------------------------------------------------------------


class Generator:
    """Random bodies: computation, views, aliases, tuples, constants and nested control flow."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.region_budget = 4

    def program(self, size: int) -> Program:
        b = Builder()
        parameters = [b.param("i1"), *(b.param(*self.kind()) for _ in range(3))]
        values = self.grow(b, parameters, size)
        count = int(self.rng.integers(1, 5))
        chosen = [values[i] for i in self.rng.integers(0, len(values), count)]
        program = b.build(*chosen)
        verify(program)
        return program

    def kind(self) -> tuple[str, list[int]]:
        dims = [int(d) for d in self.rng.choice([0, 1, 2, 3, 4, 8], self.rng.integers(0, 4))]
        if 0 in dims and self.rng.random() < 0.8:
            dims = [max(d, 1) for d in dims]
        return str(self.rng.choice(["f32", "si8", "f64"])), dims

    def grow(self, b: Any, values: list[Value], size: int) -> list[Value]:
        values = list(values)
        for _ in range(size):
            x = values[int(self.rng.integers(len(values)))]
            if x.dtype.name == "i1":
                values.append(b.stop_gradient(x))
                continue
            moves = [
                self.compute, self.compute, self.reshape, self.transpose, self.slice,
                self.broadcast, self.combine, self.fixed, self.pair, self.control,
            ]  # fmt: skip
            move = moves[int(self.rng.integers(len(moves)))]
            values += move(b, x, values)
        return values

    def compute(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        after = values[int(self.rng.integers(len(values)))]
        unary = [
            b.neg, b.abs, b.stop_gradient, lambda v: b.emit("barrier", v, after),
            lambda v: b.reduce_sum(v, [0]) if v.rank else v,
        ]  # fmt: skip
        return [unary[int(self.rng.integers(5))](x)]

    def reshape(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        dims = [int(str(d)) for d in x.shape]
        if self.rng.random() < 0.5:
            return [b.reshape(x, [int(np.prod(dims))])]
        return [b.reshape(x, [1, *dims[::-1]])]

    def transpose(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        return [b.transpose(x, [int(i) for i in self.rng.permutation(x.rank)])]

    def slice(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        dims = [int(str(d)) for d in x.shape]
        starts = [int(self.rng.integers(d + 1)) for d in dims]
        sizes = [int(self.rng.integers(d - s + 1)) for d, s in zip(dims, starts, strict=True)]
        return [b.slice(x, starts, sizes)]

    def broadcast(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        dims = [3 if d == 1 and self.rng.random() < 0.7 else int(str(d)) for d in x.shape]
        if np.prod(dims) > 200 or x.rank > 4:
            return []
        return [b.broadcast_to(x, [2, *dims] if self.rng.random() < 0.3 else dims)]

    def combine(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        same = [v for v in values if v.type == x.type]
        return [b.add(x, same[int(self.rng.integers(len(same)))])]

    def fixed(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        array = np.full([int(str(d)) for d in x.shape], self.rng.integers(3), x.dtype.numpy)
        constant = b.constant(array) if self.rng.random() < 0.5 else b.literal(array)
        return [b.add(x, constant)] if self.rng.random() < 0.5 else [b.neg(constant)]

    def pair(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        if not x.rank:
            return []
        if self.rng.random() < 0.3:
            return [b.custom_call("t.kernel.v1", x, output=x.type)]
        values_and_indices = b.top_k(
            x, k=int(str(x.shape[0])), axis=0, largest=True, indices_dtype="si64"
        )
        return list(values_and_indices)

    # -- control flow ----------------------------------------------------------------------------

    def control(self, b: Any, x: Value, values: list[Value]) -> list[Value]:
        if not self.region_budget:
            return []
        self.region_budget -= 1
        args = [values[int(i)] for i in self.rng.integers(0, len(values), 3)]
        kinds = [arg.type for arg in args]
        flavour = int(self.rng.integers(3))
        if flavour == 0:
            made = b.cond(b.literal(True), self.inside([kinds[0]]), self.inside([kinds[0]]), *args)
            return [made]
        if flavour == 1:
            looped = b.while_(self.inside([tensor("i1"), *kinds]), self.inside(kinds), *args)
            return list(looped)
        if not x.rank:
            return []
        sliced = x.tensor.with_shape(x.shape[1:])
        scanned = b.scan(self.inside([*kinds, sliced, kinds[0]]), args, [x])
        return list(scanned) if all(isinstance(k, TensorType) for k in kinds) else []

    def inside(self, wanted: Sequence[Any]) -> Any:
        """A region that returns values of these types: grown, passed through, or fresh."""

        def body(r: Any, *parameters: Value) -> list[Value]:
            values = self.grow(r, list(parameters), int(self.rng.integers(0, 5)))
            return [self.one(r, values, kind) for kind in wanted]

        return body

    def one(self, r: Any, values: list[Value], kind: TensorType) -> Value:
        found = [v for v in values if v.type == kind]
        if found:
            return found[int(self.rng.integers(len(found)))]
        made: Value = r.constant(np.zeros(kind.static_shape, kind.dtype.numpy))
        return made


SEEDS = range(150)


@pytest.mark.parametrize("block", one_in(5, range(0, len(SEEDS), 15)))
def test_random_programs(block: int) -> None:
    for seed in SEEDS[block : block + 15]:
        program = Generator(seed).program(25)
        plan = plan_buffers(program)
        simulate(program, plan)
        assert plan == plan_buffers(program), "a plan depends on the program alone"
        check_bounds(plan)


def check_bounds(plan: BufferPlan) -> None:
    assert plan.live_bytes <= plan.peak_bytes <= plan.total_bytes
    assert plan.live_bytes == most_live(plan)
    for scratch in plan.scratch.values():
        assert scratch.bytes == max(inner.peak_bytes for inner in scratch.plans)
        for inner in scratch.plans:
            check_bounds(inner)


def most_live(plan: BufferPlan) -> int:
    """Bytes in use at each position, counted one by one."""
    end = max([0, *(b.last for b in plan.buffers), *plan.scratch])
    return max(
        sum(-(-b.bytes // 64) * 64 for b in plan.buffers if b.in_arena and b.first <= at <= b.last)
        + (plan.scratch[at].bytes if at in plan.scratch else 0)
        for at in range(end + 1)
    )


def test_random_programs_cover_what_they_should() -> None:
    programs = [Generator(seed).program(25) for seed in SEEDS]
    names = {i.op.name for p in programs for body in p.bodies for i in body.body}
    assert names >= {"cond", "while", "scan", "top_k", "reshape", "slice", "custom_call"}
    plans = [plan_buffers(p) for p in programs]
    assert sum(bool(plan.returned_inputs) for plan in plans) > 10
    assert sum(plan.peak_bytes < plan.total_bytes for plan in plans) > 100


@each("seed", range(40))
def test_live_ranges_are_those_of_numpy(seed: int) -> None:
    """Run the program on NumPy arrays: who owns the memory, and who reads it last?"""
    generator = Generator(1000 + seed)
    generator.region_budget = 0
    program = generator.program(30)
    buffers = [b for b in plan_buffers(program).buffers if b.in_arena]
    assert sorted((b.bytes, b.first, b.last) for b in buffers) == numpy_owners(program)


def numpy_owners(program: Program) -> list[tuple[int, int, int]]:
    """(bytes, made at, last read at) of every array that owns memory and that an op made."""
    main = program.main
    dense = {
        use for i in main.body if i.op.name == "custom_call" for use in i.uses
    }  # a kernel takes no strides
    arrays = {
        i: [np.empty(leaf.static_shape, leaf.dtype.numpy) for leaf in leaves(kind)]
        for i, kind in zip(main.parameter_ids, main.parameters, strict=True)
    }
    made: dict[int, tuple[Any, int]] = {}
    last: dict[int, int] = {}
    for position, instruction in enumerate(main.body):
        args = []
        for operand in instruction.operands:
            if isinstance(operand, TensorLiteral):
                args.append(operand.array)
                continue
            read = arrays[operand.id]
            read = [read[operand.index]] if isinstance(operand, ElementRef) else read
            last.update({id(owner_of(array)): position for array in read})
            args += read
        found = numpy_move(instruction, args)
        own = [np.empty(k.static_shape, k.dtype.numpy) for k in leaves(instruction.output)]
        if found is not None:
            root = owner_of(found)
            ours, flat = id(root) in made, found.flags.c_contiguous
            if instruction.id in main.result_ids:
                stays = ours and flat and found.nbytes == root.nbytes
            else:
                stays = flat or instruction.id not in dense
            own = [found] if stays else own
        for array in own:
            if array is not found:
                made[id(array)] = (array, position)
                last[id(array)] = position
        arrays[instruction.id] = own
    for value in main.result_ids:
        last.update({id(owner_of(array)): len(main.body) for array in arrays[value]})
    return sorted((array.nbytes, at, last[key]) for key, (array, at) in made.items())


def owner_of(array: Any) -> Any:
    return array if array.base is None else array.base


def numpy_move(instruction: Instruction, args: Sequence[Any]) -> Any:
    """The result of an op that NumPy does without copying; None for the others."""
    op: Any = instruction.op
    kind: Any = instruction.output
    if op.name == "constant":
        return op.value.array
    if op.name == "reshape":
        return args[0].reshape(kind.shape) if args[0].flags.c_contiguous else None
    if op.name == "slice":
        return args[0][(..., *(slice(s, s + n) for s, n in zip(op.starts, op.sizes, strict=True)))]
    if op.name == "transpose":
        return args[0].transpose(op.perm)
    if op.name == "broadcast_to":
        return np.broadcast_to(args[0], kind.shape)
    return args[0][...] if op.name in ("stop_gradient", "barrier") else None


# -- the oracle itself ---------------------------------------------------------------------------


def broken(plan: BufferPlan, value: int, offset: int) -> BufferPlan:
    """The plan with one value's buffer moved."""
    index = owner(plan, value)
    buffers = tuple(replace(b, offset=offset) if b.index == index else b for b in plan.buffers)
    return replace(plan, buffers=buffers)


def test_oracle_sees_an_overwritten_value() -> None:
    program = program_of(lambda b: [x := unit(b), y := b.neg(x), b.neg(y), y][2:])
    plan = plan_buffers(program)
    simulate(program, plan)
    with pytest.raises(Overwritten):
        simulate(program, broken(plan, 2, 0))


def test_oracle_sees_one_overwritten_byte() -> None:
    program = program_of(lambda b: [x := b.param("si8", [65]), b.neg(x), b.neg(x)][1:])
    plan = plan_buffers(program)
    with pytest.raises(Overwritten):
        simulate(program, broken(plan, 2, 64))


def test_oracle_sees_a_wrong_stride() -> None:
    program = program_of(lambda b: b.neg(b.transpose(b.param("f32", [2, 8]), [1, 0])))
    plan = plan_buffers(program)
    wrong = replace(plan.values[1][0], strides=(32, 4))
    with pytest.raises((Overwritten, IndexError)):
        simulate(program, replace(plan, values={**plan.values, 1: (wrong,)}))


def test_oracle_sees_a_carry_in_the_place_of_another() -> None:
    program = program_of(next(case.build for case in CASES if case.name == "loop that swaps"))
    plan = plan_buffers(program)
    scratch = plan.scratch[0]
    body = scratch.plans[1]
    unsafe = replace(body, results=tuple(body.values[i][0] for i in (1, 0)))
    plans = (scratch.plans[0], unsafe)
    with pytest.raises(Overwritten):
        simulate(program, replace(plan, scratch={0: replace(scratch, plans=plans)}))


# -- the rest ------------------------------------------------------------------------------------


def test_dynamic_programs_are_refused() -> None:
    b = Builder()
    program = b.build(b.neg(b.param("f32", ["?B"])))
    with pytest.raises(UserError, match="specialise it first"):
        plan_buffers(program)


def test_roles_and_sizes() -> None:
    program = program_of(lambda b: b.neg(b.add(b.param("f32", [4]), b.literal([1.0] * 4))))
    plan = plan_buffers(program)
    roles = {buffer.role: buffer for buffer in plan.buffers}
    assert set(roles) == set(Role)
    assert (plan.input_bytes, plan.constant_bytes) == (16, 16)
    assert (roles[Role.INPUT].first, roles[Role.INPUT].last) == (-1, 0)
    assert (roles[Role.TEMPORARY].first, roles[Role.TEMPORARY].last) == (0, 1)
    assert (roles[Role.RESULT].first, roles[Role.RESULT].last) == (1, 2)
    assert roles[Role.INPUT].offset is None
    assert roles[Role.CONSTANT].literal is not None


def test_text() -> None:
    plan = plan_buffers(program_of(lambda b: b.neg(b.transpose(b.param("f32", [2, 8]), [1, 0]))))
    assert str(plan).splitlines() == [
        "function @main: peak 64 bytes, 64 unshared",
        "  #0 input 64 outside, live -1..1",
        "  #1 result 64 at 0, live 1..2",
        "  %0 = #0+0 strides [32, 4]",
        "  %1 = #0+0 strides [4, 32]",
        "  %2 = #1+0 strides [8, 4]",
    ]


def test_text_names_the_regions() -> None:
    program = program_of(next(case.build for case in CASES if case.name == "cond"))
    assert str(plan_buffers(program)).endswith("  region ^0, region ^1 at 0: 128 at 64")


def shared_regions(depth: int) -> Program:
    """Regions ^1 .. ^depth, each running the next one in both branches of two conds."""
    pred, x = tensor("i1"), tensor("f32", [16])
    b = Builder()
    p, value = b.param("i1"), b.param("f32", [16])
    leaf = b.region([pred, x], lambda r, p, v: r.neg(v))
    program = b.build(b.append(Cond(leaf, leaf), [p, p, value]))
    (base,) = program.regions
    call = program.main.body[0]
    regions = [replace(base, id=depth)]
    for level in range(depth - 1, -1, -1):
        inner = Cond(level + 1, level + 1)
        first = replace(call, id=2, op=inner)
        second = Instruction(3, inner, (*call.operands[:2], Ref(2)), x)
        regions.append(Region(level, (pred, x), (first, second), (x,), (3,)))
    program = replace(program, regions=tuple(reversed(regions)))
    verify(program)
    return program


def test_shared_regions_are_planned_once() -> None:
    """2^50 uses of the innermost region take no more work than 50."""
    started = time.process_time()
    plan = plan_buffers(shared_regions(50))
    assert time.process_time() - started < 60
    assert plan.peak_bytes == 64 + 50 * 128 + 64
    repr(plan)


def test_long_chains_are_quick() -> None:
    b = Builder()
    x = b.param("f32", [16])
    for _ in range(10_000):
        x = b.neg(x)
    program = b.build(x)
    started = time.process_time()
    plan = plan_buffers(program)
    assert time.process_time() - started < 60
    assert plan.peak_bytes == 128


def test_huge_shapes_cost_nothing() -> None:
    huge = 2**40
    plan = plan_buffers(program_of(lambda b: b.neg(b.param("f32", [huge]))))
    assert plan.peak_bytes == 4 * huge


def test_arena_never_overlaps_and_reuses() -> None:
    """Random blocks against a list of all that are live."""
    rng = np.random.default_rng(0)
    arena, live = Arena(), dict[int, int]()
    for _ in range(2000):
        if live and rng.random() < 0.5:
            offset = list(live)[int(rng.integers(len(live)))]
            arena.give(offset, live.pop(offset))
            continue
        count = int(rng.integers(1, 500))
        offset = arena.take(count)
        assert offset % 64 == 0
        assert offset + count <= arena.size
        assert all(offset + count <= o or o + n <= offset for o, n in live.items())
        live[offset] = count
    assert arena.in_use == sum(-(-n // 64) * 64 for n in live.values())
    for offset, count in live.items():
        arena.give(offset, count)
    size = arena.size
    assert arena.take(size) == 0
    assert arena.size == size
