"""Common subexpressions: an instruction that repeats an earlier one is that one.

Equal means the same op and attributes, the same operands and the same declared type. Random ops,
and control flow that draws random numbers, are never merged; everything else in PTIR is pure.
"""

from __future__ import annotations

from collections.abc import Hashable

from weft.ptir.ir import Program, Ref
from weft.ptir.passes.edit import Editor, edit_bodies
from weft.ptir.passes.facts import Facts
from weft.ptir.passes.log import PassLog

RULE = "common-subexpression"


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
            earlier = Ref(first.setdefault(key, instruction.id))
            if earlier.id != instruction.id and editor.may_forward(instruction, earlier):
                log.fire(RULE, editor.place(instruction))
                editor.forward(instruction, earlier)
                continue
        editor.keep(instruction)
    return bool(editor.forwards)
