"""The instructions that take the place of one in a body that is being rebuilt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ptir.emitter import Emitter
from weft.ptir.ir import Instruction, Operand, Ref
from weft.ptir.op import Op
from weft.ptir.passes.edit import Editor
from weft.ptir.term import Term


class Replacement(Emitter):
    """Makes instructions that join the body of an editor only when they are kept."""

    def __init__(self, editor: Editor) -> None:
        super().__init__()
        self.editor = editor
        self.made: list[Instruction] = []

    def terms(self, operands: Iterable[Operand]) -> list[Term]:
        """Operands of the body as terms."""
        return [self.term(operand, self.editor.type_of(operand)) for operand in operands]

    def append(self, op: Op, operands: Sequence[Term]) -> Term:
        made = self.editor.make(op, tuple(map(self.operand, operands)))
        self.made.append(made)
        return self.term(Ref(made.id), made.output)
