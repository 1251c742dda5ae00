"""`weft.eval_shape`: what a function would return, without computing it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.foundation.dims import shape_of
from weft.ops.array.data_types import dtype_named
from weft.ops.calls import check_function, public
from weft.ops.default_backend import at_home
from weft.ops.pytree import unflatten
from weft.ops.tensor import Tensor
from weft.ops.traced_function import arguments_of, returning_tensors
from weft.ops.tracing import trace
from weft.ptir.types import TensorType


@public
@at_home
def eval_shape(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """What the function would return for these arguments, with the types of tensors, which have a
    `shape` and a `dtype`, in the place of tensors. Arguments are tensors, arrays, numbers, or types
    such as `x.type` or `weft.ptir.TensorType(weft.float32, (2, 3))`."""
    check_function("eval_shape", function)
    given = arguments_of(args, kwargs)
    leaves = [leaf if isinstance(leaf, Tensor) else leaf.value for leaf in given.leaves]
    types = [leaf.type if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    kinds = [
        TensorType(dtype_named(kind.dtype), shape_of(kind.shape))
        for kind in types
        if isinstance(kind, TensorType)
    ]

    def fill(tensors: list[Tensor]) -> Any:
        supply = iter(tensors)
        filled = [next(supply) if isinstance(kind, TensorType) else kind for kind in types]
        return unflatten(given.structure, filled)

    whole = returning_tensors(function)
    found = trace(function, kinds, fill, lambda filled: whole(*filled[0], **filled[1]))
    made = iter(found.results)
    results = [next(made) if output is None else output.value for output in found.outputs]
    return unflatten(found.structure, results)
