"""The price of loops: what is counted, worked out by hand, and the order of plans that differ for a
reason that is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from weft.codegen.cpu import ir
from weft.codegen.cpu.compile import lower
from weft.codegen.cpu.counts import count
from weft.codegen.cpu.price import price
from weft.codegen.cpu.text import parse_routines
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.plan.ir import MapPlan, MmaPlan, Plan, RowPlan, StagedPlan
from weft.ptir import Builder, Program
from weft.region.cost import kernel_seconds
from weft.region.structure import buffers
from weft.target import cpu

TARGET = cpu.describe("aarch64", frozenset(), 2, (64 << 10, 1 << 20, 32 << 20))
"""Two cores with vectors of four numbers and 32 registers."""
CYCLE = 1 / 2.6e9

DOT = """\
routine dot pieces=2
buffer 0 f32[8192] noalias
buffer 1 f32[8192] noalias
buffer 2 f32[2] write noalias
parallel p in 0..2 {
  init s:f32 sum over [u=%d unrolled, l=4 lanes]
  serial t in 0..%d {
    unrolled u in 0..%d {
      lanes l in 0..4 {
        load x = b0[l + 4*u + %d*t + 4096*p]
        load y = b1[l + 4*u + %d*t + 4096*p]
        let xy:f32 = mul(x, y)
        accumulate s <- xy
      }
    }
  }
  finish total = s
  store b2[p] = total at [p]
}
"""


def dot(unroll: int) -> ir.Routine:
    step = 4 * unroll
    (found,) = parse_routines(DOT % (unroll, 4096 // step, unroll, step, step))
    return found


def test_instructions_are_counted_at_their_place() -> None:
    root = count(dot(4), TARGET)
    (piece,) = root.inner
    (loop,) = piece.inner
    assert (piece.runs, loop.runs, loop.trips) == (2, 512, 256)
    # A product that is only summed up is one instruction with its sum, of which two start a cycle.
    assert (loop.loads, loop.arithmetic, loop.stores) == (8, 2, 0)
    assert (loop.waits, loop.held) == ({"s": 4}, {"s": 4})
    assert (piece.stores, piece.arithmetic) == (1, 3 + 2 * math.log2(4))


def test_sums_side_by_side_wait_for_less() -> None:
    """One vector at a time waits four cycles for each sum; eight do not wait, and have fewer
    steps."""
    one, eight = (price(dot(unroll), TARGET).computing for unroll in (1, 8))
    assert one == pytest.approx(2 * 1024 * (4 + 1) * CYCLE, rel=0.02)
    assert eight == pytest.approx(2 * 128 * (8 + 1) * CYCLE, rel=0.1)


def test_more_sums_than_registers_are_put_away() -> None:
    few, many = (price(dot(unroll), TARGET).computing for unroll in (16, 64))
    assert many > 1.5 * few


def test_what_a_cache_does_not_keep_comes_again() -> None:
    """Rows of 256 KB, each summed up twice: from the second cache both times, and from memory not
    at all, as all of it is in the third."""
    text = """\
routine twice pieces=8
buffer 0 f32[524288] noalias
buffer 1 f32[16] write noalias
parallel p in 0..8 {
  serial o in 0..2 {
    init s:f32 sum over [l=4 lanes]
    serial t in 0..16384 {
      lanes l in 0..4 {
        load x = b0[l + 4*t + 65536*p]
        accumulate s <- x
      }
    }
    finish total = s
    store b1[2*p + o] = total at [p, o]
  }
}
"""
    (routine,) = parse_routines(text)
    near, far, memory = price(routine, TARGET).moving
    assert near == pytest.approx(2 * (2 << 20) / 32 * CYCLE, rel=0.02)
    assert far == pytest.approx((2 << 20) / 10 * CYCLE, rel=0.02)
    assert memory == 0.0
    small = replace(TARGET, limits=replace(TARGET.limits, cache_bytes=(64 << 10, 1 << 20)))
    assert price(routine, small).moving == pytest.approx((near, (2 << 20) / 12e9), rel=0.02)


# -- plans ---------------------------------------------------------------------------------------


def seconds(program: Program, *changes: dict[str, object]) -> list[float]:
    """The price of the one kernel of a program by its own plan, changed in some fields."""
    compilation = run_pipeline(Compilation(program, TARGET, make_signature(program)), "plan")
    module, (kernel,) = compilation["region"], compilation["region"].kernels
    plan: Plan = compilation["plan"].of(kernel.name)
    assert isinstance(plan, MmaPlan | RowPlan | MapPlan | StagedPlan)
    refs = compilation["memory"].refs_of(buffers(kernel))
    found = []
    for change in changes:
        changed = replace(plan, **change)  # type: ignore[arg-type]
        found.append(price(lower(kernel, module.tensors, refs, changed, "k"), TARGET).seconds)
    own = kernel_seconds(kernel, module.tensors, TARGET)
    assert own / 4 < found[0] < 4 * own, "a kernel's own price is of another order"
    return found


def product() -> Program:
    b = Builder("product")
    return b.build(b.param("f32", [256, 256]) @ b.param("f32", [256, 256]))


def softmax() -> Program:
    b = Builder("softmax")
    return b.build(b.softmax(b.param("f32", [512, 512]), axis=1))


def test_tiles_that_fill_the_registers_cost_less() -> None:
    own, thin, single = seconds(
        product(), {}, {"warp_tile": (2, 8), "cache": ()}, {"warp_tile": (1, 4), "cache": ()}
    )
    assert own < thin < single


def test_rows_that_are_kept_and_partial_sums_cost_less() -> None:
    own, one, computed = seconds(softmax(), {}, {"accumulators": 1}, {"keep_row": False})
    assert own < one
    assert own < computed


def test_elements_in_vectors_cost_less() -> None:
    b = Builder("map")
    x = b.param("f32", [256, 256])
    own, single = seconds(b.build(b.exp(x)), {}, {"vector": 1, "unroll": 1})
    assert 2 * own < single


def test_too_few_pieces_leave_cores_idle() -> None:
    own, whole = seconds(product(), {}, {"tile": (256, 256, 256)})
    assert whole > 1.5 * own
