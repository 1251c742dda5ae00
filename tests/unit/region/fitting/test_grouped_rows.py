"""Products of groups of rows in steps, and the tiles that are chosen for them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.draws import generator
from tests.unit.region.fitting.test_whole_ops import in_steps
from weft.foundation.dtypes import BF16, F16, F32
from weft.foundation.grouped_rows import GroupedRows, GroupedTiles, OuterRows
from weft.region.fitting.grouped_rows import stays_whole
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


@pytest.mark.parametrize(("rows", "height"), [(16, 64), (128, 128), (1024, 128)])
def test_tiles_are_as_high_as_groups_are(rows: int, height: int) -> None:
    groups = 4
    x, w = np.zeros((groups * rows, 8), BF16.numpy), np.zeros((groups, 8, 512), BF16.numpy)
    whole = GroupedRows(groups * rows, groups, 8, 512, False)
    ops, _ = in_steps(whole, [x, w, np.zeros(groups, np.int32)], BF16)
    assert isinstance(ops[-1], GroupedTiles)
    assert ops[-1].tile == height
