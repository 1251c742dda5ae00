"""Weft, a deep-learning compiler: portable tensor programs, verified, and run on any backend.

The names below are loaded when they are first used, so that `import weft` costs little more than NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft import ptir
    from weft.driver.execute import run
    from weft.foundation.errors import (
        ExecutionError,
        InternalError,
        ResourceExceeded,
        SpecViolation,
        Unimplemented,
        UserError,
        WeftError,
        WeftWarning,
    )

__version__ = "0.1.0"

_HOMES = {
    "ptir": "weft.ptir",
    "run": "weft.driver.execute",
    "ExecutionError": "weft.foundation.errors",
    "InternalError": "weft.foundation.errors",
    "ResourceExceeded": "weft.foundation.errors",
    "SpecViolation": "weft.foundation.errors",
    "Unimplemented": "weft.foundation.errors",
    "UserError": "weft.foundation.errors",
    "WeftError": "weft.foundation.errors",
    "WeftWarning": "weft.foundation.errors",
}

__all__ = [
    "ExecutionError",
    "InternalError",
    "ResourceExceeded",
    "SpecViolation",
    "Unimplemented",
    "UserError",
    "WeftError",
    "WeftWarning",
    "__version__",
    "ptir",
    "run",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    module = importlib.import_module(home)
    value = module if home == f"weft.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
