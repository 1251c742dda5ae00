"""Buffer maps as JSON, both ways without loss. Unknown fields are errors."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from weft.foundation.json_fields import Fields, parse, reading
from weft.memory.ir import Buffer, BufferMap, Copy, MemRef, Share, Space

Json: TypeAlias = dict[str, Any]


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
    copies = [
        {"before": c.before, "source": c.source, "target": c.target, "bytes": c.bytes, "why": c.why}
        for c in buffers.copies
    ]
    shares = [
        {"kernel": s.kernel, "first": s.first, "second": s.second, "why": s.why}
        for s in buffers.shares
    ]
    document = {"arena_bytes": buffers.arena_bytes, "tensors": tensors}
    return {"memory": {**document, "copies": copies, "shares": shares}}


def _tensor_document(ref: MemRef, life: tuple[int, int] | None) -> Json:
    buffer = ref.buffer
    found: Json = {
        "name": ref.tensor,
        "space": buffer.space.value,
        "number": buffer.number,
        "offset": buffer.offset,
        "bytes": buffer.bytes,
        "memref": {
            "shape": list(ref.shape),
            "strides": list(ref.strides),
            "alignment": ref.alignment,
            "noalias": ref.noalias,
            "element_bytes": ref.element_bytes,
        },
    }
    return found | ({} if life is None else {"life": list(life)})


def from_json(document: Any) -> BufferMap:
    """The map that a JSON document describes. It is read, not verified."""
    with reading(document, "memory file") as outer, reading(outer.take("memory"), "memory") as top:
        entries = top.items("tensors", _read_tensor)
        if len({ref.tensor for ref, _ in entries}) != len(entries):
            top.fail("a tensor is listed twice")
        return BufferMap(
            {ref.tensor: ref for ref, _ in entries},
            top.whole("arena_bytes"),
            top.items("copies", _read_copy),
            {ref.tensor: life for ref, life in entries if life is not None},
            top.items("shares", _read_share),
        )


def _read_tensor(fields: Fields) -> tuple[MemRef, tuple[int, int] | None]:
    space = fields.choice("space", Space)
    numbers = (fields.whole(key) for key in ("number", "offset", "bytes"))
    buffer = Buffer(space, *numbers)
    name = fields.text("name")
    with reading(fields.take("memref"), f"{fields.where}.memref") as memref:
        shape, strides = memref.wholes("shape"), memref.wholes("strides")
        alignment, noalias = memref.whole("alignment"), memref.flag("noalias")
        item = memref.whole("element_bytes")
    life = fields.wholes("life") if fields.has("life") else None
    if life is not None and len(life) != 2:
        fields.fail("a life is a pair of kernel numbers")
    ref = MemRef(name, buffer, shape, strides, alignment, noalias, item)
    return ref, None if life is None else (life[0], life[1])


def _read_copy(fields: Fields) -> Copy:
    before, source, target = (fields.text(key) for key in ("before", "source", "target"))
    return Copy(before, source, target, fields.whole("bytes"), fields.text("why"))


def _read_share(fields: Fields) -> Share:
    return Share(*(fields.text(key) for key in ("kernel", "first", "second", "why")))
