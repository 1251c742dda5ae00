"""Making a failing program small: delta debugging on PTIR.

Each step proposes a smaller program with inputs and keeps it if it still fails:

    one result        all results but one are dropped
    end earlier       the result is an intermediate value
    cut               instructions become parameters that hold the values the reference computed
    descend           a control-flow op gives way to one of the regions it runs, with its arguments
    shrink            a size that occurs in the shapes becomes smaller, inputs are sliced
    simplify          inputs become zeros, ones, or whole numbers

What is dead goes with every step: instructions, parameters, regions. Only where the failure itself
needs a dead instruction (one that raises an error, say) are such instructions kept until cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import SpecViolation, UserError, WeftError
from weft.ptir.ir import Body, Function, Instruction, Program, operand_type
from weft.ptir.op import Value
from weft.ptir.passes.redundant import dce
from weft.ptir.streams import drop_default_streams
from weft.ptir.types import Dim, TensorType, TupleType, ValueType, leaves
from weft.ptir.verify import BodyScope, verify
from weft.testing.instrument import Case, all_values, prefix, region_calls, settle

Array = NDArray[Any]
Fails: TypeAlias = Callable[[Program, list[Array]], bool]

BUDGET = 600
_CALLS = 8
_FEW = 64


def reduce_program(
    program: Program,
    inputs: Sequence[Any],
    fails: Fails,
    *,
    budget: int = BUDGET,
    seed: int = 0,
) -> tuple[Program, list[Array]]:
    """A small program, with inputs, for which `fails` still answers true.

    `fails` is asked at most `budget` times; an error of Weft that it raises counts as no. `seed` is
    that of the run, for the values of random ops.
    """
    if not fails(program, list(inputs)):
        raise UserError("the program to reduce does not fail; there is nothing to reduce")
    search = _Search(fails, budget - 1, seed)
    reduced = search.run(settle(program, inputs))
    if reduced is None:
        return program, list(inputs)
    return reduced.program, reduced.inputs


@dataclass
class _Search:
    fails: Fails
    budget: int
    seed: int
    best: Case | None = field(default=None)
    drop_dead: bool = True

    def run(self, first: Case) -> Case | None:
        """The smallest case found; None when not even the settled program fails."""
        self.best = first
        if not self._without_dead() and not self._keep(first):
            return None
        before = -1
        while self.budget > 0 and self._size() != before:
            before = self._size()
            self._without_dead()
            self._results()
            self._cuts()
            self._first_of(self._earlier())
            self._first_of(self._descents())
            self._first_of(self._shrunk())
        self._simplify()
        return self._plain()

    def _without_dead(self) -> bool:
        """Drop dead instructions from here on, if the program fails without them too."""
        self.drop_dead = True
        self.drop_dead = self._keep(self.case)
        return self.drop_dead

    @property
    def case(self) -> Case:
        if self.best is None:
            raise UserError("nothing has been kept yet")
        return self.best

    def _size(self) -> int:
        case = self.case
        elements = sum(array.size for array in case.inputs)
        # Instructions count first: whoever reads the program looks at them, and hardly at the
        # elements.
        return elements + 1000 * sum(len(body.body) for body in case.program.bodies)

    def _keep(self, case: Case) -> bool:
        """Make a case the best one if it is valid and fails."""
        if self.budget <= 0:
            return False
        self.budget -= 1
        try:
            tidy = _tidy(case, drop_dead=self.drop_dead)
            verify(tidy.program)
            failing = self.fails(tidy.program, tidy.inputs)
        except WeftError:
            return False
        if failing:
            self.best = tidy
        return failing

    def _first_of(self, cases: Iterable[Case]) -> bool:
        return any(self._keep(case) for case in cases)

    # -- the steps -------------------------------------------------------------------------------

    def _results(self) -> None:
        main = self.case.main
        if len(main.result_ids) <= 1:
            return
        order = range(len(main.result_ids))
        single = (_with_results(self.case, [index]) for index in reversed(order))
        if self._first_of(single):
            return
        # No result fails alone: drop them one by one.
        index = 0
        while index < len(self.case.main.result_ids) and len(self.case.main.result_ids) > 1:
            rest = [i for i in range(len(self.case.main.result_ids)) if i != index]
            if not self._keep(_with_results(self.case, rest)):
                index += 1

    def _cuts(self) -> None:
        """Replace runs of instructions by parameters, from halves of the body down to one."""
        try:
            values = all_values(self.case, seed=self.seed)
        except WeftError:
            return
        size = max(len(self.case.main.body) // 2, 1)
        while size:
            start = 0
            while start < len(self.case.main.body):
                run = self.case.main.body[start : start + size]
                if not self._keep(_cut_instructions(self.case, run, values)):
                    start += size
            size //= 2

    def _earlier(self) -> Iterator[Case]:
        """The programs that end at one of the instructions, the shortest first."""
        case = self.case
        if len(case.main.body) <= _FEW:
            for count in range(1, len(case.main.body)):
                yield replace(case, program=prefix(case.program, count))

    def _descents(self) -> Iterator[Case]:
        """The regions of the control-flow instructions, as programs of their own."""
        case = self.case
        if not any(instruction.op.regions for instruction in case.main.body):
            return
        try:
            values = all_values(case, seed=self.seed)
        except WeftError:
            return
        for instruction in case.main.body:
            if instruction.op.regions:
                calls = region_calls(case, instruction, values, seed=self.seed)
                for _, (_, inner) in zip(range(_CALLS), calls, strict=False):
                    yield inner

    def _shrunk(self) -> Iterator[Case]:
        """The same program on smaller sizes."""
        case = self.case
        kinds = [leaf for kind in case.main.parameters for leaf in leaves(kind)]
        sizes = sorted({n for kind in kinds for n in kind.static_shape if n > 1}, reverse=True)
        for size in sizes:
            for smaller in dict.fromkeys((1, size // 2, size - 1)):
                try:
                    yield _resize_dims(case, size, smaller)
                except SpecViolation:
                    continue

    def _simplify(self) -> None:
        """Plainer inputs, one argument after the other."""
        for index in range(len(self.case.arguments)):
            for plain in (_zeros, _ones, _round_floats):
                arguments = list(self.case.arguments)
                arguments[index] = _map_arrays(plain, arguments[index])
                if self._keep(replace(self.case, arguments=tuple(arguments))):
                    break

    def _plain(self) -> Case:
        """The best case, without explicit streams where it fails without them too."""
        plain = replace(self.case, program=drop_default_streams(self.case.program))
        if plain.program is not self.case.program:
            self._keep(plain)
        return self.case


# -- smaller programs ----------------------------------------------------------------------------


def _with_results(case: Case, kept: Sequence[int]) -> Case:
    main = case.main
    changed = replace(
        main,
        result_ids=tuple(main.result_ids[i] for i in kept),
        results=tuple(main.results[i] for i in kept),
        hints=(),
    )
    return replace(case, program=case.program.with_main(changed))


def _cut_instructions(case: Case, gone: Sequence[Instruction], values: dict[int, Value]) -> Case:
    """These instructions as parameters with the values they had."""
    main = case.main
    ids = {instruction.id for instruction in gone}
    changed = replace(
        main,
        parameters=(*main.parameters, *(i.output for i in gone)),
        parameter_ids=(*main.parameter_ids, *(i.id for i in gone)),
        body=tuple(i for i in main.body if i.id not in ids),
        hints=(),
    )
    arguments = (*case.arguments, *(values[i.id] for i in gone))
    return Case(case.program.with_main(changed), arguments)


def _tidy(case: Case, *, drop_dead: bool) -> Case:
    """The case without unused parameters and functions, and without dead instructions."""
    main = replace(case.main, hints=())
    lone = Program(case.program.entry, (main,), case.program.regions, case.program.locations)
    program = dce(lone) if drop_dead else _with_regions_in_use(lone)
    used = set(program.main.result_ids) | {u for i in program.main.body for u in i.uses}
    kept = [index for index, value_id in enumerate(main.parameter_ids) if value_id in used]
    changed = replace(
        program.main,
        parameters=tuple(main.parameters[i] for i in kept),
        parameter_ids=tuple(main.parameter_ids[i] for i in kept),
    )
    return Case(program.with_main(changed), tuple(case.arguments[i] for i in kept))


def _with_regions_in_use(program: Program) -> Program:
    """The program without regions that nothing runs."""
    used: set[int] = set()
    open_bodies: list[Body] = [program.main]
    while open_bodies:
        for instruction in open_bodies.pop().body:
            fresh = set(instruction.op.regions) - used
            used |= fresh
            open_bodies += [program.regions_by_id[region_id] for region_id in fresh]
    return replace(program, regions=tuple(r for r in program.regions if r.id in used))


def _resize_dims(case: Case, size: int, smaller: int) -> Case:
    """Every dim of one size made smaller, types inferred anew. Raises where that is impossible."""

    def dim(old: Dim) -> Dim:
        return smaller if old == size else old

    main = case.main
    if any(instruction.op.regions for instruction in main.body):
        raise SpecViolation("Unsupported", "regions keep their sizes")
    parameters = tuple(_resized_type(kind, dim) for kind in main.parameters)
    types: dict[int, ValueType] = dict(zip(main.parameter_ids, parameters, strict=True))
    body = []
    for instruction in main.body:
        op = instruction.op.with_dims(dim)
        operands = [operand_type(operand, types) for operand in instruction.operands]
        types[instruction.id] = op.result_type(operands, BodyScope({}, set()))
        body.append(replace(instruction, op=op, output=types[instruction.id]))
    results = tuple(types[value_id] for value_id in main.result_ids)
    changed: Function = replace(
        main, parameters=parameters, body=tuple(body), results=results, hints=()
    )

    def sliced(array: Array) -> Array:
        return array[(..., *(slice(smaller) if n == size else slice(None) for n in array.shape))]

    arguments = tuple(_map_arrays(sliced, value) for value in case.arguments)
    return Case(case.program.with_main(changed), arguments)


def _resized_type(kind: ValueType, dim: Callable[[Dim], Dim]) -> ValueType:
    if isinstance(kind, TupleType):
        return TupleType(tuple(_resized_type(element, dim) for element in kind.elements))
    return TensorType(kind.dtype, tuple(map(dim, kind.shape)))


# -- plainer data --------------------------------------------------------------------------------


def _map_arrays(change: Callable[[Array], Array], value: Value) -> Value:
    if isinstance(value, tuple):
        return tuple(_map_arrays(change, element) for element in value)
    return change(value)


def _zeros(array: Array) -> Array:
    return np.zeros_like(array)


def _ones(array: Array) -> Array:
    return np.ones(array.shape, np.int8).astype(array.dtype)


def _round_floats(array: Array) -> Array:
    """Floats rounded to whole numbers where that changes them."""
    if array.dtype.kind in "biuc" or not array.size:
        return array
    with np.errstate(all="ignore"):
        return np.rint(array.astype(np.float64)).astype(np.float32).astype(array.dtype)
