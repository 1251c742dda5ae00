"""Whole models for `benchmarks.models`, each written once for Weft's modules and for torch's.

`Library` names what the two call differently; layers, their parameters' names and most functions
are the same in both, so that one takes the other's weights by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

import weft
from weft import functional as wf
from weft import nn as wn


@dataclass(frozen=True)
class Library:
    """The words of one library."""

    nn: Any
    functional: Any
    module: Any
    """The class of modules; calls go to `forward`."""
    batch_norm: Any
    permute: Callable[[Any, tuple[int, ...]], Any]
    parts: Callable[[Any, int], Any]
    """Equal parts along the last axis."""
    join: Callable[[list[Any], int], Any]
    attention: Callable[[Any, Any, Any, bool], Any]
    cached: Callable[[Any, Any, Any], Any]
    """A cache [batch, heads, length, size] with a row of every head put in at a position."""
    seen: Callable[[Any, Any, Any, Any], Any]
    """Attention of one query a head to the rows of its caches up to a position."""
    mean: Callable[[Any, tuple[int, ...]], Any]
    constant: Callable[[Any, Any], Any]
    """An array as a tensor of the type and place of another tensor."""


class _Module(wn.Module):
    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)  # type: ignore[attr-defined]


def _seen_in_weft(q: Any, k: Any, v: Any, position: Any) -> Any:
    mask = weft.arange(k.shape[2], dtype=weft.int32) <= position
    return wf.attention(q, k, v, mask[None, None, None, :])


WEFT = Library(
    nn=wn,
    functional=wf,
    module=_Module,
    batch_norm=wn.BatchNorm,
    permute=weft.permute_dims,
    parts=lambda x, count: weft.split(x, count, axis=-1),
    join=lambda parts, axis: weft.concat(parts, axis=axis),
    attention=lambda q, k, v, causal: wf.attention(q, k, v, causal=causal),
    cached=wf.update_cache,
    seen=_seen_in_weft,
    mean=lambda x, axes: weft.mean(x, axis=axes),
    constant=lambda array, like: weft.asarray(array).astype(like.dtype),
)


def torch_library(torch: Any) -> Library:
    functional = torch.nn.functional

    def seen(q: Any, k: Any, v: Any, position: Any) -> Any:
        mask = torch.arange(k.shape[2], device=k.device) <= position
        grouped = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(
            q, k, v, mask[None, None, None, :], enable_gqa=grouped
        )

    return Library(
        nn=torch.nn,
        functional=functional,
        module=torch.nn.Module,
        batch_norm=torch.nn.BatchNorm2d,
        permute=lambda x, order: x.permute(order),
        parts=lambda x, count: x.chunk(count, -1),
        join=torch.cat,
        attention=lambda q, k, v, causal: functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1]
        ),
        cached=lambda cache, new, position: cache.index_copy_(2, position.long().reshape(1), new),
        seen=seen,
        mean=lambda x, axes: x.mean(axes),
        constant=lambda array, like: torch.from_numpy(array).to(like.device, like.dtype),
    )


def _heads(lib: Library, x: Any, size: int) -> Any:
    batch, length, width = x.shape
    return lib.permute(x.reshape((batch, length, width // size, size)), (0, 2, 1, 3))


def _joined(lib: Library, x: Any) -> Any:
    batch, heads, length, size = x.shape
    return lib.permute(x, (0, 2, 1, 3)).reshape((batch, length, heads * size))


# -- transformers --------------------------------------------------------------------------------


def transformer_block(lib: Library, width: int, heads: int, causal: bool) -> Any:
    """A block of GPT-2, or of a vision transformer."""
    nn, functional = lib.nn, lib.functional

    class Block(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            parts = lib.parts(self.qkv(self.ln_1(x)), 3)
            q, k, v = (_heads(lib, part, width // heads) for part in parts)
            return self.rest(x, lib.attention(q, k, v, causal))

        def rest(self, x: Any, mixed: Any) -> Any:
            x = x + self.proj(_joined(lib, mixed))
            return x + self.out(functional.gelu(self.fc(self.ln_2(x)), approximate="tanh"))

        def next(self, x: Any, position: Any, cache: Any) -> Any:
            """Of one more row: the result, and the caches of keys and values with it."""
            parts = lib.parts(self.qkv(self.ln_1(x)), 3)
            q, k, v = (_heads(lib, part, width // heads) for part in parts)
            k, v = lib.cached(cache[0], k, position), lib.cached(cache[1], v, position)
            return self.rest(x, lib.seen(q, k, v, position)), (k, v)

    return Block()


def gpt2(lib: Library, layers: int, width: int, heads: int, vocabulary: int, context: int) -> Any:
    nn = lib.nn

    class GPT2(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
            blocks = [transformer_block(lib, width, heads, True) for _ in range(layers)]
            self.blocks = nn.ModuleList(blocks)
            self.ln_f = nn.LayerNorm(width)

        def forward(self, tokens: Any) -> Any:
            x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.ln_f(x) @ lib.permute(self.wte.weight, (1, 0))

        def next(self, tokens: Any, position: Any, caches: Any) -> Any:
            """The scores of what follows one more token of each text, and the caches with it."""
            x, kept = self.wte(tokens) + self.wpe.weight[position.reshape((1, 1))], []
            for block, cache in zip(self.blocks, caches, strict=True):
                x, more = block.next(x, position, cache)
                kept.append(more)
            return self.ln_f(x) @ lib.permute(self.wte.weight, (1, 0)), kept

    return GPT2()


def vit(lib: Library, layers: int, width: int, heads: int, side: int, patch: int) -> Any:
    """Pictures to scores of a thousand classes; the mean of all pieces decides."""
    nn, pieces = lib.nn, (side // patch) ** 2

    class ViT(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.cut = nn.Conv2d(3, width, patch, stride=patch)
            self.places = nn.Embedding(pieces, width)
            blocks = [transformer_block(lib, width, heads, False) for _ in range(layers)]
            self.blocks = nn.ModuleList(blocks)
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

        def forward(self, images: Any) -> Any:
            x = self.cut(images).reshape((images.shape[0], width, pieces))
            x = lib.permute(x, (0, 2, 1)) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.head(lib.mean(self.norm(x), (1,)))

    return ViT()


def _rotated(lib: Library, x: Any, angles: Any) -> Any:
    """Positions as turns of pairs, the halves of a head being the pairs."""
    first, second = lib.parts(x, 2)
    cos, sin = angles
    return lib.join([first * cos - second * sin, second * cos + first * sin], -1)


def _angles(length: int, size: int) -> tuple[Any, Any]:
    rates = 500_000.0 ** -(np.arange(0, size, 2) / size)
    turns = np.outer(np.arange(length), rates).astype(np.float32)
    return np.cos(turns), np.sin(turns)


def adapted(lib: Library, inputs: int, outputs: int, rank: int) -> Any:
    """A layer as it is, and a narrow one beside it that learns."""
    linear = partial(lib.nn.Linear, bias=False)

    class Adapted(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.base = linear(inputs, outputs)
            self.lora_in, self.lora_out = linear(inputs, rank), linear(rank, outputs)

        def forward(self, x: Any) -> Any:
            return self.base(x) + self.lora_out(self.lora_in(x))

    return Adapted()


def llama_block(
    lib: Library, width: int, heads: int, key_heads: int, hidden: int, rank: int
) -> Any:
    nn, functional, size = lib.nn, lib.functional, width // heads
    linear = partial(adapted, lib, rank=rank) if rank else partial(nn.Linear, bias=False)

    class Block(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
            self.q, self.o = linear(width, width), linear(width, width)
            self.k, self.v = linear(width, key_heads * size), linear(width, key_heads * size)
            self.gate, self.up = linear(width, hidden), linear(width, hidden)
            self.down = linear(hidden, width)

        def forward(self, x: Any) -> Any:
            angles = [lib.constant(part, x) for part in _angles(x.shape[1], size)]
            q, k, v = self.parts(x, angles)
            return self.rest(x, lib.attention(q, k, v, True))

        def parts(self, x: Any, angles: Any) -> Any:
            y = self.norm_1(x)
            q, k = (_rotated(lib, _heads(lib, part(y), size), angles) for part in (self.q, self.k))
            return q, k, _heads(lib, self.v(y), size)

        def rest(self, x: Any, mixed: Any) -> Any:
            x = x + self.o(_joined(lib, mixed))
            y = self.norm_2(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

        def next(self, x: Any, position: Any, cache: Any) -> Any:
            """Of one more row: the result, and the caches of keys and values with it."""
            table = [lib.constant(part, x) for part in _angles(cache[0].shape[2], size)]
            q, k, v = self.parts(x, [part[position.reshape((1,))] for part in table])
            k, v = lib.cached(cache[0], k, position), lib.cached(cache[1], v, position)
            return self.rest(x, lib.seen(q, k, v, position)), (k, v)

    return Block()


def llama(
    lib: Library,
    layers: int,
    width: int,
    heads: int,
    key_heads: int,
    hidden: int,
    vocabulary: int,
    rank: int = 0,
) -> Any:
    """With a rank, the layers of every block have adapters beside them."""
    nn = lib.nn

    class Llama(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            blocks = [
                llama_block(lib, width, heads, key_heads, hidden, rank) for _ in range(layers)
            ]
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.RMSNorm(width, eps=1e-5)

        def forward(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.norm(x) @ lib.permute(self.embed.weight, (1, 0))

        def next(self, tokens: Any, position: Any, caches: Any) -> Any:
            """The scores of what follows one more token of each text, and the caches with it."""
            x, kept = self.embed(tokens), []
            for block, cache in zip(self.blocks, caches, strict=True):
                x, more = block.next(x, position, cache)
                kept.append(more)
            return self.norm(x) @ lib.permute(self.embed.weight, (1, 0)), kept

    return Llama()


# -- convolutions --------------------------------------------------------------------------------


def bottleneck(lib: Library, inputs: int, width: int, stride: int) -> Any:
    nn, functional, outputs = lib.nn, lib.functional, 4 * width

    class Bottleneck(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
            self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
            self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
            self.bn1, self.bn2 = lib.batch_norm(width), lib.batch_norm(width)
            self.bn3 = lib.batch_norm(outputs)
            around = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            same = (stride, inputs) == (1, outputs)
            self.around = nn.ModuleList([] if same else [around, lib.batch_norm(outputs)])

        def forward(self, x: Any) -> Any:
            y = functional.relu(self.bn1(self.conv1(x)))
            y = functional.relu(self.bn2(self.conv2(y)))
            for layer in self.around:
                x = layer(x)
            return functional.relu(self.bn3(self.conv3(y)) + x)

    return Bottleneck()


def resnet(lib: Library, blocks: tuple[int, ...], width: int) -> Any:
    nn, functional = lib.nn, lib.functional

    class ResNet(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
            self.bn1 = lib.batch_norm(width)
            layers, inputs = [], width
            for stage, count in enumerate(blocks):
                for number in range(count):
                    stride = 2 if stage and not number else 1
                    layers.append(bottleneck(lib, inputs, width << stage, stride))
                    inputs = 4 * (width << stage)
            self.layers = nn.ModuleList(layers)
            self.head = nn.Linear(inputs, 1000)

        def forward(self, images: Any) -> Any:
            x = functional.max_pool2d(
                functional.relu(self.bn1(self.conv1(images))), 3, stride=2, padding=1
            )
            for layer in self.layers:
                x = layer(x)
            return self.head(lib.mean(x, (2, 3)))

    return ResNet()


def residual(lib: Library, inputs: int, outputs: int, width: int) -> Any:
    """Two convolutions with the time between them, around which the image goes as well."""
    nn, functional = lib.nn, lib.functional

    class Residual(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm_1 = nn.GroupNorm(min(32, inputs), inputs)
            self.norm_2 = nn.GroupNorm(min(32, outputs), outputs)
            self.conv_1 = nn.Conv2d(inputs, outputs, 3, padding=1)
            self.conv_2 = nn.Conv2d(outputs, outputs, 3, padding=1)
            self.time = nn.Linear(width, outputs)
            around = [] if inputs == outputs else [nn.Conv2d(inputs, outputs, 1)]
            self.around = nn.ModuleList(around)

        def forward(self, x: Any, time: Any) -> Any:
            y = self.conv_1(functional.silu(self.norm_1(x)))
            y = y + self.time(functional.silu(time)).reshape((x.shape[0], outputs, 1, 1))
            y = self.conv_2(functional.silu(self.norm_2(y)))
            for layer in self.around:
                x = layer(x)
            return x + y

    return Residual()


def image_attention(lib: Library, channels: int, heads: int) -> Any:
    """Attention of every pixel to every other."""
    nn = lib.nn

    class Attention(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(min(32, channels), channels)
            self.qkv, self.proj = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

        def forward(self, x: Any) -> Any:
            batch, _, high, wide = x.shape
            y = lib.permute(self.norm(x).reshape((batch, channels, high * wide)), (0, 2, 1))
            q, k, v = (_heads(lib, p, channels // heads) for p in lib.parts(self.qkv(y), 3))
            y = self.proj(_joined(lib, lib.attention(q, k, v, False)))
            return x + lib.permute(y, (0, 2, 1)).reshape((batch, channels, high, wide))

    return Attention()


def unet(lib: Library, channels: int, factors: tuple[int, ...], heads: int) -> Any:
    """Images of four channels at a time of a diffusion, to the noise in them: two blocks a size,
    with attention at all sizes but the largest."""
    nn, functional = lib.nn, lib.functional
    sizes = [channels * factor for factor in factors]
    width = 4 * channels

    def block(inputs: int, outputs: int, attends: bool) -> Any:
        parts = [residual(lib, inputs, outputs, width)]
        return nn.ModuleList([*parts, *([image_attention(lib, outputs, heads)] * attends)])

    def ran(parts: Any, x: Any, time: Any) -> Any:
        x = parts[0](x, time)
        for attention in list(parts)[1:]:
            x = attention(x)
        return x

    class UNet(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.times = nn.Embedding(1000, width)
            self.first = nn.Conv2d(4, channels, 3, padding=1)
            down, smaller, kept, now = [], [], [channels], channels
            for level, size in enumerate(sizes):
                for _ in range(2):
                    down.append(block(now, size, level > 0))
                    kept.append(size)
                    now = size
                if level + 1 < len(sizes):
                    smaller.append(nn.Conv2d(size, size, 3, stride=2, padding=1))
                    kept.append(size)
            self.down, self.smaller = nn.ModuleList(down), nn.ModuleList(smaller)
            self.middle = nn.ModuleList([block(now, now, True), block(now, now, False)])
            up, larger = [], []
            for level, size in reversed(list(enumerate(sizes))):
                for _ in range(3):
                    up.append(block(now + kept.pop(), size, level > 0))
                    now = size
                if level:
                    larger.append(nn.Conv2d(size, size, 3, padding=1))
            self.up, self.larger = nn.ModuleList(up), nn.ModuleList(larger)
            self.norm = nn.GroupNorm(min(32, channels), channels)
            self.last = nn.Conv2d(channels, 4, 3, padding=1)

        def forward(self, images: Any, times: Any) -> Any:
            time, x = self.times(times), self.first(images)
            kept = [x]
            for number, parts in enumerate(self.down):
                x = ran(parts, x, time)
                kept.append(x)
                if number % 2 and number // 2 < len(self.smaller):
                    x = self.smaller[number // 2](x)
                    kept.append(x)
            for parts in self.middle:
                x = ran(parts, x, time)
            for number, parts in enumerate(self.up):
                x = ran(parts, lib.join([x, kept.pop()], 1), time)
                if number % 3 == 2 and number // 3 < len(self.larger):
                    x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
                    x = self.larger[number // 3](x)
            return self.last(functional.silu(self.norm(x)))

    return UNet()


# -- recurrences and tables ----------------------------------------------------------------------


def lstm(lib: Library, layers: int, width: int, vocabulary: int) -> Any:
    nn = lib.nn

    class Model(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.lstm = nn.LSTM(width, width, layers, batch_first=True)
            self.head = nn.Linear(width, vocabulary)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.lstm(self.embed(tokens))[0])

    return Model()


def recommender(lib: Library, tables: int, rows: int, width: int) -> Any:
    """Means of the rows that lists of ids name, every pair of them multiplied, and a perceptron
    that says yes or no."""
    nn, functional = lib.nn, lib.functional

    class Model(lib.module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList([nn.Embedding(rows, width) for _ in range(tables)])
            self.first = nn.Linear(tables * tables, 4 * width)
            self.second = nn.Linear(4 * width, 2)

        def forward(self, ids: Any) -> Any:
            bags = [lib.mean(t(ids[:, n]), (1,)) for n, t in enumerate(self.tables)]
            count = bags[0].shape[0]
            stack = lib.join([bag.reshape((count, 1, width)) for bag in bags], 1)
            pairs = stack @ lib.permute(stack, (0, 2, 1))
            hidden = functional.relu(self.first(pairs.reshape((count, tables * tables))))
            return self.second(hidden)

    return Model()
