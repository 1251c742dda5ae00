"""Answers that are kept: how many, and how they are forgotten."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.foundation.memo import forget, memo
from weft.ops.graph import forms


def test_answers_are_kept_up_to_a_number_and_forgotten_together() -> None:
    asked = []

    @memo(2)
    def twice(x: int) -> int:
        asked.append(x)
        return 2 * x

    assert [twice(x) for x in (1, 2, 1, 3, 1)] == [2, 4, 2, 6, 2]
    assert asked == [1, 2, 3]
    forget()
    assert twice(1) == 2
    assert asked == [1, 2, 3, 1]


def test_what_was_looked_up_is_given_back() -> None:
    """A loop that slices at ever new places made a form for each, and kept it for ever."""
    x = weft.asarray(np.arange(50))
    weft.clear_caches()
    found = [x[n:] for n in range(40)]
    assert len(forms._FORMS) >= 39
    weft.clear_caches()
    assert len(forms._FORMS) == 0
    assert [int(part[0] + x[n]) for n, part in enumerate(found)] == list(range(0, 80, 2))


def test_forms_begin_anew_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    weft.clear_caches()
    monkeypatch.setattr(forms, "MOST_FORMS", 8)
    x = weft.asarray(np.arange(50))
    found = [x[n:] + x[: 50 - n] for n in range(20)]
    assert len(forms._FORMS) <= 8
    with weft.graph(backend="reference"):
        y = weft.asarray(np.arange(50))
        assert [int((y[n:] * y[n])[0]) for n in range(20)] == [n * n for n in range(20)]
    assert int(found[3][1]) == 5
