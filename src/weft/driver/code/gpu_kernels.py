"""From planned kernels to an artifact for a GPU: equal kernels become one, CUDA text becomes cubins
that are kept on disk."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

from weft.codegen.gpu.assemble import kernel_code
from weft.codegen.gpu.compile import Cubin, Report, compile_cuda, pack_cubin, version
from weft.codegen.gpu.ir.module import GpuModule
from weft.codegen.gpu.spelling.print import cuda
from weft.codegen.gpu.verify import verify
from weft.driver.artifact.assembler import Native
from weft.driver.code.gpu_lowering import Lowering, Tell
from weft.foundation.errors import SpecViolation, WeftError
from weft.foundation.functions import broken_rule
from weft.foundation.json_fields import reading
from weft.foundation.tally import counted
from weft.foundation.whole_ops import WholeOp
from weft.memory.ir import BufferMap
from weft.plan.ir import PlanSet
from weft.region.cost import kernel_seconds, nanoseconds
from weft.region.ir import Check, Kernel, Module, Pattern
from weft.region.structure import buffers
from weft.runtime import cache
from weft.runtime.artifact import KernelCode
from weft.runtime.compilers import can_start, shared_out
from weft.runtime.threads import thread_count
from weft.target.target import Target

_MANY: Final = 32
"""Sources for which further processes pay, ..."""
_PROCESSORS: Final = 4
"""... where there are so many processors."""
_SHARE: Final = 2
"""Sources of each process: starting one takes about as long as compiling a few short ones, and a
sixth of what one long product takes."""
_MOST_PROCESSES: Final = 16
"""That compile at once, at most."""
PROCESS: Final = "weft.codegen.gpu.compiler_process"
"""Who compiles."""
_ELF: Final = b"\x7fELF"
"""How machine code for GPUs begins."""


@dataclass
class CudaCode:
    """The CUDA text of every distinct kernel, by symbol."""

    sources: dict[str, str]


@dataclass
class Cubins:
    """Machine code for one architecture, and what was compiled and what was found."""

    arch: str
    cubins: dict[str, Cubin] = field(default_factory=dict)
    compiled: int = 0
    reused: int = 0


def lower_module(
    module: Module,
    buffer_map: BufferMap,
    plans: PlanSet,
    target: Target,
    given: Collection[str] = (),
    only: Collection[str] | None = None,
    tell: Tell | None = None,
) -> GpuModule:
    """The dialect kernels of all distinct kernels, or of `only` some. Those that no template
    carries out are for the host; but a plan that somebody gave, by the keys in `given`, is carried
    out or refused. `tell` is told of each kernel when it is made."""
    lowering = Lowering(module, buffer_map, target)
    for kernel in module.kernels:
        if only is not None and kernel.name not in only:
            continue
        if kernel.opaque is None:
            is_given = plans.kernels[kernel.name] in given
            lowering.by_template(kernel, plans, is_given)
        elif isinstance(kernel.opaque.op, WholeOp):
            lowering.whole(kernel, kernel.opaque.op)
    if only is None:
        lowering.join_launches(plans)
    lowering.make(is_part=only is not None, tell=tell)
    return lowering.code


def lower_again(
    before: GpuModule,
    module: Module,
    buffer_map: BufferMap,
    plans: PlanSet,
    target: Target,
    moved: Collection[str],
) -> GpuModule:
    """The same after plans have moved that templates carry out, those of some kernels by name: all
    others stay as they were."""
    first, *_, last = (*before.launches, *before.launches)
    shared = any(before.kernels[before.launches[name].symbol].sets > 1 for name in moved)
    if shared or first in moved or last in moved:
        # Kernels at the ends of a program do not wait for others, or admit none; one launch may
        # carry out several that have one plan.
        return lower_module(module, buffer_map, plans, target)
    made = lower_module(module, buffer_map, plans, target, only=moved)
    launches = {name: made.launches.get(name, launch) for name, launch in before.launches.items()}
    known = before.kernels | made.kernels
    kernels = {launch.symbol: known[launch.symbol] for launch in launches.values()}
    return GpuModule(kernels, launches, before.hosted)


def check_module(
    code: GpuModule, module: Module, target: Target, before: GpuModule | None = None
) -> None:
    """Every kernel makes sense on the target, and every kernel of the program has its launch. What
    was there `before` is not checked again."""
    known = {} if before is None else before.kernels
    for symbol, made in code.kernels.items():
        if known.get(symbol) != made:
            verify(made, target)
    for kernel in module.kernels:
        if kernel.name in code.launches or not _is_the_hosts(kernel, code):
            _check_launch(kernel, code)
    counts = Counter(launch.symbol for launch in code.launches.values())
    for symbol, count in counts.items():
        sets = code.kernels[symbol].sets
        if count % sets:
            why = f"a launch of {symbol} carries out {sets} kernels, and {count} name it"
            raise SpecViolation("KernelLaunch", why)


def _is_the_hosts(kernel: Kernel, code: GpuModule) -> bool:
    return kernel.pattern is Pattern.OPAQUE or kernel.name in code.hosted


def _check_launch(kernel: Kernel, code: GpuModule) -> None:
    launch = code.launches.get(kernel.name)
    if launch is None:
        raise SpecViolation("KernelLaunch", f"nothing is launched for the kernel {kernel.name}")
    if launch.symbol not in code.kernels:
        raise SpecViolation("KernelLaunch", f"there is no kernel {launch.symbol} to launch")
    wanted, given = len(code.kernels[launch.symbol].buffers), len(buffers(kernel))
    if len(launch.tensors) != wanted or not all(0 <= n < given for n in launch.tensors):
        raise SpecViolation(
            "KernelLaunch",
            f"{launch.symbol} takes {wanted} of the {given} tensors of {kernel.name}, not the "
            f"tensors {', '.join(map(str, launch.tensors))}",
        )


def print_cuda(
    code: GpuModule, before: GpuModule | None = None, printed: CudaCode | None = None
) -> CudaCode:
    """The CUDA text of every distinct kernel; that of those which were there `before` is known."""
    known = {} if before is None or printed is None else printed.sources
    made: dict[str, str] = {}
    for symbol, kernel in code.kernels.items():
        stays = before is not None and before.kernels.get(symbol) == kernel
        made[symbol] = known[symbol] if stays and symbol in known else cuda(kernel)
    return CudaCode(made)


def compile_sources(code: CudaCode, arch: str) -> Cubins:
    """Machine code, from the disk where it is there."""
    made = Cubins(arch)
    keys = {symbol: source_key(source, arch) for symbol, source in code.sources.items()}
    missing = []
    for symbol, key in keys.items():
        found = unpacked(cache.load(key), arch)
        if found is None:
            missing.append(symbol)
        else:
            made.cubins[symbol] = found
            made.reused += 1
    fresh = compile_all([code.sources[symbol] for symbol in missing], arch)
    for symbol, cubin in zip(missing, fresh, strict=True):
        cache.save(keys[symbol], pack_cubin(cubin))
        made.cubins[symbol] = cubin
        made.compiled += 1
    return made


def source_key(source: str, arch: str) -> str:
    """Under which a source's machine code is kept."""
    return cache.key_of(source, arch, ".".join(map(str, version())))


def compile_all(sources: Sequence[str], arch: str, processes: int | None = None) -> list[Cubin]:
    """Machine code of every source. In one process the compiler reads one of them at a time, half
    of its work on a short kernel: few are shared out to threads, and many to processes."""
    count = worth(len(sources)) if processes is None else processes
    if count > 1:
        return _by_processes(sources, arch, count)
    # The longest first, so that none of them is left when all the others are done.
    order = sorted(range(len(sources)), key=lambda n: -len(sources[n]))
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        made = dict(
            zip(order, pool.map(lambda n: compile_cuda(sources[n], arch), order), strict=True)
        )
    return [made[n] for n in range(len(sources))]


def worth(count: int) -> int:
    """How many processes shall compile so many sources."""
    processors = thread_count()
    if count < _MANY or processors < _PROCESSORS or not can_start():
        return 1
    return min(processors, _MOST_PROCESSES, count // _SHARE)


def _by_processes(sources: Sequence[str], arch: str, processes: int) -> list[Cubin]:
    def own(number: int) -> bytes:
        return pack_cubin(compile_cuda(sources[number], arch))

    messages = [message_of(source, arch) for source in sources]
    answers = shared_out(messages, own, PROCESS, processes)
    found = [unpacked(data, arch) for data in answers]
    return [
        compile_cuda(source, arch) if cubin is None else cubin
        for source, cubin in zip(sources, found, strict=True)
    ]


def message_of(source: str, arch: str) -> bytes:
    """What a process that compiles is told."""
    return f"{arch}\n{source}".encode()


def unpacked(data: bytes | None, arch: str) -> Cubin | None:
    """A cubin that was packed; None for what is none."""
    if data is None:
        return None
    head, _, code = data.partition(b"\n")
    try:
        with reading(json.loads(head), "report") as fields:
            report = Report(
                fields.whole("registers"),
                fields.whole("stack_bytes"),
                fields.whole("spilled_bytes"),
                fields.texts("remarks"),
            )
    except (ValueError, RecursionError, WeftError):
        return None
    return Cubin(arch, code, "", report) if code.startswith(_ELF) else None


def natives(code: GpuModule, module: Module) -> dict[str, Native]:
    """What carries out each kernel that has machine code."""
    found = {}
    for kernel in module.kernels:
        launch = code.launches.get(kernel.name)
        if launch is not None:
            names = buffers(kernel)
            found[kernel.name] = Native(launch.symbol, [names[n] for n in launch.tensors])
    return found


def estimated_seconds(module: Module, target: Target) -> dict[str, float]:
    """What each kernel of a module takes, by the estimate."""
    return {k.name: kernel_seconds(k, module.tensors, target) for k in module.kernels}


def kernel_codes(
    code: GpuModule, module: Module, cubins: Cubins, taken: Mapping[str, float]
) -> dict[str, KernelCode]:
    """The machine code of every distinct kernel, with what the runtime wants to know of it; kernels
    take so many seconds."""
    launched = [k for k in module.kernels if k.name in code.launches]
    counts = Counter(code.launches[k.name].symbol for k in launched)
    seconds: defaultdict[str, float] = defaultdict(float)
    for k in launched:
        symbol = code.launches[k.name].symbol
        share = code.kernels[symbol].sets / counts[symbol]
        seconds[symbol] += share * taken[k.name]
    checks = {
        code.launches[k.name].symbol: _checks(k)
        for k in module.kernels
        if k.body and k.name in code.launches
    }
    return {
        symbol: replace(
            kernel_code(kernel, cubins.cubins[symbol].code, checks.get(symbol, ())),
            nanoseconds=nanoseconds(seconds.get(symbol, 0.0)),
        )
        for symbol, kernel in code.kernels.items()
    }


def _checks(kernel: Kernel) -> tuple[tuple[str, str], ...]:
    """What each check of a kernel reports."""
    found = [let.expr for let in kernel.body if isinstance(let.expr, Check)]
    return tuple((check.code, broken_rule(check.rule, check.size)) for check in found)


def resource_report(code: GpuModule, cubins: Cubins) -> list[str]:
    """What every distinct kernel takes, a line each."""
    users: dict[str, list[str]] = {}
    for name, launch in code.launches.items():
        users.setdefault(launch.symbol, []).append(name)
    lines = []
    for symbol, kernel in code.kernels.items():
        found = cubins.cubins[symbol].report
        lines.append(
            f"{symbol} ({', '.join(users[symbol])}): {counted(kernel.grid, 'block')} of "
            f"{kernel.threads} threads, {found.registers} registers, "
            f"{found.spilled_bytes} bytes spilled, "
            f"{found.stack_bytes} bytes of stack, {kernel.shared_bytes} bytes shared"
            f"{f', {kernel.workspace.bytes} bytes of workspace' if kernel.workspace else ''}"
            f"{', starts while the one before ends' if kernel.waits else ''}"
        )
        lines += [f"{symbol}: {finding}" for finding in found.findings]
    return lines
