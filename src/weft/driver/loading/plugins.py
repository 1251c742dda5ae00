"""Plugins of other packages: found by entry point, loaded when asked for, checked when they come
in.

A plug-in is an object with the members of a protocol. A `Registry` holds those of one kind: Weft's
own, those that were registered in this process, and those that installed packages announce in an
entry-point group. One that is not installed is asked for as `package.module:OBJECT`.

Nothing that a plug-in does can look like a bug in Weft: whatever it raises that is not an error of
Weft's becomes a `PluginFault` that says whose fault it is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from typing import Any, Generic, TypeVar

from weft.foundation.errors import PluginFault, UserError, WeftError, WeftWarning, clipped

Plugin = TypeVar("Plugin")
LONGEST_REPR = 60
_OWN_PACKAGE = __name__.partition(".")[0]
_PLACE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*:[^\W\d]\w*(?:\.[^\W\d]\w*)*")
"""`package.module:OBJECT`."""
_READ_ONLY = "read-only"
"""What NumPy's message has where somebody writes into an array that is not theirs."""


@dataclass
class Registry(Generic[Plugin]):
    """The plug-ins of one kind, by name."""

    noun: str
    """What one is called in messages: "backend"."""
    group: str
    """The entry-point group in which packages announce theirs."""
    check: Callable[[Any], None]
    """Raises `UserError` for an object that is not one."""
    own: tuple[str, ...]
    """The names of Weft's own."""
    load_own: Callable[[str], Plugin]
    registered: dict[str, Plugin] = field(default_factory=dict)

    def register(self, plugin: Plugin) -> None:
        """Make one known for this process; an earlier one of its name goes."""
        self.check(plugin)
        name = plugin.name  # type: ignore[attr-defined]
        if name in self.own:
            raise UserError(f"the {self.noun} name {name!r} is taken by Weft's own")
        self.registered[name] = plugin

    def names(self) -> list[str]:
        """Every known name: Weft's own, the registered, the installed."""
        installed = sorted({entry.name for entry in entry_points(group=self.group)})
        return list(dict.fromkeys([*self.own, *self.registered, *installed]))

    def get(self, name: str) -> Plugin:
        """The one with that name; `module:OBJECT` names one that is not announced."""
        if not isinstance(name, str):
            raise UserError(f"a {self.noun} is named by a string, not by {described(name)}")
        if name in self.registered:
            return self.registered[name]
        if name in self.own:
            self._warn_of_shadows(name)
            return self.load_own(name)
        entries = list(entry_points(group=self.group, name=name))
        if entries:
            return self._load_announced(name, entries)
        if _PLACE.fullmatch(name):
            return self._load_entry(EntryPoint(name, name, self.group), f"the {self.noun} {name!r}")
        known = ", ".join(self.names())
        raise UserError(
            f"there is no {self.noun} {name!r}; the {self.noun}s are {known}, and one that is not "
            "installed is named as module:OBJECT"
        )

    def _load_announced(self, name: str, entries: list[EntryPoint]) -> Plugin:
        if len({entry.value for entry in entries}) > 1:
            owners = " and ".join(sorted(map(_owner, entries)))
            raise UserError(
                f"the {self.noun} {name!r} is announced by {owners}; uninstall all but one"
            )
        what = f"the {self.noun} {name!r}, which {_owner(entries[0])} announces,"
        found: Any = self._load_entry(entries[0], what)
        if found.name != name:
            raise UserError(f"{what} calls itself {found.name!r}")
        return found  # type: ignore[no-any-return]

    def _load_entry(self, entry: EntryPoint, what: str) -> Plugin:
        try:
            found: Plugin = entry.load()
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            raise UserError(f"{what} cannot be loaded: {_error_text(error)}") from error
        try:
            self.check(found)
        except UserError as error:
            raise UserError(f"{what} cannot be used: {error}") from error
        return found

    def _warn_of_shadows(self, name: str) -> None:
        for owner in _announcers(self.group).get(name, ()):
            warnings.warn(
                f"{owner} announces a {self.noun} {name!r}, which is the name of Weft's own; that "
                "of the package is ignored and needs another name",
                WeftWarning,
                stacklevel=3,
            )


@cache
def _announcers(group: str) -> dict[str, list[str]]:
    """Who announces something in a group, by name. Packages are looked for once: Weft's own are
    asked for in every run."""
    found: dict[str, list[str]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, []).append(_owner(entry))
    return found


def _owner(entry: EntryPoint) -> str:
    return f"the package {entry.dist.name}" if entry.dist is not None else entry.value


# -- checking --------------------------------------------------------------------------------------


def check_members(candidate: object, protocol: type, noun: str) -> None:
    """A plug-in is an object that has every attribute and method of its protocol, and a name."""
    what = described(candidate)
    if isinstance(candidate, type):
        raise UserError(f"{what} is not a {noun}: it is a class, and {noun}s are objects of one")
    wanted = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in wanted if not _has(candidate, name, noun)]
    if missing:
        raise UserError(f"{what} is not a {noun}: it has no {', '.join(missing)}")
    name = getattr(candidate, "name", "")
    if not isinstance(name, str) or not name:
        raise UserError(f"{what} is not a {noun}: its name is {described(name)}, not a word")


def _has(candidate: object, member: str, noun: str) -> bool:
    """Whether it has the member; a property may raise whatever it likes."""
    with blaming(f"the {noun} of class {type(candidate).__name__}", member):
        return hasattr(candidate, member)


def described(thing: object) -> str:
    """An object in a message: short, on one line, and the same in every run."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}"
    if thing is None or isinstance(thing, str | bytes | int | float | complex):
        return clipped(repr(thing), LONGEST_REPR)
    return f"an object of class {type(thing).__name__}"


# -- blame -----------------------------------------------------------------------------------------


@contextmanager
def blaming(plugin: str, member: str) -> Iterator[None]:
    """What a plug-in raises inside, as an error that names it; Weft's own errors go through."""
    try:
        yield
    except (WeftError, MemoryError, KeyboardInterrupt):
        raise
    except BaseException as error:
        writes = isinstance(error, ValueError) and _READ_ONLY in str(error)
        advice = "; inputs are read, never written" if writes else ""
        what = f"failed in {member} with {_error_text(error)}{_error_place(error)}{advice}"
        raise PluginFault(plugin, what) from error


def identified(plugin: Any, noun: str) -> str:
    """A plug-in and where it comes from: `the backend 'toy' (weft_example.backend)`."""
    return f"the {noun} {plugin.name!r} ({type(plugin).__module__})"


def _error_place(error: BaseException) -> str:
    """` (file:line)` of the innermost place in the package that Weft called; empty where it never
    got that far."""
    lines = [
        (str(frame.f_globals.get("__name__")).partition(".")[0], frame.f_code.co_filename, number)
        for frame, number in walk_tb(error.__traceback__)
    ]
    package = next((name for name, _, _ in lines if name != _OWN_PACKAGE), None)
    places = [f" ({Path(file).name}:{line})" for name, file, line in lines if name == package]
    return places[-1] if places else ""


def _error_text(error: BaseException) -> str:
    """An error in a line: `KeyError: 'x'`."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
