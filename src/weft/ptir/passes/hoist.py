"""Hoisting: what depends on parameters (weights) alone moves to a program of its own, run once.

    main(x, w) = dot(x, transpose(cast(w)))   becomes
    prologue(w) = transpose(cast(w))          and          main(x, h) = dot(x, h)

Random ops and callbacks, control flow with such ops in it, instructions of Required hints, and
instructions that mention a dim which only data inputs bind stay where they are. A `constant`,
`iota` or `broadcast_to` is not worth storing: where only such an instruction would cross the
border, main computes it itself. Values keep their ids in both programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from weft.foundation.errors import UserError
from weft.ptir.ir import Function, Instruction, Program, ValueKey
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo, Iota
from weft.ptir.passes.edit import Lines, protected, with_bodies, with_settled_hints
from weft.ptir.passes.facts import Facts
from weft.ptir.passes.log import PassLog
from weft.ptir.types import Symbol, ValueType, symbols_of

RULE = "hoist"
CHEAP = (Constant, Iota, BroadcastTo)


@dataclass(frozen=True)
class Hoisted:
    """The two programs, and how to call them with the inputs of the original one.

    The prologue takes the inputs numbered `prologue_inputs`. Main takes the inputs numbered
    `main_inputs` (the data inputs in order, then the parameters it still reads), then the results
    of the prologue. Inputs are counted as the parameters of the entry function are.
    """

    prologue: Program
    main: Program
    prologue_inputs: tuple[int, ...]
    main_inputs: tuple[int, ...]


def hoist(program: Program, param_indices: Iterable[int], log: PassLog | None = None) -> Hoisted:
    """Split a program into what depends only on the inputs `param_indices` and the rest."""
    marked = sorted(set(param_indices))
    count = len(program.main.parameters)
    for index in marked:
        if not 0 <= index < count:
            raise UserError(f"there is no input {index}; @{program.entry} has {count}")
    split = _Split(program, marked)
    kept_log = PassLog() if log is None else log
    for instruction in split.moved:
        kept_log.fire(RULE, program.place(program.main, instruction))
    return Hoisted(
        split.prologue(), split.main(kept_log), tuple(marked), (*split.data, *split.kept)
    )


class _Split:
    """Which instruction goes where, and what crosses the border."""

    def __init__(self, program: Program, marked: Sequence[int]) -> None:
        self.program = program
        self.function = program.main
        self.facts = Facts(program)
        self.marked = marked
        self.data = [i for i in range(len(self.function.parameters)) if i not in marked]
        self.by_id = {instruction.id: instruction for instruction in self.function.body}
        self.binder = _binders(self.function)
        self.early = self._independent()
        self.stay, crossing = self._divided()
        self.crossing = [i for i in self.function.body if i.id in crossing]
        needed = self._closure(crossing)
        self.moved = [i for i in self.function.body if i.id in needed]
        self.kept = self._kept_parameters()

    def _symbols_of_inputs(self, indices: Iterable[int]) -> set[Symbol]:
        return _symbols(self.function.parameters[index] for index in indices)

    def _independent(self) -> set[int]:
        """Instructions that depend on nothing but parameters, in values and in dims."""
        fixed = protected(self.function).fixed
        values = {self.function.parameter_ids[index] for index in self.marked}
        names = self._symbols_of_inputs(self.marked)
        early: set[int] = set()
        for instruction in self.function.body:
            mentioned = self.facts.mentioned(instruction) - names
            if (
                instruction.id not in fixed
                and values.issuperset(instruction.uses)
                and not self.facts.is_random(instruction.op)
                and not self.facts.is_foreign(instruction.op)
                # A dim that this very instruction names is known where it runs; any other one must
                # be known to the parameters.
                and all(self.binder.get(s, instruction.id) == instruction.id for s in mentioned)
            ):
                early.add(instruction.id)
                values.add(instruction.id)
                names |= mentioned
        return early

    def _divided(self) -> tuple[set[int], set[int]]:
        """What main computes (everything late, and whatever cheap it reads), and what it is
        given."""
        stay: set[int] = set()
        crossing: set[int] = set()
        late = [i.id for i in self.function.body if i.id not in self.early]
        open_ids = [*self.function.result_ids, *late]
        while open_ids:
            instruction = self.by_id.get(open_ids.pop())
            if instruction is None or instruction.id in stay or instruction.id in crossing:
                continue
            if instruction.id in self.early and not isinstance(instruction.op, CHEAP):
                crossing.add(instruction.id)
            else:
                stay.add(instruction.id)
                open_ids.extend(self._needs(instruction))
        return stay, crossing

    def _closure(self, roots: Iterable[int]) -> set[int]:
        """The instructions that compute these values."""
        found: set[int] = set()
        open_ids = list(roots)
        while open_ids:
            instruction = self.by_id.get(open_ids.pop())
            if instruction is not None and instruction.id not in found:
                found.add(instruction.id)
                open_ids.extend(self._needs(instruction))
        return found

    def _needs(self, instruction: Instruction) -> list[int]:
        """The values that an instruction reads, and those whose types name the dims it mentions."""
        mentioned = self.facts.mentioned(instruction)
        return [*instruction.uses, *(self.binder[s] for s in mentioned if s in self.binder)]

    def _kept_parameters(self) -> list[int]:
        """Marked inputs that main reads, and those that alone bind a dim which main mentions."""
        staying = [self.by_id[value_id] for value_id in self.stay]
        read = {use for i in staying for use in i.uses} | set(self.function.result_ids)
        kept = [index for index in self.marked if self.function.parameter_ids[index] in read]
        bound = self._symbols_of_inputs((*self.data, *kept))
        bound |= _symbols(i.output for i in self.crossing)
        mentioned = {symbol for i in staying for symbol in self.facts.mentioned(i)}
        for index in self.marked:
            names = self._symbols_of_inputs([index])
            # The parameter is handed over for the sake of its shape.
            if index not in kept and names & mentioned - bound:
                kept.append(index)
                bound |= names
        return sorted(kept)

    # -- the two programs ------------------------------------------------------------------------

    def prologue(self) -> Program:
        function = self.function
        made = Function(
            f"{function.name}_prologue",
            tuple(function.parameters[index] for index in self.marked),
            tuple(function.parameter_ids[index] for index in self.marked),
            tuple(i.output for i in self.crossing),
            tuple(self.moved),
            (),
            tuple(i.id for i in self.crossing),
        )
        lines: Lines = {
            (made.label if label == function.label else label, value_id): line
            for (label, value_id), line in self.program.locations.items()
        }
        return self._program(made.name, (made,), lines)

    def main(self, log: PassLog) -> Program:
        function = self.function
        inputs = (*self.data, *self.kept)
        made = replace(
            function,
            parameters=(
                *(function.parameters[index] for index in inputs),
                *(i.output for i in self.crossing),
            ),
            parameter_ids=(
                *(function.parameter_ids[index] for index in inputs),
                *(i.id for i in self.crossing),
            ),
            body=tuple(i for i in function.body if i.id in self.stay),
        )
        made = with_settled_hints(function, made, log)
        functions = tuple(made if f is function else f for f in self.program.functions)
        return self._program(self.program.entry, functions, self.program.locations)

    def _program(
        self, entry: str, functions: tuple[Function, ...], lines: Mapping[ValueKey, str]
    ) -> Program:
        """A program of these functions, with the regions they use."""
        used = self.facts.reachable(
            region for function in functions for i in function.body for region in i.op.regions
        )
        regions = (region for region in self.program.regions if region.id in used)
        return with_bodies(replace(self.program, entry=entry), (*functions, *regions), lines)


def _symbols(kinds: Iterable[ValueType]) -> set[Symbol]:
    return {symbol for kind in kinds for symbol in symbols_of(kind)}


def _binders(function: Function) -> dict[Symbol, int]:
    """For each symbol the value whose type is the first to mention it."""
    found: dict[Symbol, int] = {}
    kinds = zip(function.parameter_ids, function.parameters, strict=True)
    for value_id, kind in (*kinds, *((i.id, i.output) for i in function.body)):
        for symbol in symbols_of(kind):
            found.setdefault(symbol, value_id)
    return found
