"""Keys: what random numbers are functions of.

A key is an ordinary tensor, int64[2]: a state (seed, offset) of the generator that PTIR specifies.
The same key gives the same numbers wherever and how often it is used, so a key is used once, and
`split` or `fold_in` make new ones of it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from weft.foundation.dims import Shape, shape_of
from weft.foundation.dtypes import SI64, UI32, UI64, DType
from weft.foundation.errors import SpecViolation, UserError, a_type
from weft.ops.array.creation import asarray
from weft.ops.array.data_types import dtype_named
from weft.ops.array.manipulation import stack
from weft.ops.calls import public
from weft.ops.graph.context import current
from weft.ops.session import Session
from weft.ops.tensor import Tensor, from_array
from weft.ptir.ops.random import BITS

_DOMAIN: Final = 0x5F0D_1A5B_3C97_E2D1
"""What `fold_in` turns a seed by, so that its keys are none of those of `split`."""


@public
def key(seed: Any) -> Tensor:
    """The key of a seed, a whole number of at most 64 bits or an integer scalar."""
    if isinstance(seed, int) and not isinstance(seed, bool):
        if not -(1 << 63) <= seed < 1 << 64:
            raise UserError(f"seed is {seed}; it must fit 64 bits")
        return from_words(seed, 0)
    given = seed if isinstance(seed, Tensor) else None
    if given is None and isinstance(seed, np.integer):
        given = asarray(np.asarray(seed))
    if given is None or given.shape or not given.dtype.is_integer:
        raise UserError(
            f"seed is {_show_type(seed)}; it must be a whole number or an integer scalar"
        )
    return stack([given.astype(SI64), asarray(0, dtype=SI64)])


def from_words(seed: int, offset: int) -> Tensor:
    """The key of two numbers, of which the lower 64 bits count. It is part of a traced program."""
    words = np.array([word & ((1 << 64) - 1) for word in (seed, offset)], np.uint64).view(np.int64)
    if not current().tracing:
        return from_array(words)
    session = Session.here()
    return session.export(session.literal(words, SI64))


@public
def split(key: Tensor, count: Any = 2) -> Tensor:
    """New keys in place of one: int64[count, 2], to be taken apart as `a, b = split(key)`. `count`
    may be a shape."""
    state = checked_key(key)
    dims = sizes("count", count)
    words = draw("philox_bits", state, (*dims, 4), UI32).astype(SI64)
    return (words[..., ::2] << 32) | words[..., 1::2]


@public
def fold_in(key: Tensor, number: Any) -> Tensor:
    """A new key of a key and a whole number, such as the number of a step or of a layer."""
    state = checked_key(key)
    given = asarray(number)
    if given.shape or not given.dtype.is_integer:
        raise UserError(
            f"number is {_show_type(number)}; it must be a whole number or integer scalar"
        )
    inner = split(state, 1)[0]
    seed, offset = inner[0] ^ _DOMAIN, inner[1] + given.astype(SI64)
    return split(stack([seed, offset]), 1)[0]


@public
def bits(key: Tensor, shape: Any = (), dtype: Any = UI32) -> Tensor:
    """Random bits, as unsigned integers: the same on every backend."""
    wanted = dtype_named(dtype)
    if wanted not in BITS:
        raise SpecViolation(
            "DTypeNotSupported", f"bits cannot be {wanted}", "use uint8, uint16, uint32 or uint64"
        )
    return draw("philox_bits", checked_key(key), sizes("shape", shape), wanted)


def wide_bits(key: Tensor, shape: Shape) -> Tensor:
    """Random bits, 64 for each element."""
    return draw("philox_bits", key, shape, UI64)


def draw(op: str, state: Tensor, shape: Shape, dtype: DType) -> Tensor:
    """What an op of the generator makes of a state."""
    session = Session.of(state)
    return session.export(session.emit(op, session.import_(state), shape=shape, dtype=dtype))


# -- arguments -----------------------------------------------------------------------------------


def checked_key(key: Any) -> Tensor:
    """A key, or an array that is one."""
    state = asarray(key) if isinstance(key, np.ndarray) else key
    if not isinstance(state, Tensor) or state.dtype is not SI64 or state.shape[-1:] != (2,):
        raise UserError(
            f"key is {_show_type(key)}; make one with weft.random.key(seed)", "InvalidArgument"
        )
    if state.ndim > 1:
        raise UserError(
            f"key is {state.type}, an array of keys; draw for each of them with weft.vmap, or take "
            "one of them",
            "InvalidArgument",
        )
    return state


def sizes(name: str, value: Any) -> Shape:
    """A shape: one size, or several."""
    if isinstance(value, Tensor | bool | str):
        raise UserError(
            f"{name} is {_show_type(value)}; it must be a whole number or a tuple of them"
        )
    return shape_of((value,) if hasattr(value, "__index__") else value)


def _show_type(value: Any) -> str:
    return str(value.type) if isinstance(value, Tensor) else a_type(value)
