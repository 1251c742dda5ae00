"""Modules of Weft that are imported when they are first needed.

Whoever compiles nothing needs none of the compiler's packages; whoever compiles and lacks one is
told which.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from weft.foundation.errors import BackendUnavailable
from weft.foundation.forks import no_fork

_OWN_PACKAGE = __name__.partition(".")[0]


def load_part(module: str) -> ModuleType:
    """One of Weft's own modules."""
    try:
        with no_fork:
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or _OWN_PACKAGE).partition(".")[0]
        if package == _OWN_PACKAGE:
            raise
        raise BackendUnavailable(
            f"compiling programs needs the package {package}, which is not installed: pip install "
            f"{package}, or choose the backend that compiles nothing with WEFT_BACKEND=reference"
        ) from None
