"""How tensors are printed: as NumPy prints arrays, with the names of dtypes that people write. Of a
large one the corners are shown."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from weft.foundation.dims import Dim
from weft.foundation.dtypes import ALL, FP8_E4M3, DType

MOST_SHOWN: Final = 1_000
"""How many elements are shown at most."""
_EDGE: Final = 3
"""How many are shown at either end of an axis of a larger tensor."""
_NAMES: Final = {dtype: dtype.numpy.name for dtype in ALL} | {FP8_E4M3: "float8_e4m3"}
WRITTEN: Final = frozenset(_NAMES.values())
"""The names of dtypes in `weft`: float32 is what PTIR calls f32."""


def written(dtype: DType) -> str:
    """The name of a dtype in `weft`."""
    return _NAMES[dtype]


def printed(elements: NDArray[Any], whole: bool = True) -> str:
    """An array, or the corners of one, as it stands in the text of a tensor."""
    threshold = MOST_SHOWN if whole else 0
    return np.array2string(
        elements, separator=", ", threshold=threshold, edgeitems=_EDGE, prefix="Tensor("
    )


def corner(size: Dim) -> NDArray[np.int64] | None:
    """The positions on an axis that are shown of a large tensor, and one that stands for all
    between; None where all are."""
    if not isinstance(size, int) or size <= 2 * _EDGE:
        return None
    return np.asarray([*range(_EDGE + 1), *range(size - _EDGE, size)])
