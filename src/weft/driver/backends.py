"""What a backend is, and the backends by name.

A backend is an object with the attributes and methods of `Backend`; it needs no base class. Weft's
own are listed here, others announce themselves through the entry-point group `weft.backends` (each
entry names a `Backend` object) or with `register_backend`. This is the one place that loads
Weft's own, and it loads only the one asked for.

A backend is handed programs that verify and have no dynamic dims. It never falls back: for an op or
a custom call that it does not know it raises `Unimplemented`. Decomposing what it lacks is the
driver's business, before the backend sees the program.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from weft.driver.loading.lazy_modules import load_part
from weft.driver.loading.plugins import Registry, check_members, described
from weft.foundation.calls import told_outside
from weft.foundation.dtypes import DType
from weft.foundation.errors import BackendUnavailable, UserError
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import BY_WIRE_NAME, CORE, SPELLINGS, Op
from weft.ptir.types import TensorType

DEFAULT = "cpu"
"""What runs programs where nobody said otherwise."""
_HOMES = {
    "reference": "weft.driver.reference",
    "cpu": "weft.driver.cpu",
    "cuda": "weft.driver.cuda",
}

Storage: TypeAlias = Any
"""A backend's own handle of a tensor in its memory."""


class Executable(Protocol):
    """A program that is ready to run, any number of times."""

    def execute(
        self, inputs: Sequence[Storage], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Storage]:
        """The flattened results for flattened inputs. Inputs are read, never written.

        `seed` feeds the random ops. A backend that carries out one instruction at a time tells
        `observer` about each; others ignore it.
        """
        ...


@runtime_checkable
class TimedExecutable(Executable, Protocol):
    """A program on a device that has a clock of its own."""

    def device_seconds(self, inputs: Sequence[Storage]) -> float | None:
        """The time of a run on the device; None where it is the host's in part."""
        ...


@runtime_checkable
class HoldingExecutable(Executable, Protocol):
    """A program that can be told which inputs are those of earlier runs: it does not look at them
    again."""

    def execute_held(
        self, inputs: Sequence[Storage], holder: object, data: Sequence[int], *, seed: int = 0
    ) -> list[Storage]:
        """The same as `execute`. While `holder` stays the same, so do all inputs but those at the
        positions `data`."""
        ...


class Backend(Protocol):
    """Something that carries programs out."""

    @property
    def name(self) -> str:
        """The name by which users ask for it."""
        ...

    @property
    def dtypes(self) -> frozenset[DType]:
        """The element types it can hold and compute with."""
        ...

    @property
    def ops(self) -> frozenset[str]:
        """The ops of the contract it carries out, by wire name (`DotGeneral`, `Scan`, ...)."""
        ...

    @property
    def hints(self) -> frozenset[HintKind]:
        """The kinds of hints whose instructions it can run as one kernel. A `Required` hint of
        another kind is `Unimplemented`; weaker ones may always be ignored."""
        ...

    def supports(self, op: Op) -> bool:
        """Whether it carries out this op, which is an extension op, a coarse op or a custom
        call."""
        ...

    def compile(self, program: Program) -> Executable:
        """Prepare a verified program without dynamic dims; `Unimplemented` where it cannot."""
        ...

    def allocate(self, kind: TensorType) -> Storage:
        """Fresh memory for a tensor, its contents unspecified."""
        ...

    def store(self, array: NDArray[Any]) -> Storage:
        """The elements of an array in the backend's memory. It may share memory with the array."""
        ...

    def read_storage(self, storage: Storage, kind: TensorType) -> NDArray[Any]:
        """The elements of a tensor as an array that belongs to the caller."""
        ...


# -- the backends by name --------------------------------------------------------------------------


@runtime_checkable
class DonatingBackend(Backend, Protocol):
    """A backend that can put results where inputs were that nobody needs any more."""

    def compile_donating(self, program: Program, donated: frozenset[int]) -> Executable:
        """The same as `compile`; a run may overwrite the inputs at these positions."""
        ...


@runtime_checkable
class KeepingBackend(DonatingBackend, Protocol):
    """A backend that can keep what programs make of their parameters from run to run."""

    def compile_keeping(
        self, program: Program, donated: frozenset[int], params: frozenset[int]
    ) -> Executable:
        """The same as `compile_donating`; the inputs at the positions `params` are the same in many
        runs."""
        ...


@runtime_checkable
class DuplicatingBackend(Backend, Protocol):
    """A backend that copies a tensor without a way through the host's memory."""

    def duplicate(self, storage: Storage) -> Storage:
        """The same elements in memory of their own."""
        ...


@runtime_checkable
class DirectBackend(Backend, Protocol):
    """A backend that makes some tensors without a program, which every shape would have one of."""

    def repeat(self, element: NDArray[Any], kind: TensorType) -> Storage | None:
        """A tensor that has this element everywhere; None where that takes a program."""
        ...

    def cast(self, storage: Storage, kind: TensorType) -> Storage | None:
        """A tensor in the dtype of another type; None where that takes a program."""
        ...


def duplicated(backend: Backend, storage: Storage, kind: TensorType) -> Storage:
    """The elements of a tensor in memory that nobody else has."""
    if isinstance(backend, DuplicatingBackend):
        return backend.duplicate(storage)
    return backend.store(np.array(backend.read_storage(storage, kind)))


class _InForce:
    """The default of this process, in every thread: `DEFAULT`, what `WEFT_BACKEND` names, or what
    was set since."""

    def __init__(self) -> None:
        self.name = os.environ.get("WEFT_BACKEND") or DEFAULT


IN_FORCE = _InForce()


@told_outside
def default_backend() -> str:
    """The name of the backend on which new tensors live, and on which `weft.run` runs."""
    return IN_FORCE.name


def register_backend(backend: Backend) -> None:
    """Make a backend known under its name, for this process; an earlier one of that name goes."""
    REGISTRY.register(backend)


def backend_names() -> list[str]:
    """Every known backend: Weft's own, the registered, the installed."""
    return REGISTRY.names()


def get_backend(name: str) -> Backend:
    """The backend with that name; `package.module:OBJECT` names one that is not installed."""
    try:
        return REGISTRY.get(name)
    except UserError as error:
        raise BackendUnavailable(str(error)) from error


def runs_passes(backend: Backend) -> bool:
    """Whether a backend optimises what it compiles, which one says with `runs_passes = True`: then
    nobody need do so before. Weft's compilers do, unless they find the program on disk."""
    return bool(getattr(backend, "runs_passes", False))


def is_own(backend: Backend) -> bool:
    """Whether a backend is one of Weft's own: then what goes wrong in it is a bug in Weft."""
    return type(backend).__module__ in _HOMES.values()


def _load_own(name: str) -> Backend:
    return cast(Backend, load_part(_HOMES[name]).BACKEND)


# -- what a backend says of itself -----------------------------------------------------------------


def check_backend(backend: Any) -> None:
    """An object is a backend: it has every member, and its lists name what there is."""
    check_members(backend, Backend, "backend")
    what = f"the backend {backend.name!r}"
    check_wire_names(_check_list(backend.ops, f"{what} has ops"), what)
    for dtype in _check_list(backend.dtypes, f"{what} has dtypes"):
        if not isinstance(dtype, DType):
            raise UserError(
                f"{what} lists {described(dtype)} in its dtypes, which is not a DType; they are in "
                "weft.foundation.dtypes, as F32"
            )
    for hint in _check_list(backend.hints, f"{what} has hints"):
        if not isinstance(hint, HintKind):
            raise UserError(
                f"{what} lists {described(hint)} in its hints, which is not a weft.ptir.HintKind"
            )


def _check_list(found: Any, what: str) -> list[Any]:
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise UserError(f"{what} that are {described(found)}, not a set")
    return list(found)


def check_wire_names(names: Iterable[Any], what: str) -> None:
    """Every name is the wire name of an op of the contract. A wrong one would mean that the op is
    refused for ever, and nobody would know why."""
    for name in names:
        if not isinstance(name, str) or name not in BY_WIRE_NAME:
            raise UserError(
                f"{what} lists {described(name)} in its ops, which is not a wire "
                f"name{_advice(name)}"
            )


def _advice(name: Any) -> str:
    found = SPELLINGS.get(name) if isinstance(name, str) else None
    if found is not None and found[0].call_target is not None:
        return f"; {name} is an extension op, for which supports(op) answers"
    if found is not None:
        return f"; the op {name} is written {found[0].wire_name!r}"
    close = get_close_matches(str(name), BY_WIRE_NAME, 1, 0.5)
    known = ", ".join(CORE[tag].wire_name for tag in sorted(CORE))
    return f"; did you mean {close[0]!r}?" if close else f"; they are {known}"


REGISTRY: Registry[Backend] = Registry(
    "backend", "weft.backends", check_backend, tuple(_HOMES), _load_own
)
