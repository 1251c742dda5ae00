"""`weft compile -v` lists what is right but slow on a GPU, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import weft
from examples.make_programs import attention, mlp
from tests.support.gpu_attention import Case
from tests.support.gpu_programs import through_stages
from weft import functional as F
from weft.driver.code.slow_paths import slow_paths
from weft.driver.stages.compilation import Compilation
from weft.plan.from_region import gpu_map_plan
from weft.ptir import Builder, Program
from weft.region.ir import Pattern


def told(compilation: Compilation) -> list[str]:
    region, plans, code = (compilation[stage] for stage in ("region", "plan", "gpu"))
    return slow_paths(region, plans, code, compilation.target)


def convolution(filters: int = 32, edge: int = 64) -> Program:
    x, w = np.zeros((1, 16, edge, edge), np.float32), np.zeros((filters, 16, 3, 3), np.float32)
    made: Program = weft.jit(lambda x, w: F.conv2d(x, w, padding=1)).program(x, w)
    return made


SLOW: dict[str, tuple[Callable[[], Program], list[str]]] = {
    "a convolution": (
        convolution,
        ["conv0 is a convolution of f32 by scalar multiply-adds, not by matrix "
         "instructions"],
    ),
    "a small convolution": (
        lambda: convolution(3, edge=4),
        ["conv0 is a convolution of f32 as rows, not by matrix instructions"],
    ),
    "attention": (
        lambda: attention(4, 192, 64, 512, dtype="f32"),
        ["matmul2, row3, matmul5 are an attention whose scores go through global memory: it "
         "multiplies f32, and its kernels bf16 and f16"],
    ),
    "wide heads": (
        lambda: Case(depth=320, width=320, heads=2, queries=64, keys=64).program(),
        ["matmul1, matmul2 are an attention whose scores go through global memory: its "
         "heads have 320 elements, over 256"],
    ),
    "odd heads": (
        lambda: Case(depth=36, width=36, heads=2, queries=64, keys=64).program(),
        ["matmul0, row1, matmul2 are an attention whose scores go through global memory: its "
         "heads have 36 elements, which is no multiple of 8"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SLOW)
def test_slow_paths_are_listed(name: str) -> None:
    make, wanted = SLOW[name]
    found = told(through_stages(make(), "sm90"))
    assert found == [f"slow but correct: {line}" for line in wanted]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("target", ["sm80", "sm90"])
def test_what_has_its_template_is_not(dtype: str, target: str) -> None:
    """f32 is multiplied number by number on purpose."""
    assert told(through_stages(mlp(384, 768, 1536, 768, dtype=dtype), target)) == []


def test_a_product_that_is_planned_without_matrix_instructions() -> None:
    program = mlp(384, 768, 1536, 768, dtype="bf16")
    document = json.loads(through_stages(program, "sm90").text("plan"))
    first = document["plans"][0]
    kept = {name: first[name] for name in ("kind", "target", "kernel")}
    document["plans"][0] = kept | {
        "arch": "fma", "tile": [32, 32, 16], "warp_tile": "16x16", "roles": "single",
    }  # fmt: skip
    found = told(through_stages(program, "sm90", plan=json.dumps(document)))
    assert found == [
        "slow but correct: matmul0 is a product of bf16 by scalar multiply-adds, not by "
        "matrix instructions"
    ]


def test_a_gradient_of_attention_whose_template_refuses() -> None:
    compilation = through_stages(Case(heads=1, queries=64, keys=64).gradients(), "sm90")
    assert told(compilation) == []
    region, plans, target = compilation["region"], compilation["plan"], compilation.target
    (kernel, *_) = (k for k in region.kernels if k.pattern is Pattern.STREAM)
    key = plans.kernels[kernel.name]
    slow = replace(
        plans,
        plans={**plans.plans, key: gpu_map_plan(kernel, region.tensors, plans.plans[key].header)},
    )
    assert slow_paths(region, slow, compilation["gpu"], target) == [
        f"slow but correct: {kernel.name} is a gradient of an attention whose template refuses it, "
        "with an element for each thread"
    ]


def test_a_machine_that_waits_for_a_few_blocks() -> None:
    b = Builder()
    compilation = through_stages(b.build(b.exp(b.param("f32", [1 << 20]))), "sm90")
    code = compilation["gpu"]
    ((symbol, kernel),) = code.kernels.items()
    for grid, wanted in ((67, []), (66, ["66 blocks"]), (1, ["1 block"])):
        code.kernels[symbol] = replace(kernel, grid=grid)
        assert told(compilation) == [
            f"slow but correct: map0 has {count} for 8 MB, where 132 SMs could work"
            for count in wanted
        ]


def test_long_rows_by_single_threads() -> None:
    b = Builder()
    program = b.build(b.reduce_sum(b.param("f32", [65536, 1024]), [1]))
    document = json.loads(through_stages(program, "sm90").text("plan"))
    document["plans"][0].update(threads=1, rows_per_block=128, keep_row=False)
    found = told(through_stages(program, "sm90", plan=json.dumps(document)))
    assert found == ["slow but correct: row0 has one thread for each row of 1024 elements"]


def test_the_report_has_them() -> None:
    report = weft.compile(convolution(), target="sm90").report()
    assert any(line.startswith("slow but correct: conv0 is a convolution") for line in report)
