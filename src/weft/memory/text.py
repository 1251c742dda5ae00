"""Buffer maps as JSON, both ways without loss. Unknown fields are errors."""

from __future__ import annotations

import json
from typing import Any, Final

from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.json_records import Json, Records
from weft.memory.ir import Buffer, BufferMap, MemRef


def dumps(buffers: BufferMap) -> str:
    """The map as JSON text, one tensor on a line."""
    document = to_json(buffers)["memory"]
    parts = [f'  "arena_bytes": {document["arena_bytes"]}']
    for key in ("tensors", "copies", "shares"):
        items = ",\n    ".join(json.dumps(item) for item in document[key])
        parts.append(f'  "{key}": [\n    {items}\n  ]' if items else f'  "{key}": []')
    return '{"memory": {\n' + ",\n".join(parts) + "\n}}\n"


def loads(text: str) -> BufferMap:
    """The map that a JSON text describes."""
    return from_json(parse(text, "memory file"))


def to_json(buffers: BufferMap) -> Json:
    """The map as a JSON document."""
    tensors = [_tensor_document(ref, buffers.lives.get(name)) for name, ref in buffers.refs.items()]
    lists = RECORDS.write(buffers, refs=None, arena_bytes=None, lives=None)
    return {"memory": {"arena_bytes": buffers.arena_bytes, "tensors": tensors, **lists}}


def _tensor_document(ref: MemRef, life: tuple[int, int] | None) -> Json:
    memref = RECORDS.write(ref, tensor=None, buffer=None)
    found = {"name": ref.tensor, **RECORDS.write(ref.buffer), "memref": memref}
    return found | ({} if life is None else {"life": list(life)})


def from_json(document: Any) -> BufferMap:
    """The map that a JSON document describes. It is read, not verified."""
    with reading(document, "memory file") as outer, reading(outer.take("memory"), "memory") as top:
        entries = top.items("tensors", _read_tensor)
        if len({ref.tensor for ref, _ in entries}) != len(entries):
            top.fail("a tensor is listed twice")
        refs = {ref.tensor: ref for ref, _ in entries}
        lives = {ref.tensor: life for ref, life in entries if life is not None}
        return RECORDS.read(BufferMap, top, refs=refs, lives=lives)


def _read_tensor(fields: Fields) -> tuple[MemRef, tuple[int, int] | None]:
    buffer, name = RECORDS.read(Buffer, fields), fields.text("name")
    with reading(fields.take("memref"), f"{fields.where}.memref") as memref:
        ref = RECORDS.read(MemRef, memref, tensor=name, buffer=buffer)
    life = fields.wholes("life") if fields.has("life") else None
    if life is not None and len(life) != 2:
        fields.fail("a life is a pair of kernel numbers")
    return ref, None if life is None else (life[0], life[1])


RECORDS: Final = Records()
