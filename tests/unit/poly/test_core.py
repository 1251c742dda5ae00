"""Poly Core: what a tile needs of a producer, how it moves with the tile, and what forbids it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from weft.foundation.index_expr import axis, evaluate, param
from weft.poly import core
from weft.poly.core import LoopAxis, Read, Statement

# -- halos ---------------------------------------------------------------------------------------


def consumer(index: Any, **sizes: int) -> Statement:
    """A statement that reads `p` and reduces over the axes named k..."""
    return reads_all([index], **sizes)


def reads_all(indices: Sequence[Any], **sizes: int) -> Statement:
    """The same with several reads."""
    axes = tuple(LoopAxis(n, s, n.startswith("k")) for n, s in sizes.items())
    return Statement("c", axes, tuple(Read("p", index) for index in indices), 4)


def producer(*shape: int) -> Statement:
    return Statement("p", tuple(LoopAxis(f"d{k}", n) for k, n in enumerate(shape)), (), 4)


H, K, N = axis("h"), axis("k"), axis("n")
HALOS: dict[str, tuple[Any, dict[str, int], int, dict[str, int], tuple[int, int]]] = {
    "a plain read": ((H,), {"h": 32}, 32, {"h": 8}, (0, 0)),
    "a window": ((H + K,), {"h": 30, "k": 3}, 32, {"h": 8}, (0, 2)),
    "a centred window": ((H + K - 1,), {"h": 32, "k": 3}, 34, {"h": 8}, (1, 1)),
    "a window with stride": ((2 * H + K,), {"h": 15, "k": 3}, 32, {"h": 5}, (0, 1)),
    "a stride without overlap": ((2 * H + K,), {"h": 16, "k": 2}, 32, {"h": 4}, (0, 0)),
    "a dilated window": ((H + 2 * K - 2,), {"h": 32, "k": 3}, 36, {"h": 4}, (2, 2)),
    "a shifted slice": ((H + 5,), {"h": 20}, 32, {"h": 4}, (0, 0)),
    "a reversed read": ((31 + H * -1,), {"h": 32}, 32, {"h": 8}, (0, 0)),
    "a reduced axis": ((K,), {"h": 4, "k": 32}, 32, {"h": 2}, (0, 0)),
    "a split axis": ((H * 4 + N,), {"h": 8, "n": 4}, 32, {"h": 2, "n": 4}, (0, 0)),
}


@pytest.mark.parametrize("what", HALOS)
def test_halos(what: str) -> None:
    index, sizes, size, tile, sides = HALOS[what]
    found = core.can_compute_at(producer(size), consumer(index, **sizes), tile)
    assert found.ok
    assert dict(found.halo.sides) == ({"d0": sides} if any(sides) else {})
    assert found.footprint_bytes == 4 * footprint(index, sizes, tile)


def footprint(exprs: Sequence[Any], sizes: dict[str, int], tile: dict[str, int]) -> int:
    """The widest range of elements that any tile reads, by counting."""
    widest = 0
    names = list(sizes)
    tiles = [range(0, sizes[n], tile.get(n, sizes[n])) for n in names]
    for origin in np.ndindex(*(len(t) for t in tiles)):
        starts = {n: tiles[k][origin[k]] for k, n in enumerate(names)}
        spans = [range(s, min(s + tile.get(n, sizes[n]), sizes[n])) for n, s in starts.items()]
        grid = np.meshgrid(*(np.array(span) for span in spans), indexing="ij")
        here = dict(zip(names, grid, strict=True))
        values = [np.asarray(evaluate(expr, here)) for expr in exprs]
        top, bottom = max(v.max() for v in values), min(v.min() for v in values)
        widest = max(widest, int(top - bottom) + 1)
    return widest


@pytest.mark.parametrize("tile", [1, 2, 3, 5, 15])
def test_divisions_are_measured_by_isl(tile: int) -> None:
    index = ((15 * H + N) // 10,)
    sizes = {"h": 4, "n": 15}
    found = core.can_compute_at(producer(6), consumer(index, **sizes), {"h": 1, "n": tile})
    assert found.footprint_bytes == 4 * footprint(index, sizes, {"h": 1, "n": tile})


SLICES: dict[str, tuple[list[Any], dict[str, int], int, dict[str, int], dict[str, int]]] = {
    "a sum of slices": ([H, H + 1, H + 2], {"h": 30}, 32, {"h": 8}, {"d0": 2}),
    "slices in any order": ([H + 4, H + 1], {"h": 28}, 32, {"h": 7}, {"d0": 3}),
    "one read twice": ([H + 1, H + 1], {"h": 30}, 32, {"h": 8}, {}),
    "steps of two": ([2 * H, 2 * H + 1, 2 * H + 2], {"h": 15}, 32, {"h": 5}, {"d0": 1}),
    "pairs": ([2 * H, 2 * H + 1], {"h": 16}, 32, {"h": 4}, {}),
    "a window beside a slice": ([H + K, H + 5], {"h": 24, "k": 3}, 32, {"h": 8}, {"d0": 5}),
}


@pytest.mark.parametrize("what", SLICES)
def test_several_reads_make_one_hull(what: str) -> None:
    exprs, sizes, size, tile, halo = SLICES[what]
    found = core.can_compute_at(producer(size), reads_all([(e,) for e in exprs], **sizes), tile)
    assert dict(found.halo.per_axis) == halo
    assert found.footprint_bytes == 4 * footprint(exprs, sizes, tile)


@pytest.mark.parametrize(
    "exprs", [[H, N], [H, 31 + H * -1], [H, 2 * H], [H // 2, H], [H * 4 + N, N * 8 + H]], ids=str
)
def test_reads_that_move_apart_are_measured_by_isl(exprs: list[Any]) -> None:
    sizes, tile = {"h": 8, "n": 4}, {"h": 2, "n": 2}
    found = core.can_compute_at(producer(99), reads_all([(e,) for e in exprs], **sizes), tile)
    assert found.footprint_bytes == 4 * footprint(exprs, sizes, tile)


def test_many_reads_are_not_compared_pair_by_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that is written out reads one tensor at many places."""
    monkeypatch.setattr(core, "_largest_distance", None)
    exprs = [H + 3 * k for k in range(50)]
    found = core.can_compute_at(producer(199), reads_all([(e,) for e in exprs], h=40), {"h": 8})
    assert found.footprint_bytes == 4 * footprint(exprs, {"h": 40}, {"h": 8}) == 4 * (8 + 147)


def test_run_time_offsets_of_several_reads() -> None:
    """What all reads move by alike widens nothing."""
    reads = tuple(Read("p", (H + param("s") + k,)) for k in (0, 2))
    moved = Statement("c", (LoopAxis("h", 8),), reads, 4, params=(("s", 0, 24),))
    assert core.can_compute_at(producer(40), moved, {"h": 4}).footprint_bytes == 4 * 6


def test_recomputation_counts_tiles_that_need_the_same() -> None:
    lhs = Statement("c", (LoopAxis("h", 32), LoopAxis("n", 64), LoopAxis("k", 16, True)),
                    (Read("p", (H, K)),), 4)  # fmt: skip
    found = core.can_compute_at(producer(32, 16), lhs, {"h": 8, "n": 16})
    assert found.recompute == 4.0
    assert found.footprint_bytes == 8 * 16 * 4


def test_a_run_time_offset_is_no_halo() -> None:
    read = Read("p", (H + param("s"),))
    moved = Statement("c", (LoopAxis("h", 8),), (read,), 4, params=(("s", 0, 24),))
    assert core.can_compute_at(producer(32), moved, {"h": 4}).halo == core.Halo()


# -- what forbids it ----------------------------------------------------------------------------


def test_what_cannot_be_computed_inside() -> None:
    plain = consumer((H,), h=8)
    opaque = Statement("p", (LoopAxis("d0", 8),), (), 4, affine=False)
    pinned = Statement("p", (LoopAxis("d0", 8),), (), 4, pinned=True)
    other = Statement("q", (LoopAxis("d0", 8),), (), 4)
    answers = [core.can_compute_at(p, plain) for p in (opaque, pinned, other)]
    assert [a.ok for a in answers] == [False] * 3
    assert [a.why for a in answers] == [
        "p is not affine",
        "p writes into another tensor",
        "c does not read q",
    ]


# -- how it moves --------------------------------------------------------------------------------

SPANS: dict[str, tuple[list[Any], dict[str, int], tuple[int, int]]] = {
    "one slice": ([H + 5], {"h": 1}, (5, 5)),
    "a window": ([H + K - 1], {"h": 1}, (-1, 1)),
    "a window beside a slice": ([H + K, H + 5], {"h": 1}, (0, 5)),
    "steps of two": ([2 * H + K], {"h": 2}, (0, 2)),
}


@pytest.mark.parametrize("what", SPANS)
def test_what_is_needed_moves_with_the_tile(what: str) -> None:
    exprs, steps, ends = SPANS[what]
    reader = reads_all([(e, N) for e in exprs], h=20, n=8, k=3)
    found = core.can_compute_at(producer(64, 8), reader, {"h": 1, "n": 8})
    assert found.spans["d0"] == core.Span({"h": steps["h"]}, *ends)
    assert found.spans["d1"] == core.Span({}, 0, 7)


def test_what_no_step_tells_is_uneven() -> None:
    found = core.can_compute_at(producer(64), reads_all([(H,), (31 + H * -1,)], h=32))
    assert not found.spans["d0"].even
