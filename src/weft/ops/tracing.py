"""Running a Python function on traced tensors to see which instructions it makes.

A trace has an arena of its own. Its arguments are parameters without elements; tensors of the
outside that the function uses become further inputs (*captured*); whatever traced tensor outlives
the function without being returned has been smuggled out, and that is an error.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weft.foundation.errors import UserError
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, within
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.node import Node
from weft.ops.graph.program import captured, program_with_parts
from weft.ops.lines import shown
from weft.ops.pytree import Structure, flatten
from weft.ops.tensor import Tensor
from weft.ptir.ir import Program
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Captured:
    """A tensor of the outside that a traced function uses."""

    node: Node
    tensor: Any
    """A weak reference to the tensor that showed the node; None: nobody held it."""

    def storage(self) -> Any:
        """What the tensor holds now; an assignment to its elements may have changed it."""
        tensor = self.tensor() if self.tensor is not None else None
        node = self.node if tensor is None else tensor._node
        if node.storage is None:
            evaluate([node])
        return node.storage


@dataclass(frozen=True)
class Plain:
    """A leaf of a result that is no tensor: it is the same in every call."""

    value: Any


@dataclass(frozen=True)
class Trace:
    """What a function was seen to do."""

    program: Program
    captured: tuple[Captured, ...]
    """The inputs of the program after the arguments."""
    outputs: tuple[Plain | None, ...]
    """The leaves of the result; None: the next result of the program."""
    structure: Structure
    parts: tuple[frozenset[int], ...] = ()
    """The instructions of each part of the program that `checkpoint` marked."""

    @cached_property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the program's results, which are all tensors."""
        return tuple(kind for kind in self.program.main.results if isinstance(kind, TensorType))


def trace(
    function: Callable[..., Any],
    kinds: Sequence[TensorType],
    call: Callable[[list[Tensor]], Any],
    weak: Sequence[bool] = (),
) -> Trace:
    """The program of `call(arguments)` for arguments of these types. `function` names it."""
    outer = current()
    arena = Arena(
        outer.backend,
        name=getattr(function, "__name__", "function").replace("<lambda>", "function"),
        tracing=True,
        parent=outer if outer.tracing else None,
    )
    arguments = [Tensor(arena.parameter(kind)) for kind in kinds]
    for tensor, is_weak in zip(arguments, weak, strict=False):
        tensor.weak = is_weak
    with within(arena):
        result = call(arguments)
    leaves, structure = flatten(result)
    roots = [leaf._node for leaf in leaves if isinstance(leaf, Tensor)]
    del result
    _check_leaks(arena, {*roots, *arena.parameters})
    outside = captured(arena, roots)
    evaluate([node for node in outside if not node.arena.tracing])
    parameters = [*arena.parameters, *outside]
    outputs = tuple(None if isinstance(leaf, Tensor) else Plain(leaf) for leaf in leaves)
    program, parts = program_with_parts(arena.name, parameters, roots, arena.parts)
    return Trace(program, tuple(map(_held, outside)), outputs, structure, parts)


def _held(node: Node) -> Captured:
    return Captured(node, node.owner)


def _check_leaks(arena: Arena, allowed: set[Node]) -> None:
    if not _leaks(arena, allowed):
        return
    gc.collect()
    leaks = _leaks(arena, allowed)
    if leaks:
        where = shown(leaks[0].line)
        made = f" made at {where}" if where else ""
        raise UserError(
            f"[jit] {arena.name} keeps a value of type {leaks[0].type}{made} outside itself, in an "
            "attribute, a list or a global; a traced function may change nothing outside: return "
            "the new value and store it after the call"
        )


def _leaks(arena: Arena, allowed: set[Node]) -> list[Node]:
    return [node for node in arena.created if node not in allowed and node.is_owned]
