"""Stages that slide through registers: right on the dialect's interpreter for every shape, dtype
and plan, one kernel where there were several, and what has no place there refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import weft
from tests.random.stages import make_program
from tests.support.cases import one_in
from tests.support.staged_gpu import (
    PROGRAMS,
    SHAPE,
    Function,
    agrees,
    compiled,
    make_stages_cheap,
    padded,
    program_of,
    replanned,
    sharpened,
    with_stages,
)
from tests.support.staged_programs import blur
from weft.codegen.gpu.spelling.text import parse_module, print_module
from weft.foundation.errors import SpecViolation
from weft.plan.gpu_price import plan_seconds
from weft.plan.slides import slide_of
from weft.region.forms.slides import Slide, find_slide
from weft.region.ir import Module
from weft.target.known import target_named


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    make_stages_cheap(monkeypatch)


@pytest.mark.usefixtures("cheap")
@pytest.mark.parametrize("name", one_in(3, PROGRAMS))
def test_programs_with_stages_agree_with_the_reference(name: str) -> None:
    program = program_of(*PROGRAMS[name])
    made = compiled(program)
    assert with_stages(made)[1], "no kernel has stages"
    agrees(program, made)


def test_four_blurs_are_one_kernel() -> None:
    made = compiled(program_of(lambda x: blur(blur(blur(blur(x)))), (1500, 1500)))
    module, (kernel,) = with_stages(made)
    assert (len(module.kernels), len(kernel.stages)) == (1, 7)
    slide = slide_of(kernel, module.tensors)
    assert (slide.copies, slide.width(4), slide.width(1)) == (1, 120, 24)
    assert [ring.depth for ring in slide.rings] == [1, 3, 1, 3, 1, 3, 1, 3]


@pytest.mark.parametrize("vector", one_in(3, [1, 2, 4]))
@pytest.mark.parametrize(("rows", "warps", "unroll"), [(1, 1, 1), (5, 2, 3), (100, 3, 2)])
def test_plans_are_obeyed(vector: int, rows: int, warps: int, unroll: int) -> None:
    program = program_of(lambda x: blur(sharpened(x)))
    module, (kernel,) = with_stages(compiled(program))
    width = slide_of(kernel, module.tensors).width(vector)
    tile = {"i0": rows, "i1": warps * width}
    text = replanned(program, vector=vector, unroll=unroll, tile=tile)
    made = compiled(program, plan=text)
    (found,) = made.compilation["gpu"].kernels.values()
    height, columns = (found.size for found in kernel.axes)
    strips, tiles = -(-height // min(rows, height)), -(-columns // (warps * width))
    assert (found.grid, found.threads) == (strips * tiles, 32 * warps)
    agrees(program, made)


EDGE = {"from": "s0", "to": "s1", "buffer": "reg", "depth": 3}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"slide": "i1"}, "slide=i1, but the stages of this kernel slide along i0"),
        ({"tile": {"i0": 8}}, "tile has a size for i0; strips are cut along i0, blocks along i1"),
        ({"vector": 4, "tile": {"i0": 8, "i1": 99}}, "tile i1=99; a warp makes 124 columns"),
        ({"vector": 8}, "vector=8; lanes of this kernel may have 4, 2, 1 columns"),
        ({"compute_at": [{"stage": "s0", "at": "i0.o"}]}, "registers hold no strip; write i0"),
        ({"local_edges": [EDGE | {"depth": 4}]}, "registers hold the 3 rows that are alive"),
        ({"local_edges": [EDGE | {"buffer": "smem_ring"}]}, "s1 has depth 3; 5 rows are live"),
        ({"local_edges": [EDGE | {"buffer": "gmem"}]}, "goes through memory"),
        ({"local_edges": [EDGE | {"to": "body"}]}, "body reads no stage s0"),
    ],
)
def test_plans_that_nobody_can_obey_are_refused(fields: dict[str, Any], why: str) -> None:
    program = program_of(lambda x: blur(blur(x)))
    with pytest.raises(SpecViolation) as error:
        compiled(program, plan=replanned(program, **fields))
    assert why in str(error.value)


def test_plans_in_words_are_obeyed() -> None:
    program = program_of(lambda x: blur(blur(x)))
    _, (kernel,) = with_stages(compiled(program))
    words = "split i0 5; split i1 120; vectorize i1 2; unroll i0 2; local_edge s0 s1 reg depth=3"
    made = compiled(program, plan=f"kernel {kernel.name}; {words}")
    plan = made.compilation["plan"].of(kernel.name)
    assert (plan.vector, plan.unroll, plan.tile) == (2, 2, {"i0": 5, "i1": 120})
    agrees(program, made)
    with pytest.raises(SpecViolation):
        compiled(program, plan=f"kernel {kernel.name}; unroll i1 2")


def test_shorter_plans_are_completed() -> None:
    """What follows from the kernel need not be said."""
    program = program_of(lambda x: blur(blur(x)))
    fields = {"local_edges": [], "store_at": [{"stage": "s0", "at": "i0.o"}]}
    agrees(program, compiled(program, plan=replanned(program, **fields)))


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: weft.tanh(x) * 2 + x, SHAPE),
        (lambda x: weft.flip(weft.tanh(x[1:] * x[:-1]), axis=1) + 1, SHAPE),
        (lambda x: blur(blur(x)), (13, 40)),
    ],
)
def test_other_programs_have_no_stages(function: Function, shape: tuple[int, ...]) -> None:
    assert not with_stages(compiled(program_of(function, shape)))[1]


def test_rows_far_apart_have_no_place_in_registers() -> None:
    def made(x: Any) -> Any:
        return weft.tanh(weft.exp(x[1:]) * x[:-1])

    program = program_of(lambda x: (h := made(x))[20:] + h[:-20], (600, 900))
    (cluster,) = weft.compile(program, "cpu").clusters.values()
    module: Module = cluster.compilation["region"]
    (kernel,) = module.kernels
    assert find_slide(kernel, module.tensors) == "more than 16 rows of a stage are live at a time"


@pytest.mark.usefixtures("cheap")
def test_columns_and_channels_are_one_row() -> None:
    made = compiled(program_of(*PROGRAMS["channels"]))
    module, (kernel,) = with_stages(made)
    slide = slide_of(kernel, module.tensors)
    assert len(module.kernels) == 1
    assert [slide.kernel.parts[-1].sizes[name] for name in slide.columns[-1:]] == [32 * 3]
    assert made.compilation["plan"].of(kernel.name).tile.keys() == {"i0", "i1"}


def test_lanes_stand_before_those_that_read_them() -> None:
    """Copies begin at whole vectors, and what a warp makes ends where its neighbours' halo is."""
    program = program_of(lambda x: blur(padded(x)), (64, 512))
    module, (kernel,) = with_stages(compiled(program))
    slide = find_slide(kernel, module.tensors)
    assert isinstance(slide, Slide)
    for vector in slide.vectors():
        shifts = slide.shifts(vector)
        assert shifts[-1] == 0
        for edge in slide.edges:
            assert shifts[edge.reader] + edge.low >= shifts[edge.stage]
        for shift, loads in zip(shifts, slide.loading, strict=True):
            assert not loads or shift % vector == 0


def test_long_strips_take_longer_where_they_are_few() -> None:
    program = program_of(lambda x: blur(blur(x)), (1500, 1500))
    made = compiled(program)
    module, (kernel,) = with_stages(made)
    target, plan = target_named("sm90"), made.compilation["plan"].of(kernel.name)
    worse = json.loads(replanned(program, tile=plan.tile | {"i0": 1500}))
    again = compiled(program, plan=json.dumps(worse)).compilation["plan"].of(kernel.name)
    times = [plan_seconds(kernel, module.tensors, found, target) for found in (plan, again)]
    assert times[0] is not None
    assert times[1] is not None
    assert times[0] < times[1]


def test_the_text_of_a_kernel_is_read_back() -> None:
    code = compiled(program_of(lambda x: blur(blur(x)))).compilation["gpu"]
    assert any("shuffle_down" in line for line in print_module(code).splitlines())
    assert parse_module(print_module(code)).kernels == code.kernels


def test_a_second_choice_knows_kernels_by_the_same_signatures() -> None:
    """Numbers of another program's parts would be those of other kernels: this one's tensors have
    several ranks."""
    program = make_program(344, narrow=True)
    found = compiled(program, "sm80").compilation["region"]
    assert len(found.kernels) >= 1
