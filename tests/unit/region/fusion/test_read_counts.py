"""Whether points of a kernel read the same elements of a block, at several places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.foundation.dtypes import F32
from weft.foundation.index_expr import axis, param
from weft.poly_view.ir import BlockKind, IterAxis, PolyBlock
from weft.region.fusion.read_counts import meet

pytestmark = pytest.mark.usefixtures("small_machine")


def stored_twice(function: Any, shape: tuple[int, ...]) -> bool:
    """Whether another choice was looked at, in which nothing is computed twice."""
    program = weft.jit(function).program(weft.tensor(np.zeros(shape, np.float32)))
    (cluster,) = weft.compile(program, "cpu").clusters.values()
    return any("if nothing is computed twice" in n for n in cluster.compilation["region"].notes)


@pytest.mark.parametrize(
    ("function", "meets"),
    [
        (lambda h: h[:, 1:] + h[:, :-1], True),
        (lambda h: h[:, ::2] + h[:, 1::2], False),
        (lambda h: h[:, ::2] * h[:, :1] + h[:, 1::2], True),
    ],
    ids=["neighbours", "pairs", "pairs and the first"],
)
def test_places_meet_where_tiles_share_elements(function: Any, meets: bool) -> None:
    assert stored_twice(lambda x: function(x * x + x), (400, 400)) is meets


def test_places_that_data_names_may_meet() -> None:
    """The place that a gather was told is no axis, and its range is not looked for."""
    axes = (IterAxis("i0", 8),)
    block = PolyBlock("h", BlockKind.EWISE, axes, F32, (), None)
    places = {(axis("i0"),), (param("j"),)}
    assert meet(places, block, block, {})
    assert not meet({(axis("i0"),)}, block, block, {})
