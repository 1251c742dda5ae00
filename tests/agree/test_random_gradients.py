"""Random programs: what differentiation and batching make of them verifies, computes the same
results, and both modes of derivatives are adjoint to each other."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.one_op import bits
from weft.foundation.dtypes import CF64, F64
from weft.foundation.errors import Unimplemented
from weft.ptir import Program, jvp, verify, vjp, vmap
from weft.ptir.ir import Ref
from weft.ptir.ops.linear_algebra import Eigh
from weft.ptir.slots import is_smooth
from weft.ptir.types import TensorType, leaves
from weft.testing import random_program, widen_arrays, widen_program
from weft.testing.derivatives import Array, directions, inner, smooth_arrays

FEW, MANY = range(60), range(60, 4000)
SIZE = 8


def smooth_parameters(program: Program) -> list[int]:
    kinds = enumerate(program.main.parameters)
    return [i for i, kind in kinds if isinstance(kind, TensorType) and is_smooth(kind)]


def has_smooth_results(program: Program) -> bool:
    return any(is_smooth(leaf) for kind in program.main.results for leaf in leaves(kind))


def is_exact(program: Program) -> bool:
    """Whether all floats are f64: then derivatives do not round on their way."""
    kinds = [i.output for body in program.bodies for i in body.body] + list(program.main.parameters)
    found = [leaf.dtype for kind in kinds for leaf in leaves(kind)]
    return all(d in (F64, CF64) for d in found if d.is_float or d.is_complex)


def unchanged(program: Program, inputs: list[Array]) -> bool | None:
    """Whether the results of a program are the first ones of its vjp, bit for bit; None where the
    program has no vjp."""
    wanted = smooth_parameters(program)
    if not wanted or not has_smooth_results(program):
        return None
    try:
        made = vjp(program, wanted)
    except Unimplemented:
        return None
    verify(made)
    results = weft.run(program, inputs, backend="reference")
    seeds = [np.ones_like(a) for a in smooth_arrays(results)]
    found = weft.run(made, [*inputs, *seeds], backend="reference")
    return all(bits(a) == bits(b) for a, b in zip(results, found, strict=False))


def has_repeated_eigenvalues(program: Program, inputs: list[Array]) -> bool:
    """Whether a matrix has equal eigenvalues: its eigenvectors have no derivative then, and what is
    computed for one is made of rounding errors."""
    taken = [i.operands[0] for i in program.main.body if isinstance(i.op, Eigh)]
    given = [ref.id for ref in taken if isinstance(ref, Ref) and ref.id < len(inputs)]
    values = [np.linalg.eigvalsh(inputs[number]) for number in given if inputs[number].size]
    return any(bool((np.diff(v) < 1e-6).any()) for v in values)


def adjoint_error(program: Program, inputs: list[Array], seed: int) -> float | None:
    """How far `<u, jvp(v)>` is from `<vjp(u), v>`, relative to the terms that they add up; None
    where there is nothing to compare."""
    wanted = smooth_parameters(program)
    if len(inputs) != len(program.main.parameters) or not is_exact(program) or not wanted:
        return None
    if has_repeated_eigenvalues(program, inputs):
        return None
    try:
        adjoint, tangent = vjp(program, wanted), jvp(program, wanted)
    except Unimplemented:
        return None
    verify(tangent)
    source = np.random.default_rng(seed)
    seeds = directions(source, smooth_arrays(weft.run(program, inputs, backend="reference")))
    moves = directions(source, [inputs[i] for i in wanted])
    back = weft.run(adjoint, [*inputs, *seeds], backend="reference")[-len(wanted) :]
    ahead = (
        weft.run(tangent, [*inputs, *moves], backend="reference")[-len(seeds) :] if seeds else []
    )
    left, right = inner(moves, back), inner(seeds, ahead)
    size = sum(
        inner([np.abs(a)], [np.abs(b)])
        for a, b in [*zip(moves, back, strict=True), *zip(seeds, ahead, strict=True)]
    )
    return abs(left - right) / size if np.isfinite(size) and size > 1e-12 else None


def check(numbers: range) -> None:
    compared = adjoint = 0
    for seed in numbers:
        case = random_program(seed, SIZE)
        same = unchanged(case.program, case.inputs)
        assert same is not False, f"the results change under vjp, seed {seed}"
        compared += same is not None
        wide = widen_program(case.program)
        error = adjoint_error(wide, widen_arrays(case.inputs), seed)
        assert error is None or error < 1e-6, f"jvp and vjp disagree by {error}, seed {seed}"
        adjoint += error is not None
    assert compared > 0.7 * len(numbers)
    assert adjoint > 0.4 * len(numbers)


def test_random_programs_and_their_derivatives() -> None:
    check(FEW)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_many_random_programs_and_their_derivatives(part: int) -> None:
    check(range(MANY.start + part, MANY.stop, 8))


def batched(program: Program, inputs: list[Array]) -> bool | None:
    """Whether a batch of two equal values gives every result twice; None where it is refused."""
    if len(inputs) != len(program.main.parameters):
        return None
    try:
        made = vmap(program, 2)
    except Unimplemented:
        return None
    verify(made)
    results = weft.run(program, inputs, backend="reference")
    found = weft.run(made, [np.stack([a, a]) for a in map(np.asarray, inputs)], backend="reference")
    return all(
        bits(twice[0]) == bits(twice[1]) and _close(once, twice[0])
        for once, twice in zip(results, found, strict=True)
    )


def _close(once: Array, other: Array) -> bool:
    """Equal but for the order in which sums add up."""
    a, b = (np.asarray(x).astype(np.complex128) for x in (once, other))
    return bool(np.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True))


def test_random_programs_in_batches() -> None:
    done = 0
    for seed in FEW:
        case = random_program(seed, SIZE)
        same = batched(case.program, case.inputs)
        assert same is not False, f"a batch differs from its values, seed {seed}"
        done += same is not None
    assert done > 0.5 * len(FEW)
