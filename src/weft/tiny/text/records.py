"""Nodes as ops of JSON: what each is called, and how its fields are written.

The attributes of an op are the fields of its node that are not operands.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any, Final

from weft.foundation.dims import Dim, Shape, Symbol
from weft.foundation.dtypes import BY_NAME, F16, F32, F64, DType
from weft.foundation.json_fields import Fields, write_scalar
from weft.foundation.json_records import Codec, Records
from weft.foundation.scalar import Fn
from weft.foundation.whole_numbers import in_64_bits, read_whole
from weft.tiny import ir
from weft.tiny.ir import Rule

LONGEST_DIM: Final = 1_000
"""How many characters the size or the name of a dim may have."""
_READ: Final = {**BY_NAME, "fp16": F16, "fp32": F32, "fp64": F64}
"""Dtypes by name, the document's own names included."""
MOVEMENTS: Final[Mapping[str, type]] = {
    "reshape": ir.Reshape,
    "permute": ir.Permute,
    "expand": ir.Expand,
    "pad": ir.Pad,
    "shrink": ir.Shrink,
    "flip": ir.Flip,
    "view": ir.View,
    "dynamic_shrink": ir.DynamicShrink,
    "dynamic_update": ir.DynamicUpdate,
    "barrier": ir.Barrier,
}
_FNS: Final = tuple(map(str, Fn))
WORDS: Final[Mapping[str, tuple[str, Mapping[str, type]]]] = {
    "Leaf": ("kind", {"const": ir.Const, "iota": ir.Iota}),
    "Movement": ("kind", MOVEMENTS),
    "Unary": ("fn", {**dict.fromkeys(_FNS, ir.Unary), "cast": ir.Cast}),
    "Binary": ("fn", {**dict.fromkeys(_FNS, ir.Binary), "where": ir.Where}),
}
"""Ops that are several nodes: the field that says which, and its words."""
NODES: Final[Mapping[str, type]] = {
    kind.__name__: kind for kind in (ir.Reduce, ir.Gather, ir.Check, ir.Words, ir.Opaque)
}
"""Ops that are one node."""


def write_shape(shape: Shape) -> list[int | str]:
    """Sizes as numbers, symbols by their names."""
    return [d.name if isinstance(d, Symbol) else d for d in shape]


def read_shape(fields: Fields, name: str) -> Shape:
    """Sizes as numbers or digits, symbols by their names."""
    document = fields.take(name)
    if not isinstance(document, list):
        fields.fail("a shape must be a list")
    return tuple(_read_dim(item, fields) for item in document)


def _read_dim(item: Any, fields: Fields) -> Dim:
    is_digits = isinstance(item, str) and item.isdecimal() and item.isascii()
    size = read_whole(item) if is_digits else item
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0 and in_64_bits(size):
        return size
    if isinstance(item, str) and len(item) <= LONGEST_DIM and item.removeprefix("?").isidentifier():
        return Symbol(item.removeprefix("?"))
    fields.fail(f"{item!r} is not a size")


def read_dtype(fields: Fields, name: str) -> DType:
    """A dtype under our name or the document's."""
    text = fields.text(name)
    if text not in _READ:
        fields.fail(f"{text!r} is not a dtype; the dtypes are {', '.join(_READ)}")
    return _READ[text]


def _read_rule(fields: Fields, name: str) -> Rule:
    rules = {str(rule): rule for rule in Rule}
    text = fields.text(name)
    if text not in rules:
        fields.fail(f"there is no rule {text!r}")
    return rules[text]


RECORDS: Final = Records(
    {
        Shape: Codec(write_shape, read_shape),
        DType: Codec(attrgetter("name"), read_dtype),
        Rule: Codec(str, _read_rule),
        # What a pad is filled with has the dtype of what it is put around.
        ir.Const: Codec(lambda fill: write_scalar(fill.value), Fields.scalar),
    }
)
