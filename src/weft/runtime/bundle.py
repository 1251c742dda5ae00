"""An artifact as bytes: JSON, and after it the machine code and the constants as they are.

    magic, length of the JSON, JSON {blobs: lengths, words, artifact}, blobs

A record is written under its name with its fields in order, bytes as the number of a blob. What
reads it has been written by the same version of Weft, which is what the keys of the cache are for;
anything else is no bundle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
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


def pack(artifact: Artifact, words: Mapping[str, str]) -> bytes:
    """An artifact, and words to keep with it."""
    blobs: list[bytes] = []
    written = _write(artifact, blobs)
    head = {"blobs": [len(blob) for blob in blobs], "words": dict(words), "artifact": written}
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *blobs])


def unpack(data: bytes) -> tuple[Artifact, dict[str, str]] | None:
    """What was packed; None where the bytes are no bundle of this version."""
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    if data[: len(_MAGIC)] != _MAGIC or end > len(data):
        return None
    try:
        head = json.loads(data[start:end])
        artifact = _read(head["artifact"], _split(data[end:], head["blobs"]))
        words = head["words"]
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None
    return (artifact, words) if isinstance(artifact, Artifact) else None


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
