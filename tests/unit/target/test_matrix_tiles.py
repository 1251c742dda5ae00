"""The forms of matrix kernels: what they need, and what pairs of blocks share."""

from __future__ import annotations

from weft.target.known import target_named
from weft.target.matrix_tiles import FORMS, Form, stages_for

SM90 = target_named("sm90")


def test_every_form_fits_into_shared_memory() -> None:
    limit = SM90.limits.shared_bytes_per_block
    for form in FORMS:
        stages = stages_for(form, SM90)
        assert stages >= 3, form
        assert stages * 128 * (form.rows + form.columns) < limit


def test_no_form_stands_twice() -> None:
    assert len({*FORMS}) == len(FORMS)


def test_pairs_share_the_larger_part_of_their_tiles() -> None:
    assert Form(64, 128, (64, 64), paired=True).cluster == (2, 1)
    assert Form(128, 64, (64, 64), paired=True).cluster == (1, 2)
    assert {form.cluster for form in FORMS if not form.paired} == {(1, 1)}
