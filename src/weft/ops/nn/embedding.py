"""A table of vectors."""

from __future__ import annotations

from weft.foundation.dtypes import DType
from weft.ops.calls import public
from weft.ops.functional.embedding import embedding
from weft.ops.nn.initialise import normal
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor


class Embedding(Module):
    """One row of `size` features for each of `count` numbers."""

    @public
    def __init__(
        self, count: int, size: int, *, deviation: float = 1.0, dtype: DType | str = "f32"
    ) -> None:
        self.weight = normal((count, size), deviation, dtype)

    def __call__(self, indices: Tensor) -> Tensor:
        return embedding(indices, self.weight)
