"""Blocks of contractions on a CPU: register tiles that cover the sizes, work for all threads."""

from __future__ import annotations

import pytest

from tests.support.lowered import lowered
from weft.plan.blocks import BLOCK, Sizes, block_sizes, register_block, without_rest
from weft.plan.from_region import plan_module
from weft.plan.ir import MmaPlan
from weft.ptir import Builder
from weft.target.cpu import describe
from weft.tiny.from_ptir import lower_program

ARM = describe("aarch64", frozenset({"asimd"}), 2, (1 << 16, 1 << 20))
AVX2 = describe("x86_64", frozenset({"avx2", "fma"}), 2, (1 << 15, 1 << 20))
REGISTERS = (8, 12)


@pytest.mark.parametrize(
    ("m", "n", "tile"),
    [
        (0, 0, (8, 12)),
        (512, 768, (8, 12)),
        (3136, 64, (12, 8)),
        (1200, 64, (12, 8)),
        (8, 8, (8, 12)),
        (9, 700, (6, 16)),
        (128, 3072, (8, 12)),
    ],
)
def test_register_tiles_leave_little_over(m: int, n: int, tile: tuple[int, int]) -> None:
    assert register_block(ARM, 4, m, n) == tile


def test_half_as_many_registers_hold_half_as_much() -> None:
    assert register_block(AVX2, 8) == (6, 16)
    assert register_block(AVX2, 8, 64, 24) == (4, 24)


def pieces(sizes: Sizes, block: tuple[int, int]) -> int:
    return sizes.batch * -(-sizes.m // block[0]) * -(-sizes.n // block[1])


@pytest.mark.parametrize(
    ("m", "n", "units", "block"),
    [
        (1024, 1024, 1, (256, 516)),
        (1024, 1024, 2, (256, 516)),
        (512, 512, 2, (256, 516)),
        (64, 192, 1, (64, 192)),
        (64, 192, 2, (64, 96)),
        (768, 512, 2, (192, 516)),
    ],
)
def test_blocks_are_as_large_as_keeps_all_units_busy(
    m: int, n: int, units: int, block: tuple[int, int]
) -> None:
    assert block_sizes(Sizes(1, m, n), BLOCK[:2], REGISTERS, units, 4) == block


@pytest.mark.parametrize("units", [1, 2, 3, 8, 16, 64])
@pytest.mark.parametrize(("batch", "m", "n"), [(1, 512, 512), (1, 200, 3000), (12, 512, 64)])
def test_no_unit_waits_long(units: int, batch: int, m: int, n: int) -> None:
    """Rounds of blocks that are full, but for the last, take no more than twice the work."""
    sizes = Sizes(batch, m, n)
    rows, columns = block = block_sizes(sizes, BLOCK[:2], REGISTERS, units, 4)
    assert rows % REGISTERS[0] == columns % REGISTERS[1] == 0
    assert rows <= BLOCK[0]
    assert columns <= BLOCK[1] + REGISTERS[1]
    rounds = -(-pieces(sizes, block) // units)
    if batch * m * n >= 64 * units * REGISTERS[0] * REGISTERS[1]:
        assert rounds * rows * columns * units <= 2 * batch * m * n


@pytest.mark.parametrize(
    ("m", "n", "most"), [(1000, 1000, 1.06), (777, 1111, 1.05), (2048, 2048, 1.03)]
)
def test_slow_threads_have_less_to_do(m: int, n: int, most: float) -> None:
    """Register tiles are chosen with the blocks that they allow, for 16 threads here, of which four
    take twice as long for a piece."""
    b = Builder("product")
    graph = lower_program(b.build(b.matmul(b.param("f32", [m, 999]), b.param("f32", [999, n]))))
    units = 16
    machine = describe("x86_64", frozenset({"avx512f"}), units, ())
    (plan,) = plan_module(lowered(graph).module, machine).plans.values()
    assert isinstance(plan, MmaPlan)
    rows, columns, _ = plan.tile
    count = pieces(Sizes(1, m, n), (rows, columns))
    taken = next(t for t in range(1, 99) if 12 * t + 4 * (t // 2) >= count)
    assert taken * rows * columns * 14 <= most * m * n
    assert -(-count // units) * rows * columns * units <= 1.3 * m * n, "where all are as fast"


@pytest.mark.parametrize("size", [512, 768])
def test_slow_threads_do_not_hold_one_piece_while_fast_ones_wait(size: int) -> None:
    """A piece for every other thread is one for a slow thread, too, which takes twice as long."""
    block = block_sizes(Sizes(1, size, size), (256, 256), (32, 32), 16, 16)
    assert pieces(Sizes(1, size, size), block) > 16


def test_blocks_without_a_rest_are_taken_where_they_are_not_much_smaller() -> None:
    assert without_rest(1000, 256, 8) == 200
    assert without_rest(1024, 256, 8) == 256
    assert without_rest(1009, 256, 8) == 256
    assert without_rest(72, 72, 12) == 72
