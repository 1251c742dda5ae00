"""Forms by measurement: what comes with Weft, what the model makes of it, and the file's text."""

from __future__ import annotations

import statistics

import pytest

import weft
from weft.driver.products import product_named
from weft.foundation.errors import UserError
from weft.target.known import target_named
from weft.target.matrix_tiles import FORMS, Extent, cycles
from weft.target.measured_forms import Choice, Contraction, Table, choose, read, shipped, write
from weft.target.mid_line_tiles import Lie, Operand

SM90 = target_named("sm90")
MID = Lie(Operand(True, False), Operand(False, False))


def table() -> Table:
    found = shipped(SM90)
    assert found is not None
    return found


def test_what_comes_with_weft_was_measured_on_the_targets_device() -> None:
    assert (table().device, table().target) == ("NVIDIA H200", "sm90")
    assert len(table().products) >= 60
    assert all(2 <= len(times) <= 12 for times in table().products.values())
    assert shipped(target_named("sm80")) is None


def test_the_text_is_the_table() -> None:
    assert read(write(table())).products == dict(table().products)


def test_a_product_that_was_measured_takes_its_best_form() -> None:
    for found, times in table().products.items():
        choice = choose(found, SM90)
        assert times[choice.form] == min(times.values())
        assert choice.reason == f"measured on NVIDIA H200, the best of {len(times)} forms"


def test_the_model_chooses_nearly_as_well() -> None:
    """How much longer the form that the model has first takes than the best."""
    losses = []
    for found, times in table().products.items():
        first = min(times, key=lambda form: found.cycles(form, SM90))
        losses.append(times[first] / min(times.values()) - 1)
    assert statistics.median(losses) <= 0.01
    assert statistics.mean(losses) <= 0.025
    assert sum(loss <= 0.05 for loss in losses) >= 0.85 * len(losses)


def test_rows_at_lines_are_the_other_models() -> None:
    plain = Contraction(Extent(1, 4096, 4096, 4096))
    assert plain.cycles(FORMS[0], SM90) == cycles(FORMS[0], plain.extent, SM90)
    inside = Contraction(Extent(1, 4096, 4096, 4100), MID)
    assert inside.cycles(FORMS[0], SM90) != cycles(FORMS[0], inside.extent, SM90)


def test_a_row_inside_lines_costs_more() -> None:
    for form in FORMS:
        extent = Extent(1, 4096, 4096, 4096)
        if not form.suits(extent):
            continue
        costs = [
            Contraction(extent, Lie(Operand(along, False), Operand(True, on))).cycles(form, SM90)
            for along in (True, False)
            for on in (True, False)
        ]
        assert costs[1] >= costs[0]
        assert costs[3] >= costs[2]


def test_heavy_epilogues_are_left_to_the_model() -> None:
    found = next(iter(table().products))
    assert choose(found, SM90, light=False).reason == "by the model of its time"


def test_a_target_without_measurements_has_the_model() -> None:
    choice = choose(Contraction(Extent(1, 512, 512, 512)), target_named("sm80"))
    assert isinstance(choice, Choice)
    assert choice.reason == "by the model of its time"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"device": "x", "target": "sm90", "products": {"5x5": {}}}',
     '{"device": "x", "target": "sm90", "products": {"1*5x5x5 k k": 3}}'],
)  # fmt: skip
def test_what_is_no_table(text: str) -> None:
    with pytest.raises(UserError, match="this is no table of measured forms"):
        read(text)


def test_forms_that_are_gone_are_left_out() -> None:
    text = '{"device": "x", "target": "sm90", "products": {"1*5x5x5 k~ n": {"1x1/1x1 odd": 3}}}'
    (found,) = read(text).products
    assert str(found) == "1*5x5x5 k~ n"
    assert read(text).products[found] == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1064x2544x608 NT", "measured on NVIDIA H200, the best of"),
        ("1024x1024x1024 NT", "by the model of its time"),
    ],
)
def test_a_compile_says_where_the_form_comes_from(text: str, why: str) -> None:
    made = weft.compile(product_named(text).program(), "sm90")
    (line,) = [line for line in made.report() if "tiles of" in line]
    assert why in line
