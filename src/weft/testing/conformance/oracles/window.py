"""Sliding windows: which element of the operand lies at each place of each window."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Axis:
    """How windows lie along one axis: their size and step, the padding, and the gaps."""

    window: int = 1
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0
    base: int = 1

    def count(self, extent: int) -> int:
        """How many windows fit, found by trying."""
        places = self.low + ((extent - 1) * self.base + 1 if extent else 0) + self.high
        last = (self.window - 1) * self.dilation
        return sum(start + last < places for start in range(0, places, self.stride))

    def element(self, extent: int, inside: int) -> tuple[Array, Array]:
        """For every window the element at one place of it, and whether there is one."""
        at = np.arange(self.count(extent)) * self.stride + inside * self.dilation - self.low
        index, hole = np.divmod(at, self.base)
        return index, (hole == 0) & (index >= 0) & (index < extent)


def places(shape: Sequence[int], axes: Sequence[Axis]) -> Iterator[tuple[list[Array], Array]]:
    """For each place of a window, in row-major order: the index of the element there for all
    windows, and where there is one."""
    for inside in itertools.product(*(range(axis.window) for axis in axes)):
        found = [a.element(n, i) for a, n, i in zip(axes, shape, inside, strict=True)]
        index = np.meshgrid(*(i for i, _ in found), indexing="ij") if axes else []
        valid: Any = np.array(True)
        for mask in np.meshgrid(*(m for _, m in found), indexing="ij") if axes else []:
            valid = valid & mask
        safe = [np.clip(i, 0, max(n - 1, 0)) for i, n in zip(index, shape, strict=True)]
        yield safe, np.asarray(valid)


def covered(x: Array, axes: Sequence[Axis]) -> Iterator[tuple[Array, Array]]:
    """For each place of a window: the elements of x there for all windows, and where they are."""
    for index, valid in places(x.shape, axes):
        values = x[tuple(index)] if x.size else np.zeros(valid.shape, x.dtype)
        yield np.asarray(values), valid


def patches(x: Array, axes: Sequence[Axis], fill: Array) -> Array:
    """The windows over the spatial axes of x[N, spatial..., C] as rows (window..., C)."""
    whole = [Axis(), *axes, Axis()]
    columns = [np.where(valid, values, fill) for values, valid in covered(x, whole)]
    stacked = np.stack(columns, axis=-2)
    row = stacked.shape[-2] * stacked.shape[-1]
    return np.asarray(stacked.reshape(*stacked.shape[:-2], row), x.dtype)
