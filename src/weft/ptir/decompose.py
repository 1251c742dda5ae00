"""Legalisation: ops that a backend does not know, rewritten in ops that it knows.

`decompose` replaces every op that has a rule in `DECOMPOSITIONS` and that the caller does not keep.
`portable` is the same for readers of the public contract: it keeps nothing, and refuses by name
what cannot be said in the contract's 37 ops.

A hint that holds a decomposed instruction holds the new ones instead, if they belong there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.foundation.errors import InternalError, SpecViolation, Unimplemented
from weft.ptir.decompositions import DECOMPOSITIONS
from weft.ptir.ir import (
    Body,
    Function,
    HintPolicy,
    HintRegion,
    Instruction,
    Operand,
    Program,
    Ref,
)
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo
from weft.ptir.ops.random import Drawing
from weft.ptir.ops.tuples import MakeTuple
from weft.ptir.passes.edit import Editor, Replacement, dropped, edit_bodies
from weft.ptir.passes.log import PassLog
from weft.ptir.streams import drop_default_streams
from weft.ptir.term import Term
from weft.ptir.types import TensorType, TupleType, ValueType
from weft.ptir.verify import check_hint, verify

LAST_PUBLIC_TAG = 36
MAX_ROUNDS = 8
Stays: TypeAlias = Callable[[Op, Sequence[Term]], bool]
"""Whether an op on operands of some types is not decomposed."""
Expansions: TypeAlias = dict[int, tuple[Instruction, ...]]
"""The instructions that took the place of each one that was decomposed."""


def decompose(
    program: Program,
    keep: Container[type[Op]] = (),
    log: PassLog | None = None,
    stays: Stays | None = None,
) -> Program:
    """The program with every op replaced that has a decomposition, except the classes in `keep`,
    and those of which `stays` says so."""
    kept_log = PassLog() if log is None else log
    for _ in range(MAX_ROUNDS):
        step = _Round(keep, kept_log, stays)
        simpler = edit_bodies(program, step.expand, kept_log, step.settle)
        if simpler is program:
            break
        program = simpler
    return program


def portable(program: Program) -> Program:
    """The program in ops of the public contract only. `Unimplemented` names what has no such form.

    Custom calls that Weft does not know are ops of the contract already and stay.
    """
    result = drop_default_streams(program)
    if _beyond_contract(result) is None:
        return result
    # Rules rely on well-typed operands.
    verify(result)
    result = _tuples_apart(decompose(result))
    found = _beyond_contract(result)
    if found is not None:
        body, instruction = found
        place = result.place(body, instruction)
        raise Unimplemented(instruction.op.mnemonic, f"{_not_portable(instruction)}; {place}")
    return result


def _tuples_apart(program: Program) -> Program:
    """A program with the elements of a tuple as results where the tuple was put together to be one:
    the contract has no op for that, and a run hands out the elements either way."""
    main = program.main
    tuples = {i.id: i for i in main.body if isinstance(i.op, MakeTuple)}
    if main.hints or tuples.keys().isdisjoint(main.result_ids):
        return program
    copies: list[Instruction] = []
    fresh = 1 + max([*main.parameter_ids, *(i.id for i in main.body)])
    results: list[tuple[int, ValueType]] = []
    pending: list[tuple[Operand, ValueType]] = [
        (Ref(number), kind) for number, kind in zip(main.result_ids, main.results, strict=True)
    ]
    pending.reverse()
    while pending:
        operand, kind = pending.pop()
        if isinstance(operand, Ref) and operand.id in tuples and isinstance(kind, TupleType):
            parts = zip(tuples[operand.id].operands, kind.elements, strict=True)
            pending += list(parts)[::-1]
            continue
        if not isinstance(operand, Ref):
            copies.append(_copy_operand(fresh + len(copies), operand, kind))
            operand = Ref(copies[-1].id)
        results.append((operand.id, kind))
    body = _without_unused([*main.body, *copies], tuples, {number for number, _ in results})
    ids, kinds = (tuple(column) for column in zip(*results, strict=True)) if results else ((), ())
    return program.with_main(replace(main, body=body, result_ids=ids, results=kinds))


def _copy_operand(number: int, operand: Operand, kind: ValueType) -> Instruction:
    """An instruction that only holds an operand that is no value of its own."""
    if isinstance(operand, TensorLiteral):
        return Instruction(number, Constant(operand), (), kind)
    if not isinstance(kind, TensorType):
        raise InternalError(f"an element of a tuple has the type {kind}")
    return Instruction(number, BroadcastTo(kind.shape), (operand,), kind)


def _without_unused(
    body: list[Instruction], tuples: Container[int], results: Container[int]
) -> tuple[Instruction, ...]:
    """A body without the tuples that nobody reads, those that only such tuples read included."""
    used: set[int] = set()
    kept: list[Instruction] = []
    for instruction in reversed(body):
        number = instruction.id
        if number in tuples and number not in used and number not in results:
            continue
        kept.append(instruction)
        used.update(o.id for o in instruction.operands if not isinstance(o, TensorLiteral))
    return tuple(reversed(kept))


def _beyond_contract(program: Program) -> tuple[Body, Instruction] | None:
    """The first instruction that public readers do not know."""
    for body in program.bodies:
        for instruction in body.body:
            if _not_portable(instruction):
                return body, instruction
    return None


def _not_portable(instruction: Instruction) -> str:
    op = instruction.op
    if isinstance(op, Drawing) and op.stream is not None:
        return f"its random stream {op.stream} is not the one that its position gives it"
    if op.tag is None or op.tag > LAST_PUBLIC_TAG:
        return f"it has no exact form in portable ops for a result of type {instruction.output}"
    return ""


@dataclass
class _Round:
    """One walk over the program. Rules may make ops that have rules themselves, so there are
    more."""

    keep: Container[type[Op]]
    log: PassLog
    stays: Stays | None = None
    expansions: dict[str, Expansions] = field(default_factory=dict)
    """By the label of the body."""

    def expand(self, editor: Editor) -> bool:
        """Decompose the instructions of one body; whether there were any."""
        found = self.expansions.setdefault(editor.body.label, {})
        for original in editor.body.body:
            instruction = editor.resolved(original)
            made = self._decompose_op(editor, instruction)
            if made is None:
                editor.keep(instruction)
            else:
                found[instruction.id] = made
        return bool(found)

    def _decompose_op(
        self, editor: Editor, instruction: Instruction
    ) -> tuple[Instruction, ...] | None:
        rule = DECOMPOSITIONS.get(type(instruction.op))
        if rule is None or type(instruction.op) in self.keep:
            return None
        new = Replacement(editor)
        terms = new.terms(instruction.operands)
        if self.stays is not None and self.stays(instruction.op, terms):
            editor.unmake(new.made)
            return None
        value = rule(instruction.op, *terms)
        if value is None:
            editor.unmake(new.made)
            return None
        self.log.fire(f"decompose-{instruction.op.mnemonic}", editor.place(instruction))
        if isinstance(value, tuple):
            return _put_parts(new, instruction, value)
        return put_in_place(new, instruction, value)

    def settle(self, before: Function, after: Function, log: PassLog) -> Function:
        """Hints with new instructions in place of old ones; those that fit no more are noted."""
        body = {instruction.id: instruction for instruction in after.body}
        kept = []
        for hint in before.hints:
            expanded = _expand_hint(hint, body, self.expansions[before.label])
            try:
                check_hint(expanded, after)
            except SpecViolation as error:
                if hint.policy is HintPolicy.REQUIRED:
                    raise Unimplemented(
                        f"hint {hint.id}", f"it is Required and decomposing breaks it: {error.why}"
                    ) from None
                log.note(dropped(hint, after, error.why))
            else:
                kept.append(expanded)
        return replace(after, hints=tuple(kept))


def put_in_place(
    new: Replacement, instruction: Instruction, value: Term
) -> tuple[Instruction, ...]:
    """Put what was made where the old instruction stood; the value keeps its id where it can."""
    if value.type != instruction.output:
        raise InternalError(
            f"{instruction.summary} of type {instruction.output} was decomposed to {value.type}"
        )
    done, operand = list(new.made), new.operand(value)
    if done and operand == Ref(done[-1].id):
        done[-1] = replace(done[-1], id=instruction.id)
    elif new.editor.may_forward(instruction, operand):
        new.editor.forward(instruction, operand)
    else:
        # Results and the inputs of hints must be plain.
        done.append(_copy_operand(instruction.id, operand, instruction.output))
    return _keep_instructions(new.editor, instruction, done)


def _put_parts(
    new: Replacement, instruction: Instruction, parts: tuple[Term, ...]
) -> tuple[Instruction, ...]:
    """Put what was made where an instruction with a tuple result stood. The elements are read where
    they are made; the tuple is put together only if somebody uses it as a whole."""
    found = TupleType(tuple(part.type for part in parts))
    if found != instruction.output:
        raise InternalError(
            f"{instruction.summary} of type {instruction.output} was decomposed to {found}"
        )
    operands = tuple(map(new.operand, parts))
    done = list(new.made)
    if new.editor.is_whole(instruction.id):
        done.append(replace(instruction, op=MakeTuple(), operands=operands))
    new.editor.forward_parts(instruction, operands)
    return _keep_instructions(new.editor, instruction, done)


def _keep_instructions(
    editor: Editor, instruction: Instruction, done: list[Instruction]
) -> tuple[Instruction, ...]:
    """Instructions that join the body, with the line of the one they stand for."""
    for made in done:
        editor.inherit(made.id, instruction.id)
        editor.keep(made)
    return tuple(done)


def _expand_hint(
    hint: HintRegion, body: Mapping[int, Instruction], expansions: Expansions
) -> HintRegion:
    made: list[Instruction] = []
    for instruction in hint.body:
        new = expansions.get(instruction.id, (body.get(instruction.id, instruction),))
        made.extend(new)
    return replace(hint, body=tuple(made))
