"""Hostile files of weights: tables that lie, and the words in which each is refused."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np

from tests.hostile.mutations import damaged
from tests.support import gguf_files
from tests.support.gguf_files import entry, fact, of, string

BIG = 2**63
F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def table(entries: Any, body: bytes = bytes(8), length: int | None = None) -> bytes:
    """A safetensors file with this table, whose length may be a lie."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def _x(**changed: Any) -> bytes:
    return table({"x": {**F32, **changed}})


SAFETENSORS = {
    "nothing": (b"", "it has 0 bytes"),
    "half a length": (bytes(5), "it has 5 bytes"),
    "a longer table": (table({"x": F32}, length=400), "said to have 400 bytes"),
    "an endless table": (table({"x": F32}, length=2**64 - 1), "said to have 18446744073709551615"),
    "no JSON": (table(b"nonsense"), "not JSON"),
    "no text": (table(b'{"\xff": 1}'), "not text"),
    "a list": (table([1]), "not a JSON object"),
    "deep": (table(b"[" * 100_000), "nested too deeply|not JSON"),
    "a name twice": (table(b'{"x":1,"x":2}'), "'x' appears twice"),
    "no entry": (table({"x": 3}), "'x' has no dtype, shape"),
    "one offset": (_x(data_offsets=[0]), "'x' has no dtype, shape"),
    "offsets of texts": (_x(data_offsets=["0", "8"]), "'x' has no dtype, shape"),
    "an unknown dtype": (_x(dtype="F4"), "the dtype F4, which Weft does not know"),
    "a dtype that is a list": (_x(dtype=[]), "'x' has no dtype, shape"),
    "a size under 0": (_x(shape=[-2]), r"'x' has the shape \[-2\]"),
    "a size that is true": (_x(shape=[True, 2]), r"has the shape \[True, 2\]"),
    "a size with a fraction": (_x(shape=[2.0]), r"has the shape \[2.0\]"),
    "a shape that is a number": (_x(shape=2), "has the shape 2"),
    "a size of 2^63": (_x(shape=[BIG]), "has the shape"),
    "a product over 2^64": (_x(shape=[2**32, 2**33]), "which no memory can hold"),
    "nothing of 2^62": (_x(shape=[2**62, 0], data_offsets=[0, 0]), "which no memory can hold"),
    "a hundred axes": (_x(shape=[1] * 100), "has the shape"),
    "too few bytes": (_x(data_offsets=[0, 4]), "the bytes 0 to 4, and F32.* takes 8"),
    "backwards": (_x(data_offsets=[8, 0]), "the bytes 8 to 0"),
    "before the beginning": (_x(data_offsets=[-8, 0]), "the bytes -8 to 0"),
    "after the end": (_x(shape=[4], data_offsets=[0, 16]), "ends at byte 16 of 8"),
    "far after the end": (_x(data_offsets=[2**62, 2**62 + 8]), "ends at byte"),
    "over one another": (table({"x": F32, "y": F32}), "begins inside of another tensor"),
    "a hole": (
        table({"x": {**F32, "data_offsets": [8, 16]}}, bytes(16)), "nothing is in the 8 bytes",
    ),
    "more bytes": (table({"x": F32}, bytes(12)), "the last 4 bytes belong to no tensor"),
    "metadata of numbers": (table({"__metadata__": {"a": 1}, "x": F32}), "does not map texts"),
    "metadata that is a list": (table({"__metadata__": [], "x": F32}), "does not map texts"),
    "a boolean of 7": (
        table({"x": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\7"),
        "is BOOL, and has bytes other than 0 and 1",
    ),
}  # fmt: skip
HEAD = b"GGUF" + struct.pack("<I", 3)


def _gguf(tensors: int, facts: int, rest: bytes = b"") -> bytes:
    return HEAD + struct.pack("<QQ", tensors, facts) + rest


def _one(shape: list[int], kind: int = 0, offset: int = 0, body: int = 64) -> bytes:
    """A file with one tensor, which may be a lie."""
    head = _gguf(1, 0, entry("x", shape, kind, offset))
    return head + bytes(-len(head) % 32) + bytes(body)


GGUF = {
    "only the name": (b"GGUF", "4 bytes are wanted at byte 4"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + bytes(40), "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(40), "numbers are big-endian"),
    "endless tensors": (_gguf(2**64 - 1, 0), "entries are announced"),
    "endless facts": (_gguf(0, 2**60), "entries are announced"),
    "no tensor": (_gguf(1, 0, bytes(30)), "'' ends at byte"),
    "an endless text": (_gguf(0, 1, struct.pack("<Q", BIG) + bytes(40)), "bytes are wanted"),
    "a text of no text": (_gguf(0, 1, string(b"\xff\xfe") + bytes(20)), "is not UTF-8"),
    "a fact of type 99": (_gguf(0, 1, fact("a", 99, bytes(8))), "has the type 99"),
    "an endless list": (
        _gguf(0, 1, fact("a", 9, struct.pack("<IQ", 4, 2**61))), "entries are announced",
    ),
    "lists in lists": (
        _gguf(0, 1, fact("a", 9, struct.pack("<IQ", 9, 1) * 50 + bytes(64))), "has the type 9",
    ),
    "a fact twice": (_gguf(0, 2, of("a", 1) * 2), "'a' appears twice in it"),
    "an alignment of 0": (_gguf(0, 1, of("general.alignment", 0)), "general.alignment is 0"),
    "an alignment of text": (_gguf(0, 1, of("general.alignment", "x")), "general.alignment is x"),
    "five axes": (_one([1] * 5), "'x' has 5 axes"),
    "a size of 2^63": (_one([BIG]), "has the shape"),
    "a product over 2^64": (_one([2**32, 2**33]), "which no memory can hold"),
    "more than there is": (_one([1000]), "ends at byte"),
    "an unknown type": (_one([4], 77), "of the type 77, which Weft does not read"),
    "half a block": (_one([16], 2), "not whole blocks of 32"),
    "a place between": (_one([4], 0, 4), "begins at 4, not a multiple of 32"),
    "a place far away": (_one([4], 0, BIG), "ends at byte"),
    "over one another": (
        _gguf(2, 0, entry("x", [8], 0, 0) + entry("y", [8], 0, 0)).ljust(128, b"\0") + bytes(64),
        "begins inside of another tensor",
    ),
    "a tensor twice": (
        _gguf(2, 0, entry("x", [8], 0, 0) + entry("x", [8], 0, 32)).ljust(128, b"\0") + bytes(64),
        "the tensor 'x' appears twice in it",
    ),
}  # fmt: skip


def _originals() -> list[bytes]:
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    facts = {"general.architecture": "llama", "n": 3, "tokens": ["a", "bc"]}
    blocks = (2, (1, 32), bytes(18))
    two = {"x": F32, "y": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [8, 16]}}
    return [
        gguf_files.file({"x": x, "q": blocks}, facts),
        table({**two, "__metadata__": {"format": "pt"}}, bytes(16)),
    ]


def mutant(seed: int) -> bytes:
    """A small file of weights with some damage; the same for the same seed."""
    rng = random.Random(seed)
    return damaged(rng, rng.choice(_originals()))
