"""Raising: pattern matching of simple ops back into the coarse ops that they spell out.

    before   div(exp(sub(x, max)), sum)  ...
    after    byteir.softmax(x)

It is used before gradients are taken (the gradient of `weft.attention` is the flash backward, which
keeps no weights) and for interchange; kernels are found by the compiler itself. What the program
computes stays the same up to rounding. An instruction is replaced only where nothing outside the
formula reads what is inside it, no Required hint holds a part of it, and its constants are the
right ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.coarse.raising.attention import attention
from weft.coarse.raising.convolution import convolution
from weft.coarse.raising.elements import gelu
from weft.coarse.raising.matched import Matched, Pattern
from weft.coarse.raising.norms import l2_norm, layer_norm
from weft.coarse.raising.rows import log_softmax, softmax
from weft.coarse.raising.search import View
from weft.coarse.raising.transposed_attention import turned_attention
from weft.foundation.errors import SpecViolation, UserError
from weft.ptir.decompose import put_in_place
from weft.ptir.ir import Instruction, Program
from weft.ptir.passes.edit import Editor, Replacement, edit_bodies
from weft.ptir.passes.fold import fold
from weft.ptir.passes.log import PassLog
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.term import Term
from weft.ptir.types import TensorType
from weft.ptir.verify import verify

PATTERNS: dict[str, Pattern] = {
    "attention": attention,
    "turned_attention": turned_attention,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "softmax": softmax,
    "gelu": gelu,
    "l2_norm": l2_norm,
}
"""What is looked for at every instruction, in this order."""
FOR_OTHERS: dict[str, Pattern] = {
    "convolution": convolution,
    "layer_norm": layer_norm,
    "log_softmax": log_softmax,
    "softmax": softmax,
    "gelu": gelu,
}
"""What other formats have an op for."""


def raise_program(
    program: Program, log: PassLog | None = None, patterns: Mapping[str, Pattern] = PATTERNS
) -> Program:
    """The program with every formula replaced that is a coarse op. It is verified first."""
    verify(program)
    kept_log = PassLog() if log is None else log
    # A scale such as sqrt(64) is a number then; larger constants say more as they are.
    folded = fold(cse(program, kept_log), kept_log, max_elements=1)
    merged = dce(folded, kept_log)
    raised = edit_bodies(merged, lambda editor: _raise_body(editor, kept_log, patterns), kept_log)
    return program if raised is merged else dce(raised, kept_log)


def _raise_body(editor: Editor, log: PassLog, patterns: Mapping[str, Pattern]) -> bool:
    """Replace what is found in one body; whether there was anything."""
    view, changed = View(editor.body), False
    for original in editor.body.body:
        instruction = editor.resolved(original)
        if not _raise_instruction(editor, view, original, instruction, log, patterns):
            editor.keep(instruction)
        else:
            changed = True
    return changed


def _raise_instruction(
    editor: Editor, view: View, original: Instruction, instruction: Instruction, log: PassLog,
    patterns: Mapping[str, Pattern],
) -> bool:  # fmt: skip
    kind = original.output
    if not isinstance(kind, TensorType) or not kind.dtype.is_float:
        return False
    for name, pattern in patterns.items():
        matched = pattern(view, original)
        if matched is not None and _stands_alone(editor, view, matched, original.id):
            new = Replacement(editor)
            value = _write_match(new, matched)
            if value is not None and value.type == kind:
                log.fire(f"raise-{name}", editor.place(original))
                editor.gather(instruction.id, matched.inside)
                put_in_place(new, instruction, value)
                return True
            editor.unmake(new.made)
    return False


def _write_match(new: Replacement, matched: Matched) -> Term | None:
    try:
        return matched.write(new.terms(map(new.editor.resolve, matched.operands)))
    except (SpecViolation, UserError):
        # What was found does not make a valid op here.
        return None


def _stands_alone(editor: Editor, view: View, matched: Matched, root: int) -> bool:
    """Whether nothing outside a formula needs what is inside it."""
    if matched.inside & (editor.protected.fixed | (editor.protected.pinned - {root})):
        return False
    return all(
        view.readers.get(value_id, set()) <= matched.inside
        for value_id in matched.inside
        if value_id != root
    )
