"""Records as JSON: what follows from the types of their fields, what metadata change, and what is
refused."""

from __future__ import annotations

import json
from dataclasses import field
from enum import Enum
from typing import Any

import pytest

from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError, SpecViolation
from weft.foundation.index_expr import Expr, Guard, axis
from weft.foundation.json_fields import Fields, Scalar, reading
from weft.foundation.json_records import INLINE, LAST, SAID, Codec, Object, Records, Text, called
from weft.foundation.records import dataclass, replace


class Way(Enum):
    UP = "up"
    DOWN = "down"


@dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


@dataclass(frozen=True)
class Whole:
    name: str = field(metadata=called("title"))
    on: bool
    dtype: DType
    number: Scalar
    way: Way
    at: Point
    under: Point | None
    index: tuple[Expr, ...]
    guards: tuple[Guard, ...]
    points: tuple[Point, ...]
    pair: tuple[int, int]
    words: tuple[str, ...]
    lists: tuple[tuple[int, ...], ...]
    sizes: dict[str, int]
    by_name: dict[str, tuple[int, ...]]
    parts: tuple[Whole, ...] = ()


WHOLE = Whole(
    "w", True, F32, float("inf"), Way.DOWN, Point(1), None,
    (axis("i") + 1,), (Guard(axis("i"), 4),), (Point(1, 2), Point(3)),
    (4, 5), ("a",), ((1,), ()), {"m": 3}, {"n": (1, 2)},
)  # fmt: skip
WRITTEN: dict[str, Any] = {
    "title": "w", "on": True, "dtype": "f32", "number": "Infinity", "way": "down", "at": {"x": 1},
    "index": ["i + 1"], "guards": ["0 <= i < 4"], "points": [{"x": 1, "y": 2}, {"x": 3}],
    "pair": [4, 5], "words": ["a"], "lists": [[1], []], "sizes": {"m": 3}, "by_name": {"n": [1, 2]},
}  # fmt: skip


def read(records: Records, cls: Any, document: Any) -> Any:
    with reading(document, "it") as fields:
        return records.read(cls, fields)


def test_every_type_survives() -> None:
    document = Records().write(WHOLE)
    assert json.loads(json.dumps(document)) == WRITTEN
    assert list(document) == list(WRITTEN)
    assert read(Records(), Whole, document) == WHOLE


def test_a_record_of_its_own_class_survives() -> None:
    nested = replace(WHOLE, parts=(WHOLE,))
    assert read(Records(), Whole, Records().write(nested)) == nested


@dataclass(frozen=True)
class Placed:
    kind: str = field(default="plain", metadata=SAID)
    fill: int | None = field(default=None, metadata=LAST)
    point: Point = field(default=Point(0), metadata=INLINE)


def test_metadata_change_what_follows_from_types() -> None:
    placed = Placed(fill=0, point=Point(3))
    assert list(Records().write(placed).items()) == [("kind", "plain"), ("x", 3), ("fill", 0)]
    assert read(Records(), Placed, {"kind": "plain", "x": 3, "fill": 0}) == placed
    with pytest.raises(SpecViolation, match="field 'kind' is missing"):
        read(Records(), Placed, {"x": 3})


@dataclass(frozen=True)
class Own:
    text: complex
    whole: bytes
    field: list[int]
    texts: tuple[complex, ...]
    given: Any


def _read_one(fields: Fields, name: str) -> list[int]:
    return [fields.whole(name)]


def test_a_stage_says_how_its_own_types_are_written() -> None:
    kinds: dict[Any, Text | Object | Codec] = {
        complex: Text(str, complex),
        bytes: Object(lambda b: {"size": len(b)}, lambda fields: bytes(fields.whole("size"))),
        list[int]: Codec(lambda v: v[0], _read_one),
    }
    records, own = Records(kinds), Own(1j, bytes(2), [7], (2j, 3j), object())
    document = records.write(own, given="given")
    assert document == {
        "text": "1j", "whole": {"size": 2}, "field": 7, "texts": ["2j", "3j"], "given": "given",
    }  # fmt: skip
    with reading(document, "it") as fields:
        assert fields.take("given") == "given"
        assert records.read(Own, fields, given=own.given) == own
    with pytest.raises(InternalError, match="nobody has said how JSON has <class 'complex'>"):
        Records().write(own)


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a pair of three": ({"pair": [1, 2, 3]}, "it", "field 'pair' must have two entries"),
    "a number for an object": ({"at": 1}, "it.at", "it is not an object"),
    "a field too many": ({"at": {"x": 1, "z": 1}}, "it.at", "field 'z' is not known here"),
    "a wrong item": ({"points": [{"x": 1}, {}]}, "it.points[1]", "field 'x' is missing"),
    "a wrong value": ({"sizes": {"m": "3"}}, "it.sizes", "field 'm' must be a whole number"),
    "another choice": ({"way": "left"}, "it", "field 'way' is 'left', not one of up, down"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said(name: str) -> None:
    change, where, why = REFUSED[name]
    with pytest.raises(SpecViolation) as raised:
        read(Records(), Whole, WRITTEN | change)
    assert (raised.value.where, raised.value.why) == (where, why)
