"""Checks of an edited buffer map against the kernels it is for.

A map decides which tensor takes over whose buffer (`shares`), and where in the arena the others
lie. Everything else follows from that and from the kernels: the space and number of what is given
and handed out, sizes, lives, which copies are made. What follows is worked out again and compared,
and a share has to be one that could have been chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from weft.foundation.errors import Finding, SpecViolation
from weft.memory.from_region import ALIGNMENT, Assignment
from weft.memory.ir import BufferMap, Copy, MemRef, Share, Space
from weft.region.ir import Module

_HINT: Final = "shares and offsets in the arena are what a map may choose"


def agree(
    read: BufferMap, module: Module, donated: Iterable[str] = (), *, in_turn: bool = False
) -> None:
    """Raise where a map that was read does not fit the kernels."""
    assignment = Assignment(module, frozenset(donated), in_turn)
    found = [finding for share in read.shares for finding in _share(share, assignment)]
    if not found:
        # With the shares that were read everything else follows from the kernels: what is worked
        # out from them is what the map must say.
        assignment.copies = list(_copies(module, read))
        found = list(_buffer_differences(read, assignment.result()))
    if found:
        raise SpecViolation.of(found)


def _share(share: Share, assignment: Assignment) -> Iterator[Finding]:
    why = assignment.obstacle(share)
    if why is None:
        assignment.take(share)
    else:
        yield Finding("BufferShare", share.kernel, f"{share.second} in {share.first}: {why}")


def _copies(module: Module, read: BufferMap) -> Iterator[Copy]:
    """The copies that are made before the kernels, with the reasons that the map gives."""
    shared = {(share.first, share.second) for share in read.shares}
    reasons = {(copy.before, copy.target): copy.why for copy in read.copies}
    for kernel in module.kernels:
        for output in kernel.outputs:
            if output.base is not None and (output.base, output.tensor) not in shared:
                size = module.tensors[output.base].bytes
                why = reasons.get((kernel.name, output.tensor), "")
                yield Copy(kernel.name, output.base, output.tensor, size, why)


def _buffer_differences(read: BufferMap, wanted: BufferMap) -> Iterator[Finding]:
    for name in sorted(read.refs.keys() ^ wanted.refs.keys()):
        known = "the kernels have no such tensor" if name in read.refs else "it has no buffer"
        yield Finding("BufferName", name, known)
    if read.copies != wanted.copies:
        shown = "; ".join(f"{c.source} to {c.target} before {c.before}" for c in wanted.copies)
        yield Finding("BufferCopy", "the copies", f"what must be copied is: {shown or 'nothing'}")
    for name in read.refs.keys() & wanted.refs.keys():
        yield from _tensor_findings(name, read, wanted)
    for share in read.shares:
        first, second = (read.refs.get(name) for name in (share.first, share.second))
        if first and second and first.buffer != second.buffer:
            why = f"it takes over the buffer of {share.first}, but has another one"
            yield Finding("BufferShare", share.second, why)
    yield from _arena(read)


def _tensor_findings(name: str, read: BufferMap, wanted: BufferMap) -> Iterator[Finding]:
    got, need = _describe_place(read.refs[name]), _describe_place(wanted.refs[name])
    got["life"], need["life"] = read.lives.get(name), wanted.lives.get(name)
    for field, value in need.items():
        if got[field] != value:
            why = f"its {field} is {_show_value(got[field])}, but must be {_show_value(value)}"
            yield Finding("BufferFact", name, why, _HINT)


def _describe_place(ref: MemRef) -> dict[str, object]:
    """What follows of a tensor's place: all but its offset in the arena."""
    buffer = ref.buffer
    if buffer.space is Space.ARENA:
        buffer = replace(buffer, offset=0)
    return {
        "space": buffer.space.value,
        "number": buffer.number,
        "offset": buffer.offset,
        "bytes": buffer.bytes,
        "shape": list(ref.shape),
        "strides": list(ref.strides),
        "alignment": ref.alignment,
        "noalias": ref.noalias,
        "element_bytes": ref.element_bytes,
    }


def _show_value(value: object) -> str:
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _arena(read: BufferMap) -> Iterator[Finding]:
    placed = [ref.buffer for ref in read.refs.values() if ref.buffer.space is Space.ARENA]
    end = max((buffer.offset + buffer.bytes for buffer in placed), default=0)
    # An arena may end with what alignment adds to its last block, and no more.
    if read.arena_bytes >= end + ALIGNMENT:
        why = f"it has {read.arena_bytes:,} bytes, of which {end:,} are used"
        yield Finding("BufferSize", "the arena", why)
