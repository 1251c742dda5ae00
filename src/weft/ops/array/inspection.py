"""What the namespace can do, asked by programs: `weft.__array_namespace_info__()`."""

from __future__ import annotations

from typing import Any

from weft.driver.backends import backend_names, default_backend
from weft.foundation.dtypes import SI64, DType
from weft.foundation.errors import UserError
from weft.foundation.limits import Limits
from weft.ops.array.data_types import KINDS, STANDARD
from weft.ops.calls import public
from weft.ops.graph.context import backend_named
from weft.ops.promotion import DEFAULT_COMPLEX, DEFAULT_FLOAT, DEFAULT_INTEGER

__all__ = ["__array_namespace_info__"]


class NamespaceInfo:
    """The answers."""

    def capabilities(self) -> dict[str, Any]:
        """Boolean masks and shapes that depend on data work outside traced functions."""
        return {
            "boolean indexing": True,
            "data-dependent shapes": True,
            "max dimensions": Limits.rank,
        }

    def default_device(self) -> str:
        """The backend of new tensors."""
        return default_backend()

    def devices(self) -> list[str]:
        """The backends that hold tensors in the memory of this process; `cuda` is listed where it
        is the default."""
        default = default_backend()
        return [name for name in backend_names() if name != "cuda" or name == default]

    def default_dtypes(self, *, device: str | None = None) -> dict[str, DType]:
        """The dtypes of Python numbers and of positions."""
        return {
            "real floating": DEFAULT_FLOAT,
            "complex floating": DEFAULT_COMPLEX,
            "integral": DEFAULT_INTEGER,
            "indexing": SI64,
        }

    def dtypes(
        self, *, device: str | None = None, kind: str | tuple[str, ...] | None = None
    ) -> dict[str, DType]:
        """The dtypes of the standard that a backend holds, all or those of a kind."""
        held = backend_named(device or default_backend()).dtypes
        kinds = tuple(KINDS) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        for word in kinds:
            if word not in KINDS:
                raise UserError(f"unknown kind {word!r}; the kinds are {', '.join(KINDS)}")
        wanted = frozenset[DType]().union(*(KINDS[word] for word in kinds))
        return {name: d for name, d in STANDARD.items() if d in wanted and d in held}


@public
def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807
    """What the namespace can do."""
    return NamespaceInfo()
