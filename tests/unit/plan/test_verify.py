"""Plans against their targets: ranges, and one diagnostic for each resource."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.cases import each
from weft.foundation.errors import SpecViolation
from weft.plan.ir import (
    AttentionPlan,
    Header,
    LocalEdge,
    MapPlan,
    MmaPlan,
    Plan,
    RowPlan,
    Vectorize,
)
from weft.plan.verify import ALIGNMENT, RANGE, REGISTERS, SHARED, findings, verify
from weft.target.known import target_named

MMA = MmaPlan(Header("sm80", "k"), (128, 64, 64), roles="single")
WIDE = MmaPlan(Header("sm90", "k"), (128, 256, 64), stages=4, warp_tile=(64, 256), arch="sm90")
RIGHT: tuple[Plan, ...] = (
    MMA,
    WIDE,
    MapPlan(Header("sm80", "k"), 8),
    MapPlan(Header("cpu", "k"), 16),
    RowPlan(Header("sm90", "k"), 4, 1, 1024),
    AttentionPlan(Header("sm90", "k"), 128, 128),
)


@pytest.mark.parametrize("plan", RIGHT, ids=lambda plan: type(plan).__name__)
def test_right_plans(plan: Plan) -> None:
    assert not list(findings(plan, target_named(plan.header.target)))


def mma(**more: Any) -> MmaPlan:
    return replace(MMA, **more)


WRONG: dict[str, tuple[Plan, str, str]] = {
    "shared memory": (
        mma(stages=8),
        SHARED,
        "8 stages of a 128x64x64 tile take 196,608 bytes of shared memory, over 166,912",
    ),
    "registers": (
        mma(tile=(128, 128, 64), warp_tile=(128, 128)),
        REGISTERS,
        "a warp tile of 128x128 takes about 552 registers a thread, over 255",
    ),
    "registers of a warpgroup": (
        replace(WIDE, tile=(128, 256, 64), warp_tile=(128, 256)),
        REGISTERS,
        "a warp tile of 128x256 takes about 280 registers a thread, over 255",
    ),
    "a vector over 16 bytes": (
        mma(vectorize=Vectorize("n.i.i", 16)),
        ALIGNMENT,
        "a vector of 16 elements of 2 bytes is over 16 bytes",
    ),
    "a vector that does not divide": (
        mma(tile=(128, 60, 64), warp_tile=(64, 60), vectorize=Vectorize("n.i.i", 8)),
        ALIGNMENT,
        "vectors of 8 do not divide the tile of 60 along n",
    ),
    "an odd vector": (
        MapPlan(Header("sm80", "k"), 3),
        RANGE,
        "a vector of 3 elements is not a power of two",
    ),
    "one stage": (
        mma(stages=1),
        RANGE,
        "stages is 1; loading and computing need two at least",
    ),
    "no tile": (mma(tile=(0, 64, 64)), RANGE, "tile m is 0; it must be at least 1"),
    "a warp tile that does not divide": (
        mma(warp_tile=(48, 64)),
        RANGE,
        "warp_tile 48x64 does not divide tile 128x64",
    ),
    "an unknown order": (
        mma(order="grouped:0"),
        RANGE,
        "order=grouped:0 is not rows, grouped:N or hilbert",
    ),
    "bands of more rows than can be counted": (
        mma(order="grouped:" + "9" * 10),
        RANGE,
        "order=grouped:9999999999 is not rows, grouped:N or hilbert",
    ),
    "an unknown architecture": (
        mma(arch="sm100"),
        RANGE,
        "arch=sm100 is not one of codes, cpu, fma, groups, planes, sm80, sm90",
    ),
    "unknown roles": (
        mma(roles="lazy"),
        RANGE,
        "roles=lazy is not one of cooperative, pingpong, single",
    ),
    "an unknown layout": (
        mma(operand_layouts=("row", "diagonal")),
        RANGE,
        'operand_layouts=["row", "diagonal"] are not row or col',
    ),
    "an unknown algorithm": (
        mma(algo_choice={"matmul": "strassen"}),
        RANGE,
        "algo_choice.matmul=strassen is not an algorithm",
    ),
    "an edge kept nowhere": (
        mma(local_edges=(LocalEdge("a", "b", "tape"),)),
        RANGE,
        "the edge a to b is kept in tape, not in reg, smem_ring, gmem",
    ),
    "too much in flight": (mma(in_flight=2), RANGE, "in_flight is 2; it is 0 or 1"),
    "threads that are not warps": (
        MapPlan(Header("sm80", "k"), 4, 1, 48),
        RANGE,
        "48 threads are not whole warps up to 1024",
    ),
    "rows of too few threads": (
        RowPlan(Header("sm80", "k"), 4, 3, 8),
        RANGE,
        "3 rows of 8 threads are not whole warps up to 1024",
    ),
    "rows of too many threads": (
        RowPlan(Header("sm80", "k"), 4, 2, 1024),
        RANGE,
        "2 rows of 1024 threads are not whole warps up to 1024",
    ),
    "rows that cannot be halved": (
        RowPlan(Header("sm80", "k"), 4, 1, 48),
        RANGE,
        "48 threads for a row are not a power of two",
    ),
    "a cluster of three": (
        RowPlan(Header("sm90", "k"), 4, 1, 64, blocks_per_row=3),
        RANGE,
        "3 blocks for a row are not 1, 2, 4, 8 or 16",
    ),
    "another target": (
        replace(MMA, header=Header("sm90", "k")),
        RANGE,
        "the plan is for sm90, not for sm80",
    ),
    "no target": (MapPlan(Header("", "k"), 4), RANGE, "the plan names no target"),
    "an attention of no rows": (
        AttentionPlan(Header("sm80", "k"), 0, 64),
        RANGE,
        "tile_q is 0; it must be at least 1",
    ),
    "an unknown convolution": (
        mma(algo_choice={"conv": "magic"}),
        RANGE,
        "algo_choice.conv=magic is not an algorithm",
    ),
}


@each("name", WRONG)
def test_wrong_plans_are_refused(name: str) -> None:
    plan, code, why = WRONG[name]
    target = target_named("sm90" if plan is not MMA and plan.header.target == "sm90" else "sm80")
    if name == "another target":
        target = target_named("sm80")
    found = [(finding.code, finding.why) for finding in findings(plan, target)]
    assert (code, why) in found
    with pytest.raises(SpecViolation):
        verify(plan, target)


def test_fields_that_speak_of_parts_agree() -> None:
    serial = {"matmul": "splitk_serial_4"}
    for plan in (mma(split_k=4), mma(split_k=4, algo_choice=serial), mma(algo_choice=serial)):
        assert not list(findings(plan, target_named("sm80")))
    for choice in ("splitk_serial_4", "splitk_parallel_4"):
        (found,) = findings(mma(split_k=2, algo_choice={"matmul": choice}), target_named("sm80"))
        assert found.why == f"split_k=2 and algo_choice.matmul={choice} do not agree"


def test_splitk_names_carry_a_number() -> None:
    for name in ("splitk_serial_2", "splitk_parallel_16", "implicit_gemm"):
        assert not list(findings(mma(algo_choice={"matmul": name}), target_named("sm80")))


def test_a_cpu_has_no_shared_memory_to_overrun() -> None:
    plan = replace(MMA, header=Header("cpu", "k"), stages=9, arch="cpu")
    assert not list(findings(plan, target_named("cpu"), 4))
