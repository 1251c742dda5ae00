"""Objects with state (modules): what is remembered of them, and who is told when an attribute
changes.

What a traced function leaves in the modules that it was given is carried to the caller's own:
`module_state.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol, Self, TypeVar
from weakref import ref

from weft.ops.graph.arena import Arena
from weft.ops.graph.group import LEAVING
from weft.ops.pytree import Structure
from weft.ops.tensor import Tensor


class Watcher(Protocol):
    """Somebody who remembers what holders have."""

    def forget(self) -> None:
        """One of them has something else now."""
        ...


class Waiting(Protocol):
    """Somebody who makes what a holder has when it is looked at."""

    @property
    def structure(self) -> Structure:
        """How the holder comes apart."""
        ...

    @property
    def rest(self) -> Any:
        """What the holder has besides its children, as when it comes apart."""
        ...

    def children(self) -> Sequence[Any]:
        """All of it, in the order of the names."""
        ...


class _Kept:
    """Where a holder keeps its attributes, and what is known about it besides."""

    __slots__ = (
        "__dict__", "__weakref__", "_apart", "_is_open", "_known", "_waiting", "_watchers",
    )  # fmt: skip

    _apart: Any
    """How it comes apart, where that is known: the names of its children, its settings and what
    they have besides their equals. It is forgotten when an attribute changes."""
    _is_open: bool
    """Whether somebody was handed its `__dict__`."""
    _known: Any
    """What it was found to have when it was last taken apart."""
    _waiting: Waiting | None
    """Who makes its attributes when somebody looks at it; None: it has them."""
    _watchers: tuple[ref[Watcher], ...]


_set_apart, _set_open, _set_known, _set_waiting, _set_watchers = (
    vars(_Kept)[name].__set__ for name in ("_apart", "_is_open", "_known", "_waiting", "_watchers")
)
_dict_of: Final[Callable[[Any], dict[str, Any]]] = vars(_Kept)["__dict__"].__get__


class Holder(_Kept):
    """An object whose attributes may be assigned to in a traced function: the base of modules.

    Whoever remembers what it has is told when an attribute is set or deleted. Its `__dict__` is
    handed out as that of any object is; from then on somebody else may write into it, and
    `is_open` says so.
    """

    __slots__ = ()

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        return blank(cls)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor) and value.is_traced:
            _note_replaced(self, name, value.arena)
        if self._waiting is not None:
            fill(self)
        object.__setattr__(self, name, value)
        if self._watchers or self._apart is not None:
            _tell_watchers(self)

    def __delattr__(self, name: str) -> None:
        if self._waiting is not None:
            fill(self)
        object.__delattr__(self, name)
        if self._watchers or self._apart is not None:
            _tell_watchers(self)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        if not self._is_open:
            _set_open(self, True)
            _tell_watchers(self)
        return attributes_of(self)

    def __getstate__(self) -> dict[str, Any]:
        return dict(attributes_of(self))

    def __setstate__(self, state: dict[str, Any]) -> None:
        attributes_of(self).update(state)
        _tell_watchers(self)


H = TypeVar("H", bound=Holder)


def blank(cls: type[H], rest: Any = None) -> H:
    """A holder of this class that has nothing yet; `rest` says how it will come apart, where that
    is known."""
    made = object.__new__(cls)
    _set_watchers(made, ())
    _set_known(made, None)
    _set_open(made, False)
    _set_waiting(made, None)
    _set_apart(made, rest)
    return made


def waiting_for(cls: type[H], rest: Any, waiting: Waiting) -> H:
    """A holder that has nothing until somebody looks at it."""
    made = blank(cls, rest)
    _set_waiting(made, waiting)
    return made


def can_wait(cls: type, names: Iterable[str]) -> bool:
    """Whether looking at attributes of these names is seen in every holder of a class. What the
    class has is found before what the holder lacks."""
    look_up: Any = cls.__getattribute__
    if look_up is not object.__getattribute__ or not tells(cls):
        return False
    return not any(name in vars(each) for each in cls.__mro__ for name in names)


def furnish(holder: Holder, rest: Any, children: Sequence[Any]) -> None:
    """Give a blank holder its settings and children."""
    names, settings, _ = rest
    held = _dict_of(holder)
    if settings:
        held.update(settings)
    held.update(zip(names, children, strict=True))


def fill(holder: Holder) -> None:
    """Somebody looks at a holder: it gets what it has been waiting for."""
    with LEAVING:
        waiting = holder._waiting
        if waiting is not None:
            furnish(holder, waiting.rest, waiting.children())
            # At the end: whoever sees this does not wait for the lock.
            _set_waiting(holder, None)


def attributes(holder: Any) -> dict[str, Any]:
    """The attributes of an object by name, for those who do not write into them."""
    return attributes_of(holder) if isinstance(holder, Holder) else vars(holder)


def attributes_of(holder: Holder) -> dict[str, Any]:
    """The same, of a holder."""
    if holder._waiting is not None:
        fill(holder)
    return _dict_of(holder)


def watch(holder: Holder, watcher: ref[Any]) -> None:
    """Tell this watcher when an attribute of the holder changes, once."""
    alive = [each for each in holder._watchers if each() is not None]
    _set_watchers(holder, (*alive, watcher))


def tells(kind: type) -> bool:
    """Whether holders of this class tell their watchers: it keeps the ways to set attributes."""
    return (
        issubclass(kind, Holder)
        and kind.__setattr__ is Holder.__setattr__
        and kind.__delattr__ is Holder.__delattr__
    )


def _tell_watchers(holder: Holder) -> None:
    watchers = holder._watchers
    _set_watchers(holder, ())
    _set_apart(holder, None)
    for each in watchers:
        watcher = each()
        if watcher is not None:
            watcher.forget()


def _note_replaced(holder: Holder, name: str, arena: Arena) -> None:
    """Remember what a traced value takes the place of, if that is not of the same trace: where the
    trace fails, the module is not to be left with a value that nobody can read."""
    had = attributes(holder)
    old = had.get(name)
    if isinstance(old, Tensor):
        if old.arena is arena:
            return
    elif old is not None:
        return
    weak, is_new = ref(holder), name not in had

    def take_back() -> None:
        found = weak()
        if found is None:
            return
        if is_new:
            attributes(found).pop(name, None)
        else:
            object.__setattr__(found, name, old)
        _tell_watchers(found)

    arena.assigned.append(take_back)


@contextmanager
def taken_back(arena: Arena) -> Iterator[None]:
    """Where a trace fails, modules of the outside hold what they held before."""
    try:
        yield
    except BaseException:
        for take_back in reversed(arena.assigned):
            take_back()
        raise
    finally:
        arena.assigned.clear()
