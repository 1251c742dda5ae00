"""Contractions of other dtypes than 16-bit floats on the dialect's interpreter: integers exactly,
floats within the bounds of their instructions; faults that were planted are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.gemm_kernels import Contraction, references, region_kernel
from tests.support.cases import one_in
from tests.support.gpu_contractions import sm80_kernel, sm90_kernel
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_machine import Machine
from tests.support.gpu_types import (
    SM80_TYPES,
    SM90_TYPES,
    SPLIT,
    bound,
    doubles,
    error,
    integers,
    singles,
    tensors,
    tiny,
)
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.interp import Hazard, Timing, run
from weft.codegen.gpu.interp.fragments import apply_mma
from weft.codegen.gpu.products import sm80, sm90
from weft.codegen.gpu.products.operand import Refusal
from weft.codegen.gpu.products.problem import analyse
from weft.codegen.gpu.products.sm90_layout import RESULTS
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.verify import findings
from weft.foundation.dtypes import BF16, F32, FP8_E4M3, SI8, UI8, UI32
from weft.plan.ir import MmaPlan
from weft.region.ir import Kernel
from weft.region.writing.build import Body
from weft.runtime.artifact import TensorMap
from weft.runtime.cuda.kernels import encode_map
from weft.target.matrix_atoms import ATOMS
from weft.target.sm80 import SM80
from weft.target.sm90 import SM90

CASES = {
    **{f"sm90 {name}": (*case, sm90_kernel) for name, case in SM90_TYPES.items()},
    **{f"sm80 {name}": (*case, sm80_kernel) for name, case in SM80_TYPES.items()},
}


def error_of(shape: Contraction, kernel: ir.Kernel, timing: Timing = Timing.LATE) -> float:
    given = tensors(shape)
    run(kernel, {name: value.reshape(-1) for name, value in given.items()}, timing, seed=3)
    return error(shape, given, given["y"])


@pytest.mark.parametrize("case", one_in(6, CASES))
def test_contractions_agree(case: str) -> None:
    shape, plan, build = CASES[case]
    kernel = build(shape, plan)
    assert list(findings(kernel, SM90)) == []
    assert error_of(shape, kernel) <= bound(shape)


@pytest.mark.parametrize("case", one_in(2, ["sm90 si8", "sm90 e4m3", "sm80 si8 nn", "sm80 f64 tn"]))
def test_asynchronous_statements_may_take_effect_at_once(case: str) -> None:
    shape, plan, build = CASES[case]
    assert error_of(shape, build(shape, plan), Timing.EARLY) <= bound(shape)


def test_sums_of_integers_wrap() -> None:
    """Unsigned sums, made by signed instructions, and signed ones beyond 31 bits."""
    ones = np.full((4, 32), 0xFFFFFFFF, np.uint32)
    for start, dtype, step in ((2**31 - 1, UI8, 255 * 255 * 32), (-(2**31), SI8, 32)):
        acc = np.full((4, 32), start, np.int32)
        apply_mma((acc, ones, ones[:2]), (0, 0, 0), (dtype, dtype))
        assert (acc.view(np.uint32) == np.uint32((start + step) % 2**32)).all()


# Planted faults


def other_sign(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.MmaSync | ir.Wgmma):
        return replace(statement, b_dtype=SI8 if statement.b_dtype is UI8 else UI8)
    return statement


def other_float(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.Wgmma):
        return replace(statement, b_dtype=FP8_E4M3)
    return statement


def never_promoted(statement: ir.Stmt) -> ir.Stmt | None:
    """All sums stay in the accumulators of the matrix instructions."""
    if isinstance(statement, ir.Wgmma):
        return replace(statement, acc="acc0", accumulate=True)
    return None if isinstance(statement, ir.AddRegisters) else statement


def last_step_only(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.AddRegisters):
        return replace(statement, first=True)
    return statement


def not_cleared(statement: ir.Stmt) -> ir.Stmt:
    """Sums of a step go on in the next one, and are added again."""
    if isinstance(statement, ir.AddRegisters):
        return replace(statement, clear=False)
    return statement


def early_promotion(statement: ir.Stmt) -> ir.Stmt:
    """Sums are added up before the matrix instructions are done."""
    if isinstance(statement, ir.WgmmaWait) and statement.acc and statement.acc[0] == "part0":
        return replace(statement, pending=1)
    return statement


def wrong_lanes(statement: ir.Stmt) -> ir.Stmt:
    """Lanes of B hold the next element along k."""
    if isinstance(statement, ir.LdRegister) and statement.source.tile == "b":
        moved = statement.source.offset + 8
        return replace(statement, source=replace(statement.source, offset=moved))
    return statement


def columns_again(statement: ir.Stmt) -> ir.Stmt:
    """A band of columns is the one before it."""
    if isinstance(statement, ir.MmaSync):
        return replace(statement, b=replace(statement.b, index=max(0, statement.b.index - 1)))
    return statement


FAULTS: dict[str, tuple[Change, str]] = {
    "sign of B, warp": (other_sign, "sm80 si8 by ui8"),
    "sign of B, warpgroup": (other_sign, "sm90 si8 by ui8"),
    "format of B": (other_float, "sm90 e4m3 by e5m2"),
    "promoted sums lost": (last_step_only, "sm90 e4m3"),
    "promoted too early": (early_promotion, "sm90 e4m3"),
    "sums of a step kept": (not_cleared, "sm80 f32 nt"),
    "step sums lost": (last_step_only, "sm80 f32 nt"),
    "lanes of f64": (wrong_lanes, "sm80 f64 nt"),
    "columns of f64": (columns_again, "sm80 f64 nn"),
    "slots of f64 not met at": (without(ir.SyncThreads), "sm80 f64 nt"),
    "slots of f64 not waited for": (without(ir.WaitGroup), "sm80 f64 nt"),
}


@pytest.mark.parametrize("fault", one_in(3, FAULTS))
def test_planted_faults_are_caught(fault: str) -> None:
    change, case = FAULTS[fault]
    shape, plan, build = CASES[case]
    kernel = build(shape, plan)
    broken = planted(kernel, change)
    assert broken != kernel
    try:
        assert error_of(shape, broken) > bound(shape)
    except Hazard:
        return


def test_fragments_of_f64_take_turns() -> None:
    """Those of an even number of depths: a slot ends with the half that it began with."""
    shape, plan, _ = CASES["sm80 f64 nt"]
    odd = replace(plan, tile=(32, 32, 12))
    found = sm80.accepts(region_kernel(shape), references(shape), odd, SM80)
    why = "a tile of 32x32x12 is not made of 16-byte pieces and pairs of depths"
    assert why in [finding.why for finding in found]


def test_promotion_is_what_keeps_the_digits() -> None:
    """Positive products: what is cut off adds up, unless partial sums are small."""
    shape = tiny(64, 64, 2048)
    plan = replace(SM90_TYPES["e4m3"][1], tile=(64, 64, 128), consumers=1, registers=(0, 0))
    kernel = sm90_kernel(shape, plan)
    errors = []
    for made in (kernel, planted(kernel, never_promoted)):
        given = tensors(shape)
        given["a"], given["b"] = (np.abs(given[name]) for name in ("a", "b"))
        if made is not kernel:
            made = planted(made, _zeroed)
        run(made, {name: value.reshape(-1) for name, value in given.items()})
        errors.append(error(shape, given, given["y"]))
    assert errors[0] < 2**-10 < errors[1]


def _zeroed(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.Registers) and statement.name == "acc0":
        return replace(statement, zero=True)
    return statement


def test_split_numbers_reach_what_the_page_says() -> None:
    """2^-21 of the sum of the products' sizes, over many scales."""
    shape = singles(32, 32, 512)
    given = tensors(shape)
    rng = np.random.default_rng(5)
    for name in ("a", "b"):
        given[name] *= np.exp2(rng.integers(-20, 20, given[name].shape)).astype(np.float32)
    run(sm80_kernel(shape, SPLIT), {name: value.reshape(-1) for name, value in given.items()})
    a, b = (given[name].astype(np.float64) for name in ("a", "b"))
    sizes = np.abs(a) @ np.abs(b).T
    assert (np.abs(given["y"] - a @ b.T) <= 2**-21 * sizes).all()


def test_split_infinities_become_no_number() -> None:
    shape = singles(16, 16, 32)
    given = tensors(shape)
    given["a"][0, 0], given["a"][1, 1], given["a"][2, 2] = np.inf, np.nan, np.float32(2.0**127)
    given["b"][...] = 1.0
    run(sm80_kernel(shape, SPLIT), {name: value.reshape(-1) for name, value in given.items()})
    assert np.isnan(given["y"][:2]).all()
    assert (given["y"][2] == np.float32(2.0**127)).all()


def test_the_copy_engine_knows_every_operand_and_result() -> None:
    operands = {dtype for atom in ATOMS["sm90"] for dtype in (atom.a, atom.b)}
    for dtype in {*operands, *RESULTS}:
        size = dtype.storage_bytes
        found = TensorMap(0, dtype.name, 0, (64, 64), (64 * size,), (64, 64), 64 * size)
        assert len(encode_map(Machine(), found, 4096)) == 16


# Refusals


def refusals(
    shape: Contraction, build: Callable[[Contraction, MmaPlan], ir.Kernel], **fields: Any
) -> list[str]:
    newer = build is sm90_kernel
    accepts, target = (sm90.accepts, SM90) if newer else (sm80.accepts, SM80)
    _, plan = (SM90_TYPES if newer else SM80_TYPES)["si8"]
    plan = replace(plan, operand_layouts=shape.layouts, **fields)
    found = accepts(region_kernel(shape), references(shape), plan, target)
    return [finding.why for finding in found]


def test_what_the_instructions_do_not_take_is_refused() -> None:
    across = integers(64, 64, 128, layouts=("row", "row"))
    assert "B, of si8, does not lie along k" in refusals(across, sm90_kernel)
    full = "precision=full: products of fp8_e4m3 by wgmma are promoted"
    assert full in refusals(tiny(64, 64, 128), sm90_kernel)
    both = refusals(tiny(64, 64, 128), sm90_kernel, precision="promoted")
    assert "sums that are promoted every k step need in_flight=0" in both
    silent = "precision=full: products of f32 by mma are 3xtf32"
    assert silent in refusals(singles(64, 64, 128), sm80_kernel, tile=(32, 32, 32))
    assert refusals(doubles(64, 64, 128), sm90_kernel) == [
        "no wgmma takes f64 and f64 with sums of f64"
    ]
    mixed = Contraction(64, 64, 128, dtype=SI8, total=UI32, out_dtype=UI32)
    assert refusals(mixed, sm80_kernel) == ["no mma takes si8 and si8 with sums of ui32"]
    assert "72 columns of si8 have no instruction" in refusals(
        integers(64, 144, 128), sm90_kernel, tile=(64, 72, 128), warp_tile=(64, 72), consumers=1
    )


def rounded_first() -> Kernel:
    """A product of f32 numbers that are rounded to bf16 before they are multiplied."""
    kernel = region_kernel(singles(64, 64, 64))
    body = Body([axis.name for axis in kernel.axes])
    lhs, rhs = (body.read(n, F32, kernel.let(side).expr.index) for n, side in _sides(kernel))  # type: ignore[union-attr]
    narrow = body.cast(body.cast(lhs, BF16), F32)
    total = body.reduce("sum", body.binary("mul", narrow, rhs), ("k",), F32)
    assert kernel.roles is not None
    roles = replace(kernel.roles, contraction=total, lhs=lhs, rhs=rhs)
    outputs = (replace(kernel.outputs[0], value=total),)
    return replace(kernel, body=tuple(body.lets), outputs=outputs, roles=roles)


def _sides(kernel: Kernel) -> list[tuple[str, str]]:
    assert kernel.roles is not None
    return [("a", kernel.roles.lhs), ("b", kernel.roles.rhs)]


def test_operands_that_are_rounded_on_the_way_are_not_multiplied_as_they_lie() -> None:
    with pytest.raises(Refusal, match="computed, not read"):
        analyse(rounded_first(), references(singles(64, 64, 64)))


@pytest.mark.slow
@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("layouts", [("row", "col"), ("col", "row")])
def test_split_products_become_machine_code(layouts: tuple[str, str], arch: str) -> None:
    shape = singles(4096, 4096, 4096, layouts=layouts)
    plan = replace(SPLIT, tile=(128, 128, 32), warp_tile=(64, 32))
    cubin = compile_cuda(cuda(sm80_kernel(shape, plan)), arch)
    assert cubin.report.findings == []
    assert sass.check(sass.disassemble(cubin.code), ("HMMA", "LDGSTS")) == []
