"""Which forms contractions take on matrix units: pairs of blocks, results in parts of memory."""

from __future__ import annotations

import pytest

from benchmarks.gpu_convolutions import Shape
from tests.support.gpu_programs import through_stages
from weft.plan.ir import MmaPlan
from weft.plan.slabs import has_slabs
from weft.ptir import Builder
from weft.target.known import target_named


def plan_of(m: int, n: int, k: int, contract: tuple[int, int] = (1, 1)) -> MmaPlan:
    """The plan of the last product of a program."""
    b = Builder()
    x = b.param("bf16", [m, k] if contract[0] else [k, m])
    w = b.param("bf16", [n, k] if contract[1] else [k, n])
    made = b.build(b.dot_general(x, w, contract=([contract[0]], [contract[1]])))
    plans = through_stages(made, "sm90")["plan"]
    found = [plans.of(name) for name in plans.kernels]
    return next(plan for plan in reversed(found) if isinstance(plan, MmaPlan))


@pytest.mark.parametrize(
    ("shape", "cluster"),
    [
        ((1000, 1000, 1000), (2, 1)),  # rows of 2,000 bytes begin inside sectors
        ((1024, 1024, 1024), (1, 1)),  # rows begin at lines
        ((8192, 8192, 1000), (2, 1)),  # several waves
        ((1000, 1000, 1008), (1, 1)),  # rows of 2,016 bytes begin at sectors
        ((1024, 1024, 999), (1, 1)),  # operands were copied to rows that begin at lines
    ],
)
def test_blocks_share_operands_whose_rows_begin_inside_sectors(
    shape: tuple[int, int, int], cluster: tuple[int, int]
) -> None:
    assert plan_of(*shape).cluster == cluster


def test_an_operand_that_lies_across_k_is_not_shared() -> None:
    assert plan_of(1000, 1000, 1000, contract=(1, 0)).cluster != (2, 1)
    assert plan_of(1000, 1000, 1000, contract=(0, 1)).cluster != (1, 2)
    assert plan_of(1000, 1000, 1000, contract=(0, 0)).cluster == (1, 1)


def by_heads(rows: int, target: str) -> MmaPlan:
    """A projection whose result is stored head by head: 16 matrices of 12 heads of 64 columns."""
    b = Builder()
    x, w = b.param("bf16", [16, rows, 768]), b.param("bf16", [768, 768])
    y = b.dot_general(x, w, contract=([2], [0]), batch=([], []))
    y = b.transpose(b.reshape(y, [16, rows, 12, 64]), [0, 2, 1, 3])
    compilation = through_stages(b.build(y), target)
    (plan,) = compilation["plan"].plans.values()
    assert compilation["plan"].notes == ()
    assert isinstance(plan, MmaPlan)
    return plan


@pytest.mark.parametrize("rows", [1024, 1000])
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_tiles_are_no_wider_than_columns_that_follow_one_another(rows: int, target: str) -> None:
    plan = by_heads(rows, target)
    assert (plan.arch, plan.tile[1]) == (target, 64)
    assert plan.predicate_tail == (("m.i.i",) if (target, rows) == ("sm80", 1000) else ())


@pytest.mark.parametrize(
    ("shape", "arch", "tile"),
    [
        ((2, 4096, 4096), "sm80", (16, 128, 16)),
        ((4096, 16, 4096), "sm80", (128, 16, 16)),
        ((2, 4096, 4095), "fma", (4, 128, 32)),  # rows that 16-byte pieces do not fill
        ((17, 4096, 4096), "sm80", (64, 64, 16)),
    ],
)
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_few_rows_of_wide_numbers_wait_in_rings(
    shape: tuple[int, int, int], arch: str, tile: tuple[int, int, int], target: str
) -> None:
    """All tiles run at once: a unit's shared memory has room for two rings."""
    m, n, k = shape
    b = Builder()
    x, w = b.param("f64", [m, k]), b.param("f64", [n, k])
    compilation = through_stages(b.build(b.dot_general(x, w, contract=([1], [1]))), target)
    (plan,) = (p for p in compilation["plan"].plans.values() if isinstance(p, MmaPlan))
    assert (plan.arch, plan.tile) == (arch, tile)
    if 16 in tile[:2]:
        limits = target_named(target).limits
        kernel = max(compilation["gpu"].kernels.values(), key=lambda kernel: kernel.shared_bytes)
        fitting = limits.shared_bytes_per_unit // kernel.shared_bytes
        assert limits.units < kernel.grid <= min(fitting, 2) * limits.units


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        (512, (64, 64, 16)),  # a tile a unit
        (1000, (128, 64, 16)),  # one of twice the rows, rather than two
        (4096, (64, 64, 16)),  # many
    ],
)
def test_large_tiles_of_wide_numbers_where_they_are_one_wave(
    size: int, tile: tuple[int, int, int]
) -> None:
    b = Builder()
    x, w = b.param("f64", [size, size]), b.param("f64", [size, size])
    (plan,) = through_stages(b.build(b.matmul(x, w)), "sm90")["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    assert plan.tile == tile


@pytest.mark.parametrize("shape", [(32, (28, 28), 256, 256, 3, 2), (32, (56, 56), 128, 128, 3, 2)])
def test_phases_whose_forms_are_near_take_the_one_that_was_measured_most(
    shape: tuple[int, tuple[int, int], int, int, int, int],
) -> None:
    """Sums of several lengths: 4, 2, 2 and 1 taps of a window."""
    compilation = through_stages(Shape(*shape).back(0).program(), "sm90")
    plan = compilation["plan"].of("conv0")
    assert (plan.tile[:2], plan.roles) == ((128, 128), "pingpong")


@pytest.mark.parametrize(
    ("shape", "slabs"),
    [
        ((32, (56, 56), 64, 64, 3), True),  # few columns for what nine taps cost to copy
        ((32, (112, 112), 128, 128, 3), True),
        ((16, (56, 56), 256, 256, 3), False),  # many columns
        ((32, (28, 28), 128, 128, 3), False),  # patches of 8 x 8 places reach over 28 x 28
        ((32, (14, 14), 256, 256, 3), False),
        ((32, (7, 7), 512, 512, 3), False),
        ((32, (56, 56), 64, 64, 3, 2), False),  # not at every place
    ],
)
def test_windows_come_from_slabs_where_copies_of_their_taps_take_longer(
    shape: tuple[int, tuple[int, int], int, int, int], slabs: bool
) -> None:
    (plan,) = through_stages(Shape(*shape).line().program(), "sm90")["plan"].plans.values()
    assert isinstance(plan, MmaPlan)
    assert has_slabs(plan) is slabs
