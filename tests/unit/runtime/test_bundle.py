"""Artifacts as bytes, and back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, get_args

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
from weft.runtime.bundle import Bundle, pack, unpack

SPEC = TensorSpec("x", "f32", (2, 3))


def example() -> Artifact:
    return Artifact(
        "cpu",
        (BufferSlot("input", 0, 0, 24), BufferSlot("arena", 0, 128, 24)),
        (KernelCode("k_0", b"\x00\xff{}", 4, True), KernelCode("k_1", b"")),
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


def test_a_bundle_is_the_artifact_again() -> None:
    bundle = Bundle(example(), {"map0": "k_0", "é": '"'}, ("k_0 takes 8 registers", ""))
    assert unpack(pack(bundle)) == bundle


def some(kind: str) -> Any:
    """A value for a field, by its annotation."""
    if kind.startswith("tuple[int, int, int]"):
        return (1, 2, 3)
    return {"int": 7, "str": "é", "bool": True, "bytes": b"\0"}.get(kind, ())


@pytest.mark.parametrize("step", get_args(Step), ids=lambda step: step.__name__)
def test_every_kind_of_step_can_be_written(step: Any) -> None:
    made = step(*(some(str(f.type)) for f in fields(step)))
    whole = Artifact("cpu", (), (), (made,), (), (), (), 0)
    assert unpack(pack(Bundle(whole, {}))) == Bundle(whole, {})


def test_every_record_can_be_written() -> None:
    for found in vars(records).values():
        if isinstance(found, type) and is_dataclass(found):
            made: Any = found(*(some(str(f.type)) for f in fields(found)))
            whole = Artifact("cpu", (), (), (made,), (), (), (), 0)
            assert unpack(pack(Bundle(whole, {}))) == Bundle(whole, {})


def test_what_is_no_bundle_is_none() -> None:
    good = pack(Bundle(example(), {"map0": "k_0"}, ("note",)))
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
