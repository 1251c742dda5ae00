"""What machine code of GPU kernels must have, and must not."""

from __future__ import annotations

from weft.codegen.gpu import ir, sass
from weft.codegen.gpu.compile import Cubin
from weft.codegen.gpu.ir import values, walk
from weft.driver.code.gpu_kernels import compile_sources
from weft.driver.stages.compilation import Compilation
from weft.foundation.dtypes import F32, F64
from weft.plan.ir import MmaPlan, Plan, RowPlan


def check(compilation: Compilation, arch: str) -> list[str]:
    """What is wrong with the machine code of a program, by the names of its kernels."""
    cubins = compile_sources(compilation["cu"], arch).cubins
    names = {made.symbol: name for name, made in compilation["gpu"].launches.items()}
    plans, wrong = compilation["plan"], []
    for symbol, name in names.items():
        plan = plans.of(name) if name in plans.kernels else None
        found = problems(cubins[symbol], wanted(plan, compilation["gpu"].kernels[symbol]))
        wrong += [f"{name}: {finding}" for finding in found]
    return wrong


def problems(cubin: Cubin, instructions: tuple[str, ...]) -> list[str]:
    """What is wrong with the machine code of a kernel, in which such instructions must be. Where
    none must, the compiler's report tells of all that the disassembler, which takes half a second
    to start, could find: registers in memory are a stack or a spill."""
    found = cubin.report.findings
    if instructions:
        found += sass.check(sass.disassemble(cubin.code), instructions)
    return [str(finding) for finding in found]


def wanted(plan: Plan | None, kernel: ir.Kernel) -> tuple[str, ...]:
    """The instructions of a matrix plan, and of rows that wait in a ring. Operands of odd sizes are
    gathered, not copied; those of an FMA plan wait in shared memory. Ops that stay whole have no
    plan; attention multiplies without one for a product."""
    if isinstance(plan, RowPlan) and plan.ring:
        return ("UBLKCP",)
    statements = list(walk(kernel.body))
    if not isinstance(plan, MmaPlan):
        products = [s for s in statements if isinstance(s, ir.MmaSync | ir.Wgmma)]
        archs = ("sm90" if isinstance(s, ir.Wgmma) else "sm80" for s in products)
        names = map(sass.matrix_instruction, archs, (s.a_dtype for s in products))
        return tuple(dict.fromkeys(names))
    if plan.arch == "fma":
        total = next(s.dtype for s in statements if isinstance(s, values.Variable))
        multiply = "FFMA" if total is F32 else "DFMA" if total is F64 else "IMAD"
        return (multiply, "LDS")
    dtype = next(s.a_dtype for s in statements if isinstance(s, ir.MmaSync | ir.Wgmma))
    matrix = sass.matrix_instruction(plan.arch, dtype)
    copied = any(isinstance(s, ir.CpAsync | ir.TmaLoad) for s in statements)
    return (matrix, sass.COPY[plan.arch]) if copied else (matrix,)
