"""The arena that new instructions go to: a stack per thread, with a default arena at its bottom."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from weft.driver.backends import IN_FORCE, Backend, get_backend
from weft.driver.loading.guard import guarded
from weft.ops.graph.arena import Arena
from weft.ops.graph.node import Node

_BACKENDS: dict[str, Backend] = {}
_MOST_SEARCHED = 32
"""How many elements of a list among the arguments are looked at for a tensor."""


class _Context(threading.local):
    """What a thread sees: its stack of arenas, and its own arena for each backend."""

    def __init__(self) -> None:
        self.stack: list[Arena] = []
        self.defaults: dict[str, Arena] = {}
        """By what backends were asked for as."""
        self.own: dict[int, Arena] = {}
        """By the backend itself, whose name need not be known to everybody."""


_context = _Context()


def current() -> Arena:
    """The arena in force."""
    stack = _context.stack
    return stack[-1] if stack else default_arena(IN_FORCE.name)


def is_captured() -> bool:
    """Whether an arena was chosen, for a trace or by `weft.graph`: what is called goes there."""
    return bool(_context.stack)


def arena_for(node: Node) -> Arena:
    """Where an instruction on this node goes: the arena in force, or where none is, this thread's
    arena on the node's own backend."""
    stack = _context.stack
    return stack[-1] if stack else own_arena(node.arena.backend)


def home_of(node: Node) -> Arena:
    """Where a function of this node is captured: the arena in force where it is on the node's
    backend, and else this thread's own arena there. A trace stays in its arena."""
    arena, backend = current(), node.arena.backend
    return arena if arena.tracing or arena.backend is backend else own_arena(backend)


def arena_abroad(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arena | None:
    """Where a call with these arguments is captured if not in the arena in force: where none is,
    and the first tensor is on another backend than the default one, this thread's arena there."""
    if _context.stack:
        return None
    for value in chain(args, kwargs.values()):
        shown = islice(value, _MOST_SEARCHED) if type(value) in (list, tuple) else (value,)
        for item in shown:
            node = getattr(item, "_node", None)
            if isinstance(node, Node):
                arena = arena_for(node)
                return None if arena is current() else arena
    return None


def default_arena(backend: str) -> Arena:
    """This thread's own arena on a backend."""
    found = _context.defaults.get(backend)
    if found is None:
        found = _context.defaults[backend] = own_arena(backend_named(backend))
    return found


def own_arena(backend: Backend) -> Arena:
    """The same, of a backend itself."""
    found = _context.own.get(id(backend))
    if found is None:
        found = _context.own[id(backend)] = Arena(backend)
    return found


def backend_named(name: str) -> Backend:
    """The backend with this name, always the same object."""
    found = _BACKENDS.get(name)
    if found is None:
        found = _BACKENDS[name] = guarded(get_backend(name))
    return found


def use_by_default(name: str) -> None:
    """Make another backend the default from now on, in every thread."""
    backend_named(name)
    IN_FORCE.name = name


@contextmanager
def within(arena: Arena) -> Iterator[Arena]:
    """Capture into this arena inside the `with` block."""
    _context.stack.append(arena)
    try:
        yield arena
    finally:
        _context.stack.pop()
