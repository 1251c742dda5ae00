"""Guards on captured Python values: numbers, strings, lists, settings of an optimiser or a trainer,
and functions, which a traced function reads without taking them as arguments.

They are part of the program. So before a trace it is noted what the function can read, by the names
in its code and in that of the functions it calls, and every later call looks whether all of it is
the same. What the trace itself has changed is not looked at: it would be another value at every
call. Values are kept, and of all else weak references: nobody is kept alive.
"""

from __future__ import annotations

import dis
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache, partial
from itertools import islice
from operator import is_
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final, TypeAlias
from weakref import ref

import numpy as np

from weft.foundation.errors import UserError
from weft.ops.capture_paths import code_in, structure_of
from weft.ops.pytree import Structure, flatten
from weft.ops.settings import exact
from weft.ops.state import Holder
from weft.ops.steps import (
    BROKEN_WAY,
    PLAIN,
    Step,
    attributes_held,
    is_foreign,
    is_plain_key,
    item_step,
    join_path,
    read_global,
    read_member,
    read_referent,
    read_variable,
    step_to,
    try_step,
)
from weft.ops.tensor import Tensor

Way: TypeAlias = tuple[Step, ...]
_MOST_STEPS: Final = 2_000
_MOST_ITEMS: Final = 1_000
"""Of a larger container only the size is looked at."""
_MOST_MODULES: Final = 100
_DEEPEST: Final = 12
_VALUES: Final = (*PLAIN, Enum, np.generic, np.dtype, range, slice)
_PARTS: Final[dict[type, tuple[str, ...]]] = {
    MethodType: ("__self__", "__func__"),
    partial: ("func", "args", "keywords"),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
"""What callables that are made of others have of them."""
_CONSTRUCTORS: Final = ("__init__", "__new__", "__post_init__")
_OPTIMISERS: Final = "weft.ops.optim"
"""Where the classes are from whose settings are all read: their code is not looked at."""


@dataclass
class Values:
    """What a function reads, by the ways to it."""

    turns: dict[Step, Values] = field(default_factory=dict)
    kept: dict[Step, Any] = field(default_factory=dict)
    objects: dict[Step, ref[Any]] = field(default_factory=dict)
    is_once: bool = False
    """Whether the function changes settings or parts of a module that it reads: it is traced for
    every call."""

    @property
    def are_none(self) -> bool:
        return not (self.turns or self.kept or self.objects or self.is_once)

    def hold(self, holder: Any) -> bool:
        """Whether all of them are what they were."""
        if self.is_once:
            return False
        try:
            return self._hold(holder)
        except BROKEN_WAY:
            return False

    def _hold(self, holder: Any) -> bool:
        kept, objects, turns = self._lists
        for read, key, value in kept:
            found = read(holder, key)
            if found is not value and not _are_same_values(found, value):
                return False
        for read, key, weak in objects:
            found = read(holder, key)
            if found is None or found is not weak():
                return False
        for read, key, values in turns:  # noqa: SIM110 - a generator would take as long again
            if not values._hold(read(holder, key)):
                return False
        return True

    @cached_property
    def _lists(self) -> Any:
        """All of it as it is gone through in every call."""
        parts: tuple[dict[Step, Any], ...] = (self.kept, self.objects, self.turns)
        return tuple([[(read, key, x) for (read, key, _), x in part.items()] for part in parts])

    def changes(self, holder: Any, name: str = "") -> Iterator[str]:
        """In words, what is not what it was."""
        if self.is_once:
            yield "the function changes a module that it captures"
        for step, value in self.kept.items():
            found, path = try_step(step, holder), join_path(name, step.text).removeprefix(".")
            if not _are_same_values(found, value):
                told = f"is {found!s:.60}, not {value!s:.60}" if step.text else "has other items"
                yield f"the captured {path} {told}"
        for step, weak in self.objects.items():
            if try_step(step, holder) is not weak():
                yield f"the captured {join_path(name, step.text).removeprefix('.')} was replaced"
        for step, values in self.turns.items():
            yield from values.changes(try_step(step, holder), join_path(name, step.text))


def read_values(function: Any, given: Iterable[Any] = ()) -> Reader:
    """What a function can read, before it is traced: from where it was written, and from the
    classes of the modules that it is given and the functions that are settings of these."""
    reader = Reader()
    reader.read(function, given)
    return reader


def unchanged(before: Reader, function: Any) -> Values:
    """Those values that are the same after the trace."""
    made = Values()
    made.is_once = any(_is_changed(*each) for each in before.modules)
    for way, value in before.found.items():
        holder = function
        for step in way:
            holder = try_step(step, holder)
        values = made
        if isinstance(value, ref):
            if holder is not None and holder is value():
                for step in way[:-1]:
                    values = values.turns.setdefault(step, Values())
                values.objects[way[-1]] = value
        elif _are_same_values(holder, value):
            for step in way[:-1]:
                values = values.turns.setdefault(step, Values())
            values.kept[way[-1]] = value
    return made


def _is_changed(module: Holder, structure: Hashable, tensors: list[Any]) -> bool:
    """Whether a module has other settings or parts, or tensors at other places."""
    if structure_of(module) != structure:
        return True
    now = _tensors_of(module)
    return len(now) != len(tensors) or not all(map(is_, now, tensors))


def _tensors_of(module: Holder) -> list[Any]:
    try:
        return [leaf for leaf in flatten(module)[0] if isinstance(leaf, Tensor)]
    except UserError:
        return []


def _are_same_values(found: Any, value: Any) -> bool:
    """Whether two values are the same to Python code: 1 is neither 1.0 nor True."""
    if found is value:
        return True
    if type(found) is not type(value):
        return False
    if isinstance(value, tuple):
        return len(found) == len(value) and (
            all(map(is_, found, value)) or all(map(_are_same_values, found, value))
        )
    if isinstance(value, float | complex | np.generic):
        return repr(found) == repr(value)
    return bool(found == value and exact(found) == exact(value))


def _is_value(value: Any) -> bool:
    """Whether a value is kept as it is: it never changes, and keeps nothing else alive."""
    if isinstance(value, tuple | frozenset):
        return len(value) <= _MOST_ITEMS and all(map(_is_value, value))
    return isinstance(value, _VALUES)


def _weak(value: Any) -> ref[Any] | None:
    try:
        return ref(value)
    except TypeError:
        return None


# -- going through what a function names ---------------------------------------------------------


class Reader:
    """Goes from a function to everything that its code can read."""

    def __init__(self) -> None:
        self.found: dict[Way, Any] = {}
        """Values, and weak references to objects."""
        self.modules: list[tuple[Holder, Hashable, list[Any]]] = []
        """Modules, with how they come apart and their settings, and their tensors."""
        self._names: set[str] = set()
        """What the code that was reached so far names."""
        self._waiting: dict[str, list[tuple[Way, Step, Any, bool]]] = {}
        """Attributes that no code has named yet."""
        self._queue: deque[tuple[Way, Any]] = deque()
        self._seen: dict[int, Any] = {}
        self._left = _MOST_STEPS

    def read(self, function: Any, given: Iterable[Any]) -> None:
        self._queue.append(((), function))
        for value in given:
            self._begin_at(value)
        while self._queue and self._left > 0:
            way, holder = self._queue.popleft()
            self._open(way, holder)

    def _go(self, way: Way, step: Step, holder: Any, *, is_kept: bool = True) -> None:
        """Take a step. What is met there is kept unless it is a part of Weft's own functions."""
        self._left -= 1
        value, way = try_step(step, holder), (*way, step)
        if _is_value(value):
            if is_kept:
                self.found[way] = value
            if isinstance(value, str) and value.isidentifier():
                self._learn({value})  # it may name an attribute
        elif isinstance(value, FunctionType | BuiltinFunctionType | type | np.ndarray):
            if is_kept:
                self._keep_object(way, value)
            if isinstance(value, FunctionType | type):
                self._begin_at(value)
            if isinstance(value, type):
                self._begin_constructors(value)
        elif id(value) in self._seen:
            self._keep_object(way, value)
        elif not isinstance(value, Tensor) and len(way) < _DEEPEST:
            self._seen[id(value)] = value
            self._queue.append((way, value))

    def _go_if_named(self, way: Way, step: Step, holder: Any, *, is_kept: bool = True) -> None:
        """The same, as soon as some code names it: the key of the step."""
        if step.key in self._names:
            self._go(way, step, holder, is_kept=is_kept)
        else:
            self._waiting.setdefault(step.key, []).append((way, step, holder, is_kept))

    def _keep_object(self, way: Way, value: Any) -> None:
        weak = _weak(value)
        if weak is not None:
            self.found[way] = weak

    def _begin_at(self, value: Any) -> None:
        """A function or a class is looked into once, however it is reached."""
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            name = value.__name__ if isinstance(value, type) else ""
            self._queue.append(((step_to(value, name),), value))

    def _open(self, way: Way, holder: Any) -> None:
        if isinstance(holder, FunctionType):
            self._open_function(way, holder)
        elif isinstance(holder, type):
            self._open_class(way, holder)
        elif isinstance(holder, ModuleType):
            names = [] if is_foreign(holder.__name__) else list(vars(holder))
            for name in names:
                self._go_if_named(way, Step(read_member, name, f".{name}"), holder)
        elif isinstance(holder, list | dict | tuple | set | frozenset):
            self._open_items(way, holder)
        elif isinstance(holder, ref):
            self._go(way, Step(read_referent, None, ""), holder)
        elif isinstance(holder, Holder):
            # What it holds is compared with the module, wherever it is captured.
            structure = structure_of(holder)
            if len(self.modules) < _MOST_MODULES:
                self.modules.append((holder, structure, _tensors_of(holder)))
            self._begin_at(type(holder))
            if isinstance(structure, Structure):
                for value in code_in(Structure(None, None, (structure,))):
                    self._begin_at(value)
        else:
            parts = next((p for kind, p in _PARTS.items() if isinstance(holder, kind)), ())
            for name in parts:
                self._go(way, Step(getattr, name, ""), holder)
            if not parts:
                self._open_instance(way, holder)

    def _open_function(self, way: Way, function: FunctionType) -> None:
        is_own = not is_foreign(function.__globals__.get("__name__"))
        for index, name in enumerate(function.__code__.co_freevars):
            self._go(way, Step(read_variable, index, name), function, is_kept=is_own)
        if "__wrapped__" in function.__dict__:
            self._go(way, Step(getattr, "__wrapped__", ""), function, is_kept=False)
        if not is_own:
            return
        words, names = _names_read(function.__code__)
        self._learn(names)
        for name in [name for name in vars(function) if name[:2] != "__"]:
            self._go_if_named(way, Step(read_member, name, f".{name}"), function)
        for name in sorted(words):
            if name in function.__globals__:
                self._go(way, Step(read_global, name, name), function)
        for name in ("__defaults__", "__kwdefaults__"):
            if getattr(function, name):
                self._go(way, Step(getattr, name, ""), function)

    def _learn(self, names: set[str]) -> None:
        for name in names - self._names:
            self._names.add(name)
            for way, step, holder, is_kept in self._waiting.pop(name, ()):
                self._go(way, step, holder, is_kept=is_kept)

    def _open_class(self, way: Way, kind: type) -> None:
        if is_foreign(kind.__module__):
            return
        for base in kind.__bases__:
            self._begin_at(base)
        for name, member in list(vars(kind).items()):
            if name[:2] == "__":
                if isinstance(member, FunctionType) and name not in _CONSTRUCTORS:
                    self._begin_at(member)
                continue
            # Whether a method is another one is not looked at in every call.
            is_kept = not isinstance(member, FunctionType)
            self._go_if_named(way, Step(read_member, name, f".{name}"), kind, is_kept=is_kept)

    def _begin_constructors(self, kind: type) -> None:
        """Whoever names a class makes instances of it, as a rule."""
        for base in kind.__mro__:
            for name in () if is_foreign(base.__module__) else _CONSTRUCTORS:
                member = vars(base).get(name)
                if isinstance(member, FunctionType):
                    self._begin_at(member)

    def _open_instance(self, way: Way, holder: Any) -> None:
        kind = type(holder)
        held = attributes_held(holder)
        is_optimiser = kind.__module__.startswith(_OPTIMISERS)
        if "__wrapped__" in held:
            self._go(way, Step(getattr, "__wrapped__", ""), holder, is_kept=False)
            return
        if kind.__module__.partition(".")[0] in ("weft", "numpy") and not is_optimiser:
            self._keep_object(way, holder)
            return
        for name in dict.fromkeys([*held, *_class_attributes(kind)]):
            step = Step(object.__getattribute__, name, f".{name}")
            if is_optimiser:
                self._go(way, step, holder)
            elif name[:2] != "__":
                self._go_if_named(way, step, holder)
        if not is_foreign(kind.__module__):
            self._begin_at(kind)

    def _open_items(self, way: Way, holder: Any) -> None:
        entries = _read_entries(holder, None) if len(holder) <= _MOST_ITEMS else None
        if entries is not None and _is_value(entries):
            self.found[(*way, Step(_read_entries, None, ""))] = entries
            return
        self.found[(*way, Step(_read_size, None, ""))] = len(holder)
        if isinstance(holder, dict):
            keys = [key for key in islice(holder, _MOST_ITEMS) if is_plain_key(key)]
            for key in keys:
                self._go(way, item_step(dict.get, key), holder)
        elif isinstance(holder, list | tuple):
            read = list.__getitem__ if isinstance(holder, list) else tuple.__getitem__
            for index in range(min(len(holder), _MOST_ITEMS)):
                self._go(way, item_step(read, index), holder)


def _class_attributes(kind: type) -> list[str]:
    """What an instance has by its class: slots, and values that it may have others in place of."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
        found += [name for name, value in list(vars(base).items()) if _is_value(value)]
    return [name for name in found if name[:2] != "__"]


@lru_cache(maxsize=1_000)
def _names_read(code: CodeType) -> tuple[set[str], set[str]]:
    """The globals that code reads, and the attributes, with those of functions written inside it. A
    word in quotes may name an attribute too, as in `getattr(self, "rate")`."""
    words, names = set[str](), set[str]()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            words.add(instruction.argval)
        elif instruction.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER")):
            names.add(str(instruction.argval))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner = _names_read(constant)
            words, names = words | inner[0], names | inner[1]
        elif isinstance(constant, str) and constant.isidentifier():
            names.add(constant)
    return words, names


def _read_size(holder: Any, _: None) -> int:
    return len(holder)


def _read_entries(holder: Any, _: None) -> Any:
    """The items of a container as a value."""
    if isinstance(holder, dict):
        return tuple(holder), tuple(holder.values())
    return frozenset(holder) if isinstance(holder, set | frozenset) else tuple(holder)
