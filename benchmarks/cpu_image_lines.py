"""Lines of the CPU benchmark that are networks over images: ResNet-18, ViT-S and a small U-Net, in
inference, written once for torch, jax and Weft's tensors. Norms over batches are a scale and a
shift of each channel, as they are once a network is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from numpy.typing import NDArray
from torch.nn import functional as tf

import weft
from benchmarks.cpu_lines import Line, model_line
from benchmarks.cpu_models import JAX, TORCH, WEFT, Ops
from weft import functional as wf

Array = NDArray[Any]
NCHW = ("NCHW", "OIHW", "NCHW")


@dataclass(frozen=True)
class Images:
    """What networks over images need of a library, besides `Ops`."""

    ops: Ops
    conv: Callable[[Any, Any, int, int], Any]
    """Image, filters, stride and padding."""
    pool: Callable[[Any, int, int, int], Any]
    """The greatest of each window: its size, stride and padding."""
    twice: Callable[[Any], Any]
    """Every pixel four times."""
    join: Callable[[list[Any], int], Any]


def _jax_conv(x: Any, w: Any, stride: int, pad: int) -> Any:
    pads = [(pad, pad)] * 2
    return jax.lax.conv_general_dilated(x, w, (stride, stride), pads, dimension_numbers=NCHW)


def _jax_pool(x: Any, window: int, stride: int, pad: int) -> Any:
    pads = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    sizes, steps = (1, 1, window, window), (1, 1, stride, stride)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, sizes, steps, pads)


_LIBRARIES = (
    Images(
        WEFT, lambda x, w, s, p: wf.conv2d(x, w, stride=s, padding=p),
        wf.max_pool2d,
        lambda x: wf.interpolate(x, scale_factor=2, mode="nearest"),
        lambda parts, along: weft.concat(parts, axis=along),
    ),
    Images(
        TORCH, lambda x, w, s, p: tf.conv2d(x, w, stride=s, padding=p),
        tf.max_pool2d,
        lambda x: tf.interpolate(x, scale_factor=2, mode="nearest"),
        torch.cat,
    ),
    Images(
        JAX, _jax_conv, _jax_pool, lambda x: jnp.repeat(jnp.repeat(x, 2, 2), 2, 3),
        jnp.concatenate,
    ),
)  # fmt: skip
_BY_OPS = {id(library.ops): library for library in _LIBRARIES}


class Weights:
    """Random weights, and what reads them one after the other in the same order."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._rng = np.random.default_rng(0)

    def filters(self, results: int, channels: int, size: int) -> None:
        """Filters, and a scale and a shift of each result."""
        self.normal(results, channels, size, size, deep=channels * size * size)
        self.arrays += [np.ones((1, results, 1, 1), np.float32)]
        self.arrays += [np.zeros((1, results, 1, 1), np.float32)]

    def normal(self, *shape: int, deep: int) -> None:
        drawn = self._rng.standard_normal(shape) / math.sqrt(deep)
        self.arrays.append(np.asarray(drawn, np.float32))

    def norm(self, width: int) -> None:
        self.arrays += [np.ones(width, np.float32), np.zeros(width, np.float32)]


def _unit(
    lib: Images, x: Any, weights: Iterator[Any], stride: int = 1, pad: int = 1, *, bent: bool = True
) -> Any:
    """A convolution, a scale, a shift, and ReLU unless it is not wanted."""
    filters, scale, shift = next(weights), next(weights), next(weights)
    found = lib.conv(x, filters, stride, pad) * scale + shift
    return lib.ops.relu(found) if bent else found


# -- ResNet-18 -----------------------------------------------------------------------------------

WIDTHS = (64, 128, 256, 512)


def _resnet_weights() -> list[Array]:
    made, channels = Weights(), 64
    made.filters(64, 3, 7)
    for width in WIDTHS:
        for _ in range(2):
            made.filters(width, channels, 3)
            made.filters(width, width, 3)
            if channels != width:
                made.filters(width, channels, 1)
            channels = width
    made.normal(512, 1000, deep=512)
    return made.arrays


def _resnet(ops: Ops, x: Any, *given: Any) -> Any:
    lib, weights, channels = _BY_OPS[id(ops)], iter(given), 64
    x = lib.pool(_unit(lib, x, weights, 2, 3), 3, 2, 1)
    for width in WIDTHS:
        for number in range(2):
            stride = 2 if number == 0 and channels != width else 1
            deep = _unit(lib, _unit(lib, x, weights, stride), weights, bent=False)
            if channels != width:
                x = _unit(lib, x, weights, stride, 0, bent=False)
            x, channels = ops.relu(deep + x), width
    return x.mean((2, 3)) @ next(weights)


# -- ViT-S ---------------------------------------------------------------------------------------

PLACES, WIDTH, HEADS, BLOCKS = 196, 384, 6, 12


def _vit_weights() -> list[Array]:
    made = Weights()
    made.normal(WIDTH, 3, 16, 16, deep=768)
    made.normal(PLACES, WIDTH, deep=2500)
    for _ in range(BLOCKS):
        made.norm(WIDTH)
        made.normal(WIDTH, 3 * WIDTH, deep=WIDTH)
        made.normal(WIDTH, WIDTH, deep=WIDTH)
        made.norm(WIDTH)
        made.normal(WIDTH, 4 * WIDTH, deep=WIDTH)
        made.normal(4 * WIDTH, WIDTH, deep=4 * WIDTH)
    made.norm(WIDTH)
    made.normal(WIDTH, 1000, deep=WIDTH)
    return made.arrays


def _mixed(ops: Ops, x: Any, joined: Any, out: Any) -> Any:
    split = ops.reshape(x @ joined, (1, PLACES, 3, HEADS, WIDTH // HEADS))
    q, k, v = (ops.permute(split[:, :, part], (0, 2, 1, 3)) for part in range(3))
    found = ops.permute(ops.attention(q, k, v, False), (0, 2, 1, 3))
    return ops.reshape(found, (1, PLACES, WIDTH)) @ out


def _vit(ops: Ops, x: Any, *given: Any) -> Any:
    lib, weights = _BY_OPS[id(ops)], iter(given)
    patches = ops.reshape(lib.conv(x, next(weights), 16, 0), (1, WIDTH, PLACES))
    x = ops.permute(patches, (0, 2, 1)) + next(weights)
    for _ in range(BLOCKS):
        known = ops.norm(x, next(weights), next(weights))
        x = x + _mixed(ops, known, next(weights), next(weights))
        known = ops.norm(x, next(weights), next(weights))
        x = x + ops.gelu(known @ next(weights)) @ next(weights)
    return ops.norm(x, next(weights), next(weights)).mean(1) @ next(weights)


# -- a small U-Net -------------------------------------------------------------------------------

LEVELS = (32, 64, 128, 256)


def _unet_weights() -> list[Array]:
    made, channels = Weights(), 3
    for width in LEVELS:
        made.filters(width, channels, 3)
        made.filters(width, width, 3)
        channels = width
    for width in LEVELS[-2::-1]:
        made.filters(width, channels + width, 3)
        made.filters(width, width, 3)
        channels = width
    made.filters(4, channels, 1)
    return made.arrays


def _unet(ops: Ops, x: Any, *given: Any) -> Any:
    lib, weights, kept = _BY_OPS[id(ops)], iter(given), list[Any]()
    for width in LEVELS:
        x = _unit(lib, _unit(lib, x, weights), weights)
        if width != LEVELS[-1]:
            kept.append(x)
            x = lib.pool(x, 2, 2, 0)
    for skipped in kept[::-1]:
        x = _unit(lib, lib.join([lib.twice(x), skipped], 1), weights)
        x = _unit(lib, x, weights)
    return _unit(lib, x, weights, 1, 0, bent=False)


def _image(size: int, made: Callable[[], list[Array]]) -> Callable[[], list[Array]]:
    def data() -> list[Array]:
        picture = np.random.default_rng(4).standard_normal((1, 3, size, size))
        return [picture.astype(np.float32), *made()]

    return data


LINES: Sequence[Line] = (
    model_line("ResNet-18, one image of 224x224", "model", _image(224, _resnet_weights), _resnet),
    model_line("ViT-S, one image of 224x224", "model", _image(224, _vit_weights), _vit),
    model_line("small U-Net, one image of 128x128", "model", _image(128, _unet_weights), _unet),
)
