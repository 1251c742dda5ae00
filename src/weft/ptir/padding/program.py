"""Padding a program's dynamic dims: one static program for all sizes up to a bound.

    before   f: (x: f32[?B, 3]) -> f32[3]             sums over axis 0
    after    f: (x: f32[?B, 3], n: si64) -> f32[3]    the same with zeros from n on

`pad_dims` answers a program in which the named symbols stand for sizes at least as large as the
real ones. Its inputs are the old ones, filled up along those dims with whatever one likes, and then
real sizes as scalars; its results begin with the real elements. Symbols for which that cannot be
had keep their exact sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from weft.ptir.decompose import decompose
from weft.ptir.ir import HintPolicy, Instruction, Program, Ref
from weft.ptir.op import Op
from weft.ptir.padding.rules import NoPadding, Padding, RealSizes, pads, unknown
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.specialise import region_symbols
from weft.ptir.streams import assign_streams
from weft.ptir.tape import Environment, Workshop
from weft.ptir.types import Dim, Symbol, symbols_of


@dataclass(frozen=True)
class PaddedProgram:
    """A program for sizes that are too large, and what it must be told."""

    program: Program
    padded: frozenset[str]
    """The symbols of the parameters whose sizes may be too large."""
    sizes: tuple[str, ...]
    """The symbols whose real sizes are its last inputs."""
    refused: dict[str, str]
    """Why the others must be exact."""


def pad_dims(program: Program, names: Iterable[str]) -> PaddedProgram:
    """The program for sizes of these symbols that may be too large."""
    source = assign_streams(decompose(program, pads))
    wanted, refused = set(names), dict[str, str]()
    while wanted:
        walk = _Walk(source, wanted)
        try:
            made = walk.run()
        except NoPadding as found:
            # Symbols that one op blames are exact in the next walk, which may refuse for others:
            # there are fewer of them each time, so that it ends.
            wanted -= found.names
            refused.update(dict.fromkeys(found.names, found.why))
            continue
        return PaddedProgram(made, frozenset(wanted), walk.told(made), refused)
    return PaddedProgram(program, frozenset(), (), refused)


class _Walk:
    """The entry function, written again with masks where they are needed."""

    def __init__(self, program: Program, names: set[str]) -> None:
        self.program = program
        self.names = names
        self.shop = Workshop(program)
        self.tape = self.shop.function_tape(program.main)
        self.environment = Environment(self.tape)
        own = {symbol for kind in program.main.parameters for symbol in symbols_of(kind)}
        roots = {s: frozenset({s.name}) for s in own if s.name in names}
        self.known = set(own)
        self.sizes = RealSizes(self.tape, roots)

    def run(self) -> Program:
        main = self.program.main
        required = next((h for h in main.hints if h.policy is HintPolicy.REQUIRED), None)
        if required is not None:
            why = f"hint {required.id} is required, and padding adds instructions"
            raise NoPadding(frozenset(self.names), why)
        for value_id, kind in zip(main.parameter_ids, main.parameters, strict=True):
            self.environment.define(value_id, self.tape.parameter(kind, value_id))
        for instruction in main.body:
            self.tape.line = self.shop.line(main, instruction)
            self._instruction(instruction)
        results = [self.environment.whole(value_id) for value_id in main.result_ids]
        made = self.shop.finished(self.tape, results)
        return self._without_idle_sizes(cse(dce(made.with_main(replace(made.main, hints=())))))

    def _without_idle_sizes(self, program: Program) -> Program:
        """The program without real sizes that nothing looks at any more."""
        main = program.main
        used = {o.id for i in main.body for o in i.operands if isinstance(o, Ref)}
        used |= {*main.result_ids, *self.program.main.parameter_ids}
        kept = [at for at, value_id in enumerate(main.parameter_ids) if value_id in used]
        parameters = tuple(main.parameters[at] for at in kept)
        ids = tuple(main.parameter_ids[at] for at in kept)
        return program.with_main(replace(main, parameters=parameters, parameter_ids=ids))

    def told(self, program: Program) -> tuple[str, ...]:
        """The symbols whose sizes are parameters of the program, in order."""
        named = {self.tape.operand(term): symbol for symbol, term in self.sizes.inputs.items()}
        found = (named.get(Ref(value_id)) for value_id in program.main.parameter_ids)
        return tuple(symbol.name for symbol in found if symbol is not None)

    def _instruction(self, instruction: Instruction) -> None:
        operands = self.environment.operands(instruction)
        used = {symbol for term in operands for symbol in symbols_of(term.type)}
        used |= self._symbols_in(instruction.op)
        outcome = set(symbols_of(instruction.output))
        # A symbol that first stands in a result is padded if anything is that its op reads: its
        # size may follow from padded ones.
        follows = frozenset().union(*(self.sizes.roots.get(symbol, ()) for symbol in used))
        if follows:
            self.sizes.roots.update((symbol, follows) for symbol in outcome - self.known)
        self.known |= outcome
        if self.sizes.roots.keys().isdisjoint(used | outcome):
            self.environment.replay(instruction, same_id=True)
            return
        where = Padding(self.tape, self.sizes, instruction.op, operands, instruction.output)
        try:
            self.environment.define(instruction.id, (pads.of(instruction.op) or unknown)(where))
        except NoPadding as found:
            line = self.tape.line
            raise NoPadding(found.names, f"{found.why} ({line})" if line else found.why) from None

    def _symbols_in(self, op: Op) -> set[Symbol]:
        """The symbols in the attributes of an op, and in its regions and those inside."""
        found: set[Symbol] = set()

        def note(dim: Dim) -> Dim:
            if isinstance(dim, Symbol):
                found.add(dim)
            return dim

        op.with_dims(note)
        for region_id in op.regions:
            region = self.program.regions_by_id[region_id]
            found.update(region_symbols(region))
            for inner in region.body:
                found |= self._symbols_in(inner.op)
        return found
