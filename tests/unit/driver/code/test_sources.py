"""The LLVM text of the kernels can be written out, edited and fed back."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.driver.code.sources import CUDA, LLVM
from weft.foundation.errors import SpecViolation
from weft.ptir import Builder, Program


def doubled() -> Program:
    b = Builder("doubled")
    return b.build(b.param("f32", [6]) * 2.0)


def test_an_edited_source_is_what_runs() -> None:
    program = doubled()
    text = weft.compile(program).stages["llvm"]
    two, five = "0x4000000000000000", "0x4014000000000000"
    assert two in text
    edited = weft.compile(program, overrides={"llvm": text.replace(two, five)})
    assert edited(np.ones(6, np.float32))[0].tolist() == [5.0] * 6


def test_sources_are_what_they_were_after_a_round_trip() -> None:
    sources = {"k_0123456789abcdef": "one\ntwo\n", "k_fedcba9876543210": ""}
    for language in (CUDA, LLVM):
        assert language.split(language.join(sources)) == sources


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("; ==== kernel k_", "; ==== kernel q_", "is not the symbol of a kernel"),
        ("; ==== kernel k_", "; kernel k_", "there is no source for the kernel k_"),
        ("ret void", "ret maybe", "expected type"),
        ("define void @k_", "define i32 @k_", "value doesn't match function result type"),
        ("define void @k_", "define void @q_", "there is no function @k_"),
        ("define void @k_", "declare void @away()\n\ndefine void @k_",
         "there is no function @away"),
    ],
)  # fmt: skip
def test_a_wrong_source_is_a_sentence(old: str, new: str, message: str) -> None:
    program = doubled()
    text = weft.compile(program).stages["llvm"].replace(old, new)
    with pytest.raises(SpecViolation) as caught:
        weft.compile(program, overrides={"llvm": text})
    assert caught.value.findings[0].code == "LlvmText"
    assert message in str(caught.value)
    assert "stage llvm" in str(caught.value)
    assert "\n" not in str(caught.value)
