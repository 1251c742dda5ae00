"""The model of matrix kernels' time against kernels that were timed on an H200, and what it says of
tiles, rows and results."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from weft.foundation.memo import forget
from weft.target import matrix_time
from weft.target.known import target_named
from weft.target.matrix_tiles import FORMS, Extent, Form
from weft.target.matrix_time import Contraction, Operand, cycles, fastest, split_for
from weft.target.measured_forms import shipped

SM90 = target_named("sm90")
COOPERATIVE = Form(128, 256, (64, 256))
PINGPONG_128 = Form(128, 128, (128, 128), "pingpong")
PINGPONG_160 = Form(128, 160, (128, 160), "pingpong")
PINGPONG_192 = Form(128, 192, (128, 192), "pingpong")
SINGLE = Form(64, 64, (64, 64))
MEASURED: dict[tuple[int, int, int], dict[Form, float]] = {
    (2048, 2048, 2048): {COOPERATIVE: 27.62, PINGPONG_128: 27.42, PINGPONG_192: 36.32},
    (4096, 4096, 4096): {
        COOPERATIVE: 185.5, PINGPONG_128: 189.22, PINGPONG_160: 201.39, PINGPONG_192: 207.62,
    },
    (8192, 8192, 8192): {
        COOPERATIVE: 1575.98, PINGPONG_128: 1592.67, PINGPONG_160: 1603.84, PINGPONG_192: 1559.01,
    },
    (8192, 3072, 768): {COOPERATIVE: 56.06, PINGPONG_128: 56.37, PINGPONG_192: 55.54},
    (4096, 14336, 4096): {COOPERATIVE: 682.35, PINGPONG_160: 669.74, PINGPONG_192: 694.35},
}  # fmt: skip
"""Microseconds."""
BYTES = (128, 64, 32, 16)


def plain(*sizes: int) -> Contraction:
    return Contraction(Extent(1, *sizes))


# -- against measurements ------------------------------------------------------------------------


@pytest.mark.parametrize("shape", MEASURED, ids=str)
def test_times_are_in_proportion(shape: tuple[int, int, int]) -> None:
    found, times = plain(*shape), MEASURED[shape]
    clock = cycles(COOPERATIVE, found, SM90) / times[COOPERATIVE]
    for form, time in times.items():
        assert cycles(form, found, SM90) / clock == pytest.approx(time, rel=0.09), form


def test_a_cycle_is_that_of_the_device() -> None:
    """Times of all products, from 2 microseconds to 12 milliseconds, at one clock."""
    table = shipped(SM90)
    assert table is not None
    clocks = [
        cycles(form, found, SM90) / times[form]
        for found, times in table.products.items()
        for form in [min(times, key=lambda form: times[form])]
    ]
    assert 1600 < statistics.median(clocks) < 1980
    assert sum(abs(clock / 1840 - 1) < 0.25 for clock in clocks) > 0.9 * len(clocks)


def test_the_form_that_the_model_has_first_is_nearly_the_best() -> None:
    table = shipped(SM90)
    assert table is not None
    losses = []
    for found, times in table.products.items():
        first = min(times, key=lambda form: cycles(form, found, SM90))
        losses.append(times[first] / min(times.values()) - 1)
    assert statistics.median(losses) <= 0.01
    assert statistics.mean(losses) <= 0.016
    assert sum(loss <= 0.05 for loss in losses) >= 0.9 * len(losses)


# -- what it says --------------------------------------------------------------------------------


def test_rows_inside_lines_cost_more() -> None:
    extent = Extent(1, 4096, 4096, 4096)
    for form in FORMS:
        for along in (True, False):
            sides = [Contraction(extent, Operand(), Operand(along, grain)) for grain in BYTES]
            times = [cycles(form, found, SM90) for found in sides]
            assert times == sorted(times), form


def test_tiles_beyond_the_result_cost_more() -> None:
    """Forms with as many tiles each, of which those of 144 columns use less and less."""
    found = Contraction(Extent(1, 6688, 144, 5072), Operand(True, 32), Operand(True, 32))
    forms = [Form(64, columns, (64, columns)) for columns in (160, 192, 224, 256)]
    times = [cycles(form, found, SM90) for form in forms]
    assert times == sorted(times)
    assert times[-1] > 1.5 * times[0]  # measured: 31 and 65 microseconds


def test_narrow_panels_of_the_result_cost_most_where_sums_are_short() -> None:
    def ratio(k: int) -> float:
        found = plain(15584, 3328, k)
        narrow, wide = Form(128, 208, (64, 208)), Form(128, 224, (64, 224))
        return cycles(narrow, found, SM90) / cycles(wide, found, SM90)

    assert ratio(160) > 1.25  # measured: 58.4 and 41.3 microseconds
    assert ratio(8192) < 1.05


def test_a_heavy_epilogue_of_a_single_wave_is_for_two_warpgroups() -> None:
    found = plain(128, 14336, 4096)
    chosen = fastest(found, SM90, light=False)
    assert chosen.warp_tile[0] * chosen.warp_tile[1] < chosen.rows * chosen.columns
    one, two = Form(64, 224, (64, 224)), Form(128, 128, (64, 128))
    more = [
        cycles(form, found, SM90, light=False) - cycles(form, found, SM90) for form in (one, two)
    ]
    assert more[0] > 1.5 * more[1]


# -- which forms suit ----------------------------------------------------------------------------


def test_swapped_forms_hold_all_rows() -> None:
    swapped = [form for form in FORMS if form.swap]
    for rows in (1, 8, 9, 17, 32):
        found = plain(rows, 4096, 4096)
        assert {form.columns >= rows for form in swapped if found.suits(form)} == {True}
    assert not any(plain(1024, 64, 64).suits(form) for form in swapped)


INSIDE = Operand(True, 16)


@pytest.mark.parametrize(
    ("found", "suits"),
    [
        (Contraction(Extent(1, 1000, 1000, 1000), INSIDE, INSIDE), True),
        (plain(1024, 1024, 1024), False),  # rows begin at lines
        (Contraction(Extent(1, 960, 1000, 1000), INSIDE, INSIDE), False),  # 15 tiles below others
        (Contraction(Extent(1, 8192, 8192, 1000), INSIDE, INSIDE), True),  # several waves
        (Contraction(Extent(1, 1000, 1000, 1000), INSIDE, Operand(True, 32)), False),  # at sectors
        (Contraction(Extent(1, 1000, 1000, 1000), INSIDE, Operand(False, 16)), False),  # across k
    ],
)
def test_pairs_are_for_rows_inside_lines(found: Contraction, suits: bool) -> None:
    form = Form(64, 128, (64, 64), paired=True)
    assert found.suits(form) is suits
    if suits:
        assert cycles(form, found, SM90) < cycles(replace(form, paired=False), found, SM90)


@pytest.mark.parametrize(
    ("sizes", "grain", "form", "least", "most"),
    [
        # measured: 43.9 and 33.1 microseconds
        ((1200, 3072, 2872), 16, Form(128, 256, (64, 256)), 1.15, 1.4),
        # measured: 244.3 and 192.5 microseconds; 78.4 and 60.0; 243.6 and 195.3
        ((4096, 4096, 4104), 16, Form(128, 256, (64, 256)), 1.2, 1.35),
        ((8192, 3072, 776), 16, Form(128, 256, (64, 256)), 1.2, 1.35),
        ((4096, 4096, 4104), 16, Form(256, 128, (128, 128)), 1.18, 1.35),
        # measured: 34.9 and 35.2 microseconds
        ((416, 3104, 5392), 32, Form(128, 160, (64, 160)), 0.95, 1.05),
    ],
)
def test_pairs_save_requests_but_bring_each_row_to_both(
    sizes: tuple[int, int, int], grain: int, form: Form, least: float, most: float
) -> None:
    side = Operand(True, grain)
    found = Contraction(Extent(1, *sizes), side, side)
    gain = cycles(form, found, SM90) / cycles(replace(form, paired=True), found, SM90)
    assert least < gain < most


def test_products_of_many_rows_are_not_swapped() -> None:
    """Measured: 104*176x1664x40 takes 55 microseconds in swapped tiles, 34 in the same tiles."""
    side = Operand(True, 16)
    assert not fastest(Contraction(Extent(104, 176, 1664, 40), side, side), SM90).swap
    assert fastest(plain(16, 4096, 4096), SM90).swap


@pytest.mark.parametrize("sizes", [(0, 8, 8), (8, 0, 8), (8, 8, 0), (0, 0, 0)])
def test_contractions_without_elements_have_a_time(sizes: tuple[int, int, int]) -> None:
    assert all(cycles(form, plain(*sizes), SM90) > 0 for form in FORMS)


def test_long_sums_of_few_results_are_cut() -> None:
    assert split_for(Extent(1, 128, 128, 65536), SM90) == 16
    assert split_for(Extent(1, 256, 256, 32768), SM90) == 8
    assert split_for(Extent(1, 128, 768, 3072), SM90) == 4
    assert split_for(Extent(1, 4096, 4096, 4096), SM90) == 1
    assert split_for(Extent(1, 128, 128, 128), SM90) == 1


def test_a_split_is_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal layers ask for the same contraction again."""
    asked: list[Form] = []

    def note(form: Form, *args: object, **kwargs: object) -> float:
        asked.append(form)
        return cycles(form, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(matrix_time, "cycles", note)
    forget()
    first = split_for(Extent(1, 768, 768, 16_384), SM90)
    count = len(asked)
    assert split_for(Extent(1, 768, 768, 16_384), SM90) == first > 1
    assert 0 < count == len(asked)
