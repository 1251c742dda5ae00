"""The embedding layer: a table of vectors."""

from __future__ import annotations

import numpy as np

from weft.foundation.dtypes import DType
from weft.foundation.errors import UserError
from weft.ops.arithmetic import as_tensor
from weft.ops.array.manipulation import expand_dims
from weft.ops.array.searching import where
from weft.ops.calls import public
from weft.ops.differentiate import stop_gradient
from weft.ops.functional.embedding import embedding
from weft.ops.nn.initialise import normal_parameter
from weft.ops.nn.module import Module
from weft.ops.tensor import Tensor, from_array


class Embedding(Module):
    """One row of `size` features for each of `count` numbers. That of `padding_idx` is zeros at
    first and not learnt."""

    @public
    def __init__(
        self,
        count: int,
        size: int,
        padding_idx: int | None = None,
        *,
        deviation: float = 1.0,
        dtype: DType | str = "f32",
    ) -> None:
        self.weight = normal_parameter((count, size), deviation, dtype)
        self.padding_idx = padding_idx
        if padding_idx is not None:
            if type(padding_idx) is not int or not -count <= padding_idx < count:
                raise UserError(f"padding_idx is {padding_idx!r}; there are {count} rows")
            self.padding_idx = padding_idx % count
            rows = np.array(self.weight.numpy())
            rows[self.padding_idx] = 0
            self.weight = from_array(rows, requires_grad=True)

    def __call__(self, indices: Tensor) -> Tensor:
        found = embedding(indices, self.weight)
        if self.padding_idx is None:
            return found
        padded = expand_dims(as_tensor(indices) == self.padding_idx, axis=-1)
        return where(padded, stop_gradient(found), found)
