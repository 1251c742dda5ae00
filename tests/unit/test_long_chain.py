"""A program of four thousand ops, one after the other: nothing in PTIR recurses over it."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.ptir import Builder, Program, dumps, loads, verify

LENGTH = 4_000


@pytest.fixture(scope="module")
def chain() -> Program:
    b = Builder()
    x = b.param("si32", ["?B"])
    one = b.literal([1], "si32")
    for index in range(LENGTH):
        x = b.neg(x) if index % 2 else b.add(x, b.broadcast_to(one, ["?B"]))
    return b.build(x)


def test_it_verifies(chain: Program) -> None:
    assert len(chain.main.body) == LENGTH * 3 // 2
    verify(chain)


@pytest.mark.parametrize("form", ["json", "bincode", "text"])
def test_it_is_written_and_read_back(chain: Program, form: str) -> None:
    assert loads(dumps(chain, form)) == chain


def test_it_is_displayed(chain: Program) -> None:
    assert str(dumps(chain, "display")).count("\n") > LENGTH


def test_it_runs(chain: Program) -> None:
    expected = value = 5
    for index in range(LENGTH):
        value = -value if index % 2 else value + 1
    expected = value
    (out,) = weft.run(chain, [np.array([5], np.int32)])
    assert out.tolist() == [expected]


def test_it_is_compared_hashed_and_described(chain: Program) -> None:
    assert chain == loads(dumps(chain, "bincode"))
    assert isinstance(hash(chain.main), int)
    assert repr(chain)
