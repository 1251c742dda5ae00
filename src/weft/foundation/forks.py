"""What a forked child must reset: it has one thread, and a copy of all memory.

What another thread was in the midst of stays so in the child for ever: a module that is half
loaded, a lock that is held. So a fork waits for work that could leave such things behind
(`no_fork`), and locks that are held for a moment only are new in a child (`new_lock`).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Final, TypeVar

Lock = TypeVar("Lock")
MOST_WAIT: Final = 60.0
"""Seconds that a fork waits. Whoever works longer may be waiting for the thread that forks."""


class _NoFork:
    """While some thread is inside, another one that forks waits until it has left. Any number of
    threads may be inside, and a thread may enter again."""

    def __init__(self) -> None:
        # A finaliser may enter while its thread is here.
        self._changed = threading.Condition(threading.RLock())
        self._inside: dict[int, int] = {}
        """How often each thread has entered."""

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] = self._inside.get(me, 0) + 1

    def __exit__(self, *_: object) -> None:
        me = threading.get_ident()
        with self._changed:
            self._inside[me] -= 1
            if not self._inside[me]:
                del self._inside[me]
                self._changed.notify_all()

    def before(self) -> None:
        """Wait for the others, and let nobody enter until the fork is done."""
        self._changed.acquire()
        # A thread that forks from inside would wait for itself.
        own = {threading.get_ident()}
        self._changed.wait_for(lambda: self._inside.keys() <= own, MOST_WAIT)

    def after_in_parent(self) -> None:
        self._changed.release()

    def after_in_child(self) -> None:
        """Nobody but the thread that forked is inside."""
        own = self._inside.get(threading.get_ident(), 0)
        self.__init__()  # type: ignore[misc]
        if own:
            self._inside[threading.get_ident()] = own


no_fork: Final = _NoFork()
_LOCKS: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def new_lock() -> threading.Lock:
    """A lock that nobody holds in a child, whoever held it when the process forked."""
    return _keep_lock(threading.Lock())


def new_reentrant_lock() -> threading.RLock:
    """The same for a lock that its holder may take again."""
    return _keep_lock(threading.RLock())


def _keep_lock(lock: Lock) -> Lock:
    _LOCKS.add(lock)
    return lock


def _after_in_child() -> None:
    for lock in list(_LOCKS):
        lock._at_fork_reinit()
    no_fork.after_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=no_fork.before,
        after_in_parent=no_fork.after_in_parent,
        after_in_child=_after_in_child,
    )
