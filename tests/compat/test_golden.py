"""Programs that another implementation wrote: they load, and Weft writes the same bytes back."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.support.cases import each
from weft.foundation.errors import SpecViolation
from weft.ptir import Program, dumps, load, loads, verify

GOLDEN = Path(__file__).parent / "2026-11-ptir-golden"
NAMES = sorted(path.stem for path in GOLDEN.glob("*.bin"))
UNREADABLE = {"pad_neginf"}
INVALID = {
    "dequantize": "ArityMismatch",
    "pad_complex": "InvalidAttributeValue",
    "pad_i1": "InvalidAttributeValue",
    "pad_signed": "InvalidAttributeValue",
    "pad_unsigned": "InvalidAttributeValue",
    "quantize": "ArityMismatch",
    "requantize": "ArityMismatch",
    "tuple_and_hints": "HintInvalid",
}
NOT_PLAIN = {"cond", "scan", "tuple_and_hints", "while"}
"""Vectors with regions or hints: what comes after the empty list of hints is not of fixed size."""


def golden(name: str) -> Program:
    return load(GOLDEN / f"{name}.bin")


def test_all_the_vectors_are_here() -> None:
    assert len(NAMES) == 88
    for suffix in (".json", ".ptir"):
        assert sorted(path.stem for path in GOLDEN.glob(f"*{suffix}")) == NAMES


@each("name", [n for n in NAMES if n not in UNREADABLE])
def test_json_loads_to_the_same_program_and_is_written_back(name: str) -> None:
    text = (GOLDEN / f"{name}.json").read_text()
    program = loads(text)
    assert program == golden(name)
    assert json.loads(dumps(program, "json")) == json.loads(text)


@each("name", NAMES)
def test_bincode_is_written_back_byte_for_byte(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    assert dumps(loads(data), "bincode") == data


@each("name", NAMES)
def test_display_text_is_the_same(name: str) -> None:
    assert dumps(golden(name), "display") == (GOLDEN / f"{name}.ptir").read_text()


@each("name", NAMES)
def test_text_reads_back_to_an_equal_program(name: str) -> None:
    program = golden(name)
    text = dumps(program, "text")
    assert loads(text) == program
    assert dumps(loads(text), "text") == text


@each("name", NAMES)
def test_our_json_reads_back_to_an_equal_program(name: str) -> None:
    program = golden(name)
    assert loads(dumps(program, "json")) == program


@each("name", NAMES)
def test_exactly_the_known_ones_fail_to_verify(name: str) -> None:
    codes = {finding.code for finding in verify(golden(name), collect=True)}
    assert codes == ({INVALID[name]} if name in INVALID else set())


def test_null_for_a_number_is_rejected_with_the_reason() -> None:
    with pytest.raises(SpecViolation) as caught:
        load(GOLDEN / "pad_neginf.json")
    assert str(caught.value) == (
        "MalformedJson at functions[0].body[0].op.Pad.pad_value.Float: null stands where a number "
        "is needed; some writers put null for a number that is not finite, write "
        '"NaN", "Infinity" or "-Infinity"'
    )


def test_the_same_number_loads_from_bincode_and_from_our_json() -> None:
    program = golden("pad_neginf")
    written = str(dumps(program, "json"))
    assert '{"Float":"-Infinity"}' in written
    assert loads(written) == program


def without_hints(data: bytes, results: int) -> bytes:
    """The bytes of a one-function program without regions, minus its empty list of hints."""
    tail = struct.pack("<Q", 0) + struct.pack("<Q", results)
    at = len(data) - 8 - 4 * results - 16
    assert data[at : at + 16] == tail
    return data[:at] + data[at + 8 :]


@each("name", [n for n in NAMES if n not in NOT_PLAIN])
def test_bincode_from_before_hints_loads(name: str) -> None:
    program = golden(name)
    old = without_hints((GOLDEN / f"{name}.bin").read_bytes(), len(program.main.result_ids))
    assert loads(old) == program


@pytest.mark.parametrize("name", ["scan", "tuple_and_hints", "custom_call", "pad_complex"])
def test_a_file_cut_short_at_any_byte_is_rejected_in_a_sentence(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    for length in range(len(data)):
        with pytest.raises(SpecViolation):
            loads(data[:length])
