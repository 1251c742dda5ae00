"""Forms of matrix kernels as they were measured on a device, and what that says about problems that
were not.

    {"device": "NVIDIA H200", "target": "sm90", "products": {
        "1*4096x4096x4096": {"128x256/64x256 cooperative": 168.2, ...}, ...}}

A product is batch*rows x columns x summed elements; its forms have microseconds. A problem that was
measured takes its best form. For any other the model of `matrix_tiles` is corrected: by how far it
was off for forms like this one in problems that are alike to them, in waves of tiles, k steps, and
what moving takes beside multiplying. Only the differences between the forms of a product count, so
the clock that it ran at does not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import UserError
from weft.target.known import target_named
from weft.target.matrix_tiles import FORMS, K_STEP, Extent, Form, cycles, fastest
from weft.target.target import Target

_FOLDER: Final = "measured"
_SHIPPED: Final = {"sm90": "nvidia_h200.json"}
"""What was measured on the device that a target describes."""
_REACH: Final = 0.8
"""How far apart, in powers of two, problems are that tell little about one another."""
_DOUBT: Final = 0.3
"""How much has to be known, in whole measurements, before half of it is believed."""
_ALIKE: Final = 0.3
"""How much another form tells, at most."""
_PROMISING: Final = 12
"""Forms that the model has first: only these are looked at closely."""
_PRODUCT: Final = re.compile(r"(\d+)\*(\d+)x(\d+)x(\d+)")

Numbers = NDArray[np.float64]
Times = Mapping[Form, float]


@dataclass(frozen=True)
class Choice:
    """A form, and where the choice comes from."""

    form: Form
    reason: str


@dataclass(frozen=True)
class Table:
    """The microseconds of forms, by product, as a device took them."""

    device: str
    target: str
    products: Mapping[Extent, Times]

    @cached_property
    def _known(self) -> tuple[Numbers, Numbers]:
        """A row of features for everything measured, and how far the model was off there."""
        machine = target_named(self.target)
        rows, off = [], []
        for extent, times in self.products.items():
            errors = [math.log(t / cycles(form, extent, machine)) for form, t in times.items()]
            middle = sum(errors) / len(errors)
            rows += [_features(form, extent, machine) for form in times]
            off += [error - middle for error in errors]
        return np.array(rows), np.array(off)

    def correction(self, form: Form, extent: Extent, target: Target) -> float:
        """What to add to the logarithm of the model's time."""
        rows, off = self._known
        if not len(rows):
            return 0.0
        far = rows - np.array(_features(form, extent, target))
        same = np.all(far[:, _FORM] == 0, axis=1)
        weight = np.exp(-np.sum(far**2, axis=1) / 2)
        weight = np.where(same, weight, _ALIKE * weight)
        return float(weight @ off / (weight.sum() + _DOUBT))


_FORM: Final = slice(3, 7)


def _features(form: Form, extent: Extent, target: Target) -> list[float]:
    """What a form makes of a problem, and the form; in units of what makes a difference."""
    tiles, steps = extent.tiles(form), -(-extent.k // K_STEP)
    units = target.limits.units
    work = -(-tiles // units) * steps * form.rows * form.columns
    return [
        math.log2(max(tiles / units, 1 / 16)) / _REACH,
        math.log2(max(1, steps)) / _REACH,
        math.log2(max(extent.bytes / max(1, work), 1e-3)) / _REACH,
        2 * math.log2(form.rows),
        2 * math.log2(form.columns),
        1.8 * (form.roles == "pingpong"),
        9.0 * form.swap,
    ]


# -- choosing --------------------------------------------------------------------------------------


def choose(
    extent: Extent, target: Target, *, light: bool = True, forms: Sequence[Form] = FORMS
) -> Choice:
    """The form that takes the least time, by measurements where there are any."""
    table = shipped(target)
    if table is None:
        return Choice(fastest(extent, target, light=light, forms=forms), "by the model of its time")
    return _chosen(table, extent, target, light, tuple(forms))


def _chosen(
    table: Table, extent: Extent, target: Target, light: bool, forms: tuple[Form, ...]
) -> Choice:
    times = {f: t for f, t in table.products.get(extent, {}).items() if f in forms}
    if times and light:
        best = min(times, key=lambda form: times[form])
        return Choice(best, f"measured on {table.device}, the best of {len(times)} forms")
    first = fastest(extent, target, light=light, forms=forms)

    def time(form: Form) -> float:
        model = math.log(cycles(form, extent, target, light=light))
        return model + table.correction(form, extent, target)

    best = min(promising(extent, target, light=light, forms=forms, first=first), key=time)
    return Choice(best, f"by the model of its time, corrected by measurements on {table.device}")


def promising(
    extent: Extent,
    target: Target,
    *,
    light: bool = True,
    forms: Sequence[Form] = FORMS,
    first: Form | None = None,
) -> list[Form]:
    """The forms that the model has first, in that order; before them one that is given."""
    found = [form for form in forms if form.suits(extent) and form != first]
    found.sort(key=lambda form: cycles(form, extent, target, light=light))
    lead = [] if first is None else [first]
    return [*lead, *found][:_PROMISING]


# -- as text ---------------------------------------------------------------------------------------


@cache
def _shipped(name: str) -> Table | None:
    file = _SHIPPED.get(name)
    if file is None:
        return None
    return read(resources.files("weft.target").joinpath(_FOLDER, file).read_text())


def shipped(target: Target) -> Table | None:
    """What comes with Weft for a target; None where nothing does."""
    return _shipped(target.name)


def read(text: str) -> Table:
    """A table from its text; forms that there are no longer are left out."""
    try:
        found = json.loads(text)
        products = {
            _extent(name): {_BY_NAME[f]: float(t) for f, t in times.items() if f in _BY_NAME}
            for name, times in found["products"].items()
        }
        return Table(str(found["device"]), str(found["target"]), products)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"this is no table of measured forms: {error}") from None


def write(table: Table) -> str:
    """The text of a table, a line for each product."""
    lines = ",\n".join(f"    {line}" for line in _lines(table.products))
    head = f'"device": {json.dumps(table.device)},\n  "target": {json.dumps(table.target)}'
    return f'{{\n  {head},\n  "products": {{\n{lines}\n  }}\n}}\n'


def _lines(products: Mapping[Extent, Times]) -> Iterator[str]:
    for extent, times in products.items():
        name = f"{extent.batch}*{extent.m}x{extent.n}x{extent.k}"
        inner: dict[str, Any] = {form_name(f): round(t, 2) for f, t in times.items()}
        yield f"{json.dumps(name)}: {json.dumps(inner)}"


def form_name(form: Form) -> str:
    """A form in words: its tile, a warpgroup's part of it, its roles."""
    tile, warps = f"{form.rows}x{form.columns}", f"{form.warp_tile[0]}x{form.warp_tile[1]}"
    return f"{tile}/{warps} {form.roles}{' swapped' if form.swap else ''}"


_BY_NAME: Final = {form_name(form): form for form in FORMS}


def _extent(name: str) -> Extent:
    found = _PRODUCT.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} is no product")
    return Extent(*map(int, found.groups()))
