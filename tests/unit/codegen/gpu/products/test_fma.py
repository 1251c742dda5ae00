"""Contractions by scalar multiply-adds: every layout and dtype, computed and guarded
operands, epilogues; planted faults; refusals; machine code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import weft
from tests.support import kernels
from tests.support.cases import one_in
from tests.support.gpu_faults import Change, planted, without
from tests.support.gpu_fma import Case, convolution, error_of, is_wrong, numbers, product
from tests.support.gpu_interpreted import InterpretedGpu
from tests.support.gpu_programs import TARGETS, through_stages
from weft import functional as F
from weft.codegen.gpu import ir, sass, templates
from weft.codegen.gpu.compile import architecture, compile_cuda
from weft.codegen.gpu.ir.scalar import Lit
from weft.codegen.gpu.products import fma
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.driver.code.gpu_kernels import compile_sources
from weft.memory.from_region import assign_buffers
from weft.plan.ir import Header, MmaPlan, Vectorize
from weft.plan.text import told
from weft.ptir import Builder
from weft.target.known import target_named
from weft.target.sm90 import SM90


def with_epilogue() -> Case:
    """A bias by columns, a factor by rows, and the plain product beside the result."""
    b = Builder()
    x, w = b.param("f32", [20, 18]), b.param("f32", [18, 24])
    bias, scale = b.param("f32", [24]), b.param("f32", [20, 1])
    y = b.matmul(x, w)
    out = b.broadcast_to(scale, [20, 24]) * b.maximum(y + b.broadcast_to(bias, [20, 24]), y)
    shapes = [(20, 18), (18, 24), (24,), (20, 1)]
    inputs = [numbers("f32", shape, seed) for seed, shape in enumerate(shapes)]
    plain = inputs[0] @ inputs[1]
    return b.build(out), inputs, inputs[3] * np.maximum(plain + inputs[2], plain)


def of_computed() -> Case:
    """exp(0) is 1: what lies beyond the operands must be zero after it, not before."""
    b = Builder()
    x, w = b.param("f32", [20, 18]), b.param("f32", [18, 24])
    inputs = [np.zeros((20, 18), np.float32), np.ones((18, 24), np.float32)]
    return b.build(b.matmul(b.exp(x), b.exp(w))), inputs, np.full((20, 24), 18 * np.e)


DTYPES = ("si16", "si64", "ui64", "fp8_e4m3", "si4")
CASES: dict[str, Callable[[], Case]] = {
    **{f"layout {name}": partial(product, layouts=name) for name in ("NN", "NT", "TN", "TT")},
    **{f"dtype {name}": partial(product, name, k=4) for name in DTYPES},
    "batch": lambda: product(batch=3, m=9, n=8),
    "several tiles": lambda: product(m=40, n=37, k=5),
    "whole tiles": lambda: product(m=32, n=64, k=32),
    "few rows": lambda: product(m=3, n=130, k=64, layouts="NT"),
    "few rows, half vectors": lambda: product(m=2, n=128, k=70, layouts="NT"),
    "few rows of f64": lambda: product("f64", m=2, n=128, k=63, layouts="NT"),
    "more rows of f64": lambda: product("f64", m=9, n=128, k=15, layouts="NT"),
    "few columns": lambda: product(m=130, n=3, k=64, layouts="NT"),
    "epilogue": with_epilogue,
    "computed operands": of_computed,
    "convolution": convolution,
}


@pytest.mark.parametrize("name", one_in(4, CASES))
def test_products_agree_with_numpy(name: str) -> None:
    program, inputs, want = CASES[name]()
    executable = InterpretedGpu("sm90").compile(program)
    plans = executable.compilation["plan"].plans.values()
    assert "fma" in {plan.arch for plan in plans if isinstance(plan, MmaPlan)}
    # si4 wraps nothing here but saturates: the program casts its si32 sums.
    low, high = (-8, 7) if name == "dtype si4" else (-np.inf, np.inf)
    assert error_of(executable, inputs, np.clip(want, low, high)) < 1e-4


@pytest.mark.parametrize("dtype", one_in(2, ["f32", "si16", "si8"]))
def test_tiles_that_no_vector_divides(dtype: str) -> None:
    """Rows that are neighbours in memory are fetched in vectors that divide those of a tile."""
    program, inputs, want = product(dtype, m=48, n=16, k=64, layouts="TN")
    executable = InterpretedGpu("sm90").compile(program)
    module, code = executable.compilation["region"], executable.compilation["gpu"]
    (kernel,) = (k for k in module.kernels if k.roles is not None)
    symbol = code.launches[kernel.name].symbol
    made, refs = plan(tile=(12, 8, 64), warp_tile=(12, 8)), assign_buffers(module).refs
    code.kernels[symbol] = templates.build(kernel, module.tensors, refs, made, SM90, symbol)
    assert error_of(executable, inputs, want) == 0


@pytest.mark.parametrize("rows", one_in(2, [20, 4]))
def test_the_text_reads_back(rows: int) -> None:
    code = through_stages(product(m=rows, n=128)[0], "sm90")["gpu"]
    assert parse_module(print_module(code)) == code


# -- few rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", one_in(2, [1, 4, 16]))
def test_tiles_of_few_rows_run_all_at_once(rows: int) -> None:
    """As many as a unit has registers and shared memory for."""
    compilation = through_stages(product("f32", rows, 4096, 4096, "NT")[0], "sm90")
    kernels = compilation["gpu"].kernels.values()
    found = [kernel for kernel in kernels if "a" in {tile.name for tile in kernel.tiles}]
    assert len(found) == (rows > 1)
    for kernel in found:
        fitting = SM90.limits.shared_bytes_per_unit // kernel.shared_bytes
        at_once = SM90.limits.units * min(kernel.resident, fitting)
        assert at_once / 2 < kernel.grid <= at_once


@pytest.mark.parametrize(("dtype", "rows", "ways"), [("f32", 4, 1), ("si64", 4, 2), ("si64", 8, 1)])
def test_threads_that_read_along_k_put_down_in_different_banks(
    dtype: str, rows: int, ways: int
) -> None:
    compilation = through_stages(product(dtype, rows, 128, 64, "NT")[0], "sm90")
    (kernel,) = (k for k in compilation["region"].kernels if k.roles is not None)
    plan = compilation["plan"].of(kernel.name)
    tiles = fma.Tiles(kernel, assign_buffers(compilation["region"]).refs, plan, SM90)
    vector, word = 16 // tiles.b.word, tiles.b.word
    together = 128 // word  # lanes whose words shared memory takes in one turn
    places = [divmod(lane, plan.tile[2] // vector) for lane in range(together)]
    for step in range(vector):
        slots = [tiles.slot(tiles.b, Lit(0), Lit(k * vector + step), Lit(c)) for c, k in places]
        offsets = [at.offset for at in slots]
        banks = [at.value // word % together for at in offsets if isinstance(at, Lit)]
        assert len(banks) == together
        assert max(map(banks.count, banks)) == ways


# -- planted faults --------------------------------------------------------------------------------


def fewer_slices(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.For) and statement.var == "slice":
        return replace(statement, stop=statement.stop - 1)
    return statement


def same_buffer(statement: ir.Stmt) -> ir.Stmt:
    """The next slice is put where the first one always is."""
    if isinstance(statement, ir.If):
        stored = [s for s in statement.then if isinstance(s, ir.StShared)]
        moved = {id(s): replace(s, target=ir.Address(s.target.tile, Lit(0))) for s in stored}
        return replace(statement, then=tuple(moved.get(id(s), s) for s in statement.then))
    return statement


def beside(statement: ir.Stmt) -> ir.Stmt:
    if isinstance(statement, ir.LoadSharedVector) and statement.source.tile == "a":
        place = ir.Address("a", statement.source.offset + 16)
        return replace(statement, source=place)
    return statement


FAULTS: dict[str, Change] = {
    "no meeting": without(ir.SyncThreads),
    "a slice too few": fewer_slices,
    "the wrong buffer": same_buffer,
    "rows beside the wanted ones": beside,
}


@pytest.mark.parametrize("name", one_in(3, FAULTS))
def test_faults_are_found(name: str) -> None:
    program, inputs, want = product(k=40)
    executable = InterpretedGpu("sm90").compile(program)
    code = executable.compilation["gpu"]
    ((symbol, kernel),) = code.kernels.items()
    code.kernels[symbol] = planted(kernel, FAULTS[name])
    assert code.kernels[symbol] != kernel
    assert is_wrong(executable, inputs, want)


# -- refusals --------------------------------------------------------------------------------------


def plan(**fields: Any) -> MmaPlan:
    given: dict[str, Any] = {"tile": (32, 32, 16), "warp_tile": (16, 16), "roles": "single"}
    return MmaPlan(Header("sm90", ""), arch="fma", **{**given, **fields})


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "a division": ({"tile": (32, 24, 16)}, "warp_tile does not divide the tile 32x24"),
    "lanes": (
        {"warp_tile": (2, 16)},
        "a warp tile of 2x16 is not shared by 4x8 lanes of 32 warps",
    ),
    "threads": (
        {"tile": (32, 32, 2)},
        "the slices of tile 32x32x2 are not shared by 128 threads",
    ),
    "memory": (
        {"tile": (128, 128, 64), "warp_tile": (32, 32), "stages": 4},
        "4 slices of both operands take 270336 bytes",
    ),
    "registers": (
        {"tile": (256, 256, 8), "warp_tile": (64, 64)},
        "a lane of a 64x64 warp tile needs 208 registers at least, and has 128",
    ),
    "registers for the epilogue": (
        {"tile": (256, 128, 8), "warp_tile": (64, 32)},
        "a lane of a 64x32 warp tile needs 134 registers at least, and has 128",
    ),
    "order": ({"order": "grouped:0"}, "there is no tile order grouped:0"),
    "algorithm": (
        {"algo_choice": {"matmul": "splitk_serial_2"}},
        "algo_choice.matmul=splitk_serial_2 is not built for this kernel",
    ),
    "epilogue": (
        {"epilogue": ("relu",)},
        'epilogue=["relu"], but the kernel\'s is ["bias", "gelu"]',
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_plans_that_are_refused(name: str) -> None:
    changes, why = REFUSALS[name]
    module = kernels.linear(64, 64, 64)
    found = fma.accepts(module.kernels[0], module.tensors, plan(**changes), SM90)
    assert [finding.why for finding in found] == [why]


@pytest.mark.parametrize(
    ("tile", "warp_tile", "resident"),
    one_in(
        6,
        [
            ((128, 128, 8), (64, 64), 2),
            ((128, 128, 8), (32, 64), 2),
            ((256, 128, 8), (64, 64), 1),
            ((128, 256, 16), (64, 64), 1),
            ((128, 128, 16), (32, 32), 1),
            ((16, 128, 16), (16, 32), 4),
        ],
        unpack=True,
    ),
)
def test_as_many_tiles_share_a_unit_as_have_the_registers(
    tile: tuple[int, int, int], warp_tile: tuple[int, int], resident: int
) -> None:
    """Told to leave registers for a second one, the compiler would move sums to memory and back."""
    module = kernels.linear(256, 256, 64)
    refs = assign_buffers(module).refs
    changed = plan(tile=tile, warp_tile=warp_tile)
    made = templates.build(module.kernels[0], module.tensors, refs, changed, SM90, "k0")
    assert made.resident == resident
    assert compile_cuda(cuda(made), "sm_90a").report.findings == []


def test_wide_integers_have_the_registers() -> None:
    """Two tiles would share a unit if elements on their way were held once."""
    program, _, _ = product("si64", m=256, n=256, k=64)
    compilation = through_stages(program, "sm90")
    (kernel,), tensors = compilation["region"].kernels, compilation["region"].tensors
    refs, target = compilation["memory"].refs, compilation.target
    changed = plan(tile=(64, 64, 32), warp_tile=(16, 32))
    made = templates.build(kernel, tensors, refs, changed, target, "k0")
    assert made.resident == 1
    assert compile_cuda(cuda(made), "sm_90a").report.findings == []
    (found,) = fma.accepts(kernel, tensors, replace(changed, warp_tile=(32, 32)), target)
    assert found.why == "a lane of a 32x32 warp tile needs 256 registers at least, and has 255"


@pytest.mark.parametrize(("rows", "columns"), [(256, 257), (1, 32768), (32768, 1)])
def test_a_curve_has_room_in_a_table(rows: int, columns: int) -> None:
    module = kernels.linear(32 * rows, 32 * columns, 8)
    found = fma.accepts(module.kernels[0], module.tensors, plan(order="hilbert"), SM90)
    why = "a Hilbert order goes up to 65536 tiles, 32767 of them side by side"
    assert [finding.why for finding in found] == [why]


IDLE: dict[str, Any] = {
    "bind": {"m.o": "block.y"}, "vectorize": Vectorize("n", 4), "predicate_tail": ("m.i.i",),
    "cluster": (2, 1), "layout_hints": {"A_swizzle": True}, "operand_layouts": ("col", "row"),
    "split_k": 2, "swap_ab": True, "roles": "pingpong", "deferred_epilogue": True, "consumers": 1,
    "in_flight": 0, "store_buffers": 1, "registers": (0, 0), "batch": 2, "precision": "3xtf32",
}  # fmt: skip
"""Fields that this template has no use for, each with a value of its own."""
TOLD: dict[str, Any] = {
    "tile": (64, 32, 16), "stages": 3, "warp_tile": (32, 8), "order": "rows", "local_edges": (),
    "epilogue": (), "algo_choice": {}, "arch": "sm80", "cache": (),
}  # fmt: skip


@pytest.mark.parametrize("name", IDLE)
def test_fields_without_effect_are_refused(name: str) -> None:
    module = kernels.linear(64, 64, 64)
    changed = plan(**{name: IDLE[name]})
    found = fma.accepts(module.kernels[0], module.tensors, changed, SM90)
    why = f"{told(changed, name)} has no effect in the FMA template"
    assert why in [finding.why for finding in found]


def test_every_field_is_accounted_for() -> None:
    known = {found.name for found in fields(MmaPlan)} - {"header"}
    assert known == {*IDLE, *TOLD}


@pytest.mark.parametrize("name", ["tile", "stages", "warp_tile", "order"])
def test_fields_change_the_kernel(name: str) -> None:
    module = kernels.linear(96, 96, 64)
    kernel, tensors = module.kernels[0], module.tensors
    refs = assign_buffers(module).refs
    usual, changed = (
        templates.build(kernel, tensors, refs, made, SM90, "k")
        for made in (plan(), plan(**{name: TOLD[name]}))
    )
    assert usual != changed


def test_plans_name_the_epilogue_as_it_was_written() -> None:
    """Where results are narrow the kernel computes a tanh's gelu in another way."""
    x, w = np.zeros((256, 256), np.float32), np.zeros((256, 256), np.float32)
    made = weft.jit(lambda x, w: F.gelu(x @ w, approximate="tanh").astype("bfloat16")).program(x, w)
    plans = through_stages(made, "sm90")["plan"]
    (found,) = plans.plans.values()
    assert (found.arch, plans.notes) == ("fma", ())


def test_other_kernels_are_refused() -> None:
    module = kernels.softmax(64, 64)
    found = fma.accepts(module.kernels[0], module.tensors, plan(), SM90)
    assert [f.why for f in found] == ["softmax is not one contraction and its epilogue"]


# -- machine code ----------------------------------------------------------------------------------


@pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")
@pytest.mark.parametrize("target", one_in(2, TARGETS))
@pytest.mark.parametrize(
    ("dtype", "instruction"),
    [
        ("f32", "FFMA"),
        pytest.param("si16", "IMAD", marks=pytest.mark.slow),
        pytest.param("si64", "IMAD", marks=pytest.mark.slow),
    ],
)
def test_large_products_stay_in_registers(dtype: str, instruction: str, target: str) -> None:
    """f32 is multiplied as f32, by no matrix instruction that would round it."""
    program, _, _ = product(dtype, m=2048, n=2048, k=8)
    compilation = through_stages(program, target)
    arch = architecture(target_named(target), device=None)
    (cubin,) = compile_sources(compilation["cu"], arch).cubins.values()
    assert cubin.report.findings == []
    roots = {found.root for found in sass.disassemble(cubin.code)}
    assert {instruction, "LDS"} <= roots
    assert not roots & {"HMMA", "HGMMA", "LDL", "STL"}


CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "groups": ("f32", (4, 64, 28, 28), (64, 16, 3, 3), {"padding": 1, "groups": 4}),
    "odd sizes": ("f32", (3, 5, 11, 13), (7, 5, 3, 3), {}),
    "one channel": ("f32", (4, 1, 14, 14), (5, 1, 7, 7), {}),
    "few wide rows": ("f64", (4, 16, 9, 12), (14, 8, 5, 5), {"padding": 2, "groups": 2}),
}


@pytest.mark.parametrize("name", one_in(8, CONVOLUTIONS))
@pytest.mark.parametrize("target", one_in(2, TARGETS))
def test_convolutions_stay_in_registers(name: str, target: str) -> None:
    """By their first plans, whose blocks have registers for the places of windows as well."""
    dtype, shape, weights, options = CONVOLUTIONS[name]
    given = numbers(dtype, shape, 0), numbers(dtype, weights, 1)
    program = weft.jit(lambda x, w: F.conv2d(x, w, **options)).program(*given)
    compilation = through_stages(program, target)
    used = {p.arch for p in compilation["plan"].plans.values() if isinstance(p, MmaPlan)}
    assert used == {"fma"}
    arch = architecture(target_named(target), device=None)
    cubins = compile_sources(compilation["cu"], arch).cubins.values()
    assert [cubin.report.findings for cubin in cubins] == [[]] * len(cubins)
