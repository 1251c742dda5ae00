"""Convolutions of planes of channels with a pool behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import weft
from weft import functional
from weft.ptir import Program


@dataclass(frozen=True)
class Case:
    """An image, its filters, and what is done to it."""

    image: tuple[int, ...] = (2, 16, 6, 16)
    filters: tuple[int, ...] = (8, 16, 3, 3)
    padding: int | tuple[int, int] = 1
    pool: int = 2
    dtype: str = "f16"
    bias: bool = False
    stride: int = 1
    falls: bool = False
    """Whether results are less for larger sums."""

    def program(self) -> Program:
        shapes = [self.image, self.filters, *[self.filters[:1]] * self.bias]
        given = [weft.zeros(shape, dtype=self.dtype) for shape in shapes]
        made: Program = weft.jit(self.function).program(*given)
        return made

    def function(self, x: Any, w: Any, b: Any = None) -> Any:
        y = functional.conv2d(x, w, b, padding=self.padding, stride=self.stride)
        return functional.max_pool2d(-y if self.falls else functional.relu(y), self.pool)


CASES: Final = {
    "a line in a tile": Case(bias=True),
    "two tiles, steps of channels": Case((1, 72, 5, 72), (8, 72, 3, 3), dtype="bf16"),
    "three tiles": Case((2, 8, 4, 128), (3, 8, 3, 3)),
    "channels that are padded": Case((2, 12, 6, 16), (8, 12, 3, 3)),
    "results that fall": Case(falls=True),
    "lines without a border": Case((2, 16, 9, 16), (8, 16, 5, 3), padding=(0, 1)),
}
