"""Serialisation of artifacts: JSON, then machine code and constants as they are.

    magic, length of the JSON, JSON {blobs: lengths, symbols, notes, warned, lines, artifact}, blobs

A record is written under its name with its fields in order, bytes as the number of a blob. What
reads it has been written by the same version of Weft, which is what the keys of the cache are for;
anything else is nothing, and so is a field of another type than its record declares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from itertools import repeat
from types import NoneType
from typing import Any, Final, get_args, get_origin, get_type_hints

from weft.foundation.errors import InternalError
from weft.foundation.whole_numbers import in_64_bits
from weft.runtime import artifact as records
from weft.runtime.artifact import Artifact

_MAGIC: Final = b"weftprg1"
_RECORDS: Final = {
    name: found
    for name, found in vars(records).items()
    if isinstance(found, type) and is_dataclass(found)
}


@dataclass(frozen=True)
class Packed:
    """An artifact, the symbol of each of its kernels by name, what there is to say about it, what
    users are warned of, and the values of the program that each of the user's lines in it wrote."""

    artifact: Artifact
    symbols: Mapping[str, str]
    notes: tuple[str, ...] = ()
    lines: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    warned: tuple[str, ...] = ()


def pack(whole: Packed) -> bytes:
    """An artifact and what belongs to it as bytes."""
    blobs: list[bytes] = []
    written = _pack_value(whole.artifact, blobs)
    head = {
        "blobs": [len(blob) for blob in blobs],
        "symbols": dict(whole.symbols),
        "notes": list(whole.notes),
        "warned": list(whole.warned),
        "lines": dict(whole.lines),
        "artifact": written,
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return b"".join([_MAGIC, len(text).to_bytes(8, "little"), text, *blobs])


def unpack(data: bytes) -> Packed | None:
    """What was packed; None where the bytes are nothing of this version."""
    start = len(_MAGIC) + 8
    end = start + int.from_bytes(data[len(_MAGIC) : start], "little")
    if data[: len(_MAGIC)] != _MAGIC or end > len(data):
        return None
    try:
        head = json.loads(data[start:end])
        artifact = _unpack_value(
            Artifact, head["artifact"], _split_blobs(data[end:], head["blobs"])
        )
        symbols = dict(head["symbols"])
        words = tuple[str, ...]
        _unpack_value(words, [*symbols, *symbols.values()], [])
        notes, warned = (_unpack_value(words, head[name], []) for name in ("notes", "warned"))
        values = tuple[tuple[str, int], ...]
        lines = {line: _unpack_value(values, wrote, []) for line, wrote in head["lines"].items()}
        return Packed(artifact, symbols, notes, lines, warned)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def _pack_value(value: Any, blobs: list[bytes]) -> Any:
    if isinstance(value, bytes):
        blobs.append(value)
        return {"bytes": len(blobs) - 1}
    if isinstance(value, tuple):
        return [_pack_value(item, blobs) for item in value]
    if type(value).__name__ in _RECORDS:
        return {
            type(value).__name__: [
                _pack_value(getattr(value, f.name), blobs) for f in fields(value)
            ]
        }
    if value is None or isinstance(value, bool | int | str):
        return value
    raise InternalError(f"an artifact holds {value!r}, which cannot be written")


def _unpack_value(kind: Any, value: Any, blobs: list[bytes]) -> Any:
    """A value of a type, or an error."""
    if kind is bytes:
        number = _unpack_value(int, value["bytes"], blobs)
        if number < 0:
            raise IndexError
        return blobs[number]
    if kind in (int, str, bool):
        # `True` is an instance of `int`, and numbers beyond 64 bits would be cut by the tables of
        # words that they go to.
        if type(value) is not kind or (kind is int and not in_64_bits(value)):
            raise TypeError
        return value
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise TypeError
        kinds = get_args(kind)
        each = repeat(kinds[0], len(value)) if kinds[-1] is Ellipsis else kinds
        return tuple(_unpack_value(of, item, blobs) for of, item in zip(each, value, strict=True))
    if value is None and NoneType in get_args(kind):
        return None
    ((name, content),) = value.items()
    record = _RECORDS[name]
    if record not in (get_args(kind) or (kind,)):
        raise TypeError
    parts = zip(_kinds(record), content, strict=True)
    return record(*(_unpack_value(of, item, blobs) for of, item in parts))


@cache
def _kinds(record: type) -> tuple[Any, ...]:
    """The types of a record's fields."""
    hints = get_type_hints(record)
    return tuple(hints[part.name] for part in fields(record))


def _split_blobs(data: bytes, lengths: list[int]) -> list[bytes]:
    found, at = [], 0
    for length in _unpack_value(tuple[int, ...], lengths, []):
        if length < 0:
            raise ValueError("a blob has no negative length")
        found.append(data[at : at + length])
        at += length
    if at != len(data):
        raise ValueError("the blobs are not all there")
    return found
