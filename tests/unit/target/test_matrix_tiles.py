"""The model of matrix kernels' time against kernels that were timed on an H200, with one clock for
each shape."""

from __future__ import annotations

import pytest

from weft.target.known import target_named
from weft.target.matrix_tiles import FORMS, Extent, Form, cycles, stages_for

SM90 = target_named("sm90")
COOPERATIVE = Form(128, 256, (64, 256))
PINGPONG_128 = Form(128, 128, (128, 128), "pingpong")
PINGPONG_160 = Form(128, 160, (128, 160), "pingpong")
PINGPONG_192 = Form(128, 192, (128, 192), "pingpong")
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


@pytest.mark.parametrize("shape", MEASURED, ids=str)
def test_times_are_in_proportion(shape: tuple[int, int, int]) -> None:
    extent, times = Extent(1, *shape), MEASURED[shape]
    clock = cycles(COOPERATIVE, extent, SM90) / times[COOPERATIVE]
    for form, time in times.items():
        assert cycles(form, extent, SM90) / clock == pytest.approx(time, rel=0.09), form


def test_every_form_fits_into_shared_memory() -> None:
    limit = SM90.limits.shared_bytes_per_block
    for form in FORMS:
        stages = stages_for(form, SM90)
        assert stages >= 3, form
        assert stages * 128 * (form.rows + form.columns) < limit


def test_swapped_forms_hold_all_rows() -> None:
    swapped = [form for form in FORMS if form.swap]
    for rows in (1, 8, 9, 64, 200):
        extent = Extent(1, rows, 4096, 4096)
        assert {form.columns >= rows for form in swapped if form.suits(extent)} == {True}
    assert not any(form.suits(Extent(1, 1024, 64, 64)) for form in swapped)
