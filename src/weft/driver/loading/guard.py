"""Checks around a plugin backend: errors that it raises and wrong answers are reported as its own.

Weft's own backends are not wrapped: an exception in one of them is a bug in Weft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.backends import Backend, Executable, Storage, check_backend, is_own
from weft.driver.loading.plugins import blaming, described, identified
from weft.foundation import limits
from weft.foundation.errors import PluginFault
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.op import Op
from weft.ptir.specialise import check_values
from weft.ptir.types import TensorType, leaves

Array = NDArray[Any]


def guarded(backend: Backend) -> Backend:
    """The backend itself if it is Weft's own, else the same behind checks."""
    if is_own(backend) or isinstance(backend, GuardedBackend):
        return backend
    check_backend(backend)
    return GuardedBackend(backend)


class GuardedBackend:
    """Every member of `Backend`, each handed to the one inside."""

    def __init__(self, backend: Backend) -> None:
        self._inner = backend
        self._what = identified(backend, "backend")
        self.name = backend.name
        self.dtypes = frozenset(backend.dtypes)
        self.ops = frozenset(backend.ops)
        self.hints = frozenset(backend.hints)

    def supports(self, op: Op) -> bool:
        with blaming(self._what, "supports"):
            return bool(self._inner.supports(op))

    def compile(self, program: Program) -> Executable:
        check_values(program, limits.current())
        with blaming(self._what, "compile"):
            made = self._inner.compile(program)
        if not hasattr(made, "execute"):
            raise PluginFault(self._what, f"compiled {described(made)}, which has no execute")
        count = sum(1 for kind in program.main.results for _ in leaves(kind))
        return GuardedExecutable(made, self._what, count)

    def allocate(self, kind: TensorType) -> Storage:
        with blaming(self._what, "allocate"):
            return self._inner.allocate(kind)

    def store(self, array: Array) -> Storage:
        with blaming(self._what, "store"):
            return self._inner.store(_read_only(array))

    def read_storage(self, storage: Storage, kind: TensorType) -> Array:
        with blaming(self._what, "read_storage"):
            array = self._inner.read_storage(storage, kind)
        if not isinstance(array, np.ndarray):
            hint = " (numpy.asarray makes one of a scalar)" if isinstance(array, np.generic) else ""
            raise PluginFault(self._what, f"read {described(array)} instead of an array{hint}")
        if array.dtype != kind.dtype.numpy or array.shape != kind.static_shape:
            found = f"{array.dtype}{list(array.shape)}"
            raise PluginFault(self._what, f"gives an array of {found} for {kind}")
        return array if array.flags.writeable else array.copy()


class GuardedExecutable:
    """An executable of somebody else's, which cannot write into arrays that it is given, and whose
    results are counted."""

    def __init__(self, executable: Executable, what: str, count: int) -> None:
        self._inner = executable
        self._what = what
        self._count = count

    def execute(
        self, inputs: Sequence[Storage], *, seed: int = 0, observer: Observer | None = None
    ) -> list[Storage]:
        given = [_read_only(x) if type(x) is np.ndarray else x for x in inputs]
        with blaming(self._what, "execute"):
            results = self._inner.execute(given, seed=seed, observer=observer)
        if not isinstance(results, list | tuple):
            raise PluginFault(
                self._what, f"answers {described(results)} instead of a list of results"
            )
        if len(results) != self._count:
            raise PluginFault(
                self._what, f"answers {len(results)} results instead of {self._count}"
            )
        return list(results)


def _read_only(array: Array) -> Array:
    """A view through which the caller's elements cannot be changed."""
    view = array.view()
    view.flags.writeable = False
    return view
