"""Poly-View as JSON, both ways without loss: document 2's section 12.3, extended.

    {"poly_view": {"inputs", "params", "blocks", "edges", "outputs", "chains"}}

A block has the document's fields. Its `domain` maps each axis to `[lower, upper)`; an access's
`map` is one string, piecewise where there are guards:

    "[i0, i2]"        "[i0, i1 + i3 - 1] : 0 <= i1 + i3 - 1 < 8 else 0.0"

Beside them a block says its `fn`, its `dtype`, which axes it reduces (`reduce`), the Tiny value it
computes (`value`, an id), for an update `write`, `base` and `shape`, for a gather `selected`, and
what it waits for (`after`); an access may `widen`.
`attrs` are the document's, with `batch_idx`. Under `edges` the list `true` has access numbers, and
-1 for a base or a param; `anti` and `output` are always empty. Blocks are read back with the Tiny
values that the caller gives by id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from weft.foundation.errors import SpecViolation
from weft.foundation.index_expr import Index
from weft.foundation.index_text import NON_AFFINE, parse_guard, parse_index
from weft.foundation.json_fields import Fields, parse, read_scalar, reading, write_scalar
from weft.foundation.json_records import Json, Object, Records
from weft.poly_view.ir import (
    Access,
    Chain,
    Edge,
    IndexParam,
    IterAxis,
    PolyBlock,
    Scop,
)

_MAP: Final = re.compile(r"\[(?P<index>[^\]]*)\](?: : (?P<guards>.*?)(?: else (?P<fill>.*))?)?")


def dumps(scop: Scop) -> str:
    """The view as JSON text, one block on a line."""
    parts = []
    for key, value in to_json(scop)["poly_view"].items():
        if isinstance(value, list) and value:
            rows = ",\n      ".join(json.dumps(row) for row in value)
            parts.append(f'    "{key}": [\n      {rows}\n    ]')
        else:
            parts.append(f'    "{key}": {json.dumps(value)}')
    return '{\n  "poly_view": {\n' + ",\n".join(parts) + "\n  }\n}\n"


def loads(text: str, values: Mapping[str, Any] | None = None) -> Scop:
    """The view that a JSON text describes, over the given Tiny values."""
    return from_json(parse(text, "Poly-View file"), values)


# -- writing -------------------------------------------------------------------------------------


def to_json(scop: Scop) -> Json:
    """The view as a JSON document."""
    return {
        "poly_view": {
            "inputs": {
                name: {"dtype": dtype.name, "shape": list(shape)}
                for name, (dtype, shape) in scop.inputs.items()
            },
            "shapes": {name: list(shape) for name, shape in scop.shapes.items()},
            "params": list(map(RECORDS.write, scop.params)),
            "blocks": [_block_document(block) for block in scop.blocks],
            "edges": _edge_documents(scop),
            "outputs": [
                {"name": name, **_write_access(access), "domain": _domain(axes)}
                for name, access, axes in scop.outputs
            ],
            "chains": list(map(RECORDS.write, scop.chains)),
        }
    }


def _block_document(block: PolyBlock) -> Json:
    window: Json = dict.fromkeys(("write", "base", "window_of"))
    if block.write is not None:
        text, shape = _index_text(block.write), list(block.window_of)
        window = {"write": text, "base": block.base, "window_of": shape}
    found = RECORDS.write(block, **window)
    return {name: found[name] for name in _IN_ORDER if name in found}


def _write_axes(axes: tuple[IterAxis, ...]) -> Json:
    reduced = [axis.name for axis in axes if axis.reduce]
    return {"domain": _domain(axes)} | ({"reduce": reduced} if reduced else {})


def _domain(axes: tuple[IterAxis, ...]) -> Json:
    return {axis.name: [0, axis.size] for axis in axes}


def _write_access(access: Access) -> Json:
    made: Json = {"tensor": access.tensor, "map": map_text(access)}
    if access.widen is not None:
        made["widen"] = access.widen.name
    return made


def map_text(access: Access) -> str:
    """The piecewise map of an access in one string."""
    text = _index_text(access.map)
    if access.guards:
        text += " : " + " and ".join(str(guard) for guard in access.guards)
        text += f" else {json.dumps(write_scalar(access.fill))}" if access.fill is not None else ""
    return text


def _index_text(index: Index) -> str:
    return f"[{', '.join(map(str, index))}]"


def _edge_documents(scop: Scop) -> list[Json]:
    """One object for each pair of blocks, with every access between them."""
    merged: dict[tuple[str, str], list[int]] = {}
    for edge in scop.edges:
        merged.setdefault((edge.source, edge.to), []).append(edge.access)
    return [
        {"from": source, "to": to, "deps": {"true": numbers, "anti": [], "output": []}}
        for (source, to), numbers in merged.items()
    ]


# -- reading -------------------------------------------------------------------------------------


def from_json(document: Any, values: Mapping[str, Any] | None = None) -> Scop:
    """The view that a JSON document describes, over the given Tiny values."""
    with reading(document, "the file") as outer:
        whole = outer.take("poly_view")
    with reading(whole, "poly_view") as fields:
        return Scop(
            _read_inputs(fields),
            fields.items("blocks", lambda f: _read_block(f, values or {})),
            _read_edges(fields),
            fields.items("outputs", _read_output),
            fields.items("chains", RECORDS.reader(Chain)),
            fields.items("params", RECORDS.reader(IndexParam)),
            _read_shapes(fields),
        )


def _read_shapes(fields: Fields) -> dict[str, tuple[int, ...]]:
    with reading(fields.take("shapes"), "poly_view.shapes") as shapes:
        return {name: shapes.wholes(name) for name in shapes.names}


def _read_inputs(fields: Fields) -> dict[str, Any]:
    found = {}
    for name, document in fields.named("inputs"):
        with reading(document, f"poly_view.inputs.{name}") as one:
            found[name] = (one.dtype("dtype"), one.wholes("shape"))
    return found


def _read_block(fields: Fields, values: Mapping[str, Any]) -> PolyBlock:
    value_id = fields.text("value")
    write = parse_map(fields.text("write")).map if fields.has("write") else None
    given = {
        "value": values.get(value_id),
        "value_id": value_id,
        "write": write,
        "base": fields.text("base") if write is not None else None,
        "window_of": fields.wholes("shape") if write is not None else (),
    }
    return RECORDS.read(PolyBlock, fields, **given)


def _read_axes(fields: Fields) -> tuple[IterAxis, ...]:
    return _read_domain(fields, fields.texts("reduce", ()))


def _read_domain(fields: Fields, reduced: tuple[str, ...]) -> tuple[IterAxis, ...]:
    axes = []
    with reading(fields.take("domain"), f"{fields.where}.domain") as domain:
        if len(set(reduced)) != len(reduced):
            fields.fail("it reduces an axis twice")
        missing = [name for name in reduced if not domain.has(name)]
        if missing:
            fields.fail(f"it reduces {missing[0]!r}, which is none of its axes")
        for name in domain.names:
            bounds = domain.wholes(name)
            if len(bounds) != 2 or bounds[0] != 0 or bounds[1] < 0:
                fields.fail(f"the bounds of {name} must be [0, size], not {list(bounds)}")
            axes.append(IterAxis(name, bounds[1], name in reduced))
    return tuple(axes)


def _read_access(fields: Fields) -> Access:
    found = parse_map(fields.text("map"), fields.text("tensor"))
    if not fields.has("widen"):
        return found
    return Access(found.tensor, found.map, found.guards, found.fill, fields.dtype("widen"))


def parse_map(text: str, tensor: str = "") -> Access:
    """The access that `map_text` wrote."""
    match = _MAP.fullmatch(text)
    if match is None:
        raise SpecViolation(NON_AFFINE, f"{text!r} is not a map: [exprs] : guards else fill")
    parts = [part for part in match["index"].split(", ") if part]
    guards = match["guards"].split(" and ") if match["guards"] else []
    fill = read_scalar(parse(match["fill"], "fill of a map")) if match["fill"] else None
    return Access(tensor, parse_index(parts), tuple(parse_guard(g) for g in guards), fill)


def _read_edges(fields: Fields) -> tuple[Edge, ...]:
    found: list[Edge] = []

    def one(edge: Fields) -> None:
        source, to = edge.text("from"), edge.text("to")
        with reading(edge.take("deps"), f"{edge.where}.deps") as deps:
            if deps.wholes("anti", ()) or deps.wholes("output", ()):
                deps.fail("in SSA there are no anti and no output dependences")
            found.extend(Edge(source, to, number) for number in deps.wholes("true"))

    fields.items("edges", one)
    return tuple(found)


def _read_output(fields: Fields) -> tuple[str, Access, tuple[IterAxis, ...]]:
    return fields.text("name"), _read_access(fields), _read_domain(fields, ())


_IN_ORDER: Final = (
    *("name", "kind", "fn", "value", "dtype", "domain", "reduce", "accesses"),
    *("write", "base", "shape", "attrs", "selected", "after"),
)
"""The fields of a block."""
RECORDS: Final = Records(
    {
        Access: Object(_write_access, _read_access),
        tuple[IterAxis, ...]: Object(_write_axes, _read_axes),
    }
)
