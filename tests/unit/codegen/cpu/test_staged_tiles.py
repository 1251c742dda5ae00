"""Stages on the CPU by tiles of columns: plans that are obeyed or refused, what the planner
chooses, edits that are proved or refused."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.support.staged_programs import image, twice
from weft import functional
from weft.driver.compile import Executable
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.plan.ir import StagedPlan
from weft.plan.staged import depths_of, held_by, strip_of, tiles_of
from weft.plan.text import loads
from weft.ptir import Program
from weft.region.forms.rings import Tile, Tiles
from weft.region.interp import run_module
from weft.region.interp_rows import run_rows
from weft.region.ir import Kernel, Module
from weft.target.known import target_named

pytestmark = pytest.mark.usefixtures("small_machine")
SHAPE = (14, 81)
"""Of a result of 10 rows and 77 columns: no whole tiles of 16 or 32."""


@cache
def program_of(function: Any = twice, shape: tuple[int, ...] = SHAPE) -> Program:
    found: Program = weft.jit(function).program(weft.tensor(np.zeros(shape, np.float32)))
    return found


@cache
def compiled(function: Any = twice, shape: tuple[int, ...] = SHAPE) -> Executable:
    return weft.compile(program_of(function, shape), "cpu")


def plans_with(made: Executable, **fields: Any) -> str:
    plans = json.loads(made.stages["plan"])
    (plan,) = (found for found in plans["plans"] if found["kind"] == "staged")
    plan |= {"local_edges": [], **fields}
    return json.dumps(plans)


def tiled(
    tile: dict[str, int], function: Any = twice, shape: tuple[int, ...] = SHAPE
) -> Executable:
    """A program in tiles, two vectors of four lanes side by side."""
    text = plans_with(compiled(function, shape), tile=tile, vector=4, unroll=2)
    return weft.compile(program_of(function, shape), "cpu", overrides={"plan": text})


def module_of(function: Any = twice, shape: tuple[int, ...] = SHAPE) -> Module:
    program = program_of(function, shape)
    made = Compilation(program, target_named("cpu"), make_signature(program))
    module: Module = run_pipeline(made, "plan")["region"]
    return module


# -- plans ---------------------------------------------------------------------------------------


def test_a_tile_has_its_columns_and_a_halo() -> None:
    """77 columns are five tiles; each stage has what the stages behind it read, in half vectors."""
    made = tiled({"i0": 5, "i1": 16})
    assert "pieces=10" in made.stages["cpu"]
    rings = [int(size) for size in re.findall(r"scratch f32\[(\d+)\]", made.stages["cpu"])]
    assert rings == [3 * 20, 1 * 20, 3 * 16]
    assert json.loads(made.stages["plan"])["plans"][0]["tile"] == {"i0": 5, "i1": 16}


def test_columns_alone_are_cut_in_strips_as_they_were() -> None:
    (before,) = json.loads(compiled().stages["plan"])["plans"]
    text = "split i1 16; vectorize i1 4; unroll i1 2"
    made = weft.compile(program_of(), "cpu", overrides={"plan": text})
    assert json.loads(made.stages["plan"])["plans"][0]["tile"] == {**before["tile"], "i1": 16}
    x = image(*SHAPE)
    np.testing.assert_array_equal(made.run([x])[0], compiled().run([x])[0])


def test_the_plan_language_cuts_both_axes() -> None:
    text = "split i0 5; split i1 16; vectorize i1 4; unroll i1 2"
    made = weft.compile(program_of(), "cpu", overrides={"plan": text})
    assert json.loads(made.stages["plan"])["plans"][0]["tile"] == {"i0": 5, "i1": 16}


def windows(x: Any) -> Any:
    return functional.avg_pool2d(
        functional.max_pool2d(weft.tanh(x), 3, stride=1, padding=1), (2, 3), stride=1
    )


def channels_last(x: Any) -> Any:
    h = weft.tanh(x[:, :-2] + x[:, 1:-1] * x[:, 2:])
    return h[:-2] * h[1:-1] + h[2:]


def bordered(x: Any) -> Any:
    h = functional.pad(weft.tanh(x[:, 1:] * x[:, :-1]), [(0, 0), (60, 60)])
    return (h[:-2] + h[1:-1]) * h[2:]


CASES = [
    (twice, SHAPE, {"i0": 3, "i1": 8}),
    (twice, SHAPE, {"i0": 99, "i1": 72}),
    (twice, SHAPE, {"i0": 3, "i1": 96}),
    (bordered, (20, 161), {"i0": 7, "i1": 64}),
    (windows, (1, 2, 10, 80), {"i1": 4, "i2": 24}),
    (channels_last, (9, 15, 16), {"i0": 3, "i1": 5}),
    (channels_last, (9, 15, 16), {"i0": 3, "i2": 8}),
]


@pytest.mark.parametrize(("function", "shape", "tile"), CASES)
def test_tiles_mean_what_whole_rows_mean(
    function: Any, shape: tuple[int, ...], tile: dict[str, int]
) -> None:
    """As machine code, and by the interpreter, whose rings have the columns of the plan."""
    made, x = tiled(tile, function, shape), image(*shape)
    wanted = compiled(function, shape).run([x])[0]
    np.testing.assert_allclose(made.run([x])[0], wanted, rtol=1e-6, atol=1e-6)
    module = module_of(function, shape)
    plan = staged_of(made.stages["plan"], module.kernels[0].name)
    played = played_by(module, plan, tiles_of(module.kernels[0], plan))
    whole = run_module(module, {module.inputs[0]: x})[module.outputs[0]]
    np.testing.assert_array_equal(played, whole)


def staged_of(text: str, name: str = "staged3") -> StagedPlan:
    plan = loads(text).of(name)
    assert isinstance(plan, StagedPlan)
    return plan


def played_by(module: Module, plan: StagedPlan, tiles: Tiles | None) -> Any:
    (kernel,) = module.kernels
    x = image(*module.tensors[module.inputs[0]].shape)
    strip, depths = strip_of(kernel, plan), depths_of(kernel, plan)
    found = run_rows(kernel, module.tensors, {module.inputs[0]: x}, strip, depths, (), tiles)
    return found[module.outputs[0]]


def test_a_tile_that_is_too_narrow_is_seen() -> None:
    """The interpreter plays the rings that a plan has, and no others."""
    module, plan = module_of(), staged_of(tiled({"i0": 5, "i1": 16}).stages["plan"])
    tiles = tiles_of(module.kernels[0], plan)
    assert tiles is not None
    first, *rest = tiles.parts
    later = tuple(start + 1 for start in first.starts)
    short = Tiles(tiles.size, (Tile(first.axis, first.width, later), *rest))
    right, wrong = played_by(module, plan, tiles), played_by(module, plan, short)
    assert not np.isnan(right).any()
    assert not np.array_equal(wrong, right)


def coarser(x: Any) -> Any:
    h = weft.tanh(x[:, 1:] * x[:, :-1]) + weft.tanh(x[:, 1:] + x[:, :-1])
    return h[:-2, ::2] * h[1:-1, ::2] + h[2:, ::2]


@pytest.mark.parametrize(
    ("function", "shape", "tile", "why"),
    [
        (twice, SHAPE, {"i1": 16}, "tile has a size for i1; strips are cut along i0, and tiles"),
        (twice, SHAPE, {"i0": 4, "i2": 8}, "along one axis of the rows, i1, or not at all"),
        (twice, SHAPE, {"i0": 4, "i1": 12}, "tile i1=12 is not a multiple of 8 columns, 2 vectors"),
        (twice, SHAPE, {"i0": 4, "i1": 0}, "tile i1 is 0; it must be at least 1"),
        (coarser, (20, 161), {"i0": 4, "i1": 16}, "at no fixed distance along its columns"),
        (channels_last, (9, 15, 16), {"i0": 3, "i1": 5, "i2": 8}, "i1 or i2, or not at all"),
        (bordered, (20, 141), {"i0": 4, "i1": 8}, "beside so few columns leaves the rows"),
    ],
)
def test_what_no_tile_may_be(
    function: Any, shape: tuple[int, ...], tile: dict[str, int], why: str
) -> None:
    with pytest.raises(SpecViolation, match=re.escape(why)):
        tiled(tile, function, shape)


# -- what the planner chooses --------------------------------------------------------------------


def chosen(function: Any, shape: tuple[int, ...]) -> tuple[list[dict[str, int] | None], Any]:
    """The tile of each kernel's plan, and the kernels."""
    program: Program = weft.jit(function).program(weft.tensor(np.zeros(shape, np.float32)))
    made = Compilation(program, target_named("cpu"), make_signature(program))
    run_pipeline(made, "plan")
    plans = json.loads(made.text("plan"))["plans"]
    return [plan.get("tile") for plan in plans], made["region"].kernels


def test_rows_whose_rings_leave_the_cache_are_cut() -> None:
    """Two blurs keep seven rows: of 18000 columns 504 KB, of 40000 more than half of the cache."""
    (whole,), _ = chosen(twice, (64, 18_000))
    assert whole == {"i0": 32}
    (cut,), (kernel,) = chosen(twice, (64, 40_000))
    assert cut is not None
    assert set(cut) == {"i0", "i1"}
    assert cut["i1"] % 256 == 0
    assert ring_bytes(kernel, cut) < 512 << 10


def ring_bytes(kernel: Kernel, tile: dict[str, int]) -> int:
    plan = staged_of(plans_with(compiled(), tile=tile))
    return sum(held.bytes for held in held_by(kernel, plan))


def test_columns_of_channels_stay_together() -> None:
    """Rows of 2400 columns of 64 channels are cut along the columns, which have vectors each."""
    (cut,), (kernel,) = chosen(channels_last, (40, 2400, 64))
    assert cut is not None
    assert set(cut) == {"i0", "i1"}
    assert len(kernel.stages) == 1


def test_rows_that_nobody_may_cut_are_stored() -> None:
    module = module_of(coarser, (60, 60_001))
    assert [len(kernel.stages) for kernel in module.kernels] == [0, 0]
    why = "rings would take 720,000 bytes, over 524,288; map1 reads v7 at no fixed distance"
    assert any(why in found for found in module.stored.values())


# -- edited loops --------------------------------------------------------------------------------


def recompiled(text: str) -> Executable:
    plan = plans_with(compiled(), tile={"i0": 5, "i1": 16}, vector=4, unroll=2)
    return weft.compile(program_of(), "cpu", overrides={"plan": plan, "cpu": text})


def test_serial_loops_in_the_place_of_others_are_proved() -> None:
    made = tiled({"i0": 5, "i1": 16})
    text = re.sub(r"unrolled (\w+) in", r"serial \1 in", made.stages["cpu"])
    assert text != made.stages["cpu"]
    x = image(*SHAPE)
    np.testing.assert_array_equal(recompiled(text).run([x])[0], made.run([x])[0])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (r"serial (i1t_3) in 0\.\.2", r"serial \1 in 0..1", "in columns that its piece has not"),
        (r"(store b2\[.*? at \[.*?), i1l", r"\1, 1 + i1l", "is not where its point|leaves the"),
        (r"(store b2\[.*?\+ )(\d+)\]( = \S+ at \[.*)\]", r"\g<1>2\2]\3]", "buffer|is not where"),
        (r"(serial t_2 in \S+) - 4\.\.", r"\1 - 3..", "in a row that its piece has not stored"),
        (r"(serial on_21 in 0\.\.floor\(\(.*) \+ 12\)/16", r"\1 + 11)/16", "does not compute"),
    ],
    ids=["columns left out", "another column", "another place", "no warm-up", "no last columns"],
)
def test_bad_edits_of_tiles_are_refused(old: str, new: str, why: str) -> None:
    text, count = re.subn(old, new, tiled({"i0": 5, "i1": 16}).stages["cpu"], count=1)
    assert count == 1, text
    with pytest.raises(SpecViolation, match=why):
        recompiled(text)
