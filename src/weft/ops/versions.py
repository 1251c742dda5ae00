"""The compiled versions of a function under `jit`: what tells them apart, and why each exists."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

from weft.driver.execute import Prepared
from weft.foundation.dims import Symbol
from weft.foundation.dtypes import DType
from weft.ops.lines import Line, shown
from weft.ops.pytree import Structure, exact
from weft.ops.shapes import ByShape
from weft.ops.tracing import Trace
from weft.ptir.types import TensorType


@dataclass(frozen=True)
class Argument:
    """The kind of one leaf of the arguments: what a compiled version depends on."""

    dtype: DType
    shape: tuple[int | Symbol, ...]
    weak: bool = False

    @property
    def type(self) -> TensorType:
        return TensorType(self.dtype, self.shape)


@dataclass(frozen=True)
class Setting:
    """The value of a static argument. It equals another only where both are the same to Python
    code: the function may do one thing with 1 and another with 1.0 or True."""

    value: Any
    kind: Hashable = None

    @classmethod
    def of(cls, value: Any) -> Setting:
        return cls(value, exact(value))


@dataclass(frozen=True)
class Key:
    """What tells two compiled versions apart."""

    structure: Structure
    arguments: tuple[Argument, ...]
    static: tuple[tuple[str, Setting], ...]
    backend: str
    autocast: DType | None = None
    """The narrow dtype where it is called in mixed precision."""


@dataclass
class Version:
    """One compiled version of a function, and why it exists."""

    key: Key
    traced: Trace
    compiled: Prepared | ByShape
    seconds: float
    reason: str
    line: Line | None
    calls: int = 0

    @property
    def is_stale(self) -> bool:
        """Whether a tensor that the function captured has gone: another may be in its place."""
        return any(captured.is_gone for captured in self.traced.captured)

    def describe(self) -> str:
        """A line for `explain`; for dynamic dims a further one for each cluster of sizes."""
        where = shown(self.line)
        place = f" at {where}" if where else ""
        count = len(self.traced.program.main.body)
        text = (
            f"compiled{place} in {self.seconds:.3f} s ({count} instructions, "
            f"{self.calls} calls): {self.reason}"
        )
        clusters = self.compiled.clusters.explain() if isinstance(self.compiled, ByShape) else []
        return "\n  ".join([text, *clusters])


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
    before, after = dict(old.static), dict(new.static)
    for name in sorted(before.keys() | after.keys()):
        if name not in before or name not in after or before[name] != after[name]:
            was, now = (_shown_setting(side.get(name)) for side in (before, after))
            found.append(f"the static argument {name} is {now}, not {was}")
    if new.structure != old.structure:
        return [*found, _nesting(old, new, names)]
    changed = zip(names(new.structure), old.arguments, new.arguments, strict=True)
    return found + [change for n, was, now in changed for change in _changes(n, was, now)]


def _shown_setting(setting: Setting | None) -> str:
    return "left out" if setting is None else f"{setting.value!s:.60}"


def _nesting(old: Key, new: Key, names: Callable[[Structure], list[str]]) -> str:
    before, after = names(old.structure), names(new.structure)
    more = [name for name in after if name not in before]
    less = [name for name in before if name not in after]
    told = [f"with {', '.join(more[:4])}"] if more else []
    told += [f"without {', '.join(less[:4])}"] if less else []
    detail = f" ({' and '.join(told)})" if told else ""
    return f"the arguments are nested in another way{detail}"


def _changes(name: str, old: Argument, new: Argument) -> list[str]:
    """In what one argument differs."""
    found = []
    if old.dtype is not new.dtype:
        found.append(f"{name} is {new.dtype}, not {old.dtype}")
    if len(old.shape) != len(new.shape):
        found.append(f"{name} has rank {len(new.shape)}, not {len(old.shape)}")
    else:
        sizes = enumerate(zip(old.shape, new.shape, strict=True))
        found += [f"dim {a} of {name} is {now}, not {was}" for a, (was, now) in sizes if was != now]
    if not found and old.weak != new.weak:
        now, was = ("a number", "a tensor") if new.weak else ("a tensor", "a number")
        found.append(f"{name} is {now}, not {was}")
    return found
