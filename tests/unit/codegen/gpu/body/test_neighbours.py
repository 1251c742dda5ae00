"""Which neighbours along an axis read one and the same element."""

from __future__ import annotations

import pytest

from weft.codegen.gpu.body.neighbours import same_for
from weft.foundation.index_expr import Expr, axis, evaluate

K, N = axis("k"), axis("n")
CASES: dict[str, tuple[Expr, int]] = {
    "groups of ten": (32 * N + K // 10, 2),
    "groups of twenty": (K // 20, 4),
    "groups of whole vectors": (K // 40 + N, 8),
    "groups of an odd number": (K // 15, 1),
    "two numbers": (K // 12 + 7 * (K // 10), 2),
    "groups from some place on": ((K + 4) // 12, 4),
    "groups from an odd place on": ((K + 3) // 12, 1),
    "with another axis": ((6 * N + K) // 12, 2),
    "neighbours themselves": (K + 5 * N, 1),
    "steps of two": ((2 * K) // 9, 1),
    "neither": (3 * N, 8),
}


@pytest.mark.parametrize("name", CASES)
def test_an_address_is_the_same_for_so_many(name: str) -> None:
    address, count = CASES[name]
    assert same_for(address, "k", 8) == count
    for n in range(3):
        for first in range(0, 240, count):
            found = {evaluate(address, {"k": first + step, "n": n}) for step in range(count)}
            assert len(found) == 1
