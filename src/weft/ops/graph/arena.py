"""Arenas: where instructions are captured.

An arena belongs to one backend and hands out nodes. Most code never meets one: every thread has a
default arena, and tensors made there are computed when they are read. An arena can also be held and
used as a program under construction: it has parameters and exports, and `run` computes the exports
for given inputs, compiling again only when instructions were added since (its `version` grew).

A *tracing* arena has arguments instead of data: reading a tensor in it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.driver.backends import Backend
from weft.driver.execute import Prepared
from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import Line, shown
from weft.ops.graph.cache import PROGRAMS
from weft.ops.graph.hooks import execute
from weft.ops.graph.node import Form, Node, canonical, tensor_type
from weft.ops.graph.program import as_program, reachable
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType


class Arena:
    """A place for nodes: their backend, and how often it has changed."""

    __slots__ = (
        "__weakref__", "_compiled", "_compiled_version", "assigned", "backend", "created",
        "exports", "name", "names", "order", "parameters", "parent", "parts", "stands_for",
        "tokens", "tracing", "version",
    )  # fmt: skip

    def __init__(
        self,
        backend: Backend,
        *,
        name: str = "main",
        tracing: bool = False,
        parent: Arena | None = None,
        order: int = 0,
    ) -> None:
        self.backend = backend
        self.name = name
        self.tracing = tracing
        self.parent = parent
        """The arena around a traced body: its nodes may be used inside."""
        self.order = order
        """How many derivatives more are taken of this trace than of the one around it: one less in
        a rule that stands for a derivative."""
        self.version = 0
        self.created: list[Node] = []
        """Every instruction, in a tracing arena."""
        self.parts: list[list[Node]] = []
        """Instructions that a backward part carries out again rather than keep their results."""
        self.tokens: list[Node] = []
        """What the first effect of this trace follows, and what each effect gave: the last one is a
        result of the trace."""
        self.assigned: list[Callable[[], None]] = []
        """What takes assignments to modules of the outside back, where the trace fails."""
        self.parameters: list[Node] = []
        self.names: Callable[[], Sequence[str]] = tuple
        """What the parameters are called where they are the arguments of a function."""
        self.stands_for: Sequence[Node] | None = None
        """What the parameters are called with, where that is known."""
        self.exports: list[Node] = []
        self._compiled: Prepared | None = None
        self._compiled_version = -1

    @property
    def is_differentiated(self) -> bool:
        """Whether a derivative is taken of this trace, on its own or together with those around."""
        total = 0
        around: Arena | None = self
        while around is not None:
            total, around = total + around.order, around.parent
        return total > 0

    # -- nodes -----------------------------------------------------------------------------------

    def emit(self, form: Form, operands: tuple[Node, ...], line: Line | None) -> Node:
        """A new instruction."""
        for operand in operands:
            if operand.arena is not self:
                self.admit(operand)
        self.version += 1
        node = Node(self, form, operands, form.output, line)
        if self.tracing:
            self.created.append(node)
            return node
        for operand in operands:
            if type(operand.storage) is not TensorLiteral:
                operand.used_by(node)
        return node

    def leaf(self, storage: Any, kind: TensorType) -> Node:
        """A tensor that the backend holds."""
        return Node(self, None, (), tensor_type(kind.dtype, kind.shape), None, storage)

    def constant(self, literal: TensorLiteral) -> Node:
        """A tensor that is part of the program."""
        return Node(self, None, (), canonical(literal.type), None, literal)

    def parameter(self, kind: TensorType, line: Line | None = None) -> Node:
        """An argument: a value that only a run has."""
        node = Node(self, None, (), canonical(kind), line)
        self.parameters.append(node)
        self.version += 1
        return node

    def arguments(self) -> dict[Node, str]:
        """The arguments of a traced function, with what they are called there."""
        return dict(zip(self.parameters, self.names(), strict=False))

    def export(self, node: Node) -> None:
        """Make a node a result of the arena's program."""
        self.exports.append(node)
        self.version += 1

    def admit(self, operand: Node) -> None:
        """A node of another arena may be used here: the same backend holds it, and it is data or
        belongs to a trace that is still under way around this one."""
        other = operand.arena
        if other.backend is not self.backend:
            raise SpecViolation(
                "BackendMismatch",
                f"{operand.type} on backend {other.backend.name!r} meets a tensor on "
                f"{self.backend.name!r}",
                f"move it first, with .to({self.backend.name!r})",
            )
        if other.tracing and operand.storage is None:
            around: Arena | None = self
            while around is not None and around is not other:
                around = around.parent
            if around is None:
                raise leaked(operand)

    # -- the arena as a program ------------------------------------------------------------------

    def program(self) -> Program:
        """The exports as a function of the parameters."""
        self._check_exports()
        return as_program(self.name, self.parameters, self.exports)

    def run(self, inputs: Sequence[Any], seed: int = 0) -> list[Any]:
        """The exports for these inputs, as the backend stores them."""
        if len(inputs) != len(self.parameters):
            raise UserError(
                f"the arena has {len(self.parameters)} parameters but got {len(inputs)} inputs"
            )
        if self._compiled is None or self._compiled_version != self.version:
            self._compiled = PROGRAMS.compile(self.program(), self.backend, "arena")
            self._compiled_version = self.version
        return execute(self._compiled, inputs, seed)

    def _check_exports(self) -> None:
        known = set(self.parameters)
        for node in reachable(self.exports):
            constant = isinstance(node.storage, TensorLiteral)
            if node.form is None and node not in known and not constant:
                raise UserError(
                    "an export depends on a tensor that is not a parameter of the arena; "
                    "make it a parameter, or evaluate the export instead"
                )


def leaked(node: Node) -> UserError:
    """A value of a traced function is used where the function is over."""
    where = shown(node.line)
    made = f", made at {where}," if where else ""
    return UserError(
        f"the value of type {node.type}{made} belongs to a traced function that has ended or is "
        "not around this one; return it from the function instead of keeping it",
        "TracedValueKept",
    )
