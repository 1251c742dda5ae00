"""An IndexBook as JSON, both ways without loss: document 2's section 12.2, extended.

    {"index_book": {value id: IndexInfo, ...}, "findings"?: [...]}

An `IndexInfo` has the document's fields `axes`, `domain`, `inputs` and, for a reduction,
`reduce_axes`. Expressions and guards are text. Beside them there are `atoms` (a list of sizes per
axis), `params` and, where they are not the rule, `scop: false`, `materialise: true` and `selected`;
an input has `guards` and `aligned: false` where it needs them.
"""

from __future__ import annotations

import json
from typing import Any, Final

from weft.foundation.dims import Dim, Symbol
from weft.foundation.errors import Finding
from weft.foundation.json_fields import Fields, parse, reading
from weft.foundation.json_records import Codec, Json, Records
from weft.indexbook.ir import IndexBook, IndexInfo


def dumps(book: IndexBook) -> str:
    """The book as JSON text, one value on a line."""
    document = to_json(book)
    rows = ",\n    ".join(
        f"{json.dumps(name)}: {json.dumps(info)}" for name, info in document["index_book"].items()
    )
    text = '{\n  "index_book": {\n    ' + rows + "\n  }"
    if "findings" in document:
        text += ',\n  "findings": ' + json.dumps(document["findings"])
    return text + "\n}\n"


def loads(text: str) -> IndexBook:
    """The book that a JSON text describes."""
    return from_json(parse(text, "index book"))


# -- documents -----------------------------------------------------------------------------------


def to_json(book: IndexBook) -> Json:
    """The book as a JSON document."""
    document: Json = {
        "index_book": {name: RECORDS.write(info) for name, info in book.infos.items()}
    }
    if book.findings:
        document["findings"] = [RECORDS.write(f, hint=f.hint) for f in book.findings]
    return document


def from_json(document: Any) -> IndexBook:
    """The book that a JSON document describes."""
    with reading(document, "the book") as fields:
        named = Fields(fields.take("index_book"), "index_book").rest()
        infos = {}
        for name, one in named:
            with reading(one, f"index_book.{name}") as info:
                infos[name] = RECORDS.read(IndexInfo, info)
        read = RECORDS.reader(Finding)
        found = fields.items("findings", read) if fields.has("findings") else ()
    return IndexBook(infos, found)


def _read_size(fields: Fields, name: str) -> Dim:
    size = fields.take(name)
    if isinstance(size, str) and size:
        return Symbol(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        fields.fail(f"{size!r} is not a size")
    return size


def _write_size(size: Dim) -> int | str:
    return size.name if isinstance(size, Symbol) else size


RECORDS: Final = Records({Dim: Codec(_write_size, _read_size)})
