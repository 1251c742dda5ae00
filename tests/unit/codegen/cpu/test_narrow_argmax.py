"""Places of the greatest and least of narrow integers are looked for in numbers as narrow."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from tests.support.cases import one_in
from weft.runtime.jit import assembly

DTYPES = ["int8", "uint8", "int16", "uint16"]
NEOVERSE_N1 = ("aarch64-unknown-linux-gnu", "neoverse-n1", "")


@pytest.mark.parametrize("dtype", one_in(2, DTYPES))
@pytest.mark.parametrize("columns", [15, 1024, 40_003])
def test_the_first_place_is_found(dtype: str, columns: int) -> None:
    """The greatest number may be anywhere, and everywhere."""
    rng = np.random.default_rng(0)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max, (6, columns), dtype)
    x[0], x[1], x[2, -1], x[3, 0] = info.min, info.max, info.max, info.max
    x[4, columns // 2 :], x[5, columns // 2 :] = info.max, info.min
    given = weft.asarray(x)
    for ours, theirs in ((weft.argmax, np.argmax), (weft.argmin, np.argmin)):
        np.testing.assert_array_equal(np.asarray(ours(given, axis=1)), theirs(x, axis=1))
        np.testing.assert_array_equal(
            np.asarray(ours(weft.asarray(x.T.copy()), axis=0)), theirs(x, axis=1)
        )


@pytest.mark.parametrize(("dtype", "least"), [("int8", "umin\tv"), ("uint16", "umin\tv")])
def test_a_search_widens_nothing_turn_by_turn(dtype: str, least: str) -> None:
    function = weft.jit(lambda x: weft.argmax(x, axis=1))
    program = function.program(weft.asarray(np.zeros((4, 4096), dtype)))
    text = str(weft.compile(program, target="aarch64").stages["llvm"])
    found = assembly(text, NEOVERSE_N1)
    searching = [part for part in found.split(".LBB") if "cmeq" in part and "b.l" in part]
    assert searching
    assert all("sshll" not in part.split("b.l")[0] for part in searching)
    assert any(least in part for part in searching)
