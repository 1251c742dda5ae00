"""Buffer maps: read back from text, and broken ones refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support import kernels
from weft.foundation.errors import SpecViolation
from weft.memory.from_region import assign_buffers
from weft.memory.ir import Buffer, BufferMap, Copy, MemRef, Space
from weft.memory.text import dumps, loads
from weft.memory.verify import findings, verify


@pytest.mark.parametrize("name", kernels.ALL)
def test_maps_read_back_and_are_right(name: str) -> None:
    buffers = assign_buffers(kernels.ALL[name]())
    verify(buffers)
    assert loads(dumps(buffers)) == buffers


def plain() -> BufferMap:
    return assign_buffers(kernels.mlp())


def moved(name: str, **fields: object) -> BufferMap:
    """The map with one tensor's buffer changed."""
    buffers = plain()
    ref = buffers.refs[name]
    buffer = replace(ref.buffer, **fields)  # type: ignore[arg-type]
    return replace(buffers, refs=buffers.refs | {name: replace(ref, buffer=buffer)})


def referred(name: str, **fields: object) -> BufferMap:
    buffers = plain()
    ref = replace(buffers.refs[name], **fields)  # type: ignore[arg-type]
    return replace(buffers, refs=buffers.refs | {name: ref})


def updated(change: Callable[[BufferMap], BufferMap]) -> BufferMap:
    return change(assign_buffers(kernels.cache_update()))


def aliased(buffers: BufferMap) -> BufferMap:
    refs = {name: replace(ref, noalias=True) for name, ref in buffers.refs.items()}
    return replace(buffers, refs=refs)


BROKEN: dict[str, tuple[BufferMap, str, str]] = {
    "beyond the arena": (moved("h", offset=128), "BufferSize", "it ends at 896, the arena at 768"),
    "not aligned": (moved("h", offset=4), "BufferAlignment", "offset 4 is not a multiple of 128"),
    "too small": (moved("y", bytes=100), "BufferSize", "it ends at byte 512 of 100"),
    "strides of another rank": (
        referred("y", strides=(1,)),
        "BufferRank",
        "strides (1,) do not fit shape (8, 16)",
    ),
    "the entry of another tensor": (
        referred("y", tensor="z"),
        "BufferName",
        "the entry is for z, or it has no life",
    ),
    "two in one place": (
        moved("w2", number=0),
        "BufferOverlap",
        "it overlaps x, which is still alive",
    ),
    "sharing without being told": (
        updated(lambda b: replace(b, shares=())),
        "BufferOverlap",
        "it overlaps cache, which is still alive",
    ),
    "sharing but noalias": (
        updated(aliased),
        "BufferAlias",
        "it shares a buffer with cache but is marked noalias",
    ),
    "a copy that does not fit": (
        updated(lambda b: replace(b, copies=(Copy("k", "cache", "rows", 999, ""),))),
        "BufferSize",
        "the copy to rows does not fit",
    ),
    "a copy of nothing": (
        updated(lambda b: replace(b, copies=(Copy("k", "nobody", "rows", 1, ""),))),
        "BufferName",
        "nobody or rows is unknown",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_maps_are_refused(name: str) -> None:
    buffers, code, why = BROKEN[name]
    assert (code, why) in [(finding.code, finding.why) for finding in findings(buffers)]
    with pytest.raises(SpecViolation):
        verify(buffers)


def test_arena_ranges_may_follow_one_another_in_time() -> None:
    buffers = plain()
    late = replace(buffers.refs["h"], tensor="late")
    refs = buffers.refs | {"late": late}
    lives = buffers.lives | {"late": (2, 3)}
    verify(replace(buffers, refs=refs, lives=lives))
    overlapping = replace(buffers, refs=refs, lives=buffers.lives | {"late": (1, 3)})
    assert [finding.code for finding in findings(overlapping)] == ["BufferOverlap"]


def test_malformed_text_is_refused() -> None:
    text = dumps(plain())
    with pytest.raises(SpecViolation, match="field 'space' is 'heaven'"):
        loads(text.replace('"space": "arena"', '"space": "heaven"'))
    with pytest.raises(SpecViolation, match="a life is a pair"):
        loads(text.replace('"life": [0, 1]', '"life": [0]'))
    with pytest.raises(SpecViolation, match="field 'colour' is not known here"):
        loads(text.replace('"arena_bytes"', '"colour": 1, "arena_bytes"'))


def test_buffers_are_plain_records() -> None:
    assert Buffer(Space.ARENA, 0, 0, 4) == Buffer(Space.ARENA, 0, 0, 4)


def test_tensors_may_alias_in_the_kernel_where_they_meet_and_nowhere_else() -> None:
    first, second = (Buffer(Space.ARENA, 0, offset, 64) for offset in (0, 128))
    refs = {
        "a": MemRef("a", first, (16,), (1,), 64, noalias=False, element_bytes=4),
        "b": MemRef("b", first, (16,), (1,), 64, noalias=False, element_bytes=4),
        "c": MemRef("c", second, (16,), (1,), 64, noalias=True, element_bytes=4),
    }
    buffers = BufferMap(refs, 192)
    assert [ref.noalias for ref in buffers.refs_of(["a", "b", "c"]).values()] == [
        False,
        False,
        True,
    ]
    assert [ref.noalias for ref in buffers.refs_of(["b", "c"]).values()] == [True, True]
