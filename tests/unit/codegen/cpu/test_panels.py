"""Packed products: how operands are packed, and sums over one step, several, and very many."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import weft
from tests.support.cases import one_in
from tests.support.lowered import lowered
from weft.codegen.cpu.compile import lower
from weft.codegen.cpu.llvm import emit_module
from weft.memory.from_region import assign_buffers
from weft.plan.from_region import plan_module
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.target import cpu, known
from weft.tiny.from_ptir import lower_program

Array = NDArray[Any]
LAYOUTS = [(1, 0), (0, 0), (1, 1), (0, 1)]
"""The axes that are summed: of A [m, k] or [k, m], of B [k, n] or [n, k]."""


def product(m: int, n: int, k: int, layout: tuple[int, int], dtype: str = "f32") -> Program:
    b = Builder("product")
    x = b.param(dtype, [m, k] if layout[0] else [k, m])
    y = b.param(dtype, [n, k] if layout[1] else [k, n])
    return b.build(b.dot_general(x, y, contract=([layout[0]], [layout[1]])))


def run_both(program: Program, dtype: str = "f4") -> tuple[Array, list[Array], str]:
    """The result of one thread, which is that of two, the inputs and the loop nest."""
    exe = weft.compile(program)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(kind.static_shape).astype(dtype) for kind in exe.inputs]
    one, two = (exe.run(inputs, threads=threads)[0] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    return one, inputs, exe.stages["cpu"]


def exact(inputs: list[Array], layout: tuple[int, int]) -> Array:
    x, y = (array.astype("f8") for array in inputs)
    return np.asarray(np.tensordot(x, y, axes=(layout[0], layout[1])))


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("m", "n", "k"), one_in(2, [(67, 101, 263), (64, 96, 80), (520, 530, 70)], unpack=True)
)
def test_every_layout_is_packed_right(m: int, n: int, k: int, layout: tuple[int, int]) -> None:
    found, inputs, nest = run_both(product(m, n, k, layout))
    np.testing.assert_allclose(found, exact(inputs, layout), atol=2e-4)
    turned = nest.count("    run v")
    assert (turned > 0) is (layout != (0, 0)), "operands along k are turned in registers"


@pytest.mark.parametrize("k", one_in(3, [775, 1000, 1024]))
def test_whole_lines_of_rows_are_turned_by_the_same_instructions(k: int) -> None:
    """On AVX-512: sixteen steps along k of four rows are four tiles, one in each quarter of a
    vector; what is left over is turned by itself."""
    program = product(1024, 1024, k, (1, 0))
    stages = weft.compile(program, target="x86-64-v4").stages
    assert re.search(r"run v\d over ku_\d+=16 = b0", stages["cpu"])
    quarters = "i32 0, i32 16, i32 1, i32 17, i32 4, i32 20, i32 5, i32 21, i32 8"
    assert quarters in stages["llvm"]
    found, inputs, _ = run_both(program)
    np.testing.assert_allclose(found, exact(inputs, (1, 0)), atol=2e-4)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("k", one_in(2, [16, 255, 256, 257, 512, 777, 1100, 17_000]))
def test_the_first_step_of_a_sum_stores_and_the_others_add(k: int) -> None:
    found, inputs, _ = run_both(product(136, 140, k, (1, 0)))
    scale = np.sqrt(k)
    np.testing.assert_allclose(found / scale, exact(inputs, (1, 0)) / scale, atol=2e-6)


@pytest.mark.usefixtures("small_machine")
@pytest.mark.parametrize("dtype", ["f64", "f16"])
def test_other_widths_are_turned_too(dtype: str) -> None:
    found, inputs, nest = run_both(product(70, 90, 75, (1, 1), dtype), dtype.replace("f", "float"))
    bound = {"f64": 1e-13, "f16": 2e-3}[dtype] * np.sqrt(75)
    np.testing.assert_allclose(found.astype("f8"), exact(inputs, (1, 1)), atol=bound, rtol=1e-3)
    assert "    run v" in nest


def test_what_is_computed_while_packing_is_turned_with_it() -> None:
    """Rows scaled by a number each, and columns of the sum by another."""
    b = Builder("scaled")
    x, y = b.param("f32", [90, 120]), b.param("f32", [120, 100])
    rows, along = b.param("f32", [90, 1]), b.param("f32", [1, 120])
    scaled = x * b.broadcast_to(rows, [90, 120]) * b.broadcast_to(along, [90, 120])
    found, inputs, _ = run_both(b.build(scaled @ y))
    x8, y8, rows8, along8 = (array.astype("f8") for array in inputs)
    np.testing.assert_allclose(found, (x8 * rows8 * along8) @ y8, atol=2e-4)


@pytest.fixture
def wide_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores with vectors of 512 bits."""
    wide = cpu.describe("x86_64", frozenset({"avx512f"}), 2, (32 << 10, 1 << 20, 32 << 20))
    monkeypatch.setattr(known, "host", lambda: replace(wide, features=cpu.host().features))


@pytest.mark.usefixtures("wide_machine")
@pytest.mark.parametrize(("m", "n", "k"), [(264, 530, 600), (70, 101, 1031)])
def test_panels_of_wide_vectors_come_from_the_second_cache(m: int, n: int, k: int) -> None:
    """A panel of 48 columns fills the nearest cache: those of A stay, those of B are foretold."""
    found, inputs, nest = run_both(product(m, n, k, (1, 1)))
    np.testing.assert_allclose(found, exact(inputs, (1, 1)), atol=5e-4)
    rows, columns = nest.index("serial ip_"), nest.index("serial jp_")
    step = nest.index("serial k_", columns)
    assert rows < columns < nest.index("prefetch", step) < nest.index("accumulate", step)


@pytest.mark.usefixtures("wide_machine")
@pytest.mark.parametrize(("layout", "foretold"), [((1, 0), True), ((1, 1), False)])
def test_rows_are_foretold_while_those_before_are_packed(
    layout: tuple[int, int], foretold: bool
) -> None:
    """Rows of B, that is; columns that lie along k are read from where the last turn ended."""
    found, inputs, nest = run_both(product(264, 530, 600, layout))
    np.testing.assert_allclose(found, exact(inputs, layout), atol=5e-4)
    packing = nest[: nest.index("serial ip_")]
    assert ("prefetch b1[2120*k_" in packing) is foretold


@pytest.mark.parametrize(("layout", "in_turn"), [((1, 0), True), ((0, 0), False)])
def test_wide_vectors_pack_rows_in_turn(layout: tuple[int, int], in_turn: bool) -> None:
    """One panel of twelve rows has room, but where rows lie side by side and are read together."""
    nest = weft.compile(product(1024, 1024, 1024, layout), target="x86-64-v4").stages["cpu"]
    assert ("scratch f32[3072]" in nest) is in_turn


@pytest.mark.usefixtures("wide_machine")
@pytest.mark.parametrize("k", one_in(2, [200, 600, 17_000]))
def test_rows_are_finished_panel_by_panel(k: int) -> None:
    """Rows and columns that fill no panel among them, and sums too long to have no totals."""
    found, inputs, _ = run_both(product(275, 149, k, (1, 0)))
    scale = np.sqrt(k)
    np.testing.assert_allclose(found / scale, exact(inputs, (1, 0)) / scale, atol=4e-6)


@pytest.mark.usefixtures("small_machine")
def test_a_panel_of_narrow_vectors_stays_in_the_nearest_cache() -> None:
    _, _, nest = run_both(product(264, 530, 600, (1, 1)))
    assert nest.index("serial jp_") < nest.index("serial ip_")


@pytest.mark.usefixtures("wide_machine")
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("channels", one_in(2, [5, 16, 64]))
def test_windows_with_channels_last_are_packed_as_rows(channels: int, pad: int) -> None:
    """Rows of a panel follow one another, each in vectors along the channels; 13 x 17 places are no
    whole panels."""
    b = Builder("windows")
    x = b.param("f32", [2, 13 - 2 * pad + 2, 17 - 2 * pad + 2, channels])
    w = b.param("f32", [9 * channels, 70])
    patches = b.emit(
        "extract_patches", x, window=[3, 3], strides=[1, 1], dilation=[1, 1],
        padding=[(pad, pad), (pad, pad)], pad_value=0.0,
    )  # fmt: skip
    flat = b.reshape(patches, [2, 13, 17, 9 * channels])
    found, (image, weights), nest = run_both(b.build(b.dot_general(flat, w, contract=([3], [0]))))
    padded = np.pad(image.astype("f8"), ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    taps = [padded[:, i : i + 13, j : j + 17] for i in range(3) for j in range(3)]
    wanted = np.concatenate(taps, axis=-1) @ weights.astype("f8")
    np.testing.assert_allclose(found, wanted, atol=2e-4)
    assert "run a over" not in nest


@pytest.mark.parametrize(("columns", "summed"), [(999, 1111), (130, 1031)])
def test_what_is_left_over_of_vectors_is_little_code(columns: int, summed: int) -> None:
    """Columns along the sum, of sizes that no vector divides: of each kind of block, and there are
    many, the rest is packed in loops."""
    program = product(777, columns, summed, (1, 1))
    target = cpu.describe("x86_64", frozenset({"avx2", "fma", "avx512f"}), 2, (32 << 10, 1 << 20))
    module = lowered(lower_program(program), target).module
    (kernel,) = module.kernels
    plan = plan_module(module, target).of(kernel.name)
    assert isinstance(plan, MmaPlan)
    assert plan.tile[2] % 16 == 0
    refs = assign_buffers(module).refs
    routine = lower(kernel, module.tensors, refs, plan, "k0")
    assert len(emit_module([routine], features=target.features)) < 1_200_000
