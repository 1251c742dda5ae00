"""The compiled versions of a function under `jit`: what tells them apart, and why each exists."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import is_
from types import FunctionType
from typing import Any, Final
from weakref import ref

from weft.driver.execute import Prepared
from weft.foundation.dims import Symbol
from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.foundation.lines import Line, shown
from weft.ops.capture_paths import Ways, code_in, code_of, structure_of, ways_to
from weft.ops.captured_values import Values
from weft.ops.graph.node import CHANGES
from weft.ops.pytree import Structure, alike, flatten
from weft.ops.settings import exact
from weft.ops.shapes import ByShape
from weft.ops.state import Holder
from weft.ops.tensor import Tensor
from weft.ops.traced_numbers import Numbers
from weft.ops.tracing import Captured, Trace
from weft.ptir.exchanges import exchanges
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Argument:
    """The kind of one leaf of the arguments: what a compiled version depends on."""

    dtype: DType
    shape: tuple[int | Symbol, ...]
    is_number: bool = False

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True)
class Setting:
    """The value of a static argument. It equals another only where both are the same to Python
    code: the function may do one thing with 1 and another with 1.0 or True."""

    value: Any = field(compare=False)
    equal: Hashable = None
    """What is compared of the value; None for what is not equal to itself, a nan."""
    kind: Hashable = None

    @classmethod
    def of(cls, value: Any) -> Setting:
        is_nan = isinstance(value, float | complex) and value != value  # noqa: PLR0124
        return cls(value, None if is_nan else value, _exact_setting(value))


def _exact_setting(value: Any) -> Hashable:
    """What a static value has besides its equals. A module is another one when its settings, its
    parts or its tensors are."""
    if not isinstance(value, Holder):
        return exact(value)  # type: ignore[no-any-return]
    try:
        return structure_of(value), tuple(map(id, flatten(value)[0]))
    except UserError:
        return structure_of(value)


@dataclass(frozen=True)
class Key:
    """What tells two compiled versions apart."""

    structure: Structure
    arguments: tuple[Argument, ...]
    static: tuple[tuple[str, Setting], ...]
    backend: str
    autocast: DType | None = None
    """The narrow dtype where it is called in mixed precision."""
    training: bool = False
    """Whether it is called inside `nn.training()`."""

    @property
    def code(self) -> list[FunctionType | type]:
        """The classes and functions that are given: their code is part of what is done."""
        static = [setting.value for _, setting in self.static]
        return [*code_in(self.structure), *code_of(static), *map(type, static)]


class Held:
    """What captured tensors held when they were last looked at."""

    elements_stay: Final = True

    __slots__ = ("__weakref__", "captured", "last", "storages")

    def __init__(self, captured: tuple[Captured, ...]) -> None:
        self.captured = captured
        self.last = CHANGES.last
        self.storages = [each.storage() for each in captured]

    def holds(self, captured: tuple[Captured, ...]) -> bool:
        """Whether they hold it still."""
        if self.captured is not captured:
            return False
        if self.last is not CHANGES.last:
            now = Held(captured)
            if not all(map(is_, now.storages, self.storages)):
                return False
            self.last = now.last
        return True


@dataclass(frozen=True)
class Seen:
    """What a function does with some arguments, and what the inputs of its program are."""

    trace: Trace
    function: Callable[..., Any]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    tensors: tuple[Tensor, ...]
    """The leaves of the arguments."""
    names: list[str]
    """What they are called: `params['w'][0]`."""
    owners: list[int]
    """The parameter that each belongs to."""

    def captured(self) -> list[Any]:
        """The elements of the captured tensors."""
        return [Tensor(each.node).numpy() for each in self.trace.captured]

    def captured_names(self) -> list[str]:
        """What Python code calls the captured tensors; those that nobody holds have a number."""
        held = [each.tensor for each in self.trace.captured if each.tensor is not None]
        found: dict[int, str] = {}
        for name, tensor, _ in ways_to(held, self.function).walk(self.function):
            found.setdefault(id(tensor), name.removeprefix("."))
        captured = enumerate(self.trace.captured)
        return [found.get(id(each.tensor), f"captured{number}") for number, each in captured]


@dataclass
class Version:
    """One compiled version of a function, and why it exists."""

    key: Key
    traced: Trace
    compiled: Prepared | ByShape
    seconds: float
    reason: str
    line: Line | None
    ways: Ways
    """How the function reaches what it captures."""
    values: Values
    """The Python values that it reads besides its arguments."""
    numbers: Numbers
    """What it does with Python numbers among its arguments."""
    calls: int = 0
    replacements: int = 0
    """In how many calls captured tensors had been replaced by others of their types."""
    replaced: str = ""
    """The last of these, in words."""
    _held: Held | None = None

    def held(self) -> Held:
        """What the captured tensors hold: the same object as long as they hold the same."""
        if self._held is None or not self._held.holds(self.traced.captured):
            self._held = Held(self.traced.captured)
        return self._held

    def is_current(self, function: Callable[..., Any]) -> bool:
        """Whether the program reads what the function captures now. Tensors that were replaced by
        others of their types are looked up anew: the program is the same."""
        if self.traced.state.is_once or not self.values.hold(function):
            return False
        if not self.traced.captured and self.ways.are_none:
            return True
        here = self.ways.hold(function) and not any(each.is_gone for each in self.unreached)
        return here or self._rebind(function)

    @cached_property
    def unreached(self) -> list[Captured]:
        """Captured tensors to which no way was found: they are current as long as they live."""
        reached = set(map(id, self.ways.reached()))
        return [each for each in self.traced.captured if id(each.tensor) not in reached]

    def _rebind(self, function: Callable[..., Any]) -> bool:
        """Take other tensors in the place of captured ones; False: they are of other types, or not
        known."""
        looked_at = (self.ways.walk_modules(function), self.ways.walk_constants(function))
        if not all(is_same for each in looked_at for _, is_same in each):
            return False
        found: dict[int, Any] = {}
        for _, old, now in self.ways.walk(function):
            if found.setdefault(id(old), now) is not now:
                return False  # one tensor was in two places, which differ now
        captured = []
        for each in self.traced.captured:
            now = found.get(id(each.tensor), each)
            if each.is_gone if now is each else not each.takes(now):
                return False
            captured.append(each if now is each else Captured(now._node, ref(now)))
        self.replaced = self.why_stale(function)
        self.replacements += 1
        self.ways = self.ways.led_to({old: ref(now) for old, now in found.items()})
        self.traced = replace(self.traced, captured=tuple(captured))
        return True

    def why_stale(self, function: Callable[..., Any]) -> str:
        """Which captured tensor is another one now, or which module or value has changed."""
        if self.traced.state.is_once:
            return "the function changes an object that is a setting of a module"
        for change in self.values.changes(function):
            return change
        for name, fits in self.ways.walk_modules(function):
            if not fits:
                called = f"the captured module {name}" if name else "the module"
                return f"{called} has other settings or parts than it had"
        for name, is_same in self.ways.walk_constants(function):
            if not is_same:
                return f"the captured number {name} was replaced"
        for name, old, now in self.ways.walk(function):
            if now is not old() or now is None:
                kind = f"is {now.type}" if isinstance(now, Tensor) else "is not a tensor"
                return f"the captured tensor {name} was replaced: it {kind} now"
        return "a tensor that the function captured is not there any more"

    def describe(self) -> str:
        """A line for `explain`; for dynamic dims a further one for each cluster of sizes."""
        where = shown(self.line)
        place = f" at {where}" if where else ""
        count = len(self.traced.program.main.body)
        text = (
            f"compiled{place} for {self.key.backend} in {self.seconds:.3f} s "
            f"({count} instructions, {self.calls} calls): {self.reason}"
        )
        if self.replacements:
            text += f"; {self.replaced}, without compiling again (in {self.replacements} calls)"
        clusters = self.compiled.clusters.explain() if isinstance(self.compiled, ByShape) else []
        files = dict.fromkeys(told for made in self.prepared() for told in made.files)
        return "\n  ".join([text, *clusters, *exchanges(self.traced.program), *files])

    def prepared(self) -> list[Prepared]:
        """What it was compiled to: one program, or one for each cluster of sizes."""
        if isinstance(self.compiled, Prepared):
            return [self.compiled]
        return [cluster.compiled for cluster in list(self.compiled.clusters.clusters.values())]


def reason_for(
    key: Key, versions: Iterable[Version], names: Callable[[Structure], list[str]]
) -> str:
    """What is new about these arguments, compared with the version that is most like them; of
    several, the last."""
    nearest: Version | None = None
    fewest: list[str] = []
    for version in versions:
        changes = differences(version.key, key, names)
        if nearest is None or len(changes) <= len(fewest):
            nearest, fewest = version, changes
    if nearest is None:
        return "first call"
    where = shown(nearest.line)
    return "; ".join(fewest) + (f" (compared with the call at {where})" if where else "")


def differences(old: Key, new: Key, names: Callable[[Structure], list[str]]) -> list[str]:
    """Everything in which two keys differ."""
    found = []
    if new.backend != old.backend:
        found.append(f"the backend is {new.backend}, not {old.backend}")
    if new.autocast != old.autocast:
        found.append(f"autocast is {new.autocast or 'off'}, not {old.autocast or 'off'}")
    if new.training != old.training:
        found.append(f"it is {'' if new.training else 'not '}in training")
    before, after = dict(old.static), dict(new.static)
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or before[name] != after[name]:
            was, now = (_shown_setting(side.get(name)) for side in (before, after))
            found.append(f"the static argument {name} is {now}, not {was}")
    if new.structure != old.structure:
        return [*found, _tell_nesting(old, new, names)]
    changed = zip(names(new.structure), old.arguments, new.arguments, strict=True)
    return found + [change for n, was, now in changed for change in _changes(n, was, now)]


def _shown_setting(setting: Setting | None) -> str:
    return "left out" if setting is None else f"{setting.value!s:.60}"


def _tell_nesting(old: Key, new: Key, names: Callable[[Structure], list[str]]) -> str:
    before, after = names(old.structure), names(new.structure)
    more = [name for name in after if name not in before]
    less = [name for name in before if name not in after]
    told = [f"with {', '.join(more[:4])}"] if more else []
    told += [f"without {', '.join(less[:4])}"] if less else []
    if alike(old.structure, new.structure):
        told = ["the keys of a dict are in another order"]
    detail = f" ({' and '.join(told)})" if told else ""
    return f"the arguments are nested in another way{detail}"


def _changes(name: str, old: Argument, new: Argument) -> list[str]:
    """In what one argument differs."""
    if old.is_number != new.is_number:
        now, was = ("a number", "a tensor") if new.is_number else ("a tensor", "a number")
        return [f"{name} is {now}, not {was}"]
    found = []
    if old.dtype is not new.dtype:
        found.append(f"{name} is {new.dtype}, not {old.dtype}")
    if len(old.shape) != len(new.shape):
        found.append(f"{name} has rank {len(new.shape)}, not {len(old.shape)}")
    else:
        sizes = enumerate(zip(old.shape, new.shape, strict=True))
        found += [f"dim {a} of {name} is {now}, not {was}" for a, (was, now) in sizes if was != now]
    return found
