"""A Python function traced on arguments, ready to be transformed: what `grad`, `vmap` and others
have in common.

The function becomes a PTIR program; a transformation makes another program of it, and `emit`
captures that where the transformation was asked for. So transformations compose: with each other,
with `jit`, with control flow.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np

from weft.foundation.errors import SpecViolation, UserError
from weft.foundation.lines import user_line
from weft.ops.arithmetic import number_kind
from weft.ops.array.creation import asarray
from weft.ops.effects import follow, one_token
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import current, home_of
from weft.ops.graph.inline import inline
from weft.ops.graph.node import Node
from weft.ops.pytree import Structure, flatten, unflatten
from weft.ops.tensor import Tensor
from weft.ops.tracing import Plain, Trace, trace
from weft.ptir.ir import Program
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Arguments:
    """The arguments of a call: tensors and arrays as tensors, all else as it is."""

    leaves: tuple[Tensor | Plain, ...]
    structure: Structure
    """Of the pair (positional arguments, named arguments)."""
    given: tuple[tuple[Any, ...], dict[str, Any]]
    """That pair, as the caller gave it."""

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def positional(self) -> tuple[Structure, ...]:
        return self.structure.children[0].children

    @property
    def owners(self) -> list[int]:
        """For every leaf of the positional arguments, the argument it belongs to."""
        counts = [shape.leaf_count for shape in self.positional]
        return [number for number, count in enumerate(counts) for _ in range(count)]

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The arguments with other tensors in the place of these."""
        supply = iter(tensors)
        leaves = [x.value if isinstance(x, Plain) else next(supply) for x in self.leaves]
        return unflatten(self.structure, leaves)


def arguments_of(
    args: Sequence[Any], kwargs: dict[str, Any], argnums: Container[int] = ()
) -> Arguments:
    """The arguments of a call. Numbers in those of these positions are tensors; in all others they
    stay numbers, which take the dtype of what they meet."""
    leaves, structure = flatten((tuple(args), kwargs))
    given = Arguments(tuple(map(_argument, leaves)), structure, (tuple(args), kwargs))
    owners = [*given.owners, *[None] * (len(leaves) - len(given.owners))]
    pairs = zip(given.leaves, owners, strict=True)
    return replace(
        given, leaves=tuple(_number_as_tensor(x) if n in argnums else x for x, n in pairs)
    )


def _argument(leaf: Any) -> Tensor | Plain:
    if isinstance(leaf, bool | str) or leaf is None or number_kind(leaf) is not None:
        return Plain(leaf)
    try:
        return asarray(leaf)
    except (UserError, SpecViolation, TypeError):
        return Plain(leaf)


def _number_as_tensor(leaf: Tensor | Plain) -> Tensor | Plain:
    """A number as a tensor, in its default dtype; anything else as it is."""
    if isinstance(leaf, Tensor) or number_kind(leaf.value) in (bool, None):
        return leaf
    return asarray(leaf.value)


def returning_tensors(function: Callable[..., Any], *, has_aux: bool = False) -> Callable[..., Any]:
    """The function with tensors for the numbers and arrays that it returns: derivatives of these
    are zeros, and every value of a batch has one. What it returns beside the value stays."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        if has_aux and isinstance(result, tuple) and len(result) == 2:
            return with_tensors(result[0]), result[1]
        return with_tensors(result)

    return call


def with_tensors(result: Any) -> Any:
    """A result with tensors for the numbers and arrays in it."""
    leaves, shape = flatten(result)
    return unflatten(shape, [asarray(leaf) if _is_numeric(leaf) else leaf for leaf in leaves])


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray | np.generic) or number_kind(leaf) in (int, float, complex)


@dataclass(frozen=True)
class TracedFunction:
    """What the function was seen to do, and the nodes to do it with."""

    trace: Trace
    nodes: tuple[Node, ...]
    """One for each input of the program: the arguments, and what was captured."""
    arguments: Arguments

    @property
    def count(self) -> int:
        """How many tensors the function gives: what it returns, and the state of modules."""
        return len(self.trace.program.main.results)

    @property
    def home(self) -> Arena:
        """Where its results live."""
        return home_of(self.nodes[0]) if self.nodes else current()

    def emit(self, program: Program, more: Sequence[Node] = ()) -> list[Tensor]:
        """The results of a program that takes the inputs of this one, and more."""
        arena = current()
        return [Tensor(n) for n in inline(program, [*self.nodes, *more], arena, user_line())]

    def results(self, values: Sequence[Any]) -> Any:
        """One value for each tensor that the function returns, nested as it returns them."""
        supply = iter(values)
        leaves = [next(supply) if o is None else o.value for o in self.trace.outputs]
        return unflatten(self.trace.structure, leaves)

    def carry(self, values: Sequence[Tensor]) -> None:
        """Assign the state that the function gave to the caller's modules, and let its effects
        happen where it was called."""
        if self.trace.has_effects:
            arena = current()
            nodes = [value._node for value in values]
            follow(arena, one_token(arena, nodes[self.count - 1]), nodes)
        self.trace.state.carry(values, self.arguments.given)

    def check_stateless(self, name: str, why: str) -> None:
        """Say so where the function assigns to the state of modules, and nobody can carry it."""
        for place, _ in self.trace.state.told(self.arguments.given):
            raise UserError(f"[{name}] the function assigns to {place}; {why}", "StateLost")


def trace_function(
    function: Callable[..., Any],
    arguments: Arguments,
    kinds: Sequence[TensorType] | None = None,
    *,
    order: int = 0,
) -> TracedFunction:
    """The function on traced arguments like these, or of other types."""
    tensors = arguments.tensors
    types = [tensor.type for tensor in tensors] if kinds is None else kinds
    found = trace(
        function,
        types,
        arguments.filled,
        lambda given: function(*given[0], **given[1]),
        order=order,
        stands_for=[tensor._node for tensor in tensors],
    )
    nodes = (*(tensor._node for tensor in tensors), *(c.node for c in found.captured))
    return TracedFunction(found, nodes, arguments)
