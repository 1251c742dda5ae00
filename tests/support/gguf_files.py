"""GGUF files, written by hand: the parts of the format, and a whole file."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ALIGNMENT = 32
PLAIN = {"float32": 0, "float16": 1, "int8": 24, "int16": 25, "int32": 26, "int64": 27}
PLAIN |= {"float64": 28, "bfloat16": 30}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def fact(name: str, kind: int, raw: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + raw


def of(name: str, value: Any) -> bytes:
    """A fact of a Python value: a text, a whole number, a float, or texts."""
    match value:
        case str():
            return fact(name, 8, string(value))
        case bool():
            return fact(name, 7, struct.pack("<?", value))
        case int():
            return fact(name, 4, struct.pack("<I", value))
        case float():
            return fact(name, 6, struct.pack("<f", value))
    texts = b"".join(map(string, value))
    return fact(name, 9, struct.pack("<IQ", 8, len(value)) + texts)


def entry(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    sizes = struct.pack(f"<{len(shape)}Q", *reversed(shape))
    head = string(name) + struct.pack("<I", len(shape))
    return head + sizes + struct.pack("<IQ", kind, offset)


def file(
    tensors: Mapping[str, Array | tuple[int, Sequence[int], bytes]],
    facts: Mapping[str, Any] | None = None,
    version: int = 3,
) -> bytes:
    """A file with arrays, or with (type, shape, raw blocks)."""
    table, body = b"", b""
    for name, given in tensors.items():
        if isinstance(given, tuple):
            kind, shape, raw = given
        else:
            kind, shape, raw = PLAIN[given.dtype.name], given.shape, given.tobytes()
        table += entry(name, shape, kind, len(body))
        body += raw + bytes(-len(raw) % ALIGNMENT)
    told = [of(name, value) for name, value in (facts or {}).items()]
    counts = struct.pack("<IQQ", version, len(tensors), len(told))
    head = b"GGUF" + counts + b"".join(told) + table
    return head + bytes(-len(head) % ALIGNMENT) + body


def blocks(kind_bytes: int, rows: int, halves: Sequence[int], seed: int = 0) -> NDArray[np.uint8]:
    """Random blocks; the f16 at each of these bytes is a number between 0 and 1."""
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows, kind_bytes), dtype=np.uint8)
    for at in halves:
        scale = rng.random((rows, 1)).astype(np.float16)
        raw[:, at : at + 2] = scale.view(np.uint8)
    return raw
