"""Matrix products, linear layers and einsum against NumPy in f64."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from tests.support.cases import each
from tests.support.tensors import DTYPES, agrees, data, wide
from weft import functional
from weft.foundation.dtypes import DType

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""

Shape = tuple[int, ...]

PAIRS: list[tuple[Shape, Shape]] = [
    ((3, 4), (4, 5)),
    ((4,), (4,)),
    ((4,), (4, 5)),
    ((3, 4), (4,)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4,)),
    ((3, 4), (2, 4, 5)),
    ((0, 4), (4, 3)),
    ((3, 0), (0, 2)),
    ((2, 3, 4), (1, 4, 1)),
]


@each("dtype", DTYPES)
@each(("left", "right"), PAIRS)
def test_matmul(left: Shape, right: Shape, dtype: DType) -> None:
    a, b = data(left, dtype, 1), data(right, dtype, 2)
    exact = np.matmul(wide(a), wide(b))
    agrees(F.matmul(weft.asarray(a), weft.asarray(b)), exact, dtype)
    agrees(weft.asarray(a) @ weft.asarray(b), exact, dtype)
    if max(len(left), len(right)) > 2:
        with F.overrides({"matmul": "force=batched"}):
            agrees(F.matmul(weft.asarray(a), weft.asarray(b)), exact, dtype)


def test_matmul_promotes() -> None:
    a, b = data((2, 3), "f16"), data((3, 2), "f32")
    agrees(F.matmul(weft.asarray(a), weft.asarray(b)), wide(a) @ wide(b), "f32")


def test_matmul_of_integers_is_exact() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (4, 6)), rng.integers(-9, 9, (6, 3))
    np.testing.assert_array_equal(F.matmul(weft.asarray(a), weft.asarray(b)).numpy(), a @ b)


@each("dtype", DTYPES)
@each("bias", [False, True])
@each("shape", [(4,), (3, 4), (2, 3, 4), (0, 4)])
def test_linear(shape: Shape, bias: bool, dtype: DType) -> None:
    x, weight, shift = data(shape, dtype), data((5, 4), dtype, 1), data((5,), dtype, 2)
    exact = wide(x) @ wide(weight).T + (wide(shift) if bias else 0)
    given = weft.asarray(shift) if bias else None
    agrees(F.linear(weft.asarray(x), weft.asarray(weight), given), exact, dtype)


EINSUMS: list[tuple[str, list[Shape]]] = [
    ("ij,jk->ik", [(3, 4), (4, 5)]),
    ("ij,jk", [(3, 4), (4, 5)]),
    ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
    ("ij->ji", [(3, 4)]),
    ("ij->", [(3, 4)]),
    ("ij->j", [(3, 4)]),
    ("ii->i", [(4, 4)]),
    ("ii", [(4, 4)]),
    ("iji->j", [(3, 4, 3)]),
    ("i,j->ij", [(3,), (4,)]),
    ("i,i", [(5,), (5,)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
    ("...ij,...jk->...ik", [(2, 1, 3, 4), (6, 4, 5)]),
    ("b...,b...->b...", [(2, 3, 4), (2, 3, 4)]),
    ("...i->...", [(2, 3, 4)]),
    ("bqhd,bkhd->bhqk", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
    ("ab,bc,ac->", [(2, 3), (3, 4), (2, 4)]),
    ("ij,ij,ij->ij", [(2, 3), (2, 3), (2, 3)]),
    ("i,i,i->i", [(4,), (4,), (4,)]),
    ("abc,cd->abd", [(2, 0, 3), (3, 4)]),
    (",ij->ij", [(), (2, 3)]),
    ("ij , jk -> k i", [(3, 4), (4, 5)]),
    ("ijk,jil->kl", [(3, 4, 5), (4, 3, 2)]),
    ("ij,kl->", [(2, 3), (4, 5)]),
]


@each(("subscripts", "shapes"), EINSUMS)
def test_einsum(subscripts: str, shapes: list[Shape]) -> None:
    for dtype in DTYPES:
        arrays = [data(shape, dtype, seed) for seed, shape in enumerate(shapes)]
        exact = np.einsum(subscripts, *map(wide, arrays))
        found = F.einsum(subscripts, *map(weft.asarray, arrays))
        agrees(found, np.asarray(exact), dtype, ulps=12)


def test_axes_of_size_one_broadcast_in_einsum() -> None:
    a, b = data((3, 1)), data((4, 5), seed=1)
    agrees(F.einsum("ij,jk->ik", a, b), wide(a) * wide(b).sum(0))


def test_einsum_promotes_and_takes_integers() -> None:
    a: Any = np.arange(6).reshape(2, 3)
    assert F.einsum("ij->i", weft.asarray(a)).numpy().tolist() == [3, 12]
    mixed = F.einsum("ij,j->i", weft.asarray(a), weft.asarray(np.ones(3, np.float32)))
    agrees(mixed, np.asarray([3.0, 12.0]))
