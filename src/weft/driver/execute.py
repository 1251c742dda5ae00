"""`weft.run`: verify a program, check the inputs, bind its dims, legalise it, and carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.core_ir.ir import Module
from weft.core_ir.to_ptir import to_ptir
from weft.driver.backends import DEFAULT, Backend, Executable, Storage, get_backend
from weft.driver.core_modules import in_core_words
from weft.driver.guard import guarded
from weft.driver.legalise import legalise
from weft.driver.plugins import described
from weft.foundation.errors import ResourceExceeded, UserError
from weft.ptir.interp import Observer
from weft.ptir.ir import Program
from weft.ptir.passes.log import PassLog
from weft.ptir.specialise import bind_shapes, specialise
from weft.ptir.types import TensorType, leaves
from weft.ptir.verify import verify

Array = NDArray[Any]
MAX_SEED = 2**64 - 1


def run(
    program: Program | Module,
    inputs: Sequence[Any] = (),
    *,
    backend: str | Backend = DEFAULT,
    seed: int = 0,
    observer: Observer | None = None,
    log: PassLog | None = None,
) -> list[Array]:
    """Run a program. Inputs and results are flat lists: tuples are flattened in order.

    A Core IR module is lowered to PTIR first, and what goes wrong is told in its own codes.

    Arrays must have exactly the declared dtype; Python numbers and lists are converted where that
    loses nothing. `backend` is a name or a backend itself. `seed` (64 bits) feeds the random ops.
    `observer` is told the time of every instruction, on backends that run one at a time. `log` is
    told which ops were decomposed for the backend.
    """
    if isinstance(program, Module):
        lowered = to_ptir(program)
        with in_core_words(lowered):
            return run(lowered, inputs, backend=backend, seed=seed, observer=observer, log=log)
    if not isinstance(program, Program):
        raise UserError(f"run takes a program, not {type(program).__name__}")
    seed = check_seed(seed)
    if not isinstance(backend, str) and not hasattr(backend, "compile"):
        raise UserError(f"{described(backend)} is neither the name of a backend nor a backend")
    chosen = guarded(get_backend(backend) if isinstance(backend, str) else backend)
    try:
        return _run(program, inputs, chosen, seed, observer, log)
    except MemoryError:
        raise ResourceExceeded(f"out of memory while running @{program.entry}") from None


def _run(
    program: Program,
    inputs: Sequence[Any],
    chosen: Backend,
    seed: int,
    observer: Observer | None,
    log: PassLog | None,
) -> list[Array]:
    verify(program)
    arrays = check_inputs(program, inputs)
    sizes = bind_shapes(program.main.parameters, [array.shape for array in arrays])
    concrete = specialise(program, sizes)
    executable = chosen.compile(legalise(concrete, chosen, log))
    inputs = [chosen.store(array) for array in arrays]
    results = executable.execute(inputs, seed=seed, observer=observer)
    kinds = [leaf for kind in concrete.main.results for leaf in leaves(kind)]
    return [chosen.read_storage(x, kind) for x, kind in zip(results, kinds, strict=True)]


@dataclass(frozen=True)
class Prepared:
    """A program that was verified, legalised and compiled once, for any number of runs."""

    program: Program
    backend: Backend
    executable: Executable

    def execute(self, inputs: Sequence[Storage], *, seed: int = 0) -> list[Storage]:
        """The flattened results for flattened inputs, as the backend stores them."""
        return self.executable.execute(inputs, seed=seed)


def prepare(program: Program, backend: Backend) -> Prepared:
    """Make a program without dynamic dims ready to run on tensors that the backend holds."""
    verify(program)
    backend = guarded(backend)
    return Prepared(program, backend, backend.compile(legalise(program, backend)))


def check_seed(seed: Any) -> int:
    """A seed as a plain number of 64 bits."""
    whole = hasattr(seed, "__index__") and not isinstance(seed, bool)
    if not whole or not 0 <= int(seed) <= MAX_SEED:
        raise UserError(f"seed {described(seed)} is not a whole number from 0 to 2^64 - 1")
    return int(seed)


def check_inputs(program: Program, inputs: Sequence[Any]) -> list[Array]:
    """The inputs as arrays of the declared types, or a sentence about the first that is wrong."""
    wanted = [leaf for kind in program.main.parameters for leaf in leaves(kind)]
    if isinstance(inputs, np.ndarray | str | dict) or not isinstance(inputs, Sequence):
        found = type(inputs).__name__
        raise UserError(f"inputs must be a list with {len(wanted)} arrays, not {found}")
    if len(inputs) != len(wanted):
        signature = ", ".join(map(str, wanted)) or "nothing"
        raise UserError(
            f"@{program.entry} takes {len(wanted)} inputs ({signature}) but got {len(inputs)}"
        )
    pairs = zip(inputs, wanted, strict=True)
    return [_array(index, value, kind) for index, (value, kind) in enumerate(pairs)]


def _array(index: int, value: Any, kind: TensorType) -> Array:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise UserError(f"input {index} is not an array: {error}") from None
    if array.dtype != kind.dtype.numpy:
        if isinstance(value, np.ndarray | np.generic):
            raise UserError(
                f"input {index} has dtype {array.dtype}, but the program takes {kind}; "
                f"convert it with .astype first"
            )
        array = _convert(index, array, kind)
    if array.ndim != kind.rank or not all(
        size == dim or not isinstance(dim, int)
        for size, dim in zip(array.shape, kind.shape, strict=False)
    ):
        raise UserError(
            f"input {index} has shape {list(array.shape)}, but the program takes {kind}"
        )
    return array


def _convert(index: int, array: Array, kind: TensorType) -> Array:
    """A Python number or list in the declared dtype; only floats may be rounded."""
    dtype = kind.dtype
    if array.dtype.kind not in ("biufc" if dtype.is_complex else "biuf"):
        raise UserError(f"input {index} cannot become {kind}")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype.numpy)
        exact = np.array_equal(converted.astype(object), array.astype(object))
    if not exact and not (dtype.is_float or dtype.is_complex):
        raise UserError(f"input {index} has values that {dtype} cannot hold")
    return converted
