"""Attention layers and the transformer block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.foundation.dtypes import DType
from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.ops.arithmetic import as_tensor
from weft.ops.array.manipulation import permute_dims, reshape
from weft.ops.calls import public
from weft.ops.functional.activation import gelu
from weft.ops.functional.attention import attention, update_cache
from weft.ops.nn.dropout import Dropout
from weft.ops.nn.keys import Key, fold_in
from weft.ops.nn.linear import Linear
from weft.ops.nn.module import Module
from weft.ops.nn.normalisation import LayerNorm
from weft.ops.nn.settings import check_callable, divides
from weft.ops.tensor import Tensor

Cache = tuple[Tensor, Tensor]
"""Keys and values of earlier positions, [B, heads, positions, size] each."""


class MultiHeadAttention(Module):
    """Attention of x [B, S, features] to itself, in several heads.

    `key_heads` under `heads` shares keys and values among groups of heads. With a cache, the keys
    and values of x are written into it at `position`, and x attends to all of it; what lies beyond
    must be hidden by the mask.
    """

    @public
    def __init__(
        self,
        features: int,
        heads: int,
        *,
        key_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        dtype: DType | str = "f32",
    ) -> None:
        shared = heads if key_heads is None else key_heads
        if not divides(heads, features) or not divides(shared, heads):
            raise UserError(
                f"[MultiHeadAttention] {features} features, {heads} heads and {shared} key heads: "
                "the heads must divide the features, and the key heads the heads"
            )
        size = features // heads
        self.heads, self.key_heads, self.causal = heads, shared, causal
        self.query = Linear(features, heads * size, bias, dtype=dtype)
        self.key = Linear(features, shared * size, bias, dtype=dtype)
        self.value = Linear(features, shared * size, bias, dtype=dtype)
        self.out = Linear(features, features, bias, dtype=dtype)
        self.dropout = Dropout(dropout)

    def __call__(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        position: Any = None,
        key: Key | None = None,
    ) -> Any:
        """The result [B, S, features]; with a cache a pair of it and the new cache."""
        x = _of_three_axes(x)
        q = _split_heads(self.query(x), self.heads)
        k = _split_heads(self.key(x), self.key_heads)
        v = _split_heads(self.value(x), self.key_heads)
        if cache is not None:
            if not isinstance(cache, list | tuple) or len(cache) != 2:
                raise UserError(
                    f"[MultiHeadAttention] cache is {a_type(cache)}; it must be a pair of "
                    "keys and values"
                )
            k, v = (update_cache(c, new, position) for c, new in zip(cache, (k, v), strict=True))
        together = attention(q, k, v, mask, causal=self.causal and cache is None)
        result = self.dropout(self.out(_join_heads(together)), key)
        return result if cache is None else (result, (k, v))


def _of_three_axes(x: Any) -> Tensor:
    value = as_tensor(x)
    if value.ndim != 3:
        raise SpecViolation(
            "RankMismatch",
            f"[MultiHeadAttention] x {value.shape} has {value.ndim} axes, but three are wanted: "
            "batch, positions, features",
            "insert an axis for a batch of one: x[None]",
        )
    return value


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * size] as [B, heads, S, size]."""
    batch, length, features = x.shape
    assert isinstance(features, int)
    parted = reshape(x, (batch, length, heads, features // heads))
    return permute_dims(parted, (0, 2, 1, 3))


def _join_heads(x: Tensor) -> Tensor:
    batch, heads, length, size = x.shape
    assert isinstance(heads, int)
    assert isinstance(size, int)
    turned = permute_dims(x, (0, 2, 1, 3))
    return reshape(turned, (batch, length, heads * size))


class TransformerBlock(Module):
    """Attention, then two linear layers with an activation between them; a layer norm before and a
    sum around each."""

    @public
    def __init__(
        self,
        features: int,
        heads: int,
        *,
        hidden: int | None = None,
        causal: bool = True,
        activation: Callable[[Tensor], Tensor] = gelu,
        dropout: float = 0.0,
        dtype: DType | str = "f32",
    ) -> None:
        check_callable(type(self).__name__, "activation", activation)
        self.activation = activation
        width = 4 * features if hidden is None else hidden
        self.norm1 = LayerNorm(features, dtype=dtype)
        self.attention = MultiHeadAttention(
            features, heads, causal=causal, dropout=dropout, dtype=dtype
        )
        self.norm2 = LayerNorm(features, dtype=dtype)
        self.up = Linear(features, width, dtype=dtype)
        self.down = Linear(width, features, dtype=dtype)
        self.dropout = Dropout(dropout)

    def __call__(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        position: Any = None,
        key: Key | None = None,
    ) -> Any:
        """x after the block; with a cache a pair of it and the new cache."""
        keys = [None if key is None else fold_in(key, part) for part in range(2)]
        found = self.attention(self.norm1(x), mask, cache=cache, position=position, key=keys[0])
        attended, kept = found if cache is not None else (found, None)
        x = x + attended
        x = x + self.dropout(self.down(self.activation(self.up(self.norm2(x)))), keys[1])
        return x if cache is None else (x, kept)
