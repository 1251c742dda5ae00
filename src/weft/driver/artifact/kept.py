"""Results that are the same in every run with the same parameters: filters whose channels were put
last, weights in another dtype.

A kernel that reads inputs and constants alone, or what such kernels make of them, makes the same of
them in the next run. Its results are numbered: a runtime that sees the same inputs again may keep
them, in memory of its own, and leave the kernel out. They are hardly larger than what they are made
of: what a program blows up would take far more memory than was handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from weft.memory.ir import BufferMap, Space
from weft.region.ir import Kernel, Module
from weft.region.structure import buffers

_GIVEN: Final = ("input", "param", "constant")
"""What a run is handed and only reads."""


_STAYS: Final = ("param", "constant")
"""What the body of a loop is handed in every turn as in the first."""
_ROOM: Final = 1.25
"""How much larger results may be than what they are made of: rows are filled up to whole lines, and
panels to whole tiles."""


def kept_results(
    module: Module,
    buffer_map: BufferMap,
    plain: Collection[str],
    given_as: Collection[str] = _GIVEN,
) -> Mapping[str, int]:
    """The number, from 1 on, of every tensor that a runtime may keep. `plain` are the kernels that
    have machine code and report nothing; `given_as` are the roles of what stays the same."""
    tensors = module.tensors
    sources = {name for name, tensor in tensors.items() if tensor.role in given_as}
    alone = _tensors_alone(module, buffer_map, plain)
    found: dict[str, int] = {}
    for kernel in module.kernels:
        made = {output.tensor for output in kernel.outputs}
        read = set(buffers(kernel)) - made
        if kernel.name not in plain or not made or not made <= alone or not read <= sources:
            continue
        if any(output.base is not None for output in kernel.outputs):
            continue
        taken, given = (sum(tensors[name].bytes for name in names) for names in (made, read))
        if taken > _ROOM * given:
            continue
        sources |= made
        found |= {name: len(found) + number for number, name in enumerate(sorted(made), 1)}
    return found


def made_once(module: Module, buffer_map: BufferMap, plain: Collection[str]) -> Collection[str]:
    """The tensors that are the same in every turn of a loop whose body a module is."""
    return kept_results(module, buffer_map, plain, _STAYS).keys()


def _tensors_alone(module: Module, buffer_map: BufferMap, plain: Collection[str]) -> set[str]:
    """The tensors of the arena that have their memory for themselves while they live, are written
    by one kernel, and touched by kernels that have machine code alone."""
    found = {n for n, ref in buffer_map.refs.items() if ref.buffer.space is Space.ARENA}
    for share in buffer_map.shares:
        found -= {share.first, share.second}
    for copy in buffer_map.copies:
        found -= {copy.source, copy.target}
    written: set[str] = set()
    for kernel in module.kernels:
        made = {output.tensor for output in kernel.outputs}
        found -= written & made
        written |= made
        if kernel.name not in plain:
            found -= _touched_tensors(kernel)
    return found & written


def _touched_tensors(kernel: Kernel) -> set[str]:
    """What a kernel reads and writes."""
    inputs = kernel.opaque.inputs if kernel.opaque is not None else ()
    return {*buffers(kernel), *inputs, *(output.tensor for output in kernel.outputs)}
