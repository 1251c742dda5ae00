"""A fixed list of template instances becomes machine code for both architectures: nothing spilled,
no stack, nothing serialised, the instructions of the plan in place.

A small program of every template is compiled in every run, and one in 24 of the matrix kernels is.
The other forms of the templates, and most lines of the GPU benchmark, whose plans are those of
large sizes, are for long runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.gpu_line import Line
from benchmarks.gpu_lines import FAMILIES
from tests.device.sanitize import overrides
from tests.support.cases import one_in
from tests.support.gpu_contractions import sm80_kernel, sm90_kernel
from tests.support.gpu_instances import COMMON, MATRICES, PROGRAMS, templates_of
from tests.support.gpu_machine_code import check, problems, wanted
from tests.support.gpu_programs import through_stages
from weft.codegen.gpu import sass
from weft.codegen.gpu.compile import compile_cuda
from weft.codegen.gpu.spelling.print import cuda

pytestmark = pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")

ARCHITECTURES = {"sm90": "sm_90a", "sm80": "sm_80"}
BUILDERS = {"sm90": sm90_kernel, "sm80": sm80_kernel}
FAST = (
    "gemm/16x4096x4096 NT/bf16",
    "gemm_odd/129x4097x4099 NT/bf16",
    "gemm_types/16x4096x4096 NT/si8",
    "rows/softmax 1048576x64/bf16",
    "reduce/sum axis 0 [16384,16384]/bf16",
    "maps/chain 67108864/bf16",
)
SLOW = (
    "gemm/128x128x65536 NT/bf16",
    "movement/transpose [16384,16384]/bf16",
    *(
        f"gemm/{shape} NT/bf16"
        for shape in (
            "512x512x512", "1024x1024x1024", "1536x1536x1536", "2560x2560x2560",
            "4096x4096x4096", "5120x5120x5120", "8192x8192x8192", "8192x3072x768",
            "1x4096x4096", "64x28672x4096", "128x28672x4096", "256x4096x4096",
            "256x28672x4096", "1024x28672x4096", "1024x768x3072", "192x1024x1024x64",
        )
    ),
    *(f"gemm/4096x4096x4096 {layout}/f16" for layout in ("NN", "TN", "TT")),
    *(f"gemm_odd/{shape} NT/bf16" for shape in ("4097x4095x4093", "33x50257x768")),
    *(f"gemm_types/4096x4096x4096 NT/{dtype}" for dtype in ("si8", "fp8_e4m3", "f64", "f32")),
    *(f"gemm_types/{shape}" for shape in ("8192x3072x768 NT/fp8_e5m2", "1000x1000x1000 NT/si8")),
    *(f"gemm_types/4096x4096x4096 NN/{dtype}" for dtype in ("si8", "f64")),
    *(f"gemm_types/{shape}" for shape in ("4x4096x4096 NN/f32", "16x4096x4096 NT/f64")),
    *(
        f"gemm_epilogue/8192x3072x768 {epilogue}/bf16"
        for epilogue in (
            "bias", "bias+relu", "bias+gelu_tanh", "bias+gelu_erf", "bias+silu", "residual",
            "scale+cast_f32",
        )
    ),
    *(
        f"gemm_epilogue/4096x4096x4096 {epilogue}/bf16"
        for epilogue in ("bias+gelu_tanh", "bias+gelu_erf", "bias+silu")
    ),
    *(
        f"rows/{op} {shape}/{dtype}"
        for op, shape, dtype in (
            ("softmax", "32768x4096", "bf16"), ("softmax", "4096x65536", "f32"),
            ("rms_norm", "4096x65536", "f32"), ("log_softmax", "512x262144", "bf16"),
            ("log_softmax", "131072x1024", "f32"), ("layer_norm", "8192x12288", "bf16"),
            ("layer_norm", "16384x5120", "f32"), ("rms_norm", "65536x256", "bf16"),
            ("rms_norm", "3001x1537", "f32"), ("sum_last", "512x262144", "bf16"),
            ("max_last", "4096x1000", "bf16"), ("argmax_last", "32768x4096", "bf16"),
        )
    ),
    *(f"maps/{op} 1048576/f32" for op in ("gelu", "add+mul", "where+compare", "cast to bf16")),
    "reduce/sum all 2^29/f32",
    "reduce/sum axis 0 [1048576,64]/bf16",
    "reduce/mean over NHW [64,56,56,256]/f32",
    "movement/permute NCHW->NHWC [64,256,56,56]/f32",
    "movement/x.T + y [16384,16384]/bf16",
    "movement/concat last axis 4 x [32768,1024]/bf16",
    "movement/pad+slice [64,56,56,256]/f32",
)  # fmt: skip
OLDER = tuple(
    name
    for name in (*FAST, *SLOW)
    if name.startswith(("gemm_epilogue", "reduce", "movement", "gemm_types/4096x4096x4096"))
    or name in ("gemm/4096x4096x4096 NT/bf16", "gemm_odd/4097x4095x4093 NT/bf16")
)
"""Those that are built for SM80 too."""


@cache
def lines() -> dict[str, Line]:
    return {line.key: line for family in FAMILIES.values() for line in family()}


def findings(name: str, target: str) -> list[str]:
    line = replace(lines()[name], target=target)
    compilation = through_stages(line.program(), target)
    return check(compilation, ARCHITECTURES[target])


def test_the_list_is_long_enough() -> None:
    counts = {target: len(MATRICES[target]) + len(PROGRAMS[target]) for target in MATRICES}
    assert counts["sm90"] >= 60
    assert counts["sm80"] >= 36
    assert {*FAST, *SLOW} <= set(lines())


def test_every_template_is_in_the_list() -> None:
    common = {"map", "transposed", "row", "several", "columns", "fma", "groups", "codes"}
    common |= {"attention"}
    common |= {"Scatter", "Collected", "Binned", "Running", "Continued", "Order"}
    found = {name: {one.template for one in made.values()} for name, made in PROGRAMS.items()}
    assert found["sm80"] == common | {"sm80"}
    assert found["sm90"] == common | {
        "cluster", "ring", "planes", "sm90", "sm80", "Moved",
        "GroupTiles", "GroupedTiles", "GroupSpans", "OuterTiles",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "name"),
    one_in(
        24, [(target, name) for target, cases in MATRICES.items() for name in cases], unpack=True
    ),
)
def test_matrix_instances(target: str, name: str) -> None:
    shape, plan = MATRICES[target][name]
    kernel = BUILDERS[target](shape, plan)
    cubin = compile_cuda(cuda(kernel), ARCHITECTURES[target])
    assert problems(cubin, wanted(plan, kernel)) == []


def program_instances() -> Iterator[Any]:
    """Programs of both targets; the fast tests have the first of each template for SM90, and of
    what is built otherwise for SM80."""
    for target, others in (("sm90", set[str]()), ("sm80", set(COMMON))):
        seen: set[str] = set()
        for name, instance in PROGRAMS[target].items():
            first = name not in others and instance.template not in seen
            seen |= {instance.template} if first else set()
            yield pytest.param(target, name, marks=[] if first else [pytest.mark.slow])


@pytest.mark.parametrize(("target", "name"), list(program_instances()))
def test_program_instances(target: str, name: str) -> None:
    instance = PROGRAMS[target][name]
    program = instance.make()
    changed = overrides(program, target, instance.changes)
    compilation = through_stages(program, target, **changed)
    assert instance.template in templates_of(compilation)
    assert len(compilation["gpu"].launches) == len(compilation["region"].kernels)
    assert check(compilation, ARCHITECTURES[target]) == []


@pytest.mark.parametrize(
    "name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_lines_for_sm90(name: str) -> None:
    assert findings(name, "sm90") == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OLDER)
def test_lines_for_sm80(name: str) -> None:
    assert findings(name, "sm80") == []
