"""Every kernel of the example programs becomes machine code that does what its plan says: nothing
is spilled, no matrix instruction has lost its asynchrony, and the plan's instructions are there.

No GPU is needed: the compiler and the disassembler are packages.
"""

from __future__ import annotations

import pytest

from tests.support.cases import one_in
from tests.support.gpu_machine_code import check
from tests.support.gpu_programs import CASES, LARGE, ODD, compiled, program, through_stages
from weft.codegen.gpu import sass
from weft.codegen.gpu.compile import architecture
from weft.driver.code.gpu_kernels import compile_sources
from weft.plan.ir import MmaPlan
from weft.ptir import Builder, Program
from weft.target.known import target_named

pytestmark = pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")


@pytest.mark.parametrize(("name", "dtype", "target"), one_in(13, CASES, unpack=True))
def test_examples(name: str, dtype: str, target: str) -> None:
    compilation = compiled(name, dtype, target)
    arch = architecture(target_named(target), device=None)
    assert arch == {"sm80": "sm_80", "sm90": "sm_90a"}[target]
    assert check(compilation, arch) == []


def test_contractions_of_narrow_floats_use_matrix_instructions() -> None:
    """Every contraction of the bf16 programs, by the template of its target."""
    found: dict[str, set[str]] = {"sm80": set(), "sm90": set()}
    for name, dtype, target in CASES:
        plans = compiled(name, dtype, target)["plan"]
        for kernel in plans.kernels:
            plan = plans.of(kernel)
            if dtype == "bf16" and kernel.startswith("matmul"):
                assert isinstance(plan, MmaPlan), f"{name}: {kernel}"
                found[target].add(plan.arch)
    assert found == {"sm80": {"sm80"}, "sm90": {"sm90"}}


def with_epilogue(kind: str, m: int, n: int, k: int) -> Program:
    """A matrix product, and another matrix that is read at its end."""
    b = Builder()
    x, w = b.param("bf16", [m, k]), b.param("bf16", [k, n])
    other = b.param("i1" if kind == "mask" else "f32" if kind == "wide" else "bf16", [m, n])
    y = b.matmul(x, w)
    match kind:
        case "mask":
            return b.build(b.select(other, y, b.full([m, n], 0.5, "bf16")))
        case "wide":
            return b.build(b.cast(y, "f32") + other)
        case _:
            return b.build(b.gelu(y + other))


SHAPES = [(2048, 2048, 256), pytest.param((7, 13, 37), marks=pytest.mark.slow)]


@pytest.mark.parametrize("target", one_in(2, ["sm80", "sm90"]))
@pytest.mark.parametrize("kind", one_in(3, ["mask", "wide", "residual gelu"]))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_epilogues_that_read_a_matrix_do_not_spill(
    shape: tuple[int, int, int], kind: str, target: str
) -> None:
    """Dozens of loads that nothing holds back would take the registers of the accumulators."""
    compilation = through_stages(with_epilogue(kind, *shape), target)
    assert check(compilation, architecture(target_named(target), device=None)) == []


@pytest.mark.parametrize("dtype", one_in(2, ["bf16", "f32"]))
def test_a_norm_calls_no_subroutine(dtype: str) -> None:
    """Its scale is made without a branch, over which loads of weights could not be moved; and no
    element is divided."""
    b = Builder()
    x, scale, shift = (b.param(dtype, shape) for shape in ([4096, 256], [256], [256]))
    program = b.build(b.layer_norm(x, scale, shift, epsilon=1e-5, feature_axis=1))
    compilation = through_stages(program, "sm90")
    (cubin,) = compile_sources(compilation["cu"], "sm_90a").cubins.values()
    roots = [instruction.root for instruction in sass.disassemble(cubin.code)]
    assert "CALL" not in roots
    assert roots.count("MUFU") == 1
    last_load = max(number for number, root in enumerate(roots) if root == "LDG")
    assert last_load < roots.index("MUFU")


OTHERS = {**LARGE, **{f"odd: {name}": make for name, make in ODD.items()}}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize("name", OTHERS)
def test_larger_and_odd_programs(name: str, target: str) -> None:
    for dtype in ("f32", "bf16"):
        compilation = through_stages(OTHERS[name](dtype), target)
        assert check(compilation, architecture(target_named(target), device=None)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "softmax_layernorm", "attention"])
def test_examples_in_f16_and_the_older_template_on_the_newer_machine(name: str) -> None:
    for target in ("sm80", "sm90"):
        compilation = through_stages(program(name, "f16"), target)
        assert check(compilation, architecture(target_named(target), device=(9, 0))) == []
