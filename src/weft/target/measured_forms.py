"""Choosing the form of a matrix kernel: by measurements where there are any, else by a model.

    {"device": "NVIDIA H200", "target": "sm90", "products": {
        "1*4096x4096x4096 k k": {"128x256/64x256 cooperative": 168.2, ...}, ...}}

A product is batch*rows x columns x summed elements, and how its operands lie: along k (`k`), or
across it (`m`, `n`), with the bytes that rows begin at multiples of where they begin inside lines
(`k16`). Its forms have microseconds; those of one product compare, whatever else was timed with
them.
`weft tune --gpu --shapes` writes such files; those in `measured/` come with Weft.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final

from weft.foundation.errors import UserError
from weft.foundation.records import dataclass
from weft.target.matrix_tiles import FORMS, Extent, Form
from weft.target.matrix_time import LINE, Contraction, Operand, fastest
from weft.target.target import Target

_FOLDER: Final = "measured"
_SHIPPED: Final = {"sm90": "nvidia_h200.json"}
"""What was measured on the device that a target describes."""
_PRODUCT: Final = re.compile(r"(\d+)\*(\d+)x(\d+)x(\d+) (k|m)(16|32|64)? (k|n)(16|32|64)?")

Times = Mapping[Form, float]


@dataclass(frozen=True)
class Table:
    """The microseconds of forms, by product, as a device took them."""

    device: str
    target: str
    products: Mapping[Contraction, Times]


@dataclass(frozen=True)
class Choice:
    """A form, and where the choice comes from."""

    form: Form
    reason: str


def choose(
    found: Contraction, target: Target, *, light: bool = True, forms: Sequence[Form] = FORMS
) -> Choice:
    """The form that takes the least time."""
    table = shipped(target)
    times = {} if table is None else table.products.get(found, {})
    known = {form: time for form, time in times.items() if form in forms}
    if table is not None and known and light:
        best = min(known, key=lambda form: known[form])
        others = f"the best of {len(known)} forms" if len(known) > 1 else "no other form was"
        return Choice(best, f"measured on {table.device}, {others}")
    return Choice(fastest(found, target, light=light, forms=forms), "by the model of its time")


# -- as text ---------------------------------------------------------------------------------------


@cache
def _shipped_table(name: str) -> Table | None:
    file = _SHIPPED.get(name)
    if file is None:
        return None
    return parse_table(resources.files("weft.target").joinpath(_FOLDER, file).read_text())


def shipped(target: Target) -> Table | None:
    """What comes with Weft for a target; None where nothing does."""
    return _shipped_table(target.name)


def parse_table(text: str) -> Table:
    """A table from its text; forms that there are no longer are left out."""
    try:
        found = json.loads(text)
        products = {
            _parse_contraction(name): {
                _BY_NAME[f]: float(t) for f, t in times.items() if f in _BY_NAME
            }
            for name, times in found["products"].items()
        }
        return Table(str(found["device"]), str(found["target"]), products)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this is not a table of measured forms: {error}") from None


def table_text(table: Table) -> str:
    """The text of a table, a line for each product."""
    lines = ",\n".join(f"    {line}" for line in _lines(table.products))
    head = f'"device": {json.dumps(table.device)},\n  "target": {json.dumps(table.target)}'
    return f'{{\n  {head},\n  "products": {{\n{lines}\n  }}\n}}\n'


def _lines(products: Mapping[Contraction, Times]) -> Iterator[str]:
    for found, times in products.items():
        inner = {form_name(form): round(time, 2) for form, time in times.items()}
        yield f"{json.dumps(str(found))}: {json.dumps(inner)}"


def form_name(form: Form) -> str:
    """A form in words: its tile, a warpgroup's part of it, its roles, what is special."""
    tile, warps = f"{form.rows}x{form.columns}", f"{form.warp_tile[0]}x{form.warp_tile[1]}"
    marks = f"{' swapped' if form.swap else ''}{' paired' if form.paired else ''}"
    return f"{tile}/{warps} {form.roles}{marks}"


_BY_NAME: Final = {form_name(form): form for form in FORMS}


def _parse_contraction(name: str) -> Contraction:
    found = _PRODUCT.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is not a product")
    *sizes, a, a_grain, b, b_grain = found.groups()
    sides = (
        Operand(side == "k", int(grain or LINE)) for side, grain in ((a, a_grain), (b, b_grain))
    )
    return Contraction(Extent(*map(int, sizes)), *sides)
