"""Programs whose dynamic dims are filled up with garbage give the same real elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from weft.foundation.dtypes import as_dtype
from weft.ptir import verify
from weft.ptir.padding.program import pad_dims
from weft.ptir.specialise import bind_shapes, settled_sizes, specialise
from weft.ptir.types import leaves
from weft.testing import RandomCase, random_program

Array = NDArray[Any]
ON_CPU = ["add", "mul", "div", "exp", "maximum", "select", "compare", "reduce_sum", "reduce_max"]
ON_CPU += ["dot_general", "take", "reshape", "transpose", "broadcast_to", "concat"]
SHARES = 8
SEEDS = 25


def garbage(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """Any bits that the dtype has: NaN and infinities among them."""
    kind = as_dtype(dtype)
    if kind.bits < 8:
        return rng.integers(0, 2, shape).astype(dtype)
    raw = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    return np.asarray(raw.reshape(-1).view(dtype).reshape(shape))


def filled(case: RandomCase, sizes: dict[str, int], rng: np.random.Generator) -> list[Array]:
    """The inputs of a case for larger sizes."""
    found = []
    kinds = [leaf for kind in case.program.main.parameters for leaf in leaves(kind)]
    for x, kind in zip(case.inputs, kinds, strict=True):
        shape = tuple(d if isinstance(d, int) else sizes[d.name] for d in kind.shape)
        wide = np.array(garbage(rng, shape, x.dtype))
        wide[tuple(map(slice, x.shape))] = x
        found.append(wide)
    return found


def agree(case: RandomCase, backend: str) -> bool:
    """Whether something was filled up; the results are compared."""
    program = case.program
    sizes = bind_shapes(program.main.parameters, [x.shape for x in case.inputs])
    if not sizes or 0 in sizes.values():
        return False
    made = pad_dims(program, sizes)
    if not made.padded:
        assert made.refused.keys() == sizes.keys()
        return False
    verify(made.program)
    rng = np.random.default_rng(case.seed)
    room = {n: s + int(rng.integers(0, 5)) if n in made.padded else s for n, s in sizes.items()}
    real = settled_sizes(made.program, specialise(made.program, sizes))
    try:
        wide = specialise(made.program, room)
    except weft.SpecViolation:
        return False  # the sizes must agree with fixed ones: then they are exact
    told = [np.int64(real[name]) for name in made.sizes]
    expected = weft.run(program, case.inputs, seed=3)
    with np.errstate(all="ignore"):
        found = weft.run(wide, [*filled(case, room, rng), *told], seed=3, backend=backend)
    for want, got in zip(expected, found, strict=True):
        compare(np.asarray(got[tuple(map(slice, want.shape))]), want)
    return True


def compare(found: Array, expected: Array) -> None:
    kind = as_dtype(expected.dtype)
    assert found.shape == expected.shape
    if not (kind.is_float or kind.is_complex):
        np.testing.assert_array_equal(found, expected)
        return
    wide = np.complex128 if kind.is_complex else np.float64
    bound = {8: 0.2, 16: 2e-2}.get(kind.bits, 1e-4)
    np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=bound, atol=bound)


@pytest.mark.parametrize("share", one_in(3, range(SHARES)))
def test_random_programs_on_the_reference(share: int) -> None:
    seeds = range(share, SHARES * SEEDS, SHARES)
    assert sum(agree(random_program(seed, 12), "reference") for seed in seeds) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("share", range(SHARES))
def test_more_random_programs_on_the_reference(share: int) -> None:
    seeds = range(1_000 + share, 3_000, SHARES)
    assert sum(agree(random_program(seed, 14), "reference") for seed in seeds) >= 30


def test_random_programs_on_the_cpu() -> None:
    cases = [random_program(seed, 8, ops=ON_CPU, dtypes=["f32", "si32", "i1"]) for seed in range(9)]
    assert sum(agree(case, "cpu") for case in cases) >= 3
