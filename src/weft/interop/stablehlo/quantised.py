"""Quantised element types: whole numbers that stand for floats.

    !quant.uniform<i8:f32, 0.1:-128>           one scale and one zero point
    !quant.uniform<i8<-127:127>:f32:1, {0.1, 0.2:3}>    those of each index along an axis

A number q stands for `(q - zero point) * scale`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from weft.foundation.dtypes import DType
from weft.interop.stablehlo.dense import DTYPES

_TYPE: Final = re.compile(
    r"!quant\.uniform<(?P<storage>[iu]\d+)(?:<(?P<low>-?\d+):(?P<high>-?\d+)>)?:(?P<real>\w+)"
    r"(?::(?P<axis>\d+))?, (?:\{(?P<many>[^{}]*)\}|(?P<one>[^{}]*))>$"
)


@dataclass(frozen=True)
class Quantised:
    """What the numbers of a tensor stand for."""

    storage: DType
    real: DType
    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    axis: int | None
    """The axis with a scale for each index; none where there is one for all."""
    lowest: int
    highest: int

    def same_numbers(self, other: Quantised) -> bool:
        """Whether equal numbers stand for equal floats, wherever the axis is."""
        mine, theirs = ((q.storage, q.real, q.scales, q.zeros) for q in (self, other))
        return mine == theirs


def read_quantised(text: str) -> Quantised | None:
    """The type that MLIR writes so; nothing where it is of another kind."""
    found = _TYPE.match(text)
    if found is None:
        return None
    storage = DTYPES.get(found["storage"].replace("u", "ui"))
    real = DTYPES.get(found["real"])
    pairs = [entry.partition(":")[::2] for entry in (found["many"] or found["one"]).split(",")]
    if storage is None or real is None:
        return None
    low, high = found["low"] or storage.lowest, found["high"] or storage.highest
    return Quantised(
        storage, real, tuple(float(scale) for scale, _ in pairs),
        tuple(int(zero or 0) for _, zero in pairs),
        None if found["axis"] is None else int(found["axis"]), int(low), int(high),
    )  # fmt: skip
