"""Functions whose result shape depends on elements, such as `nonzero`: they read the elements at
once, so a traced function cannot use them.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from weft.foundation.errors import SpecViolation
from weft.ops.tensor import Tensor


def read_elements(x: Tensor, what: str) -> NDArray[Any]:
    """The elements, to find `what` out."""
    if x.is_traced:
        raise SpecViolation(
            "DynamicDimensionMismatch",
            f"{what} depends on the elements of {x.type}, which are known only when the traced "
            "function runs",
            "use weft.where, or reductions such as count_nonzero, whose shape does not depend on "
            "the data; or do this outside the traced function",
        )
    return x._elements()
