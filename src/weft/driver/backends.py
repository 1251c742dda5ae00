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
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeAlias, cast

from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.op import Op
from weft.ptir.types import TensorType

DEFAULT = "reference"
ENTRY_POINTS = "weft.backends"
_HOMES = {"reference": "weft.driver.reference"}
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
    """Make a backend known under its name, for this process."""
    if backend.name in _HOMES:
        raise UserError(f"the backend name {backend.name!r} is taken by Weft's own")
    _REGISTERED[backend.name] = backend


def backend_names() -> list[str]:
    """Every known backend: Weft's own, the registered, the installed."""
    installed = [entry.name for entry in entry_points(group=ENTRY_POINTS)]
    return list(dict.fromkeys([*_HOMES, *_REGISTERED, *sorted(installed)]))


def get_backend(name: str) -> Backend:
    """The backend with that name."""
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name in _HOMES:
        return cast(Backend, importlib.import_module(_HOMES[name]).BACKEND)
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        return _load(entry)
    raise UserError(f"there is no backend {name!r}; the backends are {', '.join(backend_names())}")


def _load(entry: Any) -> Backend:
    try:
        return cast(Backend, entry.load())
    except Exception as error:
        raise UserError(
            f"the backend {entry.name!r} is installed but cannot be loaded: {error}"
        ) from error
