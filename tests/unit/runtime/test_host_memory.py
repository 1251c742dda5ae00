"""Where arrays begin: the quick answer is NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.runtime.host_memory import address_of

WHOLE = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    "array",
    [WHOLE, WHOLE[1:], WHOLE[:, 1], WHOLE.T, np.zeros(()), np.zeros((0, 3))],
)
def test_the_address_is_what_numpy_says(array: NDArray[Any]) -> None:
    assert address_of(array) == array.ctypes.data


def test_memory_that_nobody_may_write_has_an_address_too() -> None:
    array = np.frombuffer(b"abcdefgh", np.uint8)
    assert address_of(array) == array.ctypes.data
