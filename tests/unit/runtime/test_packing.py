"""Artifacts as bytes, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from weft.runtime import artifact as records
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
from weft.runtime.packing import Packed, pack, unpack

SPEC = TensorSpec("x", "f32", (2, 3))


def example() -> Artifact:
    return Artifact(
        "cpu",
        (BufferSlot("input", 0, 0, 24), BufferSlot("arena", 0, 128, 24)),
        (KernelCode("k_0", b"\x00\xff{}", 4, 12_000), KernelCode("k_1", b"")),
        (
            Launch(0, (0, 1), "map0"),
            CopyBuffer(1, 0, 24, "copy"),
            HostCall('["sort", []]', ((1, SPEC),), ((0, SPEC),), "sort1"),
        ),
        (SPEC,),
        (SPEC, TensorSpec("é", "bf16", ())),
        (0, 1),
        256,
        (b"one", b"", b"three"),
    )


def test_what_is_packed_is_the_artifact_again() -> None:
    lines = {"a.py:3": (("@main", 4), ("region 0", 0))}
    whole = Packed(
        example(), {"map0": "k_0", "é": '"'}, ("k_0 takes 8 registers", ""), lines, ("it",)
    )
    assert unpack(pack(whole)) == whole


def some(kind: Any) -> Any:
    """A value of a type."""
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        return tuple(some(of) for of in (kinds[:1] * 2 if kinds[-1] is Ellipsis else kinds))
    if kind in PLAIN:
        return PLAIN[kind]
    record = (get_args(kind) or (kind,))[0]
    hints = get_type_hints(record)
    return record(*(some(hints[f.name]) for f in fields(record)))


PLAIN: dict[Any, Any] = {int: 7, str: "é", bool: True, bytes: b"\0"}


@pytest.mark.parametrize("step", get_args(Step), ids=lambda step: step.__name__)
def test_every_kind_of_step_can_be_written(step: Any) -> None:
    whole = Artifact("cpu", (), (), (some(step),), (), (), (), 0)
    assert unpack(pack(Packed(whole, {}))) == Packed(whole, {})


def test_every_record_can_be_written() -> None:
    whole: Artifact = some(Artifact)
    assert unpack(pack(Packed(whole, {}))) == Packed(whole, {})
    written = pack(Packed(whole, {}))
    names = [n for n, found in vars(records).items() if is_dataclass(found)]
    steps = {step.__name__ for step in get_args(Step)} - {"Launch"}
    assert [name for name in names if name.encode() not in written] == sorted(
        steps, key=names.index
    )


def test_a_field_of_another_type_is_nothing() -> None:
    good = pack(Packed(example(), {"map0": "k_0"}, ("note",)))
    head = good[16:]
    for text, other in (
        (b'"map0",[]', b"12.25,[]"),
        (b'[0,1],"map0"', b'[0,[]],"map"'),
        (b'{"BufferSlot":["input",0', b'{"TensorSpec":["input",0'),
        (b'["input",0,0,24]', b'["input",0,0,"4"]'),
        (b'["input",0,0,24]', b'["input",0,true]'),
        (b'{"bytes":0}', b'{"bytes":9}'),
        (b'{"bytes":0}', b'{"bytes":-1}'),
        (b'"target"', b"12345678"),
        (b"256,[{", b"1e3,[{"),
    ):
        if text in head:
            bad = head.replace(text, other, 1)
            size = int.from_bytes(good[8:16], "little") + len(bad) - len(head)
            assert unpack(good[:8] + size.to_bytes(8, "little") + bad) is None, other


def test_what_is_nothing_is_none() -> None:
    good = pack(Packed(example(), {"map0": "k_0"}, ("note",)))
    for bad in (
        b"",
        b"weftprg1",
        good[:-1],
        good + b"x",
        good[:40],
        good.replace(b"Launch", b"Lunch_"),
        good.replace(b'"k_0"}', b"12345}"),
        good.replace(b'["note"]', b"[123456]"),
        good.replace(b'["note"]', b"12345678"),
    ):
        assert unpack(bad) is None
    deep = b"[" * 100_000
    assert unpack(b"weftprg1" + len(deep).to_bytes(8, "little") + deep) is None
    assert unpack(b"weftprg1" + (1 << 62).to_bytes(8, "little") + b"{}") is None
