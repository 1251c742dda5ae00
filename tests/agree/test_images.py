"""Convolutions over a copy of the image: results, any block, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.support.cases import one_in
from tests.support.images import Conv, wide
from weft.codegen.cpu.text import print_routine
from weft.codegen.cpu.verify import verify
from weft.driver.compile import Executable, compile_program
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.foundation.errors import SpecViolation
from weft.foundation.records import replace
from weft.ptir import Program
from weft.target.cpu import host
from weft.target.target import Target

ALONG_M = {"axis": "m.i.i", "width": 16}


def stages(program: Program, target: Target | None = None) -> Compilation:
    return run_pipeline(Compilation(program, target or wide(), make_signature(program)), "cpu")


def compiled(program: Program, **changes: Any) -> Executable:
    """The program over a copy of the image, some fields of the plan changed."""
    made = compile_program(program, wide())
    document = json.loads(made.stages["plan"])
    (plan,) = [plan for plan in document["plans"] if "image" in json.dumps(plan.get("cache"))]
    if not changes:
        return made
    plan.update(changes)
    return compile_program(program, wide(), overrides={"plan": json.dumps(document)})


CASES = [
    Conv(),
    Conv(results=3, pad=0),
    Conv(images=2, channels=3, results=13, sizes=(30, 33), window=(7, 7), stride=2, pad=3),
    Conv(sizes=(17, 40), stride=2),
    Conv(sizes=(17, 40), window=(1, 2), stride=3, pad=0),
    Conv(sizes=(25, 25), stride=2, dilation=3, pad=2),
    Conv(sizes=(25, 25), stride=4, dilation=2, window=(5, 5), pad=2),
    Conv(sizes=(12, 12), dilation=2, pad=2, channels=70, results=20),
    Conv(sizes=(7, 7), channels=96, results=40, images=3),
    Conv(sizes=(8, 8), channels=32, results=48, stride=2, last=True),
    Conv(groups=2, channels=6, results=10),
    Conv(sizes=(50,), window=(5,), stride=2, pad=2),
    Conv(sizes=(5, 6, 20), window=(3, 3, 3), channels=3),
    Conv(fill=0.25, sizes=(6, 20)),
    Conv(dtype="f64", results=9),
]


@pytest.mark.parametrize("case", one_in(2, CASES), ids=str)
def test_results_are_those_of_the_definition(case: Conv) -> None:
    executable, data = compiled(case.program()), case.data()
    exact = case.exact(data)
    one, two = (executable.run(data, threads=threads)[0] for threads in (1, 2))
    assert one.tobytes() == two.tobytes()
    np.testing.assert_allclose(one, exact.astype(one.dtype), rtol=2e-5, atol=2e-6)


def test_narrow_vectors_give_the_same() -> None:
    """Four lanes, in tiles that 32 registers hold."""
    limits = replace(host().limits, vector_bits=128, vector_registers=32)
    case = Conv(images=2, channels=3, results=13, sizes=(30, 33), window=(7, 7), stride=2, pad=3)
    made = compile_program(case.program(), replace(host(), limits=limits))
    assert '"where": "image"' in made.stages["plan"]
    data = case.data()
    (found,) = made.run(data)
    np.testing.assert_allclose(found, case.exact(data).astype("f4"), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_no_address_leaves_its_buffer(case: Conv) -> None:
    for routine in stages(case.program())["cpu"].routines.values():
        verify(routine)


def test_blocks_of_any_size_give_the_same_numbers_but_for_rounding() -> None:
    case = Conv(images=2, channels=10, results=20, sizes=(15, 19))
    data = case.data()
    exact = case.exact(data).astype(np.float32)
    for tile, registers in (
        ([8, 19, 9], "8x16"),
        ([20, 19 * 4, 9 * 3], "3x32"),
        ([12, 19 * 15, 9 * 10], "12x48"),
    ):
        executable = compiled(case.program(), tile=tile, warp_tile=registers)
        np.testing.assert_allclose(executable.run(data)[0], exact, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tile": [8, 3, 36]}, "a block is at least a line of results"),
        ({"warp_tile": "8x20"}, "vectors of 16 do not divide the tile of 20 along n"),
        ({"vectorize": ALONG_M, "warp_tile": "16x16"}, "results of the image are along n"),
        (
            {
                "cache": [
                    {"tensor": "A", "where": "image", "at": "k", "pingpong": False},
                    {"tensor": "B", "where": "packed", "at": "k", "pingpong": False},
                ],
                "vectorize": ALONG_M,
                "warp_tile": "16x16",
            },
            "A is not an image",
        ),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(SpecViolation, match=why):
        compiled(Conv().program(), **changes)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("results", [48, 22])
def test_weights_that_lie_as_they_are_summed_are_read_in_vectors(results: int, stride: int) -> None:
    case = Conv(channels=20, results=results, sizes=(17, 40), stride=stride)
    routine = next(iter(stages(case.program())["cpu"].routines.values()))
    packing = [line for line in print_routine(routine).splitlines() if " = b1[" in line]
    assert packing[0].lstrip().startswith("run ")


def test_many_threads_have_blocks_of_few_filters() -> None:
    """Of 256 rows of 2304 weights, blocks of many would read most again for other results; and
    there are enough of them for slow threads to take fewer."""
    case = Conv(channels=256, results=256, sizes=(14, 14))
    many = replace(wide(), limits=replace(wide().limits, units=16))
    (plan,) = stages(case.program(), many)["plan"].plans.values()
    rows, results, _ = plan.tile
    assert rows <= 32
    assert 256 // rows * (14 * 14 // results) >= 32


def test_a_window_of_many_taps_is_little_code() -> None:
    """What is written does not grow with the window: LLVM takes seconds for ten thousand lines."""
    case = Conv(channels=3, results=64, sizes=(64, 64), window=(11, 11), stride=2, pad=5)
    assert compiled(case.program()).stages["llvm"].count("\n") < 3000
