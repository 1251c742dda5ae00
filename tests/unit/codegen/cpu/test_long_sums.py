"""Products whose sum has many steps: one loop for all of them."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.codegen.cpu import blocked
from weft.ptir import Builder, Program


def product(rows: int, depth: int, columns: int) -> Program:
    b = Builder("product")
    return b.build(b.param("f32", [rows, depth]) @ b.param("f32", [depth, columns]))


def test_the_first_and_the_last_of_many_steps_are_as_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One loop over them instead of three, and the same bits, zeros below zero among them, also
    where steps do not share their code."""
    monkeypatch.setattr(blocked.BlockedContraction, "shares_steps", False)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((60, 9000)).astype(np.float32)
    y = rng.standard_normal((9000, 70)).astype(np.float32)
    x[7], y[:, 9] = 0.0, -0.0
    x[8] = -np.abs(x[8])
    found = []
    for many in (4, 1 << 40):
        monkeypatch.setattr(blocked, "_MANY", many)
        executable = weft.compile(product(60, 9000, 70))
        found.append((executable.stages["cpu"].count("init tile"), executable.run([x, y])[0]))
    (tiles, mine), (apart, usual) = found
    assert tiles < apart
    np.testing.assert_array_equal(mine.view(np.uint32), usual.view(np.uint32))
    np.testing.assert_allclose(mine, x.astype(np.float64) @ y, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("rows", "depth"), [(60, 2900), (64, 2048)])
def test_the_first_the_last_and_all_other_steps_share_a_loop(
    rows: int, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step stores its sums, those after it add to them, and the last one finishes the
    results, all in the same code."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, depth)).astype(np.float32)
    y = rng.standard_normal((depth, 70)).astype(np.float32)
    x[7], y[:, 9] = 0.0, -0.0
    found = []
    for shares in (True, False):
        monkeypatch.setattr(blocked.BlockedContraction, "shares_steps", shares)
        executable = weft.compile(product(rows, depth, 70))
        found.append((executable.stages["cpu"].count("init tile"), executable.run([x, y])[0]))
    (tiles, mine), (apart, usual) = found
    assert tiles < apart
    np.testing.assert_array_equal(mine.view(np.uint32), usual.view(np.uint32))
    np.testing.assert_allclose(mine, x.astype(np.float64) @ y, rtol=0, atol=2e-3)
