"""Files: the format is told by content when reading and by extension when writing."""

from __future__ import annotations

import gzip
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.foundation.errors import ResourceExceeded, SpecViolation, UserError
from weft.ptir import Builder, Program, dumps, files, load, loads, save
from weft.ptir.files import EXTENSIONS, format_of


def small_program() -> Program:
    b = Builder("small")
    x = b.param("f32", [2])
    return b.build(b.exp(x) + 1.0)


@pytest.mark.parametrize("extension", [e for e, form in EXTENSIONS.items() if form != "display"])
def test_what_is_saved_loads(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"program{extension}"
    save(small_program(), path)
    assert load(path) == small_program()
    assert load(str(path)) == small_program()


@pytest.mark.parametrize("form", ["json", "bincode", "text"])
def test_content_decides_whatever_the_extension_says(tmp_path: Path, form: str) -> None:
    path = tmp_path / "program.unknown"
    save(small_program(), path, form)
    assert load(path) == small_program()


@pytest.mark.parametrize("form", ["json", "text"])
def test_text_may_begin_with_spaces_or_a_byte_order_mark(form: str) -> None:
    text = str(dumps(small_program(), form))
    assert loads(" \n" + text) == small_program()
    assert loads(("\ufeff" + text).encode()) == small_program()


def test_the_display_form_cannot_be_read_back() -> None:
    text = str(dumps(small_program(), "display"))
    for data in (text, text.encode()):
        with pytest.raises(SpecViolation) as caught:
            loads(data)
        assert str(caught.value) == (
            "MalformedText: this is the display form, which leaves out literal bytes and cannot be "
            "read back (write the program with format='text' or 'json')"
        )


def test_text_that_is_not_utf_8() -> None:
    with pytest.raises(SpecViolation) as caught:
        loads(b"ptir.v0.4 \xff")
    assert str(caught.value) == "MalformedText: the file is not UTF-8 text: byte 10 is wrong"


def archive() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.zeros(3))
    return file.getvalue()


def one_array() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def tensors(path: Path) -> bytes:
    weft.save(path, {"a": weft.ones((2, 3))})
    return path.read_bytes()


OTHERS: dict[str, tuple[Callable[[Path], bytes], str]] = {
    "npz": (lambda path: archive(), "a zip archive, as NumPy's .npz and PyTorch's .pt files are"),
    "npy": (lambda path: one_array(), "one array of NumPy"),
    "gzip": (lambda path: gzip.compress(b"program"), "gzip's: unpack it first"),
    "pickle": (lambda path: pickle.dumps({"a": [1.0]}), "a Python pickle"),
    "safetensors": (tensors, "safetensors: tensors without a program; weft.load reads them"),
    "onnx": (
        lambda path: b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:\x04\x0a\0\x12\0",
        "an ONNX model",
    ),
    "mlir": (lambda path: b"ML\xefR\x01MLIR17\0", "MLIR bytecode: write StableHLO as text"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_formats_are_told(tmp_path: Path, name: str) -> None:
    made, what = OTHERS[name]
    data = made(tmp_path / "it")
    with pytest.raises(SpecViolation) as caught:
        loads(data)
    assert caught.value.why.startswith(f"the file is not a program: it looks like {what}")


def test_json_of_something_else_is_told() -> None:
    with pytest.raises(SpecViolation) as caught:
        loads(b'{"model": 1, "weights": [2]}')
    assert str(caught.value) == (
        "MalformedJson at the top level: this JSON is not a program, which has 'entry' and "
        "'functions': it has 'model', 'weights'"
    )


def test_what_cannot_be_the_name_of_a_file() -> None:
    sentence = r"'a\\x00b.json' cannot be the name of a file: embedded null byte"
    with pytest.raises(UserError, match=sentence):
        load("a\0b.json")
    with pytest.raises(UserError, match=sentence):
        save(small_program(), "a\0b.json")


def test_mistakes_with_files_are_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path / "missing.json")
    assert str(caught.value) == (
        f"cannot read {tmp_path / 'missing.json'}: No such file or directory"
    )
    with pytest.raises(UserError) as caught:
        save(small_program(), tmp_path / "no" / "folder.json")
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'no' / 'folder.json'}: No such file or directory"
    )
    with pytest.raises(UserError) as caught:
        format_of("model.onnx")
    assert str(caught.value) == (
        "cannot tell the format of model.onnx by its extension; use one of .json (json), "
        ".bin (bincode), .bincode (bincode), .txt (text), .ptir (display)"
    )
    with pytest.raises(UserError) as caught:
        dumps(small_program(), "yaml")
    assert str(caught.value) == (
        "unknown format 'yaml'; the formats are json, text, display, bincode"
    )


def test_a_region_returns_its_last_instructions_on_the_wire() -> None:
    b = Builder()
    flag, x, y = b.param("i1"), b.param("f32", [2]), b.param("f32", [2])
    swapped = b.cond(flag, lambda r, p, q: (q, p), lambda r, p, q: (p, r.neg(q)), x, y)
    program = b.build(swapped)
    read = loads(dumps(program, "json"))
    for region in read.regions:
        count = len(region.results)
        assert region.result_ids == tuple(i.id for i in region.body[-count:])
        assert {i.op.name for i in region.body} <= {"broadcast_to", "elementwise_unary"}
    assert loads(dumps(read, "json")) == read
    assert loads(dumps(program, "text")) == program


def test_a_region_without_results_on_the_wire() -> None:
    b = Builder()
    counter = b.param("si32")
    b.region([counter.type], lambda r, c: ())
    program = b.build(counter)
    assert loads(dumps(program, "bincode")) == program


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-be"])
def test_wide_text_is_named(form: str, encoding: str) -> None:
    text = dumps(small_program(), form)
    assert isinstance(text, str)
    data = text.encode(encoding)
    if encoding == "utf-32-be":
        data = b"\0\0\xfe\xff" + data
    with pytest.raises(SpecViolation) as caught:
        loads(data)
    assert str(caught.value) == (
        "MalformedText: the file is UTF-16 or UTF-32 text, not UTF-8 (save it as UTF-8)"
    )


def test_short_files_are_not_taken_for_wide_text() -> None:
    for data in (b"", b"\0", b"a", bytes(7), b"\t" + bytes(7)):
        with pytest.raises(SpecViolation) as caught:
            loads(data)
        assert "UTF-16" not in str(caught.value)


def test_a_pipe_is_read_to_its_end() -> None:
    reader, writer = os.pipe()
    os.write(writer, str(dumps(small_program(), "text")).encode())
    os.close(writer)
    try:
        assert load(f"/dev/fd/{reader}") == small_program()
    finally:
        os.close(reader)


def test_a_device_without_an_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_OF_A_STREAM", 1000)
    with pytest.raises(ResourceExceeded, match=r"/dev/zero .* has no end after 1,000 bytes"):
        load("/dev/zero")
