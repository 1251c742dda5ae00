"""SPMD partitioning of a body: the walk through its instructions."""

from __future__ import annotations

from collections import Counter

from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.mesh import Mesh
from weft.ptir.ir import Function, Instruction, Operand, Ref
from weft.ptir.ops.collective import OfRanks, Reshard
from weft.ptir.splitting.resharding import Exchanges, Part, whole
from weft.ptir.splitting.rules import NotSplit, Splitting, refusal, splits, waiting
from weft.ptir.tape import Environment, Tape, Workshop
from weft.ptir.types import TensorType


class SplitWalk:
    """One function, written on a tape for a rank of a mesh."""

    def __init__(self, shop: Workshop, tape: Tape, main: Function, mesh: Mesh) -> None:
        self.shop, self.tape, self.main = shop, tape, main
        self.at = Exchanges(tape, mesh)
        self.environment = Environment(tape)
        self.parts: dict[int, Part] = {}
        """What is split; all other values are the same on all ranks."""
        self.uses = Counter(main.result_ids)
        self.user: dict[int, Instruction] = {}
        for instruction in main.body:
            for value_id in instruction.uses:
                self.uses[value_id] += 1
                self.user[value_id] = instruction

    def define(self, value_id: int, part: Part) -> None:
        self.environment.define(value_id, part.term)
        if not part.is_whole:
            self.parts[value_id] = part

    def run(self) -> list[Part]:
        """What a rank has of each result."""
        for instruction in self.main.body:
            self.tape.line = self.shop.line(self.main, instruction)
            self._instruction(instruction)
        return [self._part(Ref(value_id)) for value_id in self.main.result_ids]

    def _instruction(self, instruction: Instruction) -> None:
        op, line = instruction.op, self.tape.line
        if isinstance(op, OfRanks):
            raise refusal(op, "the function is written for whole tensors, without ranks", line)
        split = any(o.id in self.parts for o in instruction.operands if isinstance(o, Ref))
        if not split and not isinstance(op, Reshard):
            self.environment.replay(instruction)
            return
        try:
            found = self._by_rule(instruction)
        except NotSplit as error:
            raise refusal(op, str(error), line) from None
        except SpecViolation as error:
            raise InternalError(f"a part of {instruction.summary}: {error}") from error
        # A sum that several read is made once, where it arises. A single reader that is linear in
        # it may join it with another sum, or want a part of it, and then less is exchanged.
        if not self._waits(instruction):
            found = self.at.settled(found)
        self.define(instruction.id, found)

    def _by_rule(self, instruction: Instruction) -> Part:
        op, kind = instruction.op, instruction.output
        rule = splits.of(op)
        kinds = [self.environment[o].type for o in instruction.operands]
        if rule is None or not all(isinstance(k, TensorType) for k in (kind, *kinds)):
            raise NotSplit("there is no rule for it")
        assert isinstance(kind, TensorType)
        parts = tuple(map(self._part, instruction.operands))
        return rule(Splitting(self.at, op, parts, kind, self.tape.line))

    def _part(self, operand: Operand) -> Part:
        if isinstance(operand, Ref) and operand.id in self.parts:
            return self.parts[operand.id]
        return whole(self.environment[operand])

    def _waits(self, instruction: Instruction) -> bool:
        """Whether the only reader of a value can do with a sum that is not made yet."""
        if self.uses[instruction.id] != 1 or instruction.id not in self.user:
            return False
        user = self.user[instruction.id]
        return waiting(user.op, user.operands.index(Ref(instruction.id)))
