"""What becomes of a hostile file: it is loaded, verified, and run if it verifies.

The verdict is "ok", the code of the violation, or the name of another error that Weft raises on
purpose. Anything else is a `Crash`: another exception, an `InternalError`, or a complaint so long
that nobody can read it.
"""

from __future__ import annotations

import warnings

import numpy as np

import weft
from tests.support import Array
from weft.foundation.dims import Dim
from weft.foundation.errors import InternalError, SpecViolation, WeftError
from weft.ptir import Program, loads, verify
from weft.ptir.types import leaves

LONGEST_COMPLAINT = 4_000
DYNAMIC_SIZE = 2


class Crash(AssertionError):
    """What must never happen."""


def verdict(data: bytes | str) -> str:
    """The outcome of loading, verifying and running `data`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.WeftWarning)
            program = loads(data)
        verify(program)
        weft.run(program, inputs(program))
    except WeftError as error:
        return _code(error)
    except Exception as error:
        raise Crash(f"{type(error).__name__}: {str(error)[:300]}") from error
    return "ok"


def _code(error: WeftError) -> str:
    if isinstance(error, InternalError):
        raise Crash(str(error)[:300]) from error
    if len(str(error)) > LONGEST_COMPLAINT:
        raise Crash(f"a complaint of {len(str(error))} characters: {str(error)[:100]}")
    return error.code if isinstance(error, SpecViolation) else type(error).__name__


def inputs(program: Program) -> list[Array]:
    """Ones for every input, without memory of their own: a huge input costs its owner nothing."""
    tensors = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    return [np.broadcast_to(np.ones((), t.dtype.numpy), list(map(_size, t.shape))) for t in tensors]


def _size(dim: Dim) -> int:
    return dim if isinstance(dim, int) else DYNAMIC_SIZE
