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
from typing import Any, Final, get_args

from weft.foundation.json_fields import Fields, reading
from weft.foundation.json_records import Codec, Json, Object, Records
from weft.region.form import Crossing, Form, Row, Windows, kind_of

_CLASSES: Final = {
    kind: cls
    for cls in get_args(Form)
    for kind in (cls.__name__.lower(), *["columns"] * (cls is Row))
}


def form_to_json(form: Form) -> Json:
    """A form as a JSON object."""
    return {"kind": kind_of(form), **_RECORDS.write(form)}


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
        found: Form | None = _RECORDS.read(_CLASSES[kind], form) if kind in _CLASSES else None
        if found is None or kind_of(found) != kind:
            form.fail(f"{kind!r} is not what its fields say; it is one of {', '.join(_CLASSES)}")
        return found


def _write_windows(windows: Windows | str) -> Json | str:
    return windows if isinstance(windows, str) else _RECORDS.write(windows)


def _read_windows(form: Fields, name: str) -> Windows | str:
    found = form.take(name)
    if isinstance(found, str):
        return found
    with reading(found, f"{form.where}.{name}") as windows:
        return _RECORDS.read(Windows, windows)


def _read_crossing(fields: Fields) -> Crossing:
    return Crossing(fields.text("columns"), fields.text("rows"))


_RECORDS: Final = Records(
    {
        Crossing: Object(Crossing._asdict, _read_crossing),
        Windows | str: Codec(_write_windows, _read_windows),
    }
)
