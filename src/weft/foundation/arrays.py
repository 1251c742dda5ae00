"""NumPy arrays that users pass in, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.foundation.errors import UserError


def handed_in(value: Any) -> NDArray[Any]:
    """What somebody gave, as NumPy reads it. Of a masked array NumPy would read what is behind the
    mask, too."""
    refuse_masked(value)
    return np.asarray(value)


def refuse_masked(value: Any) -> None:
    """Say so where elements of an array are masked: no tensor can leave elements out."""
    special = isinstance(value, np.ndarray) and type(value) is not np.ndarray
    if special and np.ma.is_masked(value):
        count = np.count_nonzero(np.ma.getmaskarray(value))
        raise UserError(
            f"{count} of {value.size} elements of the array are masked, and a tensor has no mask; "
            "give x.filled(number), or the data and the mask as two arrays"
        )
    if type(value) in (list, tuple):
        for item in value:
            if type(item) is not np.ndarray and isinstance(item, np.ndarray):
                refuse_masked(item)
