"""Records come back from a page as they were, and equal layers cost nearly nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

import weft
from tests.support.cases import one_in
from tests.support.explorer_pages import data_of, unpacked
from weft.explorer.collect import of_program, records
from weft.explorer.packing import HOLE, holed, slimmed
from weft.explorer.page import encode_data, page
from weft.ptir.ir import Program


def layers(count: int) -> Program:
    def deep(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = weft.functional.softmax(weft.tanh(x @ w) * 0.125)
        return x

    found: Program = weft.jit(deep).program(weft.ones((16, 24)), weft.ones((24, 24)))
    return found


@pytest.mark.parametrize("target", one_in(2, ["cpu", "sm90"]))
def test_records_come_back_as_they_were(target: str) -> None:
    found = records([of_program("deep", layers(3), target)])[0]
    assert data_of(page(found, "deep"))["programs"] == json.loads(json.dumps(found))


def test_a_program_without_stages_or_kernels_comes_back(shapeless: Any) -> None:
    assert unpacked(slimmed(shapeless)) == shapeless


@pytest.fixture
def shapeless() -> Any:
    return {"name": "nothing", "stages": [], "values": [], "kernels": []}


PIECES = [
    "v",
    " ",
    "0",
    "00",
    "7",
    "-7",
    ".",
    "1.5",
    "0x1f",
    "\0",
    "12345678901",
    "\u00e9",
    "9" * 9,
    "٣",
]


@pytest.mark.parametrize("seed", range(20))
def test_lines_come_back_whatever_they_are(seed: int) -> None:
    found = random.Random(seed)
    pieces = PIECES if seed % 2 else [piece for piece in PIECES if piece != HOLE]
    kinds = ["".join(found.choices(pieces, k=found.randrange(9))) for _ in range(12)]
    lines = found.choices(kinds, k=90)
    record = {"stages": [{"text": lines, "marks": []}], "values": [], "kernels": []}
    assert unpacked(slimmed(record))["stages"][0]["text"] == lines


def test_lines_that_are_not_alike_stay_as_they_are() -> None:
    lines = ["one", "two 2", "three 3"]
    assert holed(lines) == lines


def test_equal_layers_cost_little() -> None:
    """Four times the layers, far apart, in little more room; packed as they are they cost as much
    again each."""
    few, many = (records([of_program("deep", layers(n), run=False)])[0] for n in (8, 32))

    def size(found: Any) -> int:
        stages = [{"name": stage["name"], **stage} for stage in found["stages"][:7]]
        return len(encode_data({"stages": stages, "values": found["values"]}))

    assert size(slimmed(many[0])) < 1.8 * size(slimmed(few[0]))
    assert size(slimmed(many[0])) < size(many[0]) / 3
