"""The form of a kernel as JSON: `{"kind": ..., ...}` with the fields of its record.

    {"kind": "map", "crossing"?: {"columns", "rows"}}
    {"kind": "row" | "columns", "rows": {"reduced", "regular", "columns"?, "walked"?}}
    {"kind": "product", "rows", "problem"?, "epilogue"}
    {"kind": "convolution", "rows", "problem"?, "epilogue", "windows"}      text: why none
    {"kind": "attention" | "stream", "rows", "parts"}
    {"kind": "staged", "slide", "batch", "rings"}                           rings: of `Ring`
    {"kind": "whole", "op"}

Fields without a value are left out. A text may leave a form out whole: it follows from the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from weft.foundation.dtypes import DType
from weft.foundation.json_fields import Fields, reading
from weft.region.form import (
    Attention,
    AttentionParts,
    Convolution,
    Crossing,
    Form,
    Image,
    Map,
    MatrixAxes,
    Moved,
    Phase,
    Problem,
    Product,
    Ring,
    Row,
    Rows,
    Staged,
    Stream,
    StreamParts,
    Whole,
    Windows,
    kind_of,
)

Json: TypeAlias = dict[str, Any]


def form_to_json(form: Form) -> Json:
    """A form as a JSON object."""
    return {"kind": kind_of(form), **_write_value(form)}


def _write_value(value: Any) -> Any:
    match value:
        case DType():
            return value.name
        case Crossing():
            return value._asdict()
        case tuple():
            return [_write_value(item) for item in value]
    if not is_dataclass(value):
        return value
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    said = {n: item for n, item in found.items() if item is not None and (item or n != "scattered")}
    return {name: _write_value(item) for name, item in said.items()}


def differences(given: Form, wanted: Form) -> str:
    """What one form says that another one does not, field by field."""
    first, second = form_to_json(given), form_to_json(wanted)
    names = [name for name in {**first, **second} if first.get(name) != second.get(name)]
    return "; ".join(
        f"{name} {json.dumps(first.get(name))}, but it is {json.dumps(second.get(name))}"
        for name in names
    )


def form_from_json(document: Any, where: str) -> Form:
    """The form that a JSON object describes."""
    with reading(document, where) as form:
        kind = form.text("kind")
        found = _READERS[kind](form) if kind in _READERS else None
        if found is None or kind_of(found) != kind:
            form.fail(f"{kind!r} is not what its fields say; it is one of {', '.join(_READERS)}")
        return found


def _parse_map(form: Fields) -> Map:
    if not form.has("crossing"):
        return Map(None)
    with _inner(form, "crossing") as crossing:
        return Map(Crossing(crossing.text("columns"), crossing.text("rows")))


def _parse_product(form: Fields) -> Product:
    problem = _parse_problem(form) if form.has("problem") else None
    return Product(_parse_rows(form), problem, form.texts("epilogue"))


def _convolution(form: Fields) -> Convolution:
    found = _parse_product(form)
    return Convolution(found.rows, found.problem, found.epilogue, _parse_windows(form))


def _parse_rows(form: Fields) -> Rows:
    with _inner(form, "rows") as rows:
        columns, walked = (
            rows.text(name) if rows.has(name) else None for name in ("columns", "walked")
        )
        return Rows(rows.texts("reduced"), rows.flag("regular"), columns, walked)


def _parse_problem(form: Fields) -> Problem:
    with _inner(form, "problem") as problem:
        batch, m, n, k = (problem.whole(name) for name in ("batch", "m", "n", "k"))
        dtype, aligned = problem.dtype("dtype"), problem.flag("aligned")
        layouts, grains = problem.texts("layouts"), problem.wholes("grains")
        if len(layouts) != 2 or len(grains) != 2:
            problem.fail("layouts and grains are those of two operands")
        with _inner(problem, "axes") as axes:
            names = MatrixAxes(*(axes.texts(name) for name in ("batch", "m", "n", "k")))
        pair, bytes_ = (layouts[0], layouts[1]), (grains[0], grains[1])
        image = _parse_image(problem) if problem.has("image") else None
        scattered = problem.has("scattered") and problem.flag("scattered")
        return Problem(batch, m, n, k, dtype, pair, aligned, bytes_, names, image, scattered)


def _parse_image(problem: Fields) -> Image:
    with _inner(problem, "image") as image:
        side, images, channels = image.text("side"), image.texts("images"), image.text("channels")
        moved, is_summed = image.items("moved", _read_moved), image.flag("is_summed")
        return Image(side, images, moved, channels, is_summed, image.whole("elements"))


def _read_moved(axis: Fields) -> Moved:
    dim, place, tap = axis.whole("dim"), axis.text("place"), axis.text("tap")
    step, dilation, start = (axis.whole(name) for name in ("step", "dilation", "start"))
    size, origin, phase = axis.whole("size"), axis.whole("origin"), None
    if axis.has("phase"):
        with _inner(axis, "phase") as found:
            numbers = (found.whole(name) for name in ("step", "taps", "shift"))
            phase = Phase(found.text("axis"), *numbers)
    return Moved(dim, place, tap, step, dilation, start, size, origin, phase)


def _parse_windows(form: Fields) -> Windows | str:
    found = form.take("windows")
    if isinstance(found, str):
        return found
    with reading(found, f"{form.where}.windows") as windows:
        rows, columns = windows.text("rows"), windows.text("columns")
        down, across = windows.text("window_rows"), windows.text("window_columns")
        channels, images = windows.texts("channels"), windows.texts("images")
        return Windows(rows, columns, down, across, channels, images)


def _attention(form: Fields) -> Attention:
    with _inner(form, "parts") as parts:
        scores, x, top, total, mixed = (parts.text(name) for name in _LETS)
        batch, depth, value = (parts.texts(name) for name in ("batch", "depth", "value"))
        query, key = parts.text("query"), parts.text("key")
        found = AttentionParts(scores, x, top, total, mixed, batch, query, key, depth, value)
    return Attention(_parse_rows(form), found)


def _stream(form: Fields) -> Stream:
    with _inner(form, "parts") as parts:
        products, results, batch, group = (
            parts.texts(name) for name in ("products", "results", "batch", "group")
        )
        x, shift, power = (parts.text(name) for name in ("x", "shift", "power"))
        row, column = parts.text("row"), parts.text("column")
        found = StreamParts(products, x, shift, power, results, batch, row, group, column)
    return Stream(_parse_rows(form), found)


def _read_staged(form: Fields) -> Staged:
    return Staged(form.text("slide"), form.texts("batch"), form.items("rings", _ring))


def _ring(ring: Fields) -> Ring:
    low, high, depth = (ring.whole(name) for name in ("low", "high", "depth"))
    return Ring(ring.text("local"), ring.texts("batch"), ring.text("axis"), low, high, depth)


def _inner(form: Fields, name: str) -> AbstractContextManager[Fields]:
    return reading(form.take(name), f"{form.where}.{name}")


def _parse_row(form: Fields) -> Row:
    return Row(_parse_rows(form))


_LETS = ("scores", "x", "top", "total", "mixed")
_READERS: dict[str, Callable[[Fields], Form]] = {
    "map": _parse_map,
    "row": _parse_row,
    "columns": _parse_row,
    "product": _parse_product,
    "convolution": _convolution,
    "attention": _attention,
    "stream": _stream,
    "staged": _read_staged,
    "whole": lambda form: Whole(form.text("op")),
}
