"""The bincode reader: no byte string makes it read past the end or take memory it was not given."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from weft.foundation.errors import SpecViolation
from weft.ptir import Function, Program, tensor
from weft.ptir.codecs import bincode
from weft.ptir.ops.reduction import Reduce

GOLDEN = Path(__file__).parents[3] / "compat" / "2026-11-ptir-golden"


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def u64(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


def u32(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


PROGRAM = string("ptir.v0.4") + string("main")
# name, no parameters, no parameter ids, no results, one instruction with id 0
FUNCTION = PROGRAM + u64(1) + string("main") + u64(0, 0, 0, 1) + u32(0)

REJECTED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "MalformedBincode at byte 0: the file ends where 8 more bytes are needed"),
    "another version": (
        string("ptir.v0.5"),
        "SpecVersionMismatch: the file is of version 'ptir.v0.5', expected 'ptir.v0.4'",
    ),
    "a string longer than the file": (
        u64(2**62),
        "MalformedBincode at byte 8: the file ends where 4611686018427387904 more bytes are needed",
    ),
    "a list longer than the file": (
        PROGRAM + u64(2**62),
        "MalformedBincode at byte 37: a list claims 4611686018427387904 items, more than the bytes "
        "that are left",
    ),
    "a name that is not text": (
        string("ptir.v0.4") + u64(1) + b"\xff",
        "MalformedBincode at byte 26: a string is not UTF-8",
    ),
    "an unknown op": (
        FUNCTION + u32(99),
        "UnknownOp at byte 89: there is no op with tag 99",
    ),
    "an unknown function": (
        FUNCTION + u32(1, 8),
        "MalformedBincode at byte 93: 8 is not a UnaryFn",
    ),
    "bytes after the end": (
        PROGRAM + u64(0, 0) + b"\0",
        "MalformedBincode at byte 45: 1 bytes are left over after the program",
    ),
}


@pytest.mark.parametrize("name", REJECTED)
def test_wrong_bytes_are_rejected_with_their_place(name: str) -> None:
    data, sentence = REJECTED[name]
    with pytest.raises(SpecViolation) as caught:
        bincode.decode(data)
    assert str(caught.value) == sentence


def test_the_shortest_program() -> None:
    program = bincode.decode(PROGRAM + u64(0, 0))
    assert (program.entry, program.functions, program.regions) == ("main", (), ())
    assert bincode.encode(program) == PROGRAM + u64(0, 0)


def test_an_empty_version_is_the_current_one() -> None:
    program = bincode.decode(string("") + string("main") + u64(0, 0))
    assert bincode.encode(program) == PROGRAM + u64(0, 0)


@pytest.mark.parametrize("byte", [2, 255])
def test_a_flag_is_0_or_1(byte: int) -> None:
    data = (GOLDEN / "reduce_sum.bin").read_bytes()
    op = bincode.decode(data).main.body[0].op
    assert isinstance(op, Reduce)
    fields = u32(4, 0) + u64(len(op.axes), *op.axes)
    flag = data.index(fields) + len(fields)
    assert data[flag] == op.keepdims
    with pytest.raises(SpecViolation, match=f"{byte} is neither true nor false"):
        bincode.decode(data[:flag] + bytes([byte]) + data[flag + 1 :])


def test_a_map_has_each_key_once() -> None:
    data = (GOLDEN / "custom_call.bin").read_bytes()
    assert b"b_f64" in data
    with pytest.raises(SpecViolation, match="a map has the same key twice"):
        bincode.decode(data.replace(b"b_f64", b"d_str"))


def test_what_does_not_fit_is_not_written() -> None:
    kind = tensor("f32", [2**64])
    function = Function("main", (kind,), (0,), (kind,), (), (), (0,))
    with pytest.raises(SpecViolation) as caught:
        bincode.encode(Program("main", (function,)))
    assert str(caught.value) == (
        "InvalidAttributeValue: 18446744073709551616 does not fit the field that holds it in "
        "bincode"
    )
