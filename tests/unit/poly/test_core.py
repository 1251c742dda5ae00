"""Poly Core: halos, buffers, groups; the examples of sections 7.1 to 7.3."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from examples.make_programs import attention
from tests.unit.tiny.test_text import EXAMPLE
from weft.foundation.index_expr import Guard, axis, evaluate, param
from weft.indexbook.from_tiny import build_book
from weft.poly import core
from weft.poly.core import LoopAxis, Read, Statement
from weft.poly_view import analysis
from weft.poly_view.from_tiny import build_scop
from weft.poly_view.ir import BlockKind, Scop
from weft.ptir import Builder, Program
from weft.tiny.from_ptir import lower_program
from weft.tiny.ir import Graph
from weft.tiny.specialise import specialise
from weft.tiny.text import loads


def scop_of(source: Graph | Program) -> Scop:
    graph = source if isinstance(source, Graph) else lower_program(source)
    return build_scop(graph, build_book(graph))


# -- the examples of the document ----------------------------------------------------------------


def test_gemm_bias_relu() -> None:
    """Section 7.1: pattern matmul, halo 0, sum_k to relu in registers."""
    scop = scop_of(specialise(loads(EXAMPLE), {"M": 256, "K": 128, "N": 192}))
    blocks = scop.by_name
    product = blocks["sum_k"]
    assert product.kind is BlockKind.CONTRACTION
    assert product.attrs is not None
    assert product.attrs.pattern == "matmul"
    assert (product.attrs.lhs_idx, product.attrs.rhs_idx) == (("i0",), ("i2",))
    assert product.attrs.reduce_idx == ("i1",)
    tile = {"i0": 128, "i2": 64}
    for operand in ("A", "B"):
        found = analysis.can_compute_at(scop, operand, "sum_k", tile)
        assert found.ok
        assert found.halo == core.Halo()
    chain = ["sum_k", *(b.name for b in scop.blocks if b.name not in ("sum_k", "A", "B"))]
    assert chain[-1] == "relu"
    for source, to in pairwise(chain):
        assert analysis.can_compute_at(scop, source, to, {"i0": 128, "i1": 64}).halo.bytes == 0
        assert analysis.min_buffer_for_edge(scop, source, to).buffer == "reg"
    assert analysis.make_fusable_groups(scop) == [chain]


def conv_silu(pad: int = 1, stride: int = 1) -> Program:
    b = Builder()
    x, w = b.param("f32", [1, 16, 16, 8]), b.param("f32", [72, 4])
    x = b.tanh(x)
    patches = b.extract_patches(
        x, window=[3, 3], strides=[stride, stride], dilation=[1, 1],
        padding=[(pad, pad), (pad, pad)], pad_value=0.0,
    )  # fmt: skip
    return b.build(b.silu(b.dot_general(patches, w, contract=([3], [0]))))


def test_conv_3x3_silu() -> None:
    """Section 7.2: pattern conv, halo (+-1, +-1), a ring in shared memory."""
    scop = scop_of(conv_silu())
    product = next(b for b in scop.blocks if b.kind is BlockKind.CONTRACTION)
    assert product.attrs is not None
    assert product.attrs.pattern == "conv"
    source = product.accesses[0].tensor
    tile = {"i1": 8, "i2": 8, "i3": 4}
    found = analysis.can_compute_at(scop, source, product.name, tile)
    assert found.ok
    assert dict(found.halo.sides) == {"i1": (1, 1), "i2": (1, 1)}
    assert dict(found.halo.per_axis) == {"i1": 2, "i2": 2}
    assert found.halo.bytes == (10 * 10 - 8 * 8) * 8 * 4
    assert found.recompute == pytest.approx(10 * 10 / 64)
    buffer = analysis.min_buffer_for_edge(scop, source, product.name, tile)
    assert (buffer.buffer, buffer.depth, buffer.bytes) == ("smem_ring", 2, 2 * 10 * 10 * 8 * 4)
    small = analysis.min_buffer_for_edge(scop, source, product.name, tile, limit=1000)
    assert small.buffer == "gmem"
    after = [e.to for e in scop.edges if e.source == product.name]
    assert {analysis.min_buffer_for_edge(scop, product.name, to).buffer for to in after} == {"reg"}


def test_attention_is_matmul_rows_matmul() -> None:
    """Section 7.3: both products are matmul, the middle is elementwise and reduce."""
    scop = scop_of(attention())
    chain = next(c for c in scop.chains if c.kind == "attention")
    kinds = [scop.by_name[name].kind for name in chain.blocks]
    assert [kinds[0], kinds[-1]] == [BlockKind.CONTRACTION] * 2
    assert set(kinds[1:-1]) == {BlockKind.EWISE, BlockKind.REDUCE}
    for name in (chain.blocks[0], chain.blocks[-1]):
        attrs = scop.by_name[name].attrs
        assert attrs is not None
        assert attrs.pattern == "matmul"
    scores, first = chain.blocks[0], chain.blocks[1]
    assert analysis.can_compute_at(scop, scores, first).halo == core.Halo()


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


# -- what forbids it, buffers, groups ------------------------------------------------------------


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
    assert core.min_buffer_for_edge(opaque, plain).buffer == "gmem"


def test_buffers() -> None:
    summed = Statement("p", (LoopAxis("d0", 8), LoopAxis("r", 9, True)), (), 4)
    rows = Statement("c", (LoopAxis("h", 4), LoopAxis("k", 8, True)), (Read("p", (K,)),), 4)
    assert core.min_buffer_for_edge(producer(8), rows).buffer == "reg"
    assert core.min_buffer_for_edge(summed, rows).buffer == "smem_ring"
    both = reads_all([(H, N), (N, H)], h=8, n=8)
    assert core.min_buffer_for_edge(producer(8, 8), both).buffer == "smem_ring"
    guarded = Statement("c", (LoopAxis("h", 8),), (Read("p", (H - 1,), (Guard(H - 1, 8),)),), 4)
    assert core.min_buffer_for_edge(producer(8), guarded).buffer == "smem_ring"
    turned = consumer((H, K), h=4, k=32)
    found = core.min_buffer_for_edge(
        Statement("p", (*producer(4, 32).axes, LoopAxis("r", 2, True)), (), 4), turned, {"h": 4}
    )
    assert found == core.MinBuffer("smem_ring", 2, 2 * 4 * 32 * 4, bank_conflict=True)


def test_analysis_of_a_whole_view() -> None:
    b = Builder()
    x = b.param("f32", [30, 50])
    scop = scop_of(b.build(b.softmax(x)))
    facts = analysis.analyze(scop, {block.name: {"i0": 16, "i1": 10} for block in scop.blocks})
    top = scop.chains[0].blocks[0]
    assert facts.parallel[top] == ("i0",)
    assert facts.reductions[top] == ("i1",)
    assert facts.tails[top] == ("i0",)
    assert facts.affine
    edges = {(e.source, e.to, e.access) for e in scop.edges}
    assert set(facts.true_dependences) == edges


def test_groups_end_at_whole_ops_and_updates() -> None:
    b = Builder()
    x = b.param("f32", [4, 6])
    y = b.exp(b.sort(b.tanh(x), axis=1, descending=False))
    scop = scop_of(b.build(y))
    # What comes before, the order, the elements in that order (a gather), and what comes after.
    assert [len(group) for group in analysis.make_fusable_groups(scop)] == [1, 1, 1, 1]
    scop = scop_of(attention())
    updates = {b.name for b in scop.blocks if b.kind is BlockKind.UPDATE}
    groups = analysis.make_fusable_groups(scop)
    assert all([name] in groups for name in updates)
