"""Single halves that are rounded from doubles need no function that nobody has."""

from __future__ import annotations

import numpy as np
import pytest

import weft


@pytest.mark.parametrize("count", [1, 3, 17])
def test_halves_of_functions_in_doubles_are_linked(count: int) -> None:
    y = np.linspace(-0.9, 0.9, count).astype(np.float16)
    x = np.linspace(0.5, -0.5, count).astype(np.float16)
    given = [weft.asarray(array).to("cpu") for array in (y, x)]
    found = np.asarray(weft.jit(weft.atan2)(*given))
    want = np.arctan2(y.astype(np.float64), x.astype(np.float64)).astype(np.float16)
    np.testing.assert_array_equal(found, want)
