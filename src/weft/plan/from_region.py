"""From a kernel and a target to a plan: a good first choice, made in microseconds.

The form of a kernel decides the kind of plan, the target the numbers. Kernels of equal structure
get one plan. Tuning starts from here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from weft.foundation.dtypes import F32, I1
from weft.foundation.errors import SpecViolation
from weft.plan.attention import cpu_attention_plan, gpu_attention_plan, stream_plan
from weft.plan.code_tiles import codes_plan
from weft.plan.contraction import cpu_plan
from weft.plan.cpu_rows import cpu_row_plan, is_stream, vector_axis
from weft.plan.group_tiles import group_plan
from weft.plan.ir import (
    STREAMING,
    Header,
    MapPlan,
    MmaPlan,
    Plan,
    PlanSet,
    RowPlan,
)
from weft.plan.line_windows import line_windows_plan
from weft.plan.multiply_adds import fma_plan
from weft.plan.planes import planes_plan
from weft.plan.rows import gpu_row_plan, vector_length, whole_part
from weft.plan.slides import slide_plan
from weft.plan.staged import staged_plan
from weft.plan.tensor_cores import sm80_plan, sm90_plan, takes_warpgroups, takes_warps
from weft.plan.transposes import block_for, crossing_of, reads_borders, run_block
from weft.plan.walked_rows import walked_plan
from weft.region.cost import operations_of
from weft.region.form import Attention, Map, Product, Staged, Stream
from weft.region.forms.widths import inner_axis, length_with_room, vector_bytes
from weft.region.ir import Kernel, Module, Pattern, Read, Tensor, form_of, problem_of, walk
from weft.region.structure import structure_key
from weft.target.target import Kind, Target

_LONG_ROW: Final = 8
"""Vectors of a row in which narrow integers are not widened."""
_THREADS: Final = 128
"""Of a block, whose place others take as soon as it ends: blocks of 256 take as long for copies,
2 % longer where much is computed."""
_BLOCK_BYTES: Final = 3 << 10
"""That a block reads and writes, at least: the machine starts 1.7 blocks in a nanosecond, in which
it moves 4.3 KB."""
_TOGETHER: Final = 2
"""Vectors of a thread that are on their way at once where memory is not all that it waits for."""
_NARROW: Final = 4
"""Narrow vectors of a thread, at most: rows of 1023 elements of bf16 take 319, 163 and 94 us with
one, two and four."""
_RUN_THREADS: Final = (128, 96, 160)
"""Of a block of runs: as many as leave the fewest without a vector in the last turn."""
_MANY_BLOCKS: Final = 2048
"""Blocks that are left where threads take several vectors: some waves of them on every machine."""
# 256 threads for each of an H200's 132 units are 33,792.
_BUSY: Final = 1 << 15
"""Threads that keep a machine busy while each of them waits for its own operations."""
_LONG: Final = 256
"""Operations of a thread that take longer than starting the kernel."""
_SCORES: Final = ".attention"
"""How the keys of contractions end that scores and mixed values of an attention are."""


def plan_module(module: Module, target: Target) -> PlanSet:
    """A plan for every kernel of a module but those the host carries out."""
    keys, plans = plan_keys(module), dict[str, Plan]()
    for kernel in module.kernels:
        key = keys.get(kernel.name)
        if key is not None and key not in plans:
            plans[key] = first_plan(kernel, module.tensors, target, key)
    return PlanSet(keys, plans)


def plan_keys(module: Module) -> dict[str, str]:
    """What the plan of every kernel is kept under, by the kernel's name: equal kernels have one."""
    attention = _in_attention(module)
    return {
        kernel.name: structure_key(kernel, module.tensors)
        + (_SCORES if kernel.name in attention else "")
        for kernel in module.kernels
        if kernel.pattern is not Pattern.OPAQUE
    }


def first_plan(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, key: str) -> Plan:
    """The plan of the kernels that have a key, one of which is given."""
    plan = plan_kernel(kernel, tensors, target, key)
    return _as_streaming(plan) if key.endswith(_SCORES) else plan


def _in_attention(module: Module) -> set[str]:
    """The contractions that scores and mixed values of an attention are."""
    chains = [chain for chain in module.chains if chain.kind == "attention"]
    members = {name for chain in chains for name in chain.kernels}
    return {k.name for k in module.kernels if k.name in members and k.roles is not None}


def _as_streaming(plan: Plan) -> Plan:
    if not isinstance(plan, MmaPlan):
        return plan
    return replace(plan, algo_choice={**plan.algo_choice, "attention": STREAMING})


def same_kernels(read: PlanSet, made: PlanSet) -> None:
    """Plans that were read are for the kernels that there are, each by the key of its structure."""
    hint = "leave the kernels and their keys as they were; the plans are what may change"
    for name in {**made.kernels, **read.kernels}:
        key, wanted = read.kernels.get(name), made.kernels.get(name)
        if key is None:
            raise SpecViolation("PlanMissing", "there is no plan for it", where=f"kernel {name}")
        if key != wanted:
            why = f"its key is {key}, but it is {wanted or 'no kernel with a plan'}"
            raise SpecViolation("PlanKernel", why, hint, f"kernel {name}")
    for key in read.plans:
        if key not in made.plans:
            why = f"there is a plan for {key}, which is the key of no kernel"
            raise SpecViolation("PlanKernel", why, hint)


def check_plans(plans: PlanSet, module: Module) -> None:
    """Plans that somebody wrote are there for every kernel, and say nothing of another one."""
    attention = _in_attention(module)
    for kernel in module.kernels:
        if kernel.pattern is Pattern.OPAQUE:
            continue
        where = f"kernel {kernel.name}"
        if kernel.name not in plans.kernels:
            raise SpecViolation("PlanMissing", "there is no plan for it", where=where)
        plan = plans.of(kernel.name)
        chosen = plan.algo_choice.get("attention") if isinstance(plan, MmaPlan) else None
        if chosen is not None and kernel.name not in attention:
            why = f"algo_choice.attention={chosen}, but it belongs to no attention"
            raise SpecViolation("PlanField", why, where=where)


def plan_kernel(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, key: str = ""
) -> Plan:
    """The plan of one kernel."""
    header = Header(target.name, key or structure_key(kernel, tensors))
    plan: Plan | None = None
    match form_of(kernel):
        case Map():
            return _map_plan(kernel, tensors, target, header)
        case Staged() if target.kind is Kind.CPU:
            known = kernel.with_locals(tensors)
            lanes = min(_cpu_lanes(part, known, target) for part in kernel.parts)
            return staged_plan(kernel, lanes, target, header)
        case Staged():
            return slide_plan(kernel, tensors, target, header)
        case Product():
            plan = _contraction_plan(kernel, tensors, target, header)
        case Attention() if target.kind is Kind.CPU:
            plan = cpu_attention_plan(kernel, target, header)
        case Attention():
            plan = gpu_attention_plan(kernel, target, header)
        case Stream():
            plan = stream_plan(kernel, target, header)
    return plan or _row_plan(kernel, tensors, target, header)


def _contraction_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> Plan | None:
    """A plan for matrix instructions; None where the kernel does not suit them."""
    if target.kind is Kind.CPU:
        return None if is_stream(kernel) else cpu_plan(kernel, tensors, target, header)
    problem = problem_of(kernel)
    in_groups = None if problem is None else group_plan(kernel, problem, target, header)
    if in_groups is not None:
        return in_groups
    if problem is not None and takes_warpgroups(problem, kernel, target):
        return sm90_plan(kernel, problem, target, header)
    if problem is not None and takes_warps(problem, kernel):
        return sm80_plan(kernel, problem, target, header)
    if problem is None:
        given = kernel, tensors, target, header
        found = planes_plan(*given) or codes_plan(*given)
        return found or fma_plan(kernel, target, header)
    return fma_plan(kernel, target, header)


def _row_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> RowPlan:
    if target.kind is Kind.GPU:
        return walked_plan(kernel, tensors, target, header) or gpu_row_plan(
            kernel, tensors, target, header
        )
    windows = line_windows_plan(kernel, tensors, target, header)
    return windows or cpu_row_plan(kernel, tensors, _cpu_lanes(kernel, tensors, target), header)


def _map_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> MapPlan:
    points = math.prod(kernel.sizes.values())
    if target.kind is Kind.CPU:
        vector, usual = _cpu_lanes(kernel, tensors, target), target.lanes(F32)
        block = block_for(kernel) if vector > 1 and not reads_borders(kernel) else 1
        if block > 1:
            vector = min(vector, usual)
            return MapPlan(header, vector, max(1, 16 // vector), block=block)
        unroll = max(1, 4 * usual // max(vector, usual)) if points >= 64 * vector else 1
        return MapPlan(header, vector, unroll)
    blocks = gpu_block_plan(kernel, tensors, target, header)
    return blocks or gpu_map_plan(kernel, tensors, header)


def gpu_map_plan(kernel: Kernel, tensors: Mapping[str, Tensor], header: Header) -> MapPlan:
    """A vector of results for each thread; several where there are many, and they are narrow or it
    waits for other reads beside a stream from memory."""
    axis = inner_axis(kernel)
    # Results in whole vectors, even where operands must be read one by one, or in several.
    width = vector_bytes(kernel, tensors, stored=True)
    name = axis.name if axis else None
    length = vector_length(kernel, tensors, width, name, stored=True)
    vector = whole_part(length_with_room(kernel, tensors, name), length)
    points = math.prod(kernel.sizes.values())
    # Where few threads have work, one after another's takes long: a step of AdamW for ten tensors
    # of 64 elements took 100 us in vectors of eight.
    while vector > 1 and points < vector * _BUSY and vector * _operations(kernel) > _LONG:
        vector //= 2
    vectors = points // vector
    moved = vector * _bytes_of_point(kernel)
    wanted = _TOGETHER if _waits_for_more(kernel) else 1
    while wanted < _NARROW and wanted * _THREADS * moved < _BLOCK_BYTES:
        wanted *= 2
    while wanted > 1 and vectors < wanted * _THREADS * _MANY_BLOCKS:
        wanted //= 2
    return MapPlan(header, vector, wanted, _THREADS, grain=wanted * _THREADS * vector)


def _operations(kernel: Kernel) -> int:
    """That each point takes."""
    return sum(operations_of(let.expr.fn) for let in kernel.body if hasattr(let.expr, "fn"))


def _bytes_of_point(kernel: Kernel) -> int:
    """That are read and written for each point alone."""
    axes = {axis.name for axis in kernel.axes if axis.size > 1}
    reads = [let for let in kernel.body if isinstance(let.expr, Read)]
    stored = [kernel.let(output.value) for output in kernel.outputs]
    return sum(let.dtype.storage_bytes for let in reads + stored if axes <= set(let.axes))


def _waits_for_more(kernel: Kernel) -> bool:
    """Whether some reads wait for others, which say where they go, or are of what many points
    share."""
    axes = {axis.name for axis in kernel.axes if axis.size > 1}
    reads = [(let, let.expr) for let in kernel.body if isinstance(let.expr, Read)]
    return any(read.places or not axes <= set(let.axes) for let, read in reads)


def gpu_block_plan(
    kernel: Kernel, tensors: Mapping[str, Tensor], target: Target, header: Header
) -> MapPlan | None:
    """Blocks through shared memory, where operands lie across results; None where none does."""
    crossing = crossing_of(kernel)
    if crossing is None:
        return None
    length = vector_length(kernel, tensors, 16, crossing.columns)
    vector = whole_part(kernel.sizes[crossing.columns], length)
    runs = run_block(kernel, tensors, target.limits.units)
    if runs is not None:
        block, rows = runs
        vectors = block * rows // vector
        threads = min(_RUN_THREADS, key=lambda count: -vectors % count)
        return MapPlan(header, vector, 1, threads, grain=block * block, block=block)
    block = block_for(kernel)
    if block == 1:
        return None
    # Twice as many loads of a thread are on their way, where registers hold them for all operands.
    alone = sum(isinstance(let.expr, Read) for let in kernel.body) == 1
    threads = 128 if alone else 256
    return MapPlan(header, vector, 1, threads, grain=block * block, block=block)


def _cpu_lanes(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> int:
    """Lanes for the widest number that the kernel computes with along its innermost axis; what is
    the same for a whole row needs no lanes. Narrow floats are computed with in 32 bits; narrow
    integers as they are, where the row is so long that what is left over hardly counts."""
    inner = inner_axis(kernel)
    every = list(walk(kernel.body))
    along = [let for let in every if inner is not None and inner.name in let.axes] or every
    widest = max((let.dtype.bits for let in along if let.dtype.bits <= 64), default=32)
    lanes = max(1, target.limits.vector_bits // max(widest, 32))
    narrow = target.limits.vector_bits // max(widest, 8)
    vector = vector_axis(kernel, tensors)
    whole = all(let.dtype.is_integer or let.dtype is I1 for let in along)
    is_long = vector is not None and kernel.sizes[vector] >= _LONG_ROW * narrow
    return narrow if narrow > lanes and whole and is_long else lanes
