"""Core IR modules on any backend: what goes wrong with a lowered module, in Core IR's own codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from weft.core_ir.to_ptir import core_violation
from weft.foundation.errors import BackendUnavailable, SpecViolation
from weft.ptir.ir import Program


@contextmanager
def in_core_words(program: Program) -> Iterator[None]:
    """What goes wrong inside is about the module that `program` was lowered from."""
    try:
        yield
    except SpecViolation as error:
        raise core_violation(error, program) from None
    except BackendUnavailable as error:
        raise BackendUnavailable(f"E6002: {error}") from None
