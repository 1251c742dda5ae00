"""Every kernel of the example programs becomes machine code that does what its plan says: nothing
is spilled, no matrix instruction has lost its asynchrony, and the plan's instructions are there.

No GPU is needed: the compiler and the disassembler are packages.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from examples.make_programs import attention, mlp, softmax_layernorm
from tests.gpu_programs import CASES, compiled, program, through_stages
from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.print import walk
from weft.driver.compilation import Compilation
from weft.driver.gpu_code import architecture, compile_sources
from weft.plan.ir import MmaPlan, Plan
from weft.ptir import Program
from weft.target.known import target_named

pytestmark = pytest.mark.skipif(not sass.available(), reason="nvdisasm is not installed")


def check(compilation: Compilation, arch: str) -> list[str]:
    """What is wrong with the machine code of a program, by the names of its kernels."""
    cubins = compile_sources(compilation["cu"], arch).cubins
    names = {made.symbol: name for name, made in compilation["gpu"].launches.items()}
    wrong = []
    for symbol, name in names.items():
        wanted = _wanted(compilation["plan"].of(name), compilation["gpu"].kernels[symbol])
        found = [*cubins[symbol].report.findings]
        found += sass.check(sass.disassemble(cubins[symbol].code), wanted)
        wrong += [f"{name}: {finding}" for finding in found]
    return wrong


def _wanted(plan: Plan, kernel: ir.Kernel) -> tuple[str, ...]:
    """The instructions of a matrix plan. Operands of odd sizes are gathered, not copied."""
    if not isinstance(plan, MmaPlan):
        return ()
    matrix, copy = sass.MATRIX[plan.arch]
    copied = any(isinstance(s, ir.CpAsync | ir.TmaLoad) for s in walk(kernel.body))
    return (matrix, copy) if copied else (matrix,)


@pytest.mark.parametrize(("name", "dtype", "target"), CASES)
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


Maker = Callable[[str], Program]
LARGE: dict[str, Maker] = {
    "mlp": lambda dtype: mlp(384, 768, 1536, 768, dtype=dtype),
    "rows in registers": lambda dtype: softmax_layernorm(1000, 4096, dtype=dtype),
    "rows of many warps": lambda dtype: softmax_layernorm(65, 16384, dtype=dtype),
    "rows read again": lambda dtype: softmax_layernorm(9, 120_000, dtype=dtype),
    "attention": lambda dtype: attention(4, 192, 64, 512, dtype=dtype),
    "odd mlp": lambda dtype: mlp(7, 13, 37, 5, dtype=dtype),
    "odd rows": lambda dtype: softmax_layernorm(3, 5001, dtype=dtype),
    "odd attention": lambda dtype: attention(3, 7, 10, 13, dtype=dtype),
}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm80", "sm90"])
@pytest.mark.parametrize("name", LARGE)
def test_larger_and_odd_programs(name: str, target: str) -> None:
    for dtype in ("f32", "bf16"):
        compilation = through_stages(LARGE[name](dtype), target)
        assert check(compilation, architecture(target_named(target), device=None)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "softmax_layernorm", "attention"])
def test_examples_in_f16_and_the_older_template_on_the_newer_machine(name: str) -> None:
    for target in ("sm80", "sm90"):
        compilation = through_stages(program(name, "f16"), target)
        assert check(compilation, architecture(target_named(target), device=(9, 0))) == []
