"""Products of groups of rows against a loop over the groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.support.draws import generator
from tests.support.tensors import Array
from weft import functional
from weft.foundation.errors import SpecViolation, UserError

F: Any = functional
"""Arrays and wrong arguments are tried too, which the types would not allow."""
RNG = generator()
SIZES = [(10, 4, 3, 2), (7, 3, 5, 9), (300, 8, 6, 4), (5, 3, 4, 1)]


def by_loop(x: Array, weight: Array, offsets: Array) -> Array:
    result, start = np.zeros((x.shape[0], weight.shape[2])), 0
    for matrix, offset in zip(weight, offsets, strict=True):
        end = max(start, min(int(offset), x.shape[0]))
        result[start:end] = x[start:end].astype(np.float64) @ matrix.astype(np.float64)
        start = end
    return result


def drawn(rows: int, depth: int, columns: int, groups: int) -> tuple[Array, Array, Array]:
    x = RNG.standard_normal((rows, depth)).astype(np.float32)
    weight = RNG.standard_normal((groups, depth, columns)).astype(np.float32)
    return x, weight, np.sort(RNG.integers(0, rows + 1, groups)).astype(np.int32)


@pytest.mark.parametrize("device", ["reference", "cpu"])
@pytest.mark.parametrize("sizes", SIZES)
def test_each_group_is_multiplied_by_its_own_matrix(sizes: Any, device: str) -> None:
    x, weight, offsets = drawn(*sizes)
    given = [weft.asarray(each).to(device) for each in (x, weight, offsets)]
    found = F.grouped_matmul(*given)
    np.testing.assert_allclose(found.numpy(), by_loop(x, weight, offsets), rtol=1e-4, atol=1e-5)
    turned = weft.asarray(np.swapaxes(weight, 1, 2).copy()).to(device)
    again = F.grouped_matmul(given[0], turned, given[2], transposed=True)
    np.testing.assert_allclose(again.numpy(), found.numpy(), rtol=1e-5, atol=1e-6)


def test_computed_offsets_out_of_order_stay_within_the_rows() -> None:
    x, weight, _ = drawn(20, 4, 3, 5)
    offsets = np.array([7, 3, -2, 99, 5])
    found = F.grouped_matmul(weft.asarray(x), weft.asarray(weight), weft.asarray(offsets))
    np.testing.assert_allclose(found.numpy(), by_loop(x, weight, offsets), rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_a_product_for_each_group() -> None:
    x, weight, _ = drawn(12, 4, 3, 3)
    ends = [5, 5, 11]

    def by_groups(x: Any, weight: Any) -> Any:
        starts = [0, *ends[:-1]]
        parts = [x[a:b] @ weight[n] for n, (a, b) in enumerate(zip(starts, ends, strict=True))]
        return sum((weft.sum(part**2) for part in parts), start=weft.asarray(np.float32(0)))

    def grouped(x: Any, weight: Any) -> Any:
        return weft.sum(F.grouped_matmul(x, weight, weft.asarray(np.array(ends))) ** 2)

    wanted = weft.grad(by_groups, (0, 1))(weft.asarray(x), weft.asarray(weight))
    found = weft.grad(grouped, (0, 1))(weft.asarray(x), weft.asarray(weight))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([4, 3], "offsets has 3 for group 1, which is less than 4, where group 0 ends"),
        ([-1, 3], "offsets has -1 for group 0, which is less than 0"),
        ([4, 13], "offsets ends at 13, but x has 12 rows"),
        ([4.0, 12.0], "is f64, but integers .* are wanted"),
        ([4, 8, 12], "offsets"),
    ],
)
def test_offsets_that_are_known_are_checked(offsets: list[Any], why: str) -> None:
    x, weight, _ = drawn(12, 4, 3, 2)
    with pytest.raises((SpecViolation, UserError), match=why):
        F.grouped_matmul(weft.asarray(x), weft.asarray(weight), np.array(offsets))


def test_weights_of_the_other_form_are_told() -> None:
    x, weight, offsets = drawn(12, 4, 3, 2)
    with pytest.raises(SpecViolation, match="transposed=True takes the other form"):
        F.grouped_matmul(x, np.swapaxes(weight, 1, 2).copy(), offsets)
