"""Captures that are remembered.

What a capture emits depends on the types of its operands and on its parameters, never on elements.
So it is carried out once on operands that are nothing but types, written down as a recipe, and from
then on the recipe is followed: one look-up, and one step an instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias

from weft.foundation.errors import InternalError
from weft.ops.graph.arena import Arena
from weft.ops.graph.node import Form, Node
from weft.ops.graph.program import reachable
from weft.ops.lines import Line
from weft.ops.session import Handle, Session
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType, ValueType

Step: TypeAlias = "tuple[Form, tuple[int, ...]] | tuple[TensorLiteral, None]"
"""An instruction on earlier values, or a constant. Values count from the operands on."""
Build: TypeAlias = Callable[[Session, list[Handle]], Sequence[Handle]]

_MOST_KEPT = 16_384
_RECIPES: dict[Hashable, Recipe] = {}


class Recipe:
    """The steps of a capture, and which values are its results."""

    __slots__ = ("results", "steps")

    def __init__(self, steps: tuple[Step, ...], results: tuple[int, ...]) -> None:
        self.steps = steps
        self.results = results

    def follow(self, arena: Arena, operands: Sequence[Node], line: Line | None) -> list[Node]:
        """The results for these operands, captured in an arena."""
        values = list(operands)
        for what, slots in self.steps:
            if slots is None:
                values.append(arena.constant(what))  # type: ignore[arg-type]
            else:
                taken = tuple([values[slot] for slot in slots])
                values.append(arena.emit(what, taken, line))  # type: ignore[arg-type]
        return [values[slot] for slot in self.results]


def recipe_for(key: Hashable, arena: Arena, kinds: Sequence[ValueType], build: Build) -> Recipe:
    """The recipe with this key, which names the capture, its parameters and the operand types;
    `build` carries the capture out where it is not known yet."""
    found = _RECIPES.get(key)
    if found is None:
        if len(_RECIPES) >= _MOST_KEPT:
            _RECIPES.clear()
        found = _RECIPES[key] = _written(arena, kinds, build)
    return found


def _written(arena: Arena, kinds: Sequence[ValueType], build: Build) -> Recipe:
    scratch = Arena(arena.backend, name="recipe", tracing=True)
    operands = [_operand(scratch, kind) for kind in kinds]
    session = Session(scratch)
    roots = [handle.node for handle in build(session, [Handle(session, n) for n in operands])]
    slots = {node: slot for slot, node in enumerate(operands)}
    steps: list[Step] = []
    for node in reachable(roots):
        if node not in slots:
            slots[node] = len(slots)
            steps.append(_step(node, slots))
    return Recipe(tuple(steps), tuple(slots[node] for node in roots))


def _operand(arena: Arena, kind: ValueType) -> Node:
    if not isinstance(kind, TensorType):
        raise InternalError(f"the operand of a capture is the tuple {kind}")
    return arena.parameter(kind)


def _step(node: Node, slots: dict[Node, int]) -> Step:
    if isinstance(node.storage, TensorLiteral):
        return (node.storage, None)
    if node.form is None:
        raise InternalError("a capture uses a tensor that is none of its operands")
    return (node.form, tuple(slots[operand] for operand in node.operands))
