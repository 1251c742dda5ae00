"""Running a Python function on traced tensors to see which instructions it makes.

A trace has an arena of its own. Its arguments are parameters without elements; tensors of the
outside that the function uses become further inputs (*captured*); whatever traced tensor is still
held by somebody when the function is over, returned or not, has been put into something outside,
and that is an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from weft.driver.backends import Backend
from weft.foundation.errors import UserError
from weft.ops.effects import last_token
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, within
from weft.ops.graph.evaluate import evaluate
from weft.ops.graph.node import Donated, Node
from weft.ops.graph.program import captured_and_constants, program_with_parts
from weft.ops.leaks import check_leaks
from weft.ops.module_state import NO_CHANGES, Changes, Watched
from weft.ops.parameters import Parameters
from weft.ops.pytree import Structure, flatten
from weft.ops.state import taken_back
from weft.ops.tensor import Tensor
from weft.ops.traced_numbers import TracedNumber
from weft.ptir.ir import Program
from weft.ptir.literal import TensorLiteral
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Captured:
    """A tensor of the outside that a traced function uses."""

    node: Node
    tensor: Any
    """A weak reference to the tensor that showed the node; None: nobody held it."""

    @property
    def is_gone(self) -> bool:
        """Whether the tensor was held at the time of the trace, and is not any more."""
        return self.tensor is not None and self.tensor() is None

    def takes(self, other: Any) -> bool:
        """Whether a program that reads this one may read something else in its place."""
        return (
            isinstance(other, Tensor)
            and other.type == self.node.type
            and other._node.arena.backend is self.node.arena.backend
            and not other._node.arena.tracing
            and not isinstance(other._node.storage, TensorLiteral | Donated)
        )

    def storage(self) -> Any:
        """What the tensor holds now; an assignment to its elements may have changed it."""
        tensor = self.tensor() if self.tensor is not None else None
        node = self.node if tensor is None else tensor._node
        if node.storage is None:
            evaluate([node])
        if isinstance(node.storage, Donated):
            raise node.storage.error()
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
    numbers: tuple[bool, ...] = ()
    """Which results of the program are Python numbers with fractions: they take the dtype of what
    they meet outside, too."""
    parts: tuple[frozenset[int], ...] = ()
    """The instructions of each part of the program that `checkpoint` marked."""
    state: Changes = NO_CHANGES
    """What the function leaves in the modules among its arguments."""
    has_effects: bool = False
    """Whether the last result of the program is the token of its last effect."""
    constants: tuple[Captured, ...] = ()
    """Tensors of the outside that are constants of the program."""

    @cached_property
    def is_plain(self) -> bool:
        """Whether the leaves of the result are the results of the program, all tensors."""
        return not any(self.numbers) and all(output is None for output in self.outputs)

    @property
    def is_one_part(self) -> bool:
        """Whether the whole program is one part."""
        ids = {instruction.id for instruction in self.program.main.body}
        return len(self.parts) == 1 and self.parts[0] >= ids

    @property
    def returned(self) -> tuple[TensorType, ...]:
        """The types of those results that the function returns; state and effects follow them."""
        return self.results[: sum(output is None for output in self.outputs)]

    @cached_property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the program's results, which are all tensors."""
        return tuple(kind for kind in self.program.main.results if isinstance(kind, TensorType))


@dataclass(frozen=True)
class _Result:
    """What a function gave: nodes, and how they are nested, as in a `Trace`."""

    roots: list[Node]
    outputs: tuple[Plain | None, ...]
    structure: Structure
    numbers: tuple[bool, ...]
    state: Changes


def trace(
    function: Callable[..., Any],
    kinds: Sequence[TensorType],
    fill: Callable[[list[Tensor]], Any],
    call: Callable[[Any], Any],
    numbers: Sequence[TracedNumber | None] = (),
    backend: Backend | None = None,
    order: int = 0,
    stands_for: Sequence[Node] | None = None,
) -> Trace:
    """The program of `call(fill(arguments))` for arguments of these types, where `fill` nests them
    as the caller's are. `function` names it; without a backend it is for the one in force.
    `order` says how many derivatives are taken of it, and `stands_for` what it is called with, of
    which what is not named is the same on all ranks of a mesh."""
    outer = current()
    arena = Arena(
        backend or outer.backend,
        name=getattr(function, "__name__", "function").replace("<lambda>", "function"),
        tracing=True,
        parent=outer if outer.tracing else None,
        order=order,
    )
    arena.stands_for = stands_for
    with taken_back(arena):
        found = _call_in_arena(arena, function, kinds, fill, call, numbers)
        check_leaks(arena, function)
    token = last_token(arena)
    if token is not None:
        found = replace(found, roots=[*found.roots, token], numbers=(*found.numbers, False))
    outside, constants = captured_and_constants(arena, found.roots)
    evaluate([node for node in outside if not node.arena.tracing])
    parameters = [*arena.parameters, *outside]
    program, parts = program_with_parts(arena.name, parameters, found.roots, arena.parts)
    held = tuple(map(_captured_node, outside))
    return Trace(
        program, held, found.outputs, found.structure, found.numbers, parts, found.state,
        token is not None, tuple(map(_captured_node, constants)),
    )  # fmt: skip


def _call_in_arena(
    arena: Arena,
    function: Callable[..., Any],
    kinds: Sequence[TensorType],
    fill: Callable[[list[Tensor]], Any],
    call: Callable[[Any], Any],
    numbers: Sequence[TracedNumber | None],
) -> _Result:
    """What the function gives in this arena. Only what it has put elsewhere is held afterwards."""
    arguments = [Tensor(arena.parameter(kind)) for kind in kinds]
    for index, number in enumerate(numbers):
        arguments[index].number = number
    with within(arena):
        given = fill(arguments)
        arena.names = _argument_names(function, given)
        watched = Watched(given)
        leaves, structure = flatten(_check_returned(call(given)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        roots = [tensor._node for tensor in tensors]
        state = watched.changes(roots)
    # Data that was made here may outlive the trace in the one around, and what `function` closes
    # over is not to live on with it: it would look as if it had been stored.
    arena.names = tuple
    loose = [t.number is not None and not t.dtype.is_integer for t in tensors]
    loose += [False] * (len(roots) - len(loose))
    outputs = tuple(None if isinstance(leaf, Tensor) else Plain(leaf) for leaf in leaves)
    return _Result(roots, outputs, structure, tuple(loose), state)


def _check_returned(value: Any) -> Any:
    """What a function gave, which has run to its end."""
    if isinstance(value, Generator | Coroutine):
        value.close()  # Python warns of a coroutine that nobody waits for.
    elif not isinstance(value, AsyncGenerator):
        return value
    kind = "a coroutine" if isinstance(value, Coroutine) else "a generator"
    raise UserError(
        f"a plain function is wanted, which returns tensors, and this one gives {kind}; write it "
        "with def and return, without yield and async",
        "InvalidCall",
    )


def _argument_names(function: Callable[..., Any], given: Any) -> Callable[[], list[str]]:
    """What the tensors among the arguments are called, for whoever asks. The tensors themselves are
    not held: it is looked at who does."""
    leaves, structure = flatten(given)
    is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]

    def called() -> list[str]:
        names = Parameters(function, "").leaf_names(structure)
        return [name for name, wanted in zip(names, is_tensor, strict=True) if wanted]

    return called


def _captured_node(node: Node) -> Captured:
    return Captured(node, node.owner if node.is_owned else None)
