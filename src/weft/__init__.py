"""Weft, a deep-learning compiler: portable tensor programs, verified, and run on any backend.

The names below are loaded when they are first used, so that `import weft` costs little more than
NumPy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from weft.foundation.forks import no_fork as _no_fork

if TYPE_CHECKING:
    from weft import core_ir, ptir
    from weft.bundles.build import build
    from weft.bundles.load import load_bundle
    from weft.driver.compile import compile_program as compile  # noqa: A004
    from weft.driver.compile import explain
    from weft.driver.execute import run
    from weft.driver.tuning.farm import tune_program as tune
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
    from weft.interop.safetensors import load, load_metadata, save
    from weft.ops.namespace import *  # noqa: F403

__version__ = "0.1.0"

_ERRORS = "weft.foundation.errors"
_HOMES = {
    "build": ("weft.bundles.build", "build"),
    "compile": ("weft.driver.compile", "compile_program"),
    "explain": ("weft.driver.compile", "explain"),
    "load": ("weft.interop.safetensors", "load"),
    "load_bundle": ("weft.bundles.load", "load_bundle"),
    "load_metadata": ("weft.interop.safetensors", "load_metadata"),
    "run": ("weft.driver.execute", "run"),
    "save": ("weft.interop.safetensors", "save"),
    "tune": ("weft.driver.tuning.farm", "tune_program"),
    "ExecutionError": (_ERRORS, "ExecutionError"),
    "InternalError": (_ERRORS, "InternalError"),
    "ResourceExceeded": (_ERRORS, "ResourceExceeded"),
    "SpecViolation": (_ERRORS, "SpecViolation"),
    "Unimplemented": (_ERRORS, "Unimplemented"),
    "UserError": (_ERRORS, "UserError"),
    "WeftError": (_ERRORS, "WeftError"),
    "WeftWarning": (_ERRORS, "WeftWarning"),
}
_OPS = "weft.ops.namespace"
"""The home of every name of the ops layer: tensors, functions, dtypes."""
_PACKAGES = ("coarse", "core_ir", "ptir")
_OPTIONAL = ("jax", "onnx", "torch")
"""Modules that need a package which is not always there; `dir` does not list them."""

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
    "build",
    "compile",
    "core_ir",
    "explain",
    "load",
    "load_bundle",
    "load_metadata",
    "ptir",
    "run",
    "save",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its home."""
    if name in _PACKAGES + _OPTIONAL:
        return _import_whole(f"weft.{name}")
    home, attribute = _HOMES.get(name, (_OPS, name))
    if name.startswith("__") and not name.startswith("__array"):
        raise AttributeError(f"module 'weft' has no attribute {name!r}")
    if home == _OPS and not hasattr(_import_whole(_OPS), name):
        raise _import_whole(_OPS).missing(name, __dir__())
    value = getattr(_import_whole(home), attribute)
    globals()[name] = value
    return value


def _import_whole(module: str) -> Any:
    """A module, whole: no process that is forked meanwhile has half of it."""
    with _no_fork:
        return importlib.import_module(module)


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*__all__, *_HOMES, *_PACKAGES, *_import_whole(_OPS).__all__})
