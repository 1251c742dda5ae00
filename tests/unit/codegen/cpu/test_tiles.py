"""Products by matrix tiles: right in plain loops, right by tiles, and no number lost for being
small. Tiles are emulated where a machine has none: functions stand for their instructions."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.lowered import lowered
from weft.bundles.variants import targets_of
from weft.codegen.cpu.compile import accepts
from weft.codegen.cpu.llvm import emit_module
from weft.codegen.cpu.text import parse_routines, print_routines
from weft.driver.code.sources import LLVM
from weft.driver.compile import Executable, compile_program
from weft.foundation.errors import SpecViolation
from weft.plan.from_region import plan_module
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.runtime.jit import assembly
from weft.target import cpu
from weft.target.cpu import describe, host
from weft.target.target import Target
from weft.tiny.from_ptir import lower_program

Array = NDArray[Any]
SHAPES = [(67, 130, 1031), (64, 64, 64), (100, 61, 77), (16, 300, 2049)]
TILES = [{"tensor": side, "where": "tiles", "at": "k", "pingpong": False} for side in ("A", "B")]
BF16: Any = ml_dtypes.bfloat16
SAPPHIRE_RAPIDS = ("x86_64-unknown-linux-gnu", "sapphirerapids", "")


def product(m: int, n: int, k: int, turned: str = "", dtype: str = "bf16") -> Program:
    b = Builder("pairs")
    x = b.param(dtype, [k, m] if "A" in turned else [m, k])
    y = b.param(dtype, [n, k] if "B" in turned else [k, n])
    contract = ([0 if "A" in turned else 1], [1 if "B" in turned else 0])
    return b.build(b.dot_general(x, y, contract=contract, out_dtype="f32"))


def in_tiles(program: Program, block: tuple[int, int, int] = (64, 96, 128)) -> dict[str, str]:
    """The plan of a program by tiles, on any machine."""
    document = json.loads(weft.compile(program, "cpu").stages["plan"])
    document["plans"][0] |= {
        "cache": TILES, "tile": list(block), "warp_tile": "32x32",
        "vectorize": {"axis": "n.i.i", "width": 16},
    }  # fmt: skip
    return {"plan": json.dumps(document)}


def numbers(seed: int, *shape: int, dtype: Any = BF16) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def close_enough(found: Array, x: Array, y: Array) -> None:
    exact = x.astype(np.float64) @ y.astype(np.float64)
    bound = np.abs(x.astype(np.float64)) @ np.abs(y.astype(np.float64))
    np.testing.assert_array_less(np.abs(found - exact), 2e-6 * bound + 1e-44)


@pytest.mark.parametrize("shape", one_in(4, SHAPES))
def test_products_of_bf16_by_vectors(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    program = product(m, n, k)
    executable = compile_program(program, host(), overrides=in_tiles(program))
    x, y = numbers(0, m, k), numbers(1, k, n)
    for threads in (1, 2):
        (found,) = executable.run([x, y], threads=threads)
        close_enough(found, x, y)


@pytest.mark.parametrize("shape", one_in(4, SHAPES))
def test_products_of_f16_are_those_of_two_parts(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    program = product(m, n, k, dtype="f16")
    x, y = numbers(0, m, k, dtype=np.float16), numbers(1, k, n, dtype=np.float16)
    plain = compile_program(program, host(), overrides=in_tiles(program))
    assert "in 2 parts" in plain.stages["cpu"]
    for executable, threads in ((plain, 2), (emulated(program), 1)):
        (found,) = executable.run([x, y], threads=threads)
        close_enough(found, x, y)


@pytest.mark.parametrize("turned", one_in(2, ["A", "B", "AB"]))
def test_f16_that_lies_across(turned: str) -> None:
    x, y = numbers(0, 50, 170, dtype=np.float16), numbers(1, 170, 40, dtype=np.float16)
    given = [x.T.copy() if "A" in turned else x, y.T.copy() if "B" in turned else y]
    (found,) = emulated(product(50, 40, 170, turned, "f16")).run(given, threads=1)
    close_enough(found, x, y)


@pytest.mark.parametrize("low", [2.0**-24, 2.0**-14 + 2.0**-24, 1 + 2.0**-10, 65504.0])
def test_no_bit_of_f16_is_lost(low: float) -> None:
    """Every number of f16 is the sum of two of bf16, subnormal and the largest ones too."""
    x, y = np.full((40, 33), 0, np.float16), np.full((33, 50), 0, np.float16)
    x[39, 32], y[32, 49] = low, 1 + 2.0**-10
    (found,) = emulated(product(40, 50, 33, dtype="f16")).run([x, y], threads=1)
    np.testing.assert_array_equal(found, x.astype(np.float64) @ y.astype(np.float64))
    assert np.count_nonzero(found) == 1


def test_infinite_f16_stay_infinite() -> None:
    m, n, k = 40, 50, 70
    x, y = np.ones((m, k), np.float16), np.ones((k, n), np.float16)
    x[3, 5], y[69, 49] = -np.inf, np.nan
    (found,) = emulated(product(m, n, k, dtype="f16")).run([x, y], threads=1)
    np.testing.assert_array_equal(found, x.astype(np.float32) @ y.astype(np.float32))


EMULATED = """
@tile_data = internal global [8 x [16 x <16 x i32>]] zeroinitializer, align 64

define internal ptr @tile_row(i8 %tile, i64 %row) {
  %number = zext i8 %tile to i64
  %at = getelementptr [8 x [16 x <16 x i32>]], ptr @tile_data, i64 0, i64 %number, i64 %row
  ret ptr %at
}
define internal void @emulated_ldtilecfg(ptr %config) {
  ret void
}
define internal void @emulated_tilerelease() {
  ret void
}
define internal void @emulated_tilezero(i8 %tile) {
  %at = call ptr @tile_row(i8 %tile, i64 0)
  store [16 x <16 x i32>] zeroinitializer, ptr %at
  ret void
}
define internal void @emulated_tileloadd64(i8 %tile, ptr %from, i64 %step) {
entry:
  br label %head
head:
  %row = phi i64 [ 0, %entry ], [ %next, %head ]
  %at = call ptr @tile_row(i8 %tile, i64 %row)
  %place = mul i64 %row, %step
  %there = getelementptr i8, ptr %from, i64 %place
  %value = load <16 x i32>, ptr %there, align 1
  store <16 x i32> %value, ptr %at
  %next = add i64 %row, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %head, label %done
done:
  ret void
}
define internal void @emulated_tilestored64(i8 %tile, ptr %to, i64 %step) {
entry:
  br label %head
head:
  %row = phi i64 [ 0, %entry ], [ %next, %head ]
  %at = call ptr @tile_row(i8 %tile, i64 %row)
  %place = mul i64 %row, %step
  %there = getelementptr i8, ptr %to, i64 %place
  %value = load <16 x i32>, ptr %at
  store <16 x i32> %value, ptr %there, align 1
  %next = add i64 %row, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %head, label %done
done:
  ret void
}
declare <16 x float> @llvm.fabs.v16f32(<16 x float>)
define internal <16 x float> @flushed(<16 x float> %x) {
  %size = call <16 x float> @llvm.fabs.v16f32(<16 x float> %x)
  %least.in = insertelement <16 x float> poison, float 0x3810000000000000, i64 0
  %least = shufflevector <16 x float> %least.in, <16 x float> poison, <16 x i32> zeroinitializer
  %gone = fcmp olt <16 x float> %size, %least
  %found = select <16 x i1> %gone, <16 x float> zeroinitializer, <16 x float> %x
  ret <16 x float> %found
}
define internal <16 x float> @half(<16 x i32> %words, i32 %up) {
  %up.in = insertelement <16 x i32> poison, i32 %up, i64 0
  %ups = shufflevector <16 x i32> %up.in, <16 x i32> poison, <16 x i32> zeroinitializer
  %moved = shl <16 x i32> %words, %ups
  %high = lshr <16 x i32> %moved, splat (i32 16)
  %back = shl <16 x i32> %high, splat (i32 16)
  %value = bitcast <16 x i32> %back to <16 x float>
  %found = call <16 x float> @flushed(<16 x float> %value)
  ret <16 x float> %found
}
define internal void @emulated_tdpbf16ps(i8 %c, i8 %a, i8 %b) {
entry:
  br label %rows
rows:
  %row = phi i64 [ 0, %entry ], [ %row.next, %end ]
  %c.at = call ptr @tile_row(i8 %c, i64 %row)
  %a.at = call ptr @tile_row(i8 %a, i64 %row)
  %before = load <16 x float>, ptr %c.at
  %a.words = load <16 x i32>, ptr %a.at
  br label %deep
deep:
  %k = phi i64 [ 0, %rows ], [ %k.next, %deep ]
  %sum = phi <16 x float> [ %before, %rows ], [ %sum2, %deep ]
  %b.at = call ptr @tile_row(i8 %b, i64 %k)
  %b.words = load <16 x i32>, ptr %b.at
  %one = extractelement <16 x i32> %a.words, i64 %k
  %one.in = insertelement <16 x i32> poison, i32 %one, i64 0
  %ones = shufflevector <16 x i32> %one.in, <16 x i32> poison, <16 x i32> zeroinitializer
  %a0 = call <16 x float> @half(<16 x i32> %ones, i32 16)
  %a1 = call <16 x float> @half(<16 x i32> %ones, i32 0)
  %b0 = call <16 x float> @half(<16 x i32> %b.words, i32 16)
  %b1 = call <16 x float> @half(<16 x i32> %b.words, i32 0)
  %ab0 = fmul <16 x float> %a0, %b0
  %ab1 = fmul <16 x float> %a1, %b1
  %sum1 = fadd <16 x float> %sum, %ab0
  %sum1.5 = fadd <16 x float> %sum1, %ab1
  %sum2 = call <16 x float> @flushed(<16 x float> %sum1.5)
  %k.next = add i64 %k, 1
  %deeper = icmp ult i64 %k.next, 16
  br i1 %deeper, label %deep, label %end
end:
  store <16 x float> %sum2, ptr %c.at
  %row.next = add i64 %row, 1
  %more = icmp ult i64 %row.next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}
define internal void @emulated_tdpbssd(i8 %c, i8 %a, i8 %b) {
entry:
  br label %rows
rows:
  %row = phi i64 [ 0, %entry ], [ %row.next, %end ]
  %c.at = call ptr @tile_row(i8 %c, i64 %row)
  %a.at = call ptr @tile_row(i8 %a, i64 %row)
  %before = load <16 x i32>, ptr %c.at
  br label %deep
deep:
  %k = phi i64 [ 0, %rows ], [ %k.next, %deep ]
  %sum = phi <16 x i32> [ %before, %rows ], [ %after, %deep ]
  %word = lshr i64 %k, 2
  %place = and i64 %k, 3
  %one.at = getelementptr i8, ptr %a.at, i64 %k
  %one = load i8, ptr %one.at
  %one.wide = sext i8 %one to i32
  %one.in = insertelement <16 x i32> poison, i32 %one.wide, i64 0
  %ones = shufflevector <16 x i32> %one.in, <16 x i32> poison, <16 x i32> zeroinitializer
  %b.at = call ptr @tile_row(i8 %b, i64 %word)
  %b.words = load <16 x i32>, ptr %b.at
  %bits = mul i64 %place, 8
  %up = sub i64 24, %bits
  %up.small = trunc i64 %up to i32
  %up.in = insertelement <16 x i32> poison, i32 %up.small, i64 0
  %ups = shufflevector <16 x i32> %up.in, <16 x i32> poison, <16 x i32> zeroinitializer
  %moved = shl <16 x i32> %b.words, %ups
  %bytes = ashr <16 x i32> %moved, splat (i32 24)
  %ab = mul <16 x i32> %ones, %bytes
  %after = add <16 x i32> %sum, %ab
  %k.next = add i64 %k, 1
  %deeper = icmp ult i64 %k.next, 64
  br i1 %deeper, label %deep, label %end
end:
  store <16 x i32> %after, ptr %c.at
  %row.next = add i64 %row, 1
  %more = icmp ult i64 %row.next, 16
  br i1 %more, label %rows, label %done
done:
  ret void
}
"""


def by_tiles(program: Program) -> dict[str, str]:
    """The LLVM IR of the only kernel of a program, by tiles."""
    executable = compile_program(program, host(), overrides=in_tiles(program))
    (routine,) = parse_routines(executable.stages["cpu"])
    assert print_routines([routine]) == executable.stages["cpu"]
    features = frozenset({"avx512f", "amx_bf16", "amx_int8"})
    return {routine.name: emit_module([routine], "", features)}


def emulated(program: Program) -> Executable:
    """A program by tiles that are emulated."""
    ((symbol, text),) = by_tiles(program).items()
    lines = [line for line in text.splitlines() if not line.startswith("declare void @llvm.x86.")]
    text = "\n".join(lines).replace("@llvm.x86.", "@emulated_")
    overrides = {**in_tiles(program), "llvm": LLVM.join({symbol: text + EMULATED})}
    return compile_program(program, host(), overrides=overrides)


@pytest.mark.parametrize("shape", one_in(4, SHAPES))
def test_products_by_tiles(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    x, y = numbers(0, m, k), numbers(1, k, n)
    (found,) = emulated(product(m, n, k)).run([x, y], threads=1)
    close_enough(found, x, y)


@pytest.mark.parametrize("turned", one_in(2, ["A", "B", "AB"]))
def test_operands_that_lie_across(turned: str) -> None:
    x, y = numbers(0, 50, 170), numbers(1, 170, 40)
    given = [x.T.copy() if "A" in turned else x, y.T.copy() if "B" in turned else y]
    (found,) = emulated(product(50, 40, 170, turned)).run(given, threads=1)
    close_enough(found, x, y)


@pytest.mark.parametrize("small", one_in(2, [1e-39, 2e-20]))
@pytest.mark.parametrize("side", one_in(2, [0, 1]))
def test_small_numbers_are_not_lost(small: float, side: int) -> None:
    """Tiles take denormal numbers for zeros, and make zeros of sums that would be denormal."""
    m, n, k = 40, 50, 1000
    given = [np.zeros((m, k), BF16), np.zeros((k, n), BF16)]
    given[side][7, 9] = small
    given[1 - side][:] = 1e19 if small == 1e-39 else small
    (found,) = emulated(product(m, n, k)).run(given, threads=1)
    exact = given[0].astype(np.float32) @ given[1].astype(np.float32)
    np.testing.assert_array_equal(found, exact)
    assert np.count_nonzero(found)


def test_endless_numbers_stay_in_their_rows_and_columns() -> None:
    m, n, k = 40, 50, 70
    x, y = numbers(0, m, k), numbers(1, k, n)
    x[39, 69] = np.inf
    y[69, 49] = np.nan
    (found,) = emulated(product(m, n, k)).run([x, y], threads=1)
    rows, columns = np.nonzero(~np.isfinite(found))
    assert set(zip(rows.tolist(), columns.tolist(), strict=True)) == {
        *((39, column) for column in range(n)),
        *((row, 49) for row in range(m)),
    }


def of_bytes(m: int, n: int, k: int, dtype: str) -> Program:
    b = Builder("bytes")
    x, y = b.param(dtype, [m, k]), b.param(dtype, [k, n])
    return b.build(b.dot_general(x, y, contract=([1], [0]), out_dtype="si32"))


@pytest.mark.parametrize("shape", one_in(4, SHAPES))
def test_products_of_bytes_are_exact(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    rng, program = np.random.default_rng(0), of_bytes(m, n, k, "si8")
    x, y = (rng.integers(-128, 128, size, np.int8) for size in ((m, k), (k, n)))
    exact = x.astype(np.int64) @ y.astype(np.int64)
    plain = compile_program(program, host(), overrides=in_tiles(program))
    for executable in (plain, emulated(program)):
        np.testing.assert_array_equal(executable.run([x, y], threads=1)[0], exact)


def test_the_instructions_are_those_of_the_processor() -> None:
    (text,) = by_tiles(product(64, 64, 64)).values()
    found = assembly(text, SAPPHIRE_RAPIDS)
    for wanted in ("tdpbf16ps", "tileloadd", "tilestored", "ldtilecfg", "tilerelease"):
        assert wanted in found
    (text,) = by_tiles(of_bytes(64, 64, 64, "si8")).values()
    assert "tdpbssd" in assembly(text, SAPPHIRE_RAPIDS)


FLAGS = frozenset({"avx", "avx2", "fma", "avx512f", "f16c", "avx512_bf16"})


@pytest.mark.parametrize("tiles", [False, True])
def test_tiles_are_chosen_where_the_machine_has_them(tiles: bool) -> None:
    flags = FLAGS | ({"amx_bf16", "amx_int8"} if tiles else set())
    target = describe("x86_64", frozenset(flags), 4, (48 << 10, 2 << 20))
    f16 = product(512, 512, 512, dtype="f16")
    for program in (product(512, 512, 512), f16, of_bytes(512, 512, 512, "si8")):
        plan = plan_of(program, target)
        assert ({cached.where for cached in plan.cache} == {"tiles"}) is tiles
    assert {cached.where for cached in plan_of(product(4, 512, 512), target).cache} != {"tiles"}


def plan_of(program: Program, target: Target) -> MmaPlan:
    module = lowered(lower_program(program), target).module
    plan = plan_module(module, target).of(module.kernels[0].name)
    assert isinstance(plan, MmaPlan)
    assert not accepts(module.kernels[0], module.tensors, plan)
    return plan


def test_a_plan_for_other_numbers_is_refused() -> None:
    b = Builder("floats")
    x = b.param("f32", [64, 64])
    program = b.build(b.matmul(x, x))
    with pytest.raises(SpecViolation, match="tiles are for products along one axis of bf16"):
        compile_program(program, host(), overrides=in_tiles(program))


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("tiles b5 = 64x64x32", "tiles b5 = 64x96x32", "elements are more than all"),
        ("tiles b5 = 64x64x32", "tiles b5 = 64x40x32", "whole 32 x 32"),
        ("of b3, b4", "of b3, b4 in 2 parts", "elements are more than all"),
        ("of b3, b4", "of b3, b4 in 3 parts", "bf16 in two parts"),
        ("of b3, b4", "of b0, b4", "tiles are in scratch"),
        ("of b3, b4", "of b4, b3", "there are no tiles of"),
        ("turn b4[1024*p_3]", "turn b4[1025*p_3]", "leaves the"),
    ],
)
def test_routines_that_leave_their_memory_are_refused(before: str, after: str, why: str) -> None:
    program = product(64, 64, 64, "B")
    overrides = in_tiles(program, (64, 64, 64))
    text = compile_program(program, host(), overrides=overrides).stages["cpu"]
    assert before in text, text
    with pytest.raises(SpecViolation, match=why):
        compile_program(
            program, host(), overrides={**overrides, "cpu": text.replace(before, after)}
        )


@pytest.mark.parametrize("allowed", [False, True])
def test_the_host_has_tiles_where_the_system_allows_them(
    allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cpu, "_file_text", lambda path: "flags : avx512f amx_tile amx_bf16 amx_int8\n"
    )
    monkeypatch.setattr(cpu, "allows_tiles", lambda: allowed)
    found = cpu.host.__wrapped__().features
    assert (found & cpu.MATRIX_TILES == cpu.MATRIX_TILES) is allowed
    assert "avx512f" in found


def test_bundles_have_no_tiles() -> None:
    target = describe("x86_64", FLAGS | cpu.MATRIX_TILES, 4, ())
    (found,) = targets_of(target)
    assert found.features == FLAGS
