"""Products of groups of rows in steps, and the tiles that are chosen for them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.draws import generator
from tests.support.grouped_steps import in_steps
from weft.driver.legalise import stays_whole
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.grouped_rows import GroupedRows, OuterRows
from weft.region.fitting.grouped_rows import _nanoseconds, _tile
from weft.target.known import target_named

RNG = generator()
SM90, SM80 = target_named("sm90"), target_named("sm80")


def test_steps_make_what_the_whole_makes() -> None:
    x, w = (RNG.integers(-4, 5, n).astype(BF16.numpy) for n in ((70, 16), (3, 16, 8)))
    offsets = np.array([20, 20, 66], np.int32)
    whole = GroupedRows(70, 3, 16, 8, False)
    ops, found = in_steps(whole, [x, w, offsets], BF16)
    assert [op.name for op in ops] == ["group_tiles", "grouped_tiles"]
    np.testing.assert_array_equal(found.reshape(-1), whole.evaluate(x, w, offsets))
    y = RNG.integers(-4, 5, (70, 8)).astype(BF16.numpy)
    outer = OuterRows(70, 3, 16, 8)
    ops, found = in_steps(outer, [x, y, offsets], BF16)
    assert [op.name for op in ops] == ["group_spans", "outer_tiles"]
    np.testing.assert_array_equal(found.reshape(-1), outer.evaluate(x, y, offsets))


@pytest.mark.parametrize("whole", [GroupedRows(70, 3, 16, 8, False), OuterRows(70, 3, 16, 8)])
def test_what_has_kernels_of_its_own(whole: GroupedRows | OuterRows) -> None:
    assert stays_whole(whole, BF16, SM90)
    assert stays_whole(whole, F16, SM90)
    assert not stays_whole(whole, F32, SM90)
    assert not stays_whole(whole, BF16, SM80)
    assert not stays_whole(whole, BF16, target_named("cpu"))


@pytest.mark.parametrize("sizes", [(0, 3, 16, 8), (70, 0, 16, 8), (70, 3, 12, 8), (70, 3, 16, 4)])
def test_odd_sizes_are_taken_apart(sizes: tuple[int, int, int, int]) -> None:
    assert not stays_whole(GroupedRows(*sizes, transposed=False), BF16, SM90)


@pytest.mark.parametrize(
    ("rows", "groups", "depth", "columns", "tile"),
    [
        (8192, 64, 2048, 1408, (192, 256)),
        (8192, 64, 1408, 2048, (192, 256)),
        (8192, 8, 2048, 1408, (128, 128)),
        (8192, 16, 2048, 1408, (128, 128)),
        (1024, 64, 2048, 1408, (64, 256)),
        (32768, 64, 2048, 1408, (192, 256)),
    ],
)
def test_tiles_are_those_that_were_the_fastest(
    rows: int, groups: int, depth: int, columns: int, tile: tuple[int, int]
) -> None:
    assert _tile(GroupedRows(rows, groups, depth, columns, False)) == tile


def test_many_tiles_are_not_counted_one_by_one() -> None:
    """A million tiles end together, about as late as one by one."""
    many = GroupedRows(1 << 20, 1 << 14, 64, 8192, False)
    few = GroupedRows(1 << 12, 1 << 6, 64, 8192, False)
    assert _nanoseconds(many, 64, 256) == pytest.approx(256 * _nanoseconds(few, 64, 256), rel=0.1)
