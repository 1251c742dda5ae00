"""An IndexBook as JSON, both ways without loss: document 2's section 12.2, extended.

    {"index_book": {value id: IndexInfo, ...}, "findings"?: [...]}

An `IndexInfo` has the document's fields `axes`, `domain`, `inputs` and, for a reduction,
`reduce_axes`. Expressions and guards are text. Beside them there are `atoms` (a list of sizes per
axis), `params` and, where they are not the rule, `scop: false`, `materialise: true` and `selected`;
an input has `guards` and `aligned: false` where it needs them.
"""

from __future__ import annotations

import json
from typing import Any, TypeAlias

from weft.foundation.dims import Dim, Symbol
from weft.foundation.errors import Finding
from weft.foundation.index_text import parse_guard, parse_index
from weft.foundation.json_fields import Fields, parse, reading
from weft.indexbook.ir import (
    AxisKind,
    AxisVar,
    Domain,
    IndexBook,
    IndexInfo,
    IndexParam,
    InputMap,
)

Json: TypeAlias = dict[str, Any]


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


# -- writing -------------------------------------------------------------------------------------


def to_json(book: IndexBook) -> Json:
    """The book as a JSON document."""
    document: Json = {
        "index_book": {name: _info_document(info) for name, info in book.infos.items()}
    }
    if book.findings:
        document["findings"] = [
            {"code": f.code, "where": f.where, "why": f.why, "hint": f.hint} for f in book.findings
        ]
    return document


def _info_document(info: IndexInfo) -> Json:
    made: Json = {
        "axes": [_axis_document(axis) for axis in info.axes],
        "domain": _domain(info.domain),
        "inputs": [_input_document(read) for read in info.inputs],
    }
    if info.reduce_axes:
        made["reduce_axes"] = list(info.reduce_axes)
    made["atoms"] = [list(atoms) for atoms in info.atoms]
    if info.params:
        made["params"] = [
            {"name": p.name, "value_id": p.value_id, "low": p.low, "high": p.high}
            for p in info.params
        ]
    if not info.scop:
        made["scop"] = False
    if info.materialise:
        made["materialise"] = True
    if info.selected:
        made["selected"] = info.selected
    return made


def _axis_document(axis: AxisVar) -> Json:
    size = axis.size.name if isinstance(axis.size, Symbol) else axis.size
    return {"id": axis.id, "name": axis.name, "size": size, "kind": axis.kind.value}


def _domain(domain: Domain) -> Json:
    made: Json = {"constraints": [str(guard) for guard in domain.constraints]}
    if domain.pieces:
        made["pieces"] = [_domain(piece) for piece in domain.pieces]
    return made


def _input_document(read: InputMap) -> Json:
    made: Json = {"value_id": read.value_id, "map": [str(e) for e in read.map]}
    if read.guards:
        made["guards"] = [str(guard) for guard in read.guards]
    if not read.aligned:
        made["aligned"] = False
    return made


# -- reading -------------------------------------------------------------------------------------


def from_json(document: Any) -> IndexBook:
    """The book that a JSON document describes."""
    with reading(document, "the book") as fields:
        named = Fields(fields.take("index_book"), "index_book").rest()
        infos = {}
        for name, one in named:
            with reading(one, f"index_book.{name}") as info:
                infos[name] = _read_info(info)
        found = fields.items("findings", _read_finding) if fields.has("findings") else ()
    return IndexBook(infos, found)


def _read_finding(fields: Fields) -> Finding:
    return Finding(
        fields.text("code"), fields.text("where"), fields.text("why"), fields.text("hint")
    )


def _read_info(fields: Fields) -> IndexInfo:
    with reading(fields.take("domain"), f"{fields.where}.domain") as domain:
        space = _read_domain(domain)
    return IndexInfo(
        fields.items("axes", _read_axis),
        space,
        fields.items("inputs", _read_input),
        fields.wholes("reduce_axes", ()),
        fields.whole_lists("atoms"),
        fields.flag("scop", True),
        fields.items("params", _read_param) if fields.has("params") else (),
        fields.flag("materialise", False),
        fields.whole("selected", 0),
    )


def _read_axis(fields: Fields) -> AxisVar:
    return AxisVar(
        fields.whole("id"),
        fields.text("name"),
        _read_size(fields),
        fields.choice("kind", AxisKind),
    )


def _read_size(fields: Fields) -> Dim:
    size = fields.take("size")
    if isinstance(size, str) and size:
        return Symbol(size)
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        fields.fail(f"{size!r} is not a size")
    return size


def _read_domain(fields: Fields) -> Domain:
    constraints = tuple(parse_guard(text) for text in fields.texts("constraints"))
    pieces = fields.items("pieces", _read_domain) if fields.has("pieces") else ()
    return Domain(constraints, pieces)


def _read_input(fields: Fields) -> InputMap:
    return InputMap(
        fields.text("value_id"),
        parse_index(list(fields.texts("map"))),
        tuple(parse_guard(text) for text in fields.texts("guards", ())),
        fields.flag("aligned", True),
    )


def _read_param(fields: Fields) -> IndexParam:
    return IndexParam(
        fields.text("name"), fields.text("value_id"), fields.whole("low"), fields.whole("high")
    )
