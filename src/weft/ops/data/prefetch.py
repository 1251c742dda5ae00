"""A thread that makes items ahead and puts them on a backend, while the one before is worked with.

The thread ends when the items do, when an error arises, and when nobody wants items any more: at
`close()`, at the end of a `with` block, and when the iterator itself goes. It holds no reference to
that, so that it can go.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Any
from weakref import finalize

import numpy as np

from weft.foundation.errors import UserError, WeftWarning, a_type
from weft.foundation.lines import user_line
from weft.ops.array.creation import asarray
from weft.ops.calls import MISTAKES, explained, public
from weft.ops.graph.arena import Arena
from weft.ops.graph.context import backend_named, current, within
from weft.ops.pytree import map_leaves

_PATIENCE = 10.0
"""Seconds that an item under way is waited for when nobody wants items any more."""


@dataclass(frozen=True)
class _Item:
    value: Any


@dataclass(frozen=True)
class _End:
    """The items are over, by an error or as they should be."""

    error: BaseException | None = None


class _Shared:
    """What the thread and the iterator have in common."""

    def __init__(self, depth: int) -> None:
        self.ready: SimpleQueue[_Item | _End] = SimpleQueue()
        self.room = threading.Semaphore(depth)
        self.stop = threading.Event()


def _fill_queue(source: Iterator[Any], shared: _Shared, arena: Arena | None) -> None:
    try:
        while True:
            shared.room.acquire()
            if shared.stop.is_set():
                break
            item = next(source)
            shared.ready.put(_Item(item if arena is None else _move_item(item, arena)))
    except StopIteration:
        shared.ready.put(_End())
    except BaseException as error:
        shared.ready.put(_End(error))
    finally:
        close = getattr(source, "close", None)
        if close is not None:
            close()


def _move_item(item: Any, arena: Arena) -> Any:
    """An item with its arrays as tensors of the arena's backend."""
    with within(arena):
        return map_leaves(lambda x: asarray(x) if isinstance(x, np.ndarray) else x, item)


def _finish(thread: threading.Thread, shared: _Shared) -> None:
    """Let the thread end, and wait for it. Whoever waits for an item gets the end."""
    shared.stop.set()
    shared.room.release()
    shared.ready.put(_End())
    if thread is threading.current_thread() or not thread.is_alive():
        return
    thread.join(_PATIENCE)
    if thread.is_alive():
        warnings.warn(
            f"the source of prefetch has not given an item for {_PATIENCE:g} s; its thread ends "
            "when it does",
            WeftWarning,
            stacklevel=2,
        )


class Prefetched:
    """The items of an iterator, made ahead. It can be used in a `with` block, and by several
    threads: each item goes to one of them, and so does an error; all get the end."""

    def __init__(self, source: Iterator[Any], depth: int, arena: Arena | None) -> None:
        self._shared = _Shared(depth)
        self._thread = threading.Thread(
            target=_fill_queue, args=(source, self._shared, arena), name="weft.data", daemon=True
        )
        self._process = os.getpid()
        self._over = False
        self._thread.start()
        self._finaliser = finalize(self, _finish, self._thread, self._shared)

    def __iter__(self) -> Prefetched:
        return self

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if os.getpid() != self._process:
            raise UserError(
                "[prefetch] its thread is in the process that made it; call prefetch after the fork"
            )
        found = self._shared.ready.get()
        if isinstance(found, _Item):
            self._shared.room.release()
            return found.value
        self.close()
        # There is one end, and another thread may wait for it too.
        self._shared.ready.put(_End())
        if isinstance(found.error, MISTAKES):
            # What is wrong with an item has no line of the user's in a thread of Weft's.
            raise explained("prefetch", found.error, user_line()) from found.error.__cause__
        raise StopIteration if found.error is None else found.error

    def close(self) -> None:
        """No more items; the thread ends."""
        self._over = True
        self._finaliser()

    def __enter__(self) -> Prefetched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@public
def prefetch(source: Iterable[Any], depth: int = 2, *, backend: str | None = None) -> Prefetched:
    """The items of an iterable, made ahead in a thread, at most `depth` of them. Their arrays
    become tensors on a backend, the one in force unless one is named. An error in the thread is
    raised where its item would have been."""
    if not isinstance(source, Iterable):
        raise UserError(f"the source is {a_type(source)}; it must be something to iterate over")
    if type(depth) is not int or depth < 1:
        raise UserError(f"depth is {depth!r}; it must be a whole number over 0")
    if current().tracing:
        raise UserError("a traced function runs once; make items ahead outside of it")
    home = current().backend if backend is None else backend_named(backend)
    return Prefetched(iter(source), depth, Arena(home))
