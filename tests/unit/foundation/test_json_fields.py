"""Strict JSON objects: types are checked, leftovers are errors, numbers survive."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from weft.foundation.errors import SpecViolation
from weft.foundation.json_fields import Fields, parse, read_scalar, reading, write_scalar


def test_fields_are_taken_by_type() -> None:
    with reading({"a": 1, "b": "x", "c": True, "d": [1, 2], "e": ["u"], "f": "f32"}, "it") as it:
        assert (it.whole("a"), it.text("b"), it.flag("c")) == (1, "x", True)
        assert (it.wholes("d"), it.texts("e")) == ((1, 2), ("u",))
        assert it.dtype("f").name == "f32"
        assert it.whole("missing", 7) == 7


@pytest.mark.parametrize("number", [(1 << 63) - 1, -(1 << 63)])
def test_what_64_bits_hold_is_read(number: int) -> None:
    with reading({"a": number, "b": [number]}, "it") as it:
        assert (it.whole("a"), it.wholes("b")) == (number, (number,))


READERS: dict[str, tuple[Any, Callable[[Fields], Any], str]] = {
    "a text for a number": ({"a": "1"}, lambda f: f.whole("a"), "must be a whole number"),
    "true for a number": ({"a": True}, lambda f: f.whole("a"), "must be a whole number"),
    "a number for a text": ({"a": 1}, lambda f: f.text("a"), "must be a string"),
    "a number for a flag": ({"a": 1}, lambda f: f.flag("a"), "must be true or false"),
    "a mixed list": ({"a": [1, "b"]}, lambda f: f.wholes("a"), "must be a list of whole numbers"),
    "true in a list": ({"a": [True]}, lambda f: f.wholes("a"), "must be a list of whole numbers"),
    "beyond 64 bits": ({"a": 1 << 63}, lambda f: f.whole("a"), "'a' is beyond 64 bits: 92233"),
    "beyond 64 bits, negative": ({"a": ~(1 << 63)}, lambda f: f.whole("a"), "is beyond 64 bits"),
    "beyond 64 bits in a list": ({"a": [1, 1 << 64]}, lambda f: f.wholes("a"), "beyond 64 bits"),
    "beyond 64 bits in lists": ({"a": [[1 << 64]]}, lambda f: f.whole_lists("a"), "beyond 64 bits"),
    "a missing field": ({}, lambda f: f.text("a"), "field 'a' is missing"),
    "no dtype": ({"a": "f99"}, lambda f: f.dtype("a"), "'f99' is not a dtype"),
    "no number": ({"a": "one"}, lambda f: f.scalar("a"), "must be a number"),
    "a leftover": ({"a": 1, "z": 2}, lambda f: f.whole("a"), "field 'z' is not known here"),
    "a list for an object": ([], lambda f: None, "it is not an object"),
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_wrong_is_said(name: str) -> None:
    document, read, why = READERS[name]
    with pytest.raises(SpecViolation) as raised, reading(document, "here") as fields:
        read(fields)
    assert why in str(raised.value)
    assert raised.value.where == "here"


def test_places_of_list_items() -> None:
    with (
        pytest.raises(SpecViolation) as raised,
        reading({"xs": [{"n": 1}, {"n": "2"}]}, "top") as f,
    ):
        f.items("xs", lambda item: item.whole("n"))
    assert raised.value.where == "top.xs[1]"


@pytest.mark.parametrize(
    "value",
    [0, -3, True, False, 1.5, -0.0, math.inf, -math.inf, math.nan, 1 + 2j, complex(0, -0.0)],
)
def test_numbers_survive(value: bool | int | float | complex) -> None:
    back = read_scalar(json.loads(json.dumps(write_scalar(value), allow_nan=False)))
    assert type(back) is type(value)
    assert repr(back) == repr(value)


def test_what_is_no_number() -> None:
    assert read_scalar("five") is None
    assert read_scalar({"re": "x", "im": 0}) is None
    assert read_scalar([1]) is None


def test_text_that_is_not_json() -> None:
    with pytest.raises(SpecViolation, match="the plan is not JSON"):
        parse("{", "plan")
