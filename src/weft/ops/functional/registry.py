"""Several implementations of one functional op, and the policy that picks one.

    default              the first that supports the arguments, in the order of registration
    force=NAME           this one, whatever its `supports` says
    benchmark(cache=N)   runs all that support the arguments on random tensors of the same types and
                         keeps the fastest per signature, for the N signatures used last

Policies are set for the process (`configure`, or a JSON object in WEFT_FUNCTIONAL), or inside a
`with overrides({...})` block, which goes first. Anyone may register an implementation.
"""

from __future__ import annotations

import json
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import wraps
from threading import Lock
from typing import Any, Final, TypeVar

import numpy as np

from weft.foundation.calls import told
from weft.foundation.errors import UserError
from weft.foundation.lines import LAYER, user_line
from weft.ops.autocast import autocast_dtype, cast_operands
from weft.ops.calls import MISTAKES, PYTHON_ERRORS, explained, public, refused
from weft.ops.functional.timing import fastest
from weft.ops.graph.context import arena_abroad, within
from weft.ops.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])
_POLICY = re.compile(r"default|force=(?P<name>\S+)|benchmark\(cache=(?P<cache>[1-9][0-9]*)\)")


@dataclass(frozen=True)
class Implementation:
    """One way to carry out an op: a function with the op's own signature."""

    name: str
    run: Callable[..., Any]
    supports: Callable[..., bool]


@dataclass(frozen=True)
class Policy:
    """How an implementation is picked: at most one of the fields is set."""

    force: str = ""
    benchmark: int = 0


DEFAULT: Final = Policy()


@dataclass
class OpEntry:
    """The implementations of one op and what the benchmark found out about them."""

    op: str
    implementations: dict[str, Implementation] = field(default_factory=dict)
    policy: Policy = DEFAULT
    measured: OrderedDict[Any, Implementation] = field(default_factory=OrderedDict)
    lock: Lock = field(default_factory=Lock)

    def pick(self, policy: Policy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Implementation:
        """The implementation for a call."""
        if policy.force:
            return self.named(policy.force)
        able = [i for i in self.implementations.values() if i.supports(*args, **kwargs)]
        if not able:
            names = ", ".join(self.implementations)
            raise UserError(f"no implementation ({names}) supports these arguments")
        if policy.benchmark and len(able) > 1:
            return self._measure(able, policy.benchmark, args, kwargs)
        return able[0]

    def named(self, name: str) -> Implementation:
        if name not in self.implementations:
            known = ", ".join(self.implementations)
            raise UserError(f"{self.op} has no implementation {name!r}; it has {known}")
        return self.implementations[name]

    def _measure(
        self, able: list[Implementation], size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Implementation:
        key = (signature(args), signature(tuple(sorted(kwargs.items()))))
        found = self.measured.get(key)
        if found is None:
            found = able[fastest([i.run for i in able], args, kwargs)]
        with self.lock:
            self.measured[key] = found
            self.measured.move_to_end(key)
            while len(self.measured) > size:
                self.measured.popitem(last=False)
        return found


def signature(value: Any) -> Any:
    """What a measurement depends on: types of tensors and arrays, the rest as it is."""
    if isinstance(value, Tensor):
        return (value.dtype, value.shape, value.backend)
    if isinstance(value, np.ndarray):
        return (value.dtype, value.shape)
    if isinstance(value, tuple | list):
        return tuple(signature(item) for item in value)
    return repr(value)


_ENTRIES: dict[str, OpEntry] = {}
_OVERRIDES: Final[ContextVar[Mapping[str, Policy] | None]] = ContextVar("overrides", default=None)
_settled = False
"""Whether WEFT_FUNCTIONAL has been read: when the first op with a choice is called."""


@told
def functional(function: F) -> F:
    """A functional op. The decorated function is its first implementation, named `default`."""
    name = function.__name__
    entry = _ENTRIES[name] = OpEntry(name)
    entry.implementations["default"] = Implementation("default", function, _always)
    choices = entry.implementations

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        around = LAYER.function
        LAYER.function = around or name
        try:
            narrow = autocast_dtype()
            if narrow is not None:
                args, kwargs = cast_operands(name, narrow, args, kwargs)
            first = choices["default"]
            free = entry.policy is DEFAULT and _OVERRIDES.get() is None
            abroad = arena_abroad(args, kwargs)
            with nullcontext() if abroad is None else within(abroad):
                if free and _settled and first.supports is _always:
                    return first.run(*args, **kwargs)
                return entry.pick(policy_of(entry), args, kwargs).run(*args, **kwargs)
        except MISTAKES as error:
            raise explained(name, error, user_line()) from None
        except PYTHON_ERRORS as error:
            raise refused(function, args, kwargs, error) from None
        finally:
            LAYER.function = around

    return call  # type: ignore[return-value]


def _always(*args: Any, **kwargs: Any) -> bool:
    return True


@told
def implements(op: str, name: str, supports: Callable[..., bool] = _always) -> Callable[[F], F]:
    """Register the decorated function as an implementation of `op`."""

    def register_it(function: F) -> F:
        register(op, name, function, supports)
        return function

    return register_it


@public
def register(
    op: str, name: str, run: Callable[..., Any], supports: Callable[..., bool] = _always
) -> None:
    """Add an implementation: `run` takes what the op takes, `supports` too and answers whether
    `run` can serve these arguments. One of the same name is replaced."""
    entry = entry_of(op)
    entry.implementations[name] = Implementation(name, run, supports)
    entry.measured.clear()


@public
def unregister(op: str, name: str) -> None:
    """Take an implementation away again; the default one stays."""
    entry = entry_of(op)
    entry.named(name)
    if name == "default":
        raise UserError(f"{op} keeps its default implementation; register another by that name")
    del entry.implementations[name]
    entry.measured.clear()
    if entry.policy.force == name:
        entry.policy = DEFAULT


@public
def implementations(op: str) -> list[str]:
    """The names of an op's implementations, in the order in which they are asked."""
    return list(entry_of(op).implementations)


def entry_of(op: str) -> OpEntry:
    if op not in _ENTRIES:
        raise UserError(f"there is no functional op {op!r}; the ops are {', '.join(_ENTRIES)}")
    return _ENTRIES[op]


def policy_of(entry: OpEntry) -> Policy:
    """The policy in force for an op."""
    _read_environment()
    overrides = _OVERRIDES.get()
    if overrides is not None and entry.op in overrides:
        return overrides[entry.op]
    return entry.policy


def _read_environment() -> None:
    global _settled  # noqa: PLW0603
    if _settled:
        return
    text = os.environ.get("WEFT_FUNCTIONAL", "")
    if text:
        try:
            policies = parse_policies(text)
        except UserError as error:
            raise UserError(f"[WEFT_FUNCTIONAL] {error.why}") from None
        _adopt(policies)
    _settled = True


def parse_policies(settings: Mapping[str, str] | str) -> dict[str, Policy]:
    """Policies from a dict or a JSON object: `{"attention": "force=streaming"}`."""
    if isinstance(settings, str):
        try:
            settings = json.loads(settings)
        except ValueError:
            raise UserError(f"{settings!r} is not a JSON object of op names and policies") from None
    if not isinstance(settings, Mapping):
        raise UserError(f"{settings!r} is not an object of op names and policies")
    return {op: _parse(op, text) for op, text in settings.items()}


def _parse(op: str, text: Any) -> Policy:
    entry = entry_of(op)
    match = _POLICY.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise UserError(
            f"the policy of {op} is {text!r}; it can be default, force=NAME or benchmark(cache=N)"
        )
    if match["name"]:
        return Policy(force=entry.named(match["name"]).name)
    return Policy(benchmark=int(match["cache"])) if match["cache"] else DEFAULT


@public
def configure(settings: Mapping[str, str] | str) -> None:
    """Set policies for the process."""
    _adopt(parse_policies(settings))


def _adopt(policies: Mapping[str, Policy]) -> None:
    for op, policy in policies.items():
        _ENTRIES[op].policy = policy


@public
def overrides(settings: Mapping[str, str] | str) -> AbstractContextManager[None]:
    """Policies inside the `with` block, in this thread (and what it awaits) only."""
    return _override_policies(parse_policies(settings))


@contextmanager
def _override_policies(policies: Mapping[str, Policy]) -> Iterator[None]:
    token = _OVERRIDES.set({**(_OVERRIDES.get() or {}), **policies})
    try:
        yield
    finally:
        _OVERRIDES.reset(token)
