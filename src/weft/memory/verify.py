"""The verifier of buffer maps: no live buffer is overwritten, and every tensor fits.

The map carries lives and shares, so it can be checked on its own, also after it was edited by hand.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.foundation.errors import Finding, SpecViolation
from weft.memory.ir import BufferMap, MemRef, Space


def verify(buffers: BufferMap) -> None:
    """Raise with everything that is wrong."""
    found = list(findings(buffers))
    if found:
        raise SpecViolation.of(found)


def findings(buffers: BufferMap) -> Iterator[Finding]:
    """Everything that is wrong with a buffer map."""
    for name, ref in buffers.refs.items():
        yield from _reference(name, ref, buffers)
    shares = {(share.first, share.second) for share in buffers.shares}
    for first, second in _alive_together(buffers):
        if first.buffer.overlaps(second.buffer):
            yield from _neighbours(first, second, buffers, shares)
    for copy in buffers.copies:
        if copy.source not in buffers.refs or copy.target not in buffers.refs:
            yield Finding("BufferName", copy.before, f"{copy.source} or {copy.target} is unknown")
        elif copy.bytes > buffers.refs[copy.target].buffer.bytes:
            yield Finding("BufferSize", copy.before, f"the copy to {copy.target} does not fit")


def _reference(name: str, ref: MemRef, buffers: BufferMap) -> Iterator[Finding]:
    buffer = ref.buffer
    if ref.tensor != name or name not in buffers.lives:
        yield Finding("BufferName", name, f"the entry is for {ref.tensor}, or it has no life")
    if len(ref.strides) != len(ref.shape):
        yield Finding("BufferRank", name, f"strides {ref.strides} do not fit shape {ref.shape}")
    elif 0 not in ref.shape:
        last = sum(s * (n - 1) for s, n in zip(ref.strides, ref.shape, strict=True))
        end = (last + 1) * ref.element_bytes
        if any(stride < 0 for stride in ref.strides) or end > buffer.bytes:
            yield Finding("BufferSize", name, f"it ends at byte {end} of {buffer.bytes}")
    if buffer.space is Space.ARENA:
        if buffer.offset % ref.alignment:
            yield Finding(
                "BufferAlignment",
                name,
                f"offset {buffer.offset} is not a multiple of {ref.alignment}",
            )
        if buffer.offset + buffer.bytes > buffers.arena_bytes:
            yield Finding(
                "BufferSize",
                name,
                f"it ends at {buffer.offset + buffer.bytes}, the arena at {buffers.arena_bytes}",
            )


def _alive_together(buffers: BufferMap) -> Iterator[tuple[MemRef, MemRef]]:
    """Pairs in one buffer or arena of which the first is alive when the second comes to life."""
    lives = buffers.lives
    places: dict[tuple[Space, int], list[MemRef]] = {}
    for ref in buffers.refs.values():
        if ref.tensor in lives:
            places.setdefault((ref.buffer.space, ref.buffer.number), []).append(ref)
    for refs in places.values():
        alive: list[MemRef] = []
        for ref in sorted(refs, key=lambda ref: lives[ref.tensor]):
            # In the order of their births each tensor is compared with those that are still alive:
            # a pair is seen once, when the younger one comes, and the dead are never looked at
            # again.
            alive = [r for r in alive if lives[r.tensor][1] >= lives[ref.tensor][0]]
            yield from ((other, ref) for other in alive)
            alive.append(ref)


def _neighbours(
    first: MemRef, second: MemRef, buffers: BufferMap, shares: set[tuple[str, str]]
) -> Iterator[Finding]:
    """Two tensors with bytes in common must not live at the same time, but for one kernel in which
    one takes over from the other."""
    a, b = first.tensor, second.tensor
    handed = buffers.lives[a][1] == buffers.lives[b][0] and (a, b) in shares
    if not handed:
        yield Finding("BufferOverlap", b, f"it overlaps {a}, which is still alive")
    elif first.noalias or second.noalias:
        yield Finding("BufferAlias", b, f"it shares a buffer with {a} but is marked noalias")
