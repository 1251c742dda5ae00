"""Tiles of windows inside of an image and at its edges, on machines without masked loads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
import weft.functional as F
from weft.codegen.cpu import ir
from weft.codegen.cpu.edges import across_edges, tile_of, window_of
from weft.codegen.cpu.ir import LoopKind
from weft.driver.compile import compile_program
from weft.foundation.dtypes import F32
from weft.foundation.index_expr import Guard, axis, constant
from weft.ptir import Builder
from weft.target.cpu import describe, host

SMALL = describe("aarch64", frozenset(), 2, (64 << 10, 1 << 20))
PLAIN = replace(SMALL, features=host().features - {"avx512f"})

Window = Callable[[Any, Any], Any]
WINDOWS: dict[str, tuple[Window, tuple[int, ...], tuple[int, ...]]] = {
    "three": (lambda x, w: F.conv2d(x, w, padding=1, groups=5), (2, 5, 9, 23), (5, 1, 3, 3)),
    "five": (lambda x, w: F.conv2d(x, w, padding=2, groups=3), (1, 3, 6, 40), (3, 1, 5, 5)),
    "narrow": (lambda x, w: F.conv2d(x, w, padding=1, groups=4), (1, 4, 3, 3), (4, 1, 3, 3)),
    "second": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2, groups=4), (1, 4, 17, 34), (4, 1, 3, 3)
    ),
    "pool": (lambda x, w: F.max_pool2d(x * w, 3, 1, padding=1), (1, 2, 11, 29), (1, 2, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_the_same_inside_and_at_the_edges(name: str) -> None:
    window, *shapes = WINDOWS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    program = weft.jit(window).program(*map(weft.tensor, arrays))
    (wanted,) = weft.run(program, arrays, backend="reference")
    for threads in (1, 2):
        (found,) = compile_program(program, PLAIN).run(arrays, threads=threads)
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_a_window_inside_of_an_image_has_no_mask() -> None:
    """What a whole tile reads comes in vectors, without a guard between them: at first for all
    places of the window together, then for those whose vectors alone reach over an edge, then for
    those that are inside of a tile at an edge."""
    b = Builder("squares")
    x = b.transpose(b.param("f32", [2, 5, 9, 23]), [0, 2, 3, 1])
    patches = b.extract_patches(
        x, window=[3, 3], strides=[1, 1], dilation=[1, 1], padding=[(1, 1), (1, 1)], pad_value=0.0
    )
    parted = b.reshape(patches, [2, 9, 23, 9, 5])
    program = b.build(b.transpose(b.reduce_sum(parted * parted, [3]), [0, 3, 1, 2]))
    text = compile_program(program, PLAIN).stages["llvm"]
    parts = [part.split("\nelse")[0] for part in text.split("\nthen")]
    everywhere, over_edges, _, inside = parts[1:5]
    products = everywhere.count("fmul contract <4 x float>")
    assert products
    assert products % 9 == 0
    assert "load <4 x float>" in inside
    assert "select" not in everywhere + inside
    assert everywhere.count(" br ") == 1
    assert over_edges.count("fmul contract <4 x float>") == over_edges.count("select") == products
    assert over_edges.count(" br ") == 1


def test_vectors_over_an_edge_are_read_whole_only_inside_of_their_buffer() -> None:
    """Lines of an image may begin and end with others, but for the first and the last of all."""
    load = ir.Load(
        "x", 0, axis("l") + axis("p") * 9 + axis("k") - 1,
        (Guard(axis("p"), 5), Guard(axis("l") + axis("k") - 1, 9)), 0.0,
    )  # fmt: skip
    lanes = ir.For("l", constant(0), constant(4), 1, LoopKind.LANES, (load,))
    taps = ir.For("k", constant(0), constant(3), 1, LoopKind.SERIAL, (lanes,))
    window = window_of(taps, (taps,))
    assert window is not None
    image = ir.BufferArg(F32, 45, written=False, noalias=True)
    across = across_edges(window, (image,))
    assert across.moving == (Guard(load.address, 45),)
    two_apart = replace(load, address=axis("l") * 2 + axis("k"))
    lanes = replace(lanes, body=(two_apart,))
    window = window_of(replace(taps, body=(lanes,)), ())
    assert window is not None
    assert across_edges(window, (image,)).moving == ()


def nest(guard: Guard, used: str = "y") -> tuple[ir.For, tuple[ir.Stmt, ...]]:
    """A tile with one load, before a statement that uses a value."""
    four = (constant(0), constant(4))
    body: tuple[ir.Stmt, ...] = (
        ir.Load("x", 0, axis("l") + axis("p"), (guard,), 0.0),
        ir.Accumulate("sum", "x"),
    )
    loop = ir.For("l", *four, 1, LoopKind.LANES, body)
    return loop, (loop, ir.Accumulate("other", used))


def test_guards_that_move_evenly_are_asked_for_at_two_corners() -> None:
    loop, around = nest(Guard(constant(9) - axis("l") - axis("p"), 8))
    tile = tile_of(loop, around)
    assert tile is not None
    assert [tile.corner(tile.moving[0], last=last) for last in (False, True)] == [
        {"l": 3},
        {"l": 0},
    ]
    assert all(not s.guards for s in tile.without(tile.moving).body if isinstance(s, ir.Load))


@pytest.mark.parametrize(
    ("guard", "used"),
    [
        (Guard(axis("p"), 8), "y"),
        (Guard((axis("l") + axis("p")) // 3, 8), "y"),
        (Guard(axis("l") + axis("p"), 8), "x"),
    ],
    ids=["none moves", "unevenly", "used elsewhere"],
)
def test_other_tiles_stay_as_they_are(guard: Guard, used: str) -> None:
    assert tile_of(*nest(guard, used)) is None
