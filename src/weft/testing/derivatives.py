"""Derivatives of programs compared with differences of what they compute.

For random directions, `<vjp(u), v>` and `<u, jvp(v)>` are both compared with `<u, d/dt f(x + t v)>`
at `t = 0`, which is found from four evaluations in f64. Complex numbers count as pairs of real
ones. The second order is the first order of the vjp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.driver.execute import run
from weft.foundation.dtypes import CF64, F64, DType, as_dtype
from weft.foundation.errors import UserError
from weft.ptir.gradient import jvp, vjp
from weft.ptir.ir import Program
from weft.ptir.types import leaves
from weft.ptir.verify import verify

Array = NDArray[Any]
STEP = 2.0**-9
DIRECTIONS = 2


@dataclass(frozen=True)
class DerivativeErrors:
    """The largest errors found, relative to the size of the derivative (at least 1)."""

    reverse: float
    forward: float

    @property
    def worst(self) -> float:
        return max(self.reverse, self.forward)


def derivative_errors(
    program: Program,
    inputs: Sequence[Array],
    wrt: Sequence[int] | None = None,
    *,
    order: int = 1,
    seed: int = 0,
    step: float = STEP,
) -> DerivativeErrors:
    """How far the derivatives of a program by the inputs `wrt` (default: all of f64 and cf64) are
    from differences, at `inputs`."""
    arrays = [np.asarray(array) for array in inputs]
    chosen = [i for i, a in enumerate(arrays) if _is_exact(a)] if wrt is None else list(wrt)
    if not chosen or not all(_is_exact(arrays[i]) for i in chosen):
        raise UserError("differences are taken of f64 and cf64 inputs only")
    source = np.random.default_rng([seed, order])
    adjoint, tangent = vjp(program, chosen), jvp(program, chosen)
    for made in (adjoint, tangent):
        verify(made)
    if order > 1:
        seeds = directions(source, _like_results(program, arrays, seed))
        everything = [*chosen, *range(len(arrays), len(arrays) + len(seeds))]
        return derivative_errors(
            adjoint, [*arrays, *seeds], everything, order=order - 1, seed=seed, step=step
        )
    found = [
        _compare_direction(program, adjoint, tangent, arrays, chosen, source, seed, step)
        for _ in range(DIRECTIONS)
    ]
    return DerivativeErrors(max(e.reverse for e in found), max(e.forward for e in found))


def _compare_direction(
    program: Program,
    adjoint: Program,
    tangent: Program,
    arrays: list[Array],
    chosen: list[int],
    source: np.random.Generator,
    seed: int,
    step: float,
) -> DerivativeErrors:
    """The errors along one random direction, seen from one random cotangent."""
    seeds = directions(source, _like_results(program, arrays, seed))
    direction = directions(source, [arrays[i] for i in chosen])

    def moved(distance: float) -> float:
        inputs = list(arrays)
        for index, part in zip(chosen, direction, strict=True):
            inputs[index] = arrays[index] + distance * part
        found = smooth_arrays(run(program, inputs, backend="reference", seed=seed))
        # The maximum of nothing is infinite, and stays so.
        return inner(seeds, [np.where(np.isfinite(array), array, 0) for array in found])

    def difference(distance: float) -> float:
        return (moved(distance) - moved(-distance)) / (2 * distance)

    exact = (4 * difference(step / 2) - difference(step)) / 3
    back = run(adjoint, [*arrays, *seeds], backend="reference", seed=seed)[-len(chosen) :]
    ahead = run(tangent, [*arrays, *direction], backend="reference", seed=seed)[-len(seeds) :]
    scale = max(1.0, abs(exact))
    return DerivativeErrors(
        _error(inner(direction, back), exact, scale), _error(inner(seeds, ahead), exact, scale)
    )


def _error(found: float, exact: float, scale: float) -> float:
    error = abs(found - exact) / scale
    return float("inf") if np.isnan(error) else error


def _is_exact(array: Array) -> bool:
    return _dtype_of_array(array) in (F64, CF64)


def _dtype_of_array(array: Array) -> DType:
    return as_dtype(array.dtype)


def smooth_arrays(arrays: Sequence[Array]) -> list[Array]:
    """Those that have derivatives."""
    return [a for a in arrays if _dtype_of_array(a).is_float or _dtype_of_array(a).is_complex]


def _like_results(program: Program, arrays: Sequence[Array], seed: int) -> list[Array]:
    """Arrays of the types of the results that have derivatives."""
    if not any(True for kind in program.main.results for _ in leaves(kind)):
        raise UserError("the program has no results")
    return smooth_arrays(run(program, list(arrays), backend="reference", seed=seed))


def directions(source: np.random.Generator, likes: Sequence[Array]) -> list[Array]:
    """Random arrays of the same types."""
    made = []
    for like in likes:
        parts = source.standard_normal((2, *like.shape))
        value = parts[0] + 1j * parts[1] if _dtype_of_array(like).is_complex else parts[0]
        made.append(np.asarray(value).astype(like.dtype))
    return made


def inner(left: Sequence[Array], right: Sequence[Array]) -> float:
    """The inner product of lists of arrays, complex numbers taken as pairs."""
    return sum(float(np.real(np.vdot(a, b))) for a, b in zip(left, right, strict=True) if a.size)
