"""Common subexpression elimination (`cse`) and dead code elimination (`dce`).

*Common subexpressions.* Equal means the same op and attributes, the same operands and the same
declared type. Random ops, and control flow that draws random numbers, are never merged; everything
else in PTIR is pure.

*Dead code.* Regions that nothing runs go too. Three kinds of dead instructions stay: those of
Required hints, those that give a dim its name for a live one, and random ones that share a stream
with another instruction, whose numbers would change. A violation that a dead instruction would have
reported is gone with it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from weft.ptir.ir import Body, Function, Program, Ref
from weft.ptir.passes.edit import Editor, edit_bodies, protected, with_bodies, with_settled_hints
from weft.ptir.passes.facts import Facts
from weft.ptir.passes.log import PassLog
from weft.ptir.types import Symbol, symbols_of

CSE_RULE = "common-subexpression"


def cse(program: Program, log: PassLog | None = None) -> Program:
    """Merge equal instructions within each body. The same program if there are none."""
    facts = Facts(program)
    kept_log = PassLog() if log is None else log
    return edit_bodies(program, lambda editor: _merge(editor, facts, kept_log), kept_log)


def _merge(editor: Editor, facts: Facts, log: PassLog) -> bool:
    first: dict[Hashable, int] = {}
    for original in editor.body.body:
        instruction = editor.resolved(original)
        if not facts.is_random(instruction.op):
            # The declared type is part of it: two instructions may give one dim two names.
            key = (instruction.op.same_key, instruction.operands, instruction.output)
            earlier = first.setdefault(key, instruction.id)
            if earlier != instruction.id and editor.may_forward(instruction, Ref(earlier)):
                log.fire(CSE_RULE, editor.place(instruction))
                editor.forward(instruction, Ref(earlier))
                continue
        editor.keep(instruction)
    return bool(editor.forwards)


DCE_RULE = "dead-code"


def dce(program: Program, log: PassLog | None = None) -> Program:
    """Drop what is dead. The same program if everything lives."""
    kept_log = PassLog() if log is None else log
    facts = Facts(program)
    bodies = [_live_body(program, body, facts, kept_log) for body in program.bodies]
    changed = any(a is not b for a, b in zip(bodies, program.bodies, strict=True))
    trimmed = with_bodies(program, bodies, program.locations) if changed else program
    return _without_unused_regions(trimmed, kept_log)


def _live_body(program: Program, body: Body, facts: Facts, log: PassLog) -> Body:
    live = _live_ids(body, facts)
    kept = tuple(i for i in body.body if i.id in live)
    if len(kept) == len(body.body):
        return body
    for instruction in body.body:
        if instruction.id not in live:
            log.fire(DCE_RULE, program.place(body, instruction))
    if isinstance(body, Function):
        return with_settled_hints(body, replace(body, body=kept), log)
    return replace(body, body=kept)


def _live_ids(body: Body, facts: Facts) -> set[int]:
    """The values that are needed, found from the last instruction to the first."""
    live = {*body.result_ids, *protected(body).fixed}
    binders = {} if facts.is_static else _binders(body)
    needed: set[Symbol] = {symbol for kind in body.results for symbol in symbols_of(kind)}
    for instruction in reversed(body.body):
        # From the end to the front, everything that needs a name has been seen by the time the
        # instruction comes that gives it.
        names = binders.get(instruction.id, set()) & needed
        if instruction.id in live or names or not facts.is_removable(instruction.op):
            live.add(instruction.id)
            live.update(instruction.uses)
            needed |= facts.mentioned(instruction)
    return live


def _binders(body: Body) -> dict[int, set[Symbol]]:
    """For each instruction the symbols that its output type is the first to mention."""
    seen = {symbol for kind in body.parameters for symbol in symbols_of(kind)}
    found: dict[int, set[Symbol]] = {}
    for instruction in body.body:
        fresh = {symbol for symbol in symbols_of(instruction.output) if symbol not in seen}
        if fresh:
            found[instruction.id] = fresh
            seen |= fresh
    return found


def _without_unused_regions(program: Program, log: PassLog) -> Program:
    used = Facts(program).used_regions()
    kept = tuple(region for region in program.regions if region.id in used)
    if len(kept) == len(program.regions):
        return program
    for region in program.regions:
        if region.id not in used:
            log.note(f"{region.label} dropped: nothing runs it")
    return with_bodies(program, (*program.functions, *kept), program.locations)
