"""What warps that slide take: orders of plans as an H200 has them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.fusion_peers import weft_program
from benchmarks.fusion_programs import PROGRAMS
from weft.driver.pipeline import run_pipeline
from weft.driver.signature import make_signature
from weft.driver.stages.compilation import Compilation
from weft.region.cost import slide_operations
from weft.region.forms.slides import Slide, find_slide
from weft.region.ir import Module
from weft.region.slide_price import Shape, slide_seconds, slide_shape
from weft.target.known import target_named

SM90 = target_named("sm90")


@cache
def slide_of(name: str, size: int) -> tuple[Slide, tuple[float, ...]]:
    program = weft_program(PROGRAMS[name], [np.zeros((size, size), np.float32)])
    made = Compilation(program, SM90, make_signature(program))
    module: Module = run_pipeline(made, "region")["region"]
    (kernel,) = module.kernels
    found = find_slide(kernel, module.tensors)
    assert isinstance(found, Slide)
    return found, tuple(slide_operations(found, module.tensors, SM90))


def seconds(name: str, size: int, vector: int, rows: int) -> float:
    slide, operations = slide_of(name, size)
    return slide_seconds(slide, operations, SM90, Shape(vector, rows))


def test_quotients_want_narrow_lanes_and_full_turns() -> None:
    """Sharpening divides: 118, 139, 145 and 153 us."""
    shapes = ((2, 64), (4, 96), (2, 96), (4, 64))
    best, *others = (seconds("unsharp", 6000, *shape) for shape in shapes)
    assert best < min(others)
    slide, operations = slide_of("unsharp", 6000)
    assert slide_shape(slide, operations, SM90).vector == 2


@pytest.mark.parametrize("name", ["blur4", "jacobi4", "harris"])
def test_others_want_wide_lanes(name: str) -> None:
    slide, operations = slide_of(name, 6000)
    assert slide_shape(slide, operations, SM90).vector == 4
