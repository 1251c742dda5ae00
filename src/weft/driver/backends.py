"""What a backend is, and the backends by name.

A backend is an object with the attributes and methods of `Backend`; it needs no base class. Weft's
own are listed here, others announce themselves through the entry-point group `weft.backends` (each
entry names a `Backend` object) or with `register_backend`. This is the one place that loads a
backend, and it loads only the one asked for.

A backend is handed programs that verify and have no dynamic dims. It never falls back: for an op or
a custom call that it does not know it raises `Unimplemented`. Decomposing what it lacks is the
driver's business, before the backend sees the program.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeAlias, cast

from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.ptir.interp import Observer
from weft.ptir.ir import HintKind, Program
from weft.ptir.op import Op
from weft.ptir.types import TensorType

DEFAULT = "reference"
ENTRY_POINTS = "weft.backends"
_HOMES = {
    "reference": "weft.driver.reference",
    "cpu": "weft.driver.cpu",
    "cuda": "weft.driver.cuda",
}
_REGISTERED: dict[str, Backend] = {}

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


def register_backend(backend: Backend) -> None:
    """Make a backend known under its name, for this process; an earlier one of that name goes."""
    check_members(backend, Backend, "backend")
    if backend.name in _HOMES:
        raise UserError(f"the backend name {backend.name!r} is taken by Weft's own")
    _REGISTERED[backend.name] = backend


def backend_names() -> list[str]:
    """Every known backend: Weft's own, the registered, the installed."""
    return list(dict.fromkeys([*_HOMES, *_REGISTERED, *installed_names(ENTRY_POINTS)]))


def get_backend(name: str) -> Backend:
    """The backend with that name."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _HOMES:
        return cast(Backend, importlib.import_module(_HOMES[name]).BACKEND)
    found = load_installed(ENTRY_POINTS, name, Backend, "backend")
    if found is None:
        known = ", ".join(backend_names())
        raise UserError(f"there is no backend {name!r}; the backends are {known}")
    return cast(Backend, found)


def installed_names(group: str) -> list[str]:
    """The names that installed packages announce in an entry-point group."""
    return sorted({entry.name for entry in entry_points(group=group)})


def load_installed(group: str, name: str, protocol: type, what: str) -> Any:
    """The object that an installed package announces under a name; None where nobody does."""
    entries = list(entry_points(group=group, name=name))
    if not entries:
        return None
    if len({entry.value for entry in entries}) > 1:
        owners = " and ".join(sorted(map(_owner, entries)))
        raise UserError(f"the {what} {name!r} is announced by {owners}; uninstall all but one")
    try:
        found = entries[0].load()
    except Exception as error:
        raise UserError(
            f"the {what} {name!r} is installed but cannot be loaded: {error}"
        ) from error
    check_members(found, protocol, f"{what} (announced as {name!r})")
    if found.name != name:
        raise UserError(f"the {what} announced as {name!r} calls itself {found.name!r}")
    return found


def check_members(candidate: object, protocol: type, what: str) -> None:
    """A plug-in has every attribute and method of its protocol."""
    wanted = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in wanted if not hasattr(candidate, name)]
    if isinstance(candidate, type) or missing:
        lacks = f"has no {', '.join(missing)}" if missing else "is a class, not an object"
        raise UserError(f"{candidate!r} is not a {what}: it {lacks}")


def _owner(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.value
