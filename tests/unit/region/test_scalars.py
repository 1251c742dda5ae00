"""Programs of very many numbers: a few kernels compute them all."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.ptir import Builder, Program
from weft.region.fusion.merge import MANY


def numbers(count: int) -> Program:
    """Results that have nothing to do with one another, each of a kernel of its own otherwise."""
    b = Builder()
    values = [b.param("f32") for _ in range(count)]
    return b.build(*[b.tanh(x) * (1.5 + n) for n, x in enumerate(values)])


@pytest.mark.parametrize(
    ("count", "kernels"), one_in(2, [(MANY - 1, MANY - 1), (MANY, 2), (8 * MANY, 10)], unpack=True)
)
def test_very_many_numbers_are_computed_by_few_kernels(count: int, kernels: int) -> None:
    program = numbers(count)
    made = weft.compile(program)
    assert made.stages["region"].count('"pattern"') <= kernels
    given = [np.float32(0.01 * n) for n in range(count)]
    found = made(*given)
    wanted = weft.run(program, given, backend="reference")
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_numbers_that_follow_from_others_come_after_them() -> None:
    b = Builder()
    values = [b.param("f32") for _ in range(2 * MANY)]
    first = [b.tanh(x) for x in values]
    second = [a * b_ for a, b_ in pairwise(first)]
    program = b.build(*first, *second)
    given = [np.float32(0.01 * n) for n in range(len(values))]
    found = weft.compile(program)(*given)
    np.testing.assert_allclose(found, weft.run(program, given, backend="reference"), rtol=1e-6)


def test_a_table_of_tensors_of_one_number() -> None:
    rows = [[weft.asarray(float(8 * i + j)) * 1.5 for j in range(8)] for i in range(8)]
    table = weft.asarray(rows).numpy()
    assert table.tolist() == (np.arange(64).reshape(8, 8) * 1.5).tolist()
