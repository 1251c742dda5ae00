"""What becomes of a hostile file: it is loaded, verified, and run if it verifies.

The verdict is "ok", the code of the violation, or the name of another error that Weft raises on
purpose. Anything else is a `Crash`: another exception, an `InternalError`, or a complaint so long
that nobody can read it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import weft
from tests.support.one_op import Array
from weft.foundation.dims import Dim
from weft.foundation.errors import InternalError, SpecViolation, WeftError
from weft.interop import onnx
from weft.ptir import Program, loads, verify
from weft.ptir.types import leaves

LONGEST_COMPLAINT = 4_000
DYNAMIC_SIZE = 2
MOST_ELEMENTS = 1_000_000


class Crash(AssertionError):
    """What must never happen."""


def verdict(data: bytes | str, next_phase: Callable[[], object] = int) -> str:
    """The outcome of loading, verifying and running `data`; before each, `next_phase` is called."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.WeftWarning)
            return _outcome(data, next_phase)
    except WeftError as error:
        return _code(error)
    except Exception as error:
        raise Crash(f"{type(error).__name__}: {str(error)[:300]}") from error


def model_verdict(data: Any, next_phase: Callable[[], object] = int) -> str:
    """The outcome of loading an ONNX model, and running it with ones."""
    try:
        next_phase()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", weft.WeftWarning)
            model = onnx.load(data)
        next_phase()
        made = model(*[np.ones((2, 3), np.float32) for _ in model.inputs])
        weft.eval([each for each in made.values() if each is not None])
    except WeftError as error:
        return _code(error)
    except Exception as error:
        raise Crash(f"{type(error).__name__}: {str(error)[:300]}") from error
    return "ok"


def _outcome(data: bytes | str, next_phase: Callable[[], object]) -> str:
    next_phase()
    program = loads(data)
    next_phase()
    findings = verify(program, collect=True)
    if findings:
        raise SpecViolation.of(findings[:1])
    next_phase()
    weft.run(program, inputs(program))
    return "ok"


def _code(error: WeftError) -> str:
    if isinstance(error, InternalError):
        raise Crash(str(error)[:300]) from error
    if len(str(error)) > LONGEST_COMPLAINT:
        raise Crash(f"a complaint of {len(str(error))} characters: {str(error)[:100]}")
    return error.code if isinstance(error, SpecViolation) else type(error).__name__


def inputs(program: Program) -> list[Array]:
    """Ones for every input; none at all where that would be too many."""
    tensors = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    shapes = [[_size(dim) for dim in tensor.shape] for tensor in tensors]
    if any(math.prod(shape) > MOST_ELEMENTS for shape in shapes):
        return []
    return [np.ones(shape, t.dtype.numpy) for t, shape in zip(tensors, shapes, strict=True)]


def _size(dim: Dim) -> int:
    return dim if isinstance(dim, int) else DYNAMIC_SIZE
