"""NumPy functions along one axis, for arrays with more axes than NumPy allows: an array is seen as
three axes, everything before, the axis, everything after.
"""

from __future__ import annotations

import math

import numpy as np

from weft.ptir.op import Array


def as_middle(x: Array, axis: int) -> Array:
    """The array with `axis` as the second of three axes; a view wherever the merged ones allow."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    return x.reshape(math.prod(before), x.shape[axis], math.prod(after))


def take_along(x: Array, indices: Array, axis: int) -> Array:
    """`out[i] = x[i with i[axis] replaced by indices[i]]`; all other extents are equal."""
    taken = np.take_along_axis(as_middle(x, axis), as_middle(indices, axis), 1)
    return taken.reshape(indices.shape)
