"""The rewrite engine: rules as data, applied to every instruction until none applies.

A rule looks at one instruction and the definitions of its operands and answers what the value can
be computed by instead: another operand that already holds it, or another op. Bodies are swept front
to back, so definitions are already in final form when their uses are looked at, and one sweep does
nearly everything; sweeps repeat until nothing fires. What was looked at is looked at again only
where it, or a definition that a rule saw, has changed (`Settled`).

A rule is only ever accepted with exactly the declared type of the instruction, symbols included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import InternalError, SpecViolation
from weft.ptir.ir import Instruction, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral, from_array
from weft.ptir.op import SPELLINGS, Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.passes.edit import Editor, edit_bodies
from weft.ptir.passes.log import PassLog
from weft.ptir.types import Symbol, TensorType, ValueType
from weft.ptir.verify import check_instruction

MAX_SWEEPS = 16
MAX_STEPS = 64
"""How often one instruction may be rewritten in one sweep."""


@dataclass(frozen=True)
class New:
    """The replacement that computes the value by another op."""

    op: Op
    operands: tuple[Operand, ...]


Replacement: TypeAlias = "Operand | New"


@dataclass(frozen=True)
class Rule:
    """`before -> after`, for instructions whose op is spelled as one of `ops` (none: every op)."""

    name: str
    before: str
    after: str
    ops: tuple[str, ...]
    apply: Callable[[Match], Replacement | None] = field(repr=False)

    def __post_init__(self) -> None:
        for op in self.ops:
            if op not in SPELLINGS:
                raise InternalError(
                    f"the rule {self.name} looks for an op {op!r}, which is not one"
                )

    def __str__(self) -> str:
        return f"{self.name}: {self.before} -> {self.after}"


Seen: TypeAlias = dict[int, tuple[ValueType | None, Instruction | None]]
"""The values that rules asked about, with their types and what defines them."""


class Match:
    """An instruction that a rule looks at, and what there is to know about it."""

    def __init__(self, editor: Editor, instruction: Instruction) -> None:
        self._editor = editor
        self.instruction = instruction
        self.made: list[Instruction] = []
        self.seen: Seen = {}

    @property
    def op(self) -> Op:
        return self.instruction.op

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.instruction.operands

    @property
    def output(self) -> ValueType:
        return self.instruction.output

    def type(self, operand: Operand) -> ValueType:
        self._see(operand)
        return self._editor.type_of(operand)

    def tensor(self, operand: Operand) -> TensorType:
        """The type of an operand that the op's type rule has found to be a tensor."""
        kind = self.type(operand)
        if not isinstance(kind, TensorType):
            raise InternalError(f"{operand} is the tuple {kind}")
        return kind

    def definition(self, operand: Operand) -> Instruction | None:
        """The instruction that makes an operand; None for parameters, literals, tuple elements."""
        self._see(operand)
        return self._editor.definitions.get(operand.id) if isinstance(operand, Ref) else None

    def _see(self, operand: Operand) -> None:
        if not isinstance(operand, TensorLiteral) and operand.id not in self.seen:
            editor = self._editor
            definition = editor.definitions.get(operand.id)
            self.seen[operand.id] = editor.types.get(operand.id), definition

    def is_bound(self, shape: Iterable[object]) -> bool:
        """Whether every symbol of a shape has a size before this instruction."""
        return all(self._editor.scope.is_bound(dim) for dim in shape if isinstance(dim, Symbol))

    # -- constants -------------------------------------------------------------------------------

    def literal(self, operand: Operand) -> TensorLiteral | None:
        """The literal that an operand is, or that a constant instruction holds."""
        if isinstance(operand, TensorLiteral):
            return operand
        definition = self.definition(operand)
        if definition is not None and isinstance(definition.op, Constant):
            return definition.op.value
        return None

    def splat(self, operand: Operand) -> NDArray[Any] | None:
        """The one value that all elements of an operand have, as a rank-0 array, if it is known."""
        definition = self.definition(operand)
        if definition is not None and isinstance(definition.op, BroadcastTo):
            operand = definition.operands[0]
        found = self.literal(operand)
        if found is None or not _starts_uniform(found) or not found.is_splat:
            return None
        return np.asarray(found.item(), found.type.dtype.numpy)

    # -- making instructions ---------------------------------------------------------------------

    def emit(self, op: Op, *operands: Operand) -> Operand:
        """A new instruction before this one. It stays only if the rule is accepted."""
        made = self._editor.make(op, operands)
        self.made.append(made)
        return Ref(made.id)

    def discard(self) -> None:
        """Forget the instructions made for a rule that did not apply."""
        self._editor.unmake(self.made)
        self.made.clear()


def _starts_uniform(found: TensorLiteral) -> bool:
    """A cheap look at both ends, before all of a large literal is compared."""
    width = found.type.dtype.storage_bytes
    first = found.data[:width]
    return found.data[width : 2 * width] in (first, b"") and found.data[-width:] == first


class Settled:
    """Instructions that some rules left as they are, each with what the rules saw besides it.

    While all of that is as it was, down to the same objects, they find what they found before.
    Nothing is remembered where they could see more: which symbols have a size, what a region says,
    what a hint protects, and whether a value is a result.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Instruction, Seen]] = {}

    def holds(self, editor: Editor, instruction: Instruction) -> bool:
        """Whether no rule applies, because everything is as it was."""
        known = self._known.get(id(instruction))
        # By identity, and not only by number: an address may serve another instruction by now.
        if known is None or known[0] is not instruction or editor.scope.bound:
            return False
        definitions, types = editor.definitions, editor.types
        for value_id, (kind, definition) in known[1].items():
            if types.get(value_id) is not kind or definitions.get(value_id) is not definition:
                return False
        return True

    def add(self, editor: Editor, match: Match) -> None:
        """Remember an instruction that no rule applies to."""
        instruction = match.instruction
        if not (editor.scope.bound or instruction.op.regions or instruction.id in editor.results):
            self._known[id(instruction)] = instruction, match.seen


def constant(array: NDArray[Any]) -> New:
    """The replacement by a constant with exactly these elements."""
    return New(Constant(from_array(array)), ())


def rewrite(program: Program, rules: Sequence[Rule], log: PassLog | None = None) -> Program:
    """Apply rules everywhere until none applies. The same program if none ever did."""
    table = _by_op(tuple(rules))
    kept_log = PassLog() if log is None else log
    settled: Settled = kept_log.settled.setdefault(tuple(rules), Settled())
    for _ in range(MAX_SWEEPS):
        swept = edit_bodies(
            program, lambda editor: _sweep(editor, table, kept_log, settled), kept_log
        )
        if swept is program:
            break
        program = swept
    return program


@cache
def _by_op(rules: tuple[Rule, ...]) -> dict[str, tuple[Rule, ...]]:
    """The rules for each op spelling, in the order given; those for every op stand under ""."""
    table: dict[str, tuple[Rule, ...]] = {"": tuple(rule for rule in rules if not rule.ops)}
    for spelling in SPELLINGS:
        table[spelling] = tuple(rule for rule in rules if not rule.ops or spelling in rule.ops)
    return table


def _sweep(
    editor: Editor, table: Mapping[str, tuple[Rule, ...]], log: PassLog, settled: Settled
) -> bool:
    """Rewrite one body; whether anything changed."""
    before = len(log.entries)
    is_free = editor.protected.is_nothing
    for original in editor.body.body:
        instruction = editor.resolved(original)
        is_fixed = original.id in editor.protected.fixed
        if is_fixed or (is_free and settled.holds(editor, instruction)):
            editor.keep(instruction)
            continue
        kept = _rewrite_instruction(editor, instruction, table, log, settled if is_free else None)
        if kept is not None:
            editor.keep(kept)
    return len(log.entries) > before


def _rewrite_instruction(
    editor: Editor,
    instruction: Instruction,
    table: Mapping[str, tuple[Rule, ...]],
    log: PassLog,
    settled: Settled | None,
) -> Instruction | None:
    """The instruction after all rules that apply; None when its value was forwarded."""
    for _ in range(MAX_STEPS):
        match = Match(editor, instruction)
        for rule in table.get(instruction.op.mnemonic, table[""]):
            replacement = _apply(rule, match)
            if replacement is not None:
                accepted = _accept_replacement(editor, match, replacement)
                if accepted is not None:
                    break
            if match.made:
                match.discard()
        else:
            if settled is not None:
                settled.add(editor, match)
            return instruction
        log.fire(rule.name, editor.place(instruction))
        for made in match.made:
            editor.inherit(made.id, instruction.id)
            editor.keep(made)
        if not isinstance(accepted, Instruction):
            editor.forward(instruction, accepted)
            return None
        instruction = accepted
    return instruction


def _apply(rule: Rule, match: Match) -> Replacement | None:
    try:
        return rule.apply(match)
    except SpecViolation:
        # What the rule would have made is not valid here: sizes overflow, or a dim has no name.
        return None


def _accept_replacement(
    editor: Editor, match: Match, replacement: Replacement
) -> Operand | Instruction | None:
    """The replacement if it has the same type and respects what is protected."""
    instruction = match.instruction
    if not isinstance(replacement, New):
        return replacement if editor.may_forward(instruction, replacement) else None
    made = Instruction(instruction.id, replacement.op, replacement.operands, instruction.output)
    reads = [o for i in (*match.made, made) for o in i.operands]
    if not editor.may_read(instruction, reads):
        return None
    try:
        check_instruction(made, editor.types, editor.scope)
    except SpecViolation:
        return None
    return made
