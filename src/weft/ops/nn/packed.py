"""Quantised weights (weight-only): small integers, and a scale for each group of them.

A `Packed` stands where a weight stands, in a module or a dict, and is a container of the tensors it
is made of. `unpacked` makes floats of it, by `dequantize`; inside of `jit` that is part of the
program, so that what lies in memory between calls are the few bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from weft.foundation.dtypes import F32, SI8, UI8, DType, Kind, as_dtype
from weft.foundation.errors import UserError
from weft.ops.array.elementwise import bitwise_and, bitwise_right_shift, subtract
from weft.ops.array.manipulation import concat, reshape
from weft.ops.calls import public
from weft.ops.pytree import flatten, pytree, unflatten
from weft.ops.session import Session
from weft.ops.tensor import Tensor


@pytree
@dataclass(frozen=True, init=False)
class Packed:
    """A weight `(codes - zero) * scales - lows`, with a scale, and perhaps a low, for each group of
    neighbours along the last axis. Codes are si8 [..., n], or of 4 bits in ui8 [..., n / 2]: of a
    group, the first half in the low halves of its bytes, the second in the high halves."""

    codes: Tensor
    scales: Tensor
    lows: Tensor | None
    zero: int = field(metadata={"static": True})

    @public
    def __init__(
        self, codes: Tensor, scales: Tensor, lows: Tensor | None = None, zero: int = 0
    ) -> None:
        for name, value in (("codes", codes), ("scales", scales), ("lows", lows), ("zero", zero)):
            object.__setattr__(self, name, value)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        *rows, width = self.codes.type.static_shape
        return (*rows, 2 * width if self.codes.dtype is UI8 else width)

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(x.nbytes for x in (self.codes, self.scales, self.lows) if x is not None)

    def __repr__(self) -> str:
        bits = 4 if self.codes.dtype is UI8 else 8
        return f"Packed(shape={self.shape}, {bits} bits)"

    def unpack(self, dtype: DType | str = F32) -> Tensor:
        """The weight as a tensor of floats, computed in f32."""
        wanted, groups = _check_float_dtype(dtype), math.prod(self.scales.type.static_shape)
        whole = _unpack_codes(reshape(self.codes, (groups, -1)))
        steps = subtract(whole, self.zero) if self.zero else whole
        session = Session.of(steps)
        handles = [session.import_(x) for x in (steps, reshape(self.scales, (groups,)))]
        found = session.export(session.emit("dequantize", *handles, axis=0))
        if self.lows is not None:
            found = subtract(found, reshape(self.lows, (groups, 1)))
        made: Tensor = reshape(found, self.shape).astype(wanted)
        return made


def _unpack_codes(rows: Tensor) -> Tensor:
    """Codes one by one, in si8."""
    if rows.dtype is SI8:
        return rows
    halves = [bitwise_and(rows, 15), bitwise_right_shift(rows, 4)]
    found: Tensor = concat(halves, axis=1).astype(SI8)
    return found


def _check_float_dtype(dtype: DType | str) -> DType:
    wanted = as_dtype(dtype)
    if wanted.kind is not Kind.FLOAT:
        raise UserError(f"weights of few bits become floats, not {wanted}")
    return wanted


@public
def unpacked(tree: Any, dtype: DType | str = F32) -> Any:
    """A module, or any container, with tensors of this float dtype in the place of weights of few
    bits, and all else as it is."""

    leaves, structure = flatten(tree, _is_packed)
    made = [x.unpack(dtype) if isinstance(x, Packed) else x for x in leaves]
    return unflatten(structure, made)


def _is_packed(value: Any) -> bool:
    return isinstance(value, Packed)
