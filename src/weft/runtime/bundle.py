"""An artifact as bytes: JSON, and after it the machine code and the constants as they are.

    magic, length of the JSON, JSON {blobs: lengths, symbols, notes, artifact}, blobs

A record is written under its name with its fields in order, bytes as the number of a blob. What
reads it has been written by the same version of Weft, which is what the keys of the cache are for;
anything else is no bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Final

from weft.foundation.errors import InternalError
from weft.runtime import artifact as records
from weft.runtime.artifact import Artifact

_MAGIC: Final = b"weftprg1"
_RECORDS: Final = {
    name: found
    for name, found in vars(records).items()
    if isinstance(found, type) and is_dataclass(found)
}


@dataclass(frozen=True)
class Bundle:
    """An artifact, the symbol of each of its kernels by name, and what there is to say about it."""

    artifact: Artifact
    symbols: Mapping[str, str]
    notes: tuple[str, ...] = ()


def pack(bundle: Bundle) -> bytes:
    """A bundle as bytes."""
    blobs: list[bytes] = []
    written = _write(bundle.artifact, blobs)
    head = {
        "blobs": [len(blob) for blob in blobs],
        "symbols": dict(bundle.symbols),
        "notes": list(bundle.notes),
        "artifact": written,
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *blobs])


def unpack(data: bytes) -> Bundle | None:
    """What was packed; None where the bytes are no bundle of this version."""
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    if data[: len(_MAGIC)] != _MAGIC or end > len(data):
        return None
    try:
        head = json.loads(data[start:end])
        artifact = _read(head["artifact"], _split(data[end:], head["blobs"]))
        symbols, notes = dict(head["symbols"]), tuple(head["notes"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    words = (*symbols, *symbols.values(), *notes)
    if not isinstance(artifact, Artifact) or not all(isinstance(word, str) for word in words):
        return None
    return Bundle(artifact, symbols, notes)


def _write(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if isinstance(value, tuple):
        return [_write(item, blobs) for item in value]
    if type(value).__name__ in _RECORDS:
        return {
            type(value).__name__: [_write(getattr(value, f.name), blobs) for f in fields(value)]
        }
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InternalError(f"an artifact holds {value!r}, which cannot be written")


def _read(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, list):
        return tuple(_read(item, blobs) for item in value)
    if isinstance(value, dict):
        ((name, content),) = value.items()
        if name == "bytes":
            return blobs[content]
        return _RECORDS[name](*(_read(item, blobs) for item in content))
    return value


def _split(data: bytes, lengths: list[int]) -> list[bytes]:
    found, at = [], 0
    for length in lengths:
        found.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError("the blobs are not all there")
    return found
