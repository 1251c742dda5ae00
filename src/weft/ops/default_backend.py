"""The backend that tensors are captured on: the default one, and that of the arguments for
functions that take functions.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, TypeVar

from weft.driver.backends import IN_FORCE
from weft.foundation.errors import UserError, a_type
from weft.ops.calls import public
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import backend_named, current, home_of, use_by_default, within
from weft.ops.pytree import flatten
from weft.ops.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


@public
def set_default_backend(name: str) -> None:
    """Make new tensors live, and programs run, on another backend from now on, in every thread."""
    use_by_default(name)


@public
def graph(
    arena: Arena | None = None, *, backend: str | None = None
) -> AbstractContextManager[Arena]:
    """Capture into an arena of its own (or a shared one that is given) inside the `with` block."""
    if arena is not None and not isinstance(arena, Arena):
        raise UserError(f"arena is {a_type(arena)}; give a weft.Arena, or leave it out")
    return within(arena or Arena(backend_named(backend or IN_FORCE.name)))


def at_home(function: F) -> F:
    """The function, with all it captures on the backend of the first tensor among its arguments;
    arrays and numbers go there too. Without any tensor it is the backend in force."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        leaves, _ = flatten((args, kwargs))
        tensors = (leaf for leaf in leaves if isinstance(leaf, Tensor))
        first = next(tensors, None)
        home = current() if first is None else home_of(first._node)
        with within(home):
            return function(*args, **kwargs)

    return call  # type: ignore[return-value]
