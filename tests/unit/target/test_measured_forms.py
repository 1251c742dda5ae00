"""Forms by measurement: what comes with Weft, what the model makes of it, and the file's text."""

from __future__ import annotations

import pytest

import weft
from weft.driver.tuning.products import product_named
from weft.foundation.errors import UserError
from weft.ptir import Program
from weft.target.known import target_named
from weft.target.matrix_tiles import Extent
from weft.target.matrix_time import Contraction
from weft.target.measured_forms import Choice, Table, choose, parse_table, shipped, table_text

SM90 = target_named("sm90")


def table() -> Table:
    found = shipped(SM90)
    assert found is not None
    return found


def test_what_comes_with_weft_was_measured_on_the_targets_device() -> None:
    assert (table().device, table().target) == ("NVIDIA H200", "sm90")
    assert len(table().products) >= 60
    assert all(1 <= len(times) <= 20 for times in table().products.values())
    assert shipped(target_named("sm80")) is None


def test_the_text_is_the_table() -> None:
    assert parse_table(table_text(table())).products == dict(table().products)


def test_a_product_that_was_measured_takes_its_best_form() -> None:
    for found, times in table().products.items():
        choice = choose(found, SM90)
        assert times[choice.form] == min(times.values())
        others = f"the best of {len(times)} forms" if len(times) > 1 else "no other form was"
        assert choice.reason == f"measured on NVIDIA H200, {others}"


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
    with pytest.raises(UserError, match="this is not a table of measured forms"):
        parse_table(text)


def test_forms_that_are_gone_are_left_out() -> None:
    text = '{"device": "x", "target": "sm90", "products": {"1*5x5x5 k16 n": {"1x1/1x1 odd": 3}}}'
    (found,) = parse_table(text).products
    assert str(found) == "1*5x5x5 k16 n"
    assert parse_table(text).products[found] == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1064x2544x608 NT", "measured on NVIDIA H200, the best of"),
        ("1024x28672x4096 NT", "measured on NVIDIA H200, no other form was"),
        ("1024x1024x2048 NT", "by the model of its time"),
    ],
)
def test_a_compile_says_where_the_form_comes_from(text: str, why: str) -> None:
    assert why in told_of_tiles(product_named(text).program(), "sm90")


def test_a_compile_says_so_of_every_template_and_of_plans_that_were_given() -> None:
    program = product_named("256x256x256 NT").program()
    assert told_of_tiles(program, "sm80").endswith(", those that keep the units busiest")
    given = weft.compile(program, "sm80").stages["plan"]
    assert told_of_tiles(program, "sm80", plan=given).endswith(", as given")
    by_hand = "kernel matmul0; split m 64; split n 32; split k 64; warp_tile 64x32; layout B col"
    assert told_of_tiles(program, "sm80", plan=by_hand) == "matmul0: tiles of 64x32, as given"


def told_of_tiles(program: Program, target: str, **overrides: str) -> str:
    made = weft.compile(program, target, overrides=overrides)
    (line,) = [line for line in made.report() if "tiles of" in line]
    return line
