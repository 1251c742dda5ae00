"""From planned kernels to an artifact for the CPU: equal kernels are compiled once, and kept on
disk."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from weft.codegen.cpu import ir
from weft.codegen.cpu.compile import accepts, lower
from weft.codegen.cpu.domain import prove
from weft.codegen.cpu.llvm import emit_module
from weft.foundation.errors import Finding, SpecViolation, Unimplemented
from weft.memory.ir import BufferMap, MemRef
from weft.plan.ir import Plan, PlanSet
from weft.region.ir import Kernel, Module, Pattern, Tensor
from weft.region.structure import buffers, structure_key
from weft.runtime import cache
from weft.runtime.artifact import (
    Artifact,
    BufferSlot,
    CopyBuffer,
    HostCall,
    KernelCode,
    Launch,
    Step,
    TensorSpec,
)
from weft.runtime.jit import compile_object, host_cpu

OpaqueRunner = Callable[[object, Sequence[NDArray[Any]], int], Sequence[NDArray[Any]]]


@dataclass
class CpuCode:
    """The routines of a module, and what was compiled and what was found."""

    routines: dict[str, ir.Routine] = field(default_factory=dict)
    """By the symbol of the kernel code they become."""
    symbols: dict[str, str] = field(default_factory=dict)
    """Kernel name to symbol; equal kernels have one symbol."""
    findings: list[Finding] = field(default_factory=list)
    """Proofs that were too hard; none in what Weft generates by itself."""
    compiled: int = 0
    reused: int = 0


def lower_module(module: Module, buffer_map: BufferMap, plans: PlanSet) -> CpuCode:
    """The loop nests of all distinct kernels."""
    code = CpuCode()
    for kernel in module.kernels:
        if kernel.pattern is Pattern.OPAQUE:
            continue
        plan = plans.of(kernel.name)
        findings = accepts(kernel, module.tensors, plan)
        if findings:
            raise Unimplemented(f"kernel {kernel.name}", findings[0].why)
        refs = {name: buffer_map.refs[name] for name in buffers(kernel)}
        symbol = "k_" + _kernel_key(kernel, module.tensors, refs, plan)[:16]
        code.symbols[kernel.name] = symbol
        if symbol not in code.routines:
            routine = lower(kernel, module.tensors, refs, plan, symbol)
            code.findings += prove(routine, kernel)
            code.routines[symbol] = routine
    return code


def _kernel_key(
    kernel: Kernel, tensors: dict[str, Tensor], refs: dict[str, MemRef], plan: Plan
) -> str:
    layout = [(ref.strides, ref.noalias) for ref in refs.values()]
    # The header names the kernel the plan was made for; two equal kernels may have two headers.
    plan_text = re.sub(r"header=Header\([^)]*\)", "", repr(plan))
    text = "\0".join([structure_key(kernel, tensors), repr(layout), plan_text])
    return hashlib.sha256(text.encode()).hexdigest()


def build_artifact(
    module: Module,
    buffer_map: BufferMap,
    code: CpuCode,
    constants: Mapping[str, NDArray[Any]],
    run_opaque: OpaqueRunner,
) -> Artifact:
    """Machine code for every distinct kernel, and the steps that use it."""
    kernels = [_kernel_code(symbol, routine, code) for symbol, routine in code.routines.items()]
    numbers = {symbol: number for number, symbol in enumerate(code.routines)}
    table = _Slots(module, buffer_map)
    steps: list[Step] = []
    for kernel in module.kernels:
        steps += [
            CopyBuffer(table.slot(c.source), table.slot(c.target), c.bytes, f"copy {c.source}")
            for c in buffer_map.copies
            if c.before == kernel.name
        ]
        if kernel.pattern is Pattern.OPAQUE:
            steps.append(_host_call(kernel, module, table, run_opaque))
        else:
            args = tuple(table.slot(name) for name in buffers(kernel))
            steps.append(Launch(numbers[code.symbols[kernel.name]], args, kernel.name))
    places = tuple(table.slot(name) for name in module.outputs)
    held = [name for name, tensor in module.tensors.items() if tensor.role == "constant"]
    return Artifact(
        "cpu",
        tuple(table.slots),
        tuple(kernels),
        tuple(steps),
        tuple(_spec(module.tensors[name]) for name in module.inputs),
        tuple(_spec(module.tensors[name]) for name in module.outputs),
        places,
        buffer_map.arena_bytes,
        tuple(constants[name].tobytes() for name in held),
    )


class _Slots:
    """Entries of the parameter block, numbered as they are asked for."""

    def __init__(self, module: Module, buffer_map: BufferMap) -> None:
        self.module = module
        self.buffer_map = buffer_map
        self.slots: list[BufferSlot] = []
        self._numbers: dict[BufferSlot, int] = {}

    def slot(self, name: str) -> int:
        buffer = self.buffer_map.refs[name].buffer
        made = BufferSlot(buffer.space.value, buffer.number, buffer.offset, buffer.bytes)
        if made not in self._numbers:
            self._numbers[made] = len(self.slots)
            self.slots.append(made)
        return self._numbers[made]


def _kernel_code(symbol: str, routine: ir.Routine, code: CpuCode) -> KernelCode:
    key = cache.key_of(symbol, *host_cpu())
    data = cache.load(key)
    if data is None:
        data = compile_object(emit_module([routine]))
        cache.save(key, data)
        code.compiled += 1
    else:
        code.reused += 1
    return KernelCode(symbol, data, work_items=routine.pieces)


def _host_call(kernel: Kernel, module: Module, table: _Slots, run_opaque: OpaqueRunner) -> HostCall:
    call = kernel.opaque
    if call is None:
        raise SpecViolation("OpaqueKernel", f"kernel {kernel.name} says nothing to call")
    op, results = call.op, call.results

    def function(arrays: Sequence[NDArray[Any]], seed: int) -> list[NDArray[Any]]:
        found = run_opaque(op, arrays, seed)
        return [found[number] for number in results]

    def place(name: str) -> tuple[int, TensorSpec]:
        return table.slot(name), _spec(module.tensors[name])

    inputs = tuple(place(name) for name in call.inputs)
    outputs = tuple(place(output.tensor) for output in kernel.outputs)
    return HostCall(function, inputs, outputs, kernel.name)


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype.name, tensor.shape)
