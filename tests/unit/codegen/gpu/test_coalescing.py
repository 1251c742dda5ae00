"""What a block of a kernel moves and uses, by hand for small kernels of the dialect."""

from __future__ import annotations

import pytest

from weft.codegen.gpu import ir
from weft.codegen.gpu.coalescing import SECTOR, Traffic, traffic
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar
from weft.foundation.dtypes import BF16, F32, DType


def kernel(*body: ir.Stmt, threads: int = 64, grid: int = 1) -> ir.Kernel:
    return ir.Kernel("k", grid, threads, ("x", "y"), (), (), (), (), body)


def load(offset: Scalar, dtype: DType = F32, guard: Scalar | None = None) -> ir.LoadElement:
    return ir.LoadElement("v", 0, dtype, offset, guard or Lit(1))


BODIES: dict[str, tuple[tuple[ir.Stmt, ...], Traffic]] = {
    "neighbours": ((load(THREAD),), Traffic(256, 256)),
    "narrow neighbours": ((load(THREAD, BF16),), Traffic(128, 128)),
    "every eighth": ((load(THREAD * 8),), Traffic(256, 64 * SECTOR)),
    "all the same": ((load(Lit(5)),), Traffic(4, SECTOR)),
    "the same again": ((load(THREAD), load(THREAD)), Traffic(256, 256)),
    "a few": ((load(THREAD, guard=THREAD < 8),), Traffic(32, 32)),
    "a branch": ((ir.If(THREAD < 8, (load(THREAD),), (load(THREAD * 8),)),), Traffic(256, 57 * 32)),
    "vectors": (
        (values.LoadVector(("a", "b", "c", "d"), 0, F32, THREAD * 4, Lit(1)),),
        Traffic(1024, 1024),
    ),
    "a row to a thread": (
        (ir.For("turn", 0, 8, 1, (load(THREAD * 8 + Name("turn")),)),),
        Traffic(2048, 2048),
    ),
    "part of a row": (
        (ir.For("turn", 0, 2, 1, (load(THREAD * 8 + Name("turn")),)),),
        Traffic(512, 2048),
    ),
    "where data says": (
        (values.PlaceOf("place", "v", 100), load(Name("place") * 8), load(THREAD)),
        Traffic(256, 256),
    ),
    "another buffer": (
        (load(THREAD), values.StoreElement(1, F32, THREAD * 8, Lit(1), "v")),
        Traffic(512, 256 + 64 * SECTOR),
    ),
    "nothing": ((), Traffic(0, 0)),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_block_moves(name: str) -> None:
    body, wanted = BODIES[name]
    assert traffic(kernel(*body)) == wanted


def test_blocks_are_from_inside_the_grid() -> None:
    """The first and the last one of a grid may have less to do than others."""
    edge = load(THREAD, guard=(BLOCK > 0) & (BLOCK < 9))
    assert traffic(kernel(edge, grid=10)) == Traffic(256, 256)


def test_blocks_with_different_work_are_both_counted() -> None:
    """As those of a concatenation are."""
    half = ir.If(BLOCK < 5, (load(THREAD),), (load(THREAD * 8),))
    assert traffic(kernel(half, grid=10)) == Traffic(256, (256 + 64 * SECTOR) // 2)


def test_a_kernel_without_blocks_moves_nothing() -> None:
    assert traffic(kernel(load(THREAD % Name("size")), grid=0)) == Traffic(0, 0)


def test_bytes_for_each_that_is_used() -> None:
    assert Traffic(256, 2048).ratio == 8
    assert Traffic(0, 0).ratio == 1
