"""Checks of the inputs of a run: they must have the declared types, and are converted where that
loses nothing.

An array that is just right is told by a few comparisons; everything else takes the long way, which
ends in an array or in a sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.driver.loading.plugins import described
from weft.foundation.arrays import handed_in
from weft.foundation.errors import UserError
from weft.ptir.ir import Program
from weft.ptir.types import TensorType, leaves
from weft.runtime.native import MOST_THREADS

Array = NDArray[Any]
Shapes: TypeAlias = tuple[tuple[int, ...], ...]
MAX_SEED: Final = 2**64 - 1


class ReadyInputs:
    """Tells at once whether values can be used as they are."""

    def __init__(self, kinds: Sequence[TensorType]) -> None:
        self.dtypes = [kind.dtype.numpy for kind in kinds]

    def shapes(self, values: Sequence[Any]) -> Shapes | None:
        """The shapes of values that are arrays of the declared dtypes, each in one piece, row-major
        and aligned; None where one of them is not. What the sizes should be is not looked at."""
        if len(values) != len(self.dtypes):
            return None
        found = []
        for value, dtype in zip(values, self.dtypes, strict=True):
            if type(value) is not np.ndarray or value.dtype != dtype:
                return None
            flags = value.flags
            if not (flags.c_contiguous and flags.aligned):
                return None
            found.append(value.shape)
        return tuple(found)


def in_one_piece(array: Array) -> Array:
    """The array, row-major and aligned: itself if it is, else a copy."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned:
        return array
    return np.require(array, requirements=["C", "A"])


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
    return [check_array(index, value, kind) for index, (value, kind) in enumerate(pairs)]


def check_array(index: int, value: Any, kind: TensorType) -> Array:
    """An input as an array of its declared type."""
    try:
        array = handed_in(value)
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


def check_seed(seed: Any) -> int:
    """A seed as a plain number of 64 bits."""
    if type(seed) is int and 0 <= seed <= MAX_SEED:
        return seed
    whole = hasattr(seed, "__index__") and not isinstance(seed, bool)
    if not whole or not 0 <= int(seed) <= MAX_SEED:
        raise UserError(f"seed {described(seed)} is not a whole number from 0 to 2^64 - 1")
    return int(seed)


def check_threads(threads: Any) -> None:
    """None, or how many threads a run may use."""
    if threads is not None and (type(threads) is not int or not 1 <= threads <= MOST_THREADS):
        raise UserError(
            f"threads is {described(threads)}; it is a number from 1 to {MOST_THREADS}, or None "
            "for all"
        )
