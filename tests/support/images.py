"""Convolutions of images, and their sums in f64."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.ptir import Builder, Program
from weft.ptir.types import TensorType
from weft.target.cpu import host
from weft.target.target import Target

Array = NDArray[Any]

WIDE = frozenset({"avx2", "avx512f"})
"""What a target has whose plans copy images; no instruction is named by it here."""


@dataclass(frozen=True)
class Conv:
    """A convolution with channels first; `last`: its result has them last."""

    images: int = 1
    channels: int = 4
    results: int = 8
    sizes: tuple[int, ...] = (9, 11)
    window: tuple[int, ...] = (3, 3)
    stride: int = 1
    dilation: int = 1
    pad: int = 1
    groups: int = 1
    fill: float = 0.0
    last: bool = False
    dtype: str = "f32"

    def program(self) -> Program:
        b, rank = Builder("conv"), len(self.sizes)
        x = b.param(self.dtype, [self.images, self.channels, *self.sizes])
        w = b.param(self.dtype, [self.results, self.channels // self.groups, *self.window])
        bias = b.param(self.dtype, [self.results])
        patches = b.extract_patches(
            b.transpose(x, [0, *range(2, rank + 2), 1]), window=list(self.window),
            strides=[self.stride] * rank, dilation=[self.dilation] * rank,
            padding=[(self.pad, self.pad)] * rank, pad_value=self.fill,
        )  # fmt: skip
        filters = b.transpose(w, [*range(2, rank + 2), 1, 0])
        y = self._product(b, patches, filters)
        y = b.tanh(y + b.broadcast_to(bias, y.shape))
        return b.build(y if self.last else b.transpose(y, [0, rank + 1, *range(1, rank + 1)]))

    def _product(self, b: Builder, patches: Any, filters: Any) -> Any:
        taps, inputs = int(np.prod(self.window)), self.channels // self.groups
        rank = len(self.sizes) + 1
        if self.groups == 1:
            matrix = b.reshape(filters, [taps * inputs, self.results])
            return b.dot_general(patches, matrix, contract=([rank], [0]))
        places = list(patches.shape[:-1])
        parted = b.reshape(patches, [*places, taps, self.groups, inputs])
        matrix = b.reshape(filters, [taps, inputs, self.groups, self.results // self.groups])
        y = b.dot_general(
            parted, matrix, contract=([rank, rank + 2], [0, 1]), batch=([rank + 1], [2])
        )
        return b.reshape(b.transpose(y, [*range(1, rank + 1), 0, rank + 1]), [*places, -1])

    def data(self) -> list[Array]:
        rng = np.random.default_rng(0)
        dtype = np.float64 if self.dtype == "f64" else np.float32
        shapes = (
            (self.images, self.channels, *self.sizes),
            (self.results, self.channels // self.groups, *self.window),
            (self.results,),
        )
        return [(rng.standard_normal(shape) * 0.3).astype(dtype) for shape in shapes]

    def exact(self, data: list[Array]) -> Array:
        """Tap by tap, in higher precision."""
        x, w, bias = (array.astype(np.longdouble) for array in data)
        around = ((0, 0), (0, 0), *[(self.pad, self.pad)] * len(self.sizes))
        x = np.pad(x, around, constant_values=self.fill)
        spans = [(k - 1) * self.dilation + 1 for k in self.window]
        counts = [(n - s) // self.stride + 1 for n, s in zip(x.shape[2:], spans, strict=True)]
        y = np.zeros((self.images, self.results, *counts), np.longdouble)
        each = self.results // self.groups, self.channels // self.groups
        for tap in np.ndindex(*self.window):
            cut = tuple(
                slice(t * self.dilation, t * self.dilation + (n - 1) * self.stride + 1, self.stride)
                for t, n in zip(tap, counts, strict=True)
            )
            for group in range(self.groups):
                rows = slice(group * each[0], (group + 1) * each[0])
                seen = x[(slice(None), slice(group * each[1], (group + 1) * each[1]), *cut)]
                y[:, rows] += np.einsum("oc,nc...->no...", w[(rows, slice(None), *tap)], seen)
        y = np.tanh(y + bias.reshape(-1, *[1] * len(counts)))
        return np.moveaxis(y, 1, -1) if self.last else y


def wide() -> Target:
    """This machine, said to have wide vectors."""
    limits = replace(host().limits, vector_bits=512, vector_registers=32)
    return replace(host(), features=host().features | WIDE, limits=limits)


def data(program: Program) -> list[Array]:
    rng = np.random.default_rng(0)
    kinds = [kind for kind in program.main.parameters if isinstance(kind, TensorType)]
    return [(rng.standard_normal(k.static_shape) * 0.3).astype(k.dtype.numpy) for k in kinds]
