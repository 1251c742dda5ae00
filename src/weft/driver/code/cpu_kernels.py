"""From planned kernels to machine code for the CPU: equal kernels are compiled once, and kept on
disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from weft.codegen.cpu import ir
from weft.codegen.cpu.agree import agree
from weft.codegen.cpu.compile import accepts, lower
from weft.codegen.cpu.domain import prove, prove_rings
from weft.codegen.cpu.llvm import emit_module
from weft.codegen.cpu.text import parse_routines
from weft.codegen.cpu.whole import lower_whole, prove_whole
from weft.driver.artifact.assembler import Native
from weft.driver.artifact.kernel_facts import kernel_key
from weft.driver.code.sources import LLVM
from weft.foundation import limits
from weft.foundation.errors import Finding, SpecViolation, Unimplemented
from weft.foundation.whole_ops import WholeOp
from weft.memory.ir import BufferMap
from weft.plan.ir import REFUSED, PlanSet
from weft.region.cost import kernel_seconds, kernel_work, nanoseconds, steps_of
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers
from weft.runtime.artifact import KernelCode
from weft.runtime.compilers import object_codes
from weft.runtime.jit import fault_of
from weft.target.cpu import CORE_BANDWIDTH
from weft.target.roofline import together
from weft.target.target import Target


@dataclass
class CpuCode:
    """The routines of a module, and what was compiled and what was found."""

    routines: dict[str, ir.Routine] = field(default_factory=dict)
    """By the symbol of the kernel code they become."""
    symbols: dict[str, str] = field(default_factory=dict)
    """Kernel name to symbol; equal kernels have one symbol."""
    findings: list[Finding] = field(default_factory=list)
    """Proofs that were too hard; none in what Weft generates by itself."""


@dataclass
class LlvmCode:
    """The LLVM IR of every distinct kernel, each a module of its own, by symbol."""

    sources: dict[str, str]


@dataclass
class Objects:
    """Machine code, and how much of it was compiled now."""

    objects: dict[str, bytes] = field(default_factory=dict)
    compiled: int = 0
    reused: int = 0


def lower_module(
    module: Module, buffer_map: BufferMap, plans: PlanSet, vector_bits: int = 128
) -> CpuCode:
    """The loop nests of all distinct kernels. Ops that are carried whole are cut into vectors of
    `vector_bits`; those that have no loop nest stay with the host."""
    code, bounds = CpuCode(), limits.current()
    for kernel in module.kernels:
        limits.check_steps(steps_of(kernel), f"kernel {kernel.name}", bounds)
        if kernel.opaque is not None:
            if isinstance(kernel.opaque.op, WholeOp):
                _lower_whole(kernel, kernel.opaque.op, module, buffer_map, vector_bits, code)
            continue
        plan = plans.of(kernel.name)
        findings = accepts(kernel, module.tensors, plan)
        if findings and all(finding.code == REFUSED for finding in findings):
            raise SpecViolation.of(findings)
        if findings:
            raise Unimplemented(f"kernel {kernel.name}", findings[0].why)
        refs = buffer_map.refs_of(buffers(kernel))
        symbol = "k_" + kernel_key(kernel, module.tensors, refs, plan)[:16]
        code.symbols[kernel.name] = symbol
        if symbol not in code.routines:
            routine = lower(kernel, module.tensors, refs, plan, symbol)
            code.findings += prove(routine, kernel)
            code.findings += prove_rings(routine, kernel, plan)
            code.routines[symbol] = routine
    return code


def _lower_whole(
    kernel: Kernel, op: WholeOp, module: Module, buffer_map: BufferMap, bits: int, code: CpuCode
) -> None:
    refs = buffer_map.refs_of(buffers(kernel))
    symbol = "k_" + kernel_key(kernel, module.tensors, refs, None, str(bits))[:16]
    code.symbols[kernel.name] = symbol
    if symbol not in code.routines:
        routine = lower_whole(kernel, module.tensors, refs, bits // 32, symbol)
        code.findings += prove_whole(routine, op)
        code.routines[symbol] = routine


def read_module(
    text: str,
    made: CpuCode,
    module: Module,
    buffer_map: BufferMap,
    plans: PlanSet,
    warn: Callable[[str], None],
) -> CpuCode:
    """The routines that somebody wrote, in place of those that were made; each is one of the
    kernel that it stands for."""
    read = {routine.name: routine for routine in parse_routines(text)}
    if read.keys() != made.routines.keys():
        odd = min(read.keys() ^ made.routines.keys())
        why = f"no kernel becomes {odd}" if odd in read else f"the routine {odd} is missing"
        raise SpecViolation("RoutineFrame", why, "leave the names of the routines as they were")
    kernels = {made.symbols[k.name]: k for k in module.kernels if k.name in made.symbols}
    for symbol, routine in read.items():
        if routine != made.routines[symbol]:
            kernel = kernels[symbol]
            refs = buffer_map.refs_of(buffers(kernel))
            plan = plans.of(kernel.name) if kernel.stages else None
            unknown = agree(routine, made.routines[symbol], kernel, refs, plan)
            if unknown:
                warn(
                    f"the CPU routine {symbol} was given, and it is not known whether it reads the "
                    f"elements that its kernel reads: {unknown}; weft compile --check compares "
                    "it with the reference"
                )
    return replace(made, routines={symbol: read[symbol] for symbol in made.routines})


def print_llvm(code: CpuCode, features: frozenset[str] = frozenset()) -> LlvmCode:
    """The LLVM IR of every distinct kernel, for a machine with these features."""
    return LlvmCode(
        {symbol: emit_module([code.routines[symbol]], "", features) for symbol in code.routines}
    )


def check_sources(code: LlvmCode, routines: CpuCode, was_read: bool) -> None:
    """There is a module for every kernel that will be launched; one that somebody wrote is what
    LLVM understands."""
    LLVM.require(code.sources, routines.routines)
    for symbol, source in code.sources.items() if was_read else ():
        why = fault_of(source, symbol)
        if why is not None:
            raise SpecViolation("LlvmText", f"kernel {symbol}: {why}")


def compile_sources(code: LlvmCode, target: Target) -> Objects:
    """Machine code for a target, from the disk where it is there."""
    made = Objects()
    # Kernels whose texts differ in their names alone, such as one function of tensors of several
    # sizes, are compiled once, under a name as long as theirs.
    texts = {
        symbol: text.replace(symbol, _any_name(symbol)) for symbol, text in code.sources.items()
    }
    distinct = list(dict.fromkeys(texts.values()))
    found = object_codes(distinct, None if target.is_here else target.code)
    codes = dict(zip(distinct, found, strict=True))
    for symbol, text in texts.items():
        machine_code, _ = codes[text]
        made.objects[symbol] = machine_code.replace(_any_name(symbol).encode(), symbol.encode())
    made.compiled = sum(fresh for _, fresh in found)
    made.reused = len(found) - made.compiled
    return made


def _any_name(symbol: str) -> str:
    """The name under which a kernel is compiled, and its machine code kept."""
    return "k_any".ljust(len(symbol), "_")


def natives(code: CpuCode, module: Module) -> dict[str, Native]:
    """What carries out each kernel that has machine code."""
    return {
        kernel.name: Native(code.symbols[kernel.name], buffers(kernel))
        for kernel in module.kernels
        if kernel.name in code.symbols
    }


def kernel_codes(
    code: CpuCode, module: Module, objects: Mapping[str, bytes], target: Target
) -> dict[str, KernelCode]:
    """The machine code of every distinct kernel, with what the runtime wants to know of it."""
    made: dict[str, KernelCode] = {}
    for kernel in module.kernels:
        symbol = code.symbols.get(kernel.name)
        if symbol is None or symbol in made:
            continue
        routine = code.routines[symbol]
        seconds = kernel_seconds(kernel, module.tensors, target)
        made[symbol] = KernelCode(
            symbol,
            objects[symbol],
            routine.pieces,
            work_of(kernel, module, target),
            checks=routine.checks,
            nanoseconds=nanoseconds(seconds),
        )
    return made


def work_of(kernel: Kernel, module: Module, target: Target) -> int:
    """The nanoseconds that one thread takes for a kernel."""
    work = kernel_work(kernel, module.tensors, target)
    computing = (work.matrix_seconds + work.vector_seconds) * target.limits.units
    return nanoseconds(together(target, (computing, work.bytes / CORE_BANDWIDTH)))
