"""Whole models with their data, and how Weft's users call them.

`models` runs them beside torch, `first_timeline` looks at their first call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import weft
from benchmarks import model_zoo as zoo
from weft import functional as wf
from weft import nn as wn
from weft import optim

Make = Callable[[zoo.Library], Any]


@dataclass(frozen=True)
class Case:
    """A model with its data, its small form, and whether a step of training is timed."""

    name: str
    make: Make
    tiny: Make
    data: Callable[[bool], list[Any]]
    """The arrays of a call, the labels last where it trains; True asks for small ones."""
    trains: bool = False
    images: bool = False
    learns: str = ""
    """What the names of the parameters have in them that a step changes; of none, all."""
    cache: Callable[[bool], Caches] | None = None
    """Of a model that generates: the caches of what was read before; a call is one more token."""


@dataclass(frozen=True)
class Caches:
    """Keys and values [batch, heads, length, size] of so many layers."""

    layers: int
    shape: tuple[int, int, int, int]

    def arrays(self) -> Iterator[tuple[Any, Any]]:
        rng = np.random.default_rng(1)
        for _ in range(self.layers):
            k, v = (rng.standard_normal(self.shape, np.float32) for _ in range(2))
            yield k, v


def _tokens(batch: int, length: int, vocabulary: int, labelled: bool) -> list[Any]:
    rng = np.random.default_rng(0)
    given = [rng.integers(0, vocabulary, (batch, length)) for _ in range(1 + labelled)]
    return [*given[:1], *(labels.reshape(-1) for labels in given[1:])]


def _images(batch: int, side: int, labelled: bool) -> list[Any]:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((batch, 3, side, side)).astype(np.float32)
    return [images, rng.integers(0, 1000, batch)][: 1 + labelled]


def _ids(labelled: bool, small: bool) -> list[Any]:
    rng = np.random.default_rng(0)
    rows, shape = (50, (4, 3, 5)) if small else (100_000, (4096, 26, 10))
    return [rng.integers(0, rows, shape), rng.integers(0, 2, shape[0])][: 1 + labelled]


def _noise(small: bool) -> list[Any]:
    rng = np.random.default_rng(0)
    batch, side = (2, 16) if small else (4, 64)
    images = rng.standard_normal((batch, 4, side, side)).astype(np.float32)
    return [images, rng.integers(0, 1000, batch)]


def _gpt2(lib: zoo.Library) -> Any:
    return zoo.gpt2(lib, 12, 768, 12, 50_257, 1_024)


def _small_gpt2(lib: zoo.Library) -> Any:
    return zoo.gpt2(lib, 2, 32, 4, 64, 32)


def _llama(lib: zoo.Library) -> Any:
    return zoo.llama(lib, 16, 2048, 32, 8, 8192, 128_256)


def _small_llama(lib: zoo.Library) -> Any:
    return zoo.llama(lib, 2, 32, 4, 2, 48, 64)


def _text(name: str, make: Make, tiny: Make, sizes: tuple[int, int, int], trains: bool) -> Case:
    def data(small: bool) -> list[Any]:
        return _tokens(2, 16, 64, trains) if small else _tokens(*sizes, trains)

    return Case(name, make, tiny, data, trains)


def _seen(name: str, make: Make, tiny: Make, batch: int, trains: bool) -> Case:
    def data(small: bool) -> list[Any]:
        return _images(2, 32, trains) if small else _images(batch, 224, trains)

    return Case(name, make, tiny, data, trains, images=True)


def cases() -> Iterator[Case]:
    for name, sizes, trains in (
        ("gpt2 forward b1 s128", (1, 128, 50_257), False),
        ("gpt2 forward b16 s1024", (16, 1024, 50_257), False),
        ("gpt2 training b16 s1024", (16, 1024, 50_257), True),
    ):
        yield _text(name, _gpt2, _small_gpt2, sizes, trains)
    for batch, length in ((1, 512), (8, 2048)):
        yield _text(
            f"llama 1B forward b{batch} s{length}",
            _llama,
            _small_llama,
            (batch, length, 128_256),
            False,
        )
    yield replace(
        _text(
            "llama 1B adapters training b4 s1024",
            lambda lib: zoo.llama(lib, 16, 2048, 32, 8, 8192, 128_256, rank=16),
            lambda lib: zoo.llama(lib, 2, 32, 4, 2, 48, 64, rank=4),
            (4, 1024, 128_256),
            True,
        ),
        learns="lora",
    )
    yield from _generating()
    for kind, batch in (("forward", 64), ("training", 32)):
        yield _seen(
            f"vit-b/16 {kind} b{batch}",
            lambda lib: zoo.vit(lib, 12, 768, 12, 224, 16),
            lambda lib: zoo.vit(lib, 1, 32, 4, 32, 8),
            batch,
            kind == "training",
        )
    for kind, batch in (("forward", 32), ("forward", 128), ("training", 64)):
        yield _seen(
            f"resnet-50 {kind} b{batch}",
            lambda lib: zoo.resnet(lib, (3, 4, 6, 3), 64),
            lambda lib: zoo.resnet(lib, (1, 1), 8),
            batch,
            kind == "training",
        )
    yield Case(
        "u-net forward b4 64x64",
        lambda lib: zoo.unet(lib, 320, (1, 2, 4), 8),
        lambda lib: zoo.unet(lib, 8, (1, 2), 2),
        _noise,
        images=True,
    )
    for kind in ("forward", "training"):
        yield Case(
            f"recommender {kind} b4096",
            lambda lib: zoo.recommender(lib, 26, 100_000, 64),
            lambda lib: zoo.recommender(lib, 3, 50, 8),
            partial(_ids, kind == "training"),
            kind == "training",
        )
    yield _text(
        "lstm training b64 s128",
        lambda lib: zoo.lstm(lib, 2, 1024, 10_000),
        lambda lib: zoo.lstm(lib, 2, 16, 64),
        (64, 128, 10_000),
        True,
    )


def _generating() -> Iterator[Case]:
    """One more token of each text, with caches of a thousand tokens and more."""

    def data(batch: int, vocabulary: int, small: bool) -> list[Any]:
        (tokens,) = _tokens(batch, 1, 64 if small else vocabulary, False)
        return [tokens, np.int32(7 if small else 1000)]

    def caches(full: Caches, tiny: Caches, small: bool) -> Caches:
        return tiny if small else full

    for name, make, tiny, vocabulary, layers, shape in (
        ("gpt2", _gpt2, _small_gpt2, 50_257, 12, (12, 1024, 64)),
        ("llama 1B", _llama, _small_llama, 128_256, 16, (8, 2048, 64)),
    ):
        small = (4, 16, 8) if make is _gpt2 else (2, 16, 8)
        for batch in (1, 16):
            yield Case(
                f"{name} generation b{batch}",
                make,
                tiny,
                partial(data, batch, vocabulary),
                cache=partial(caches, Caches(layers, (batch, *shape)), Caches(2, (batch, *small))),
            )


class Weft:
    """A case in Weft: its model and data, on the default backend."""

    def __init__(self, case: Case, model: Any, data: list[Any], typed: Any) -> None:
        self.model = model.map(lambda x: x.astype(typed).to(weft.default_backend()))
        self.data = [weft.asarray(d).to(weft.default_backend()) for d in data]
        if case.images:
            self.data[0] = self.data[0].astype(typed)

    def forward(self) -> Callable[[], Any]:
        call = weft.jit(lambda model, *data: model(*data))
        return lambda: call(self.model, *self.data)

    def call(self, case: Case, caches: Caches | None) -> Callable[[], Any]:
        if caches is not None:
            return self.generation(caches)
        return self.training(case.learns) if case.trains else self.forward()

    def generation(self, caches: Caches) -> Callable[[], Any]:
        home, (tokens, position) = weft.default_backend(), self.data
        typed = next(iter(self.model.state_dict().values())).dtype
        kept: Any = [
            tuple(weft.asarray(part).astype(typed).to(home) for part in pair)
            for pair in caches.arrays()
        ]
        length = caches.shape[2]

        def stepped(model: Any, tokens: Any, position: Any, kept: Any) -> Any:
            scores, kept = model.next(tokens, position, kept)
            following = weft.argmax(scores, axis=-1).astype(tokens.dtype)
            return scores, following, (position + 1) % length, kept

        step = weft.jit(stepped, donate=("kept",))

        def call() -> Any:
            nonlocal tokens, position, kept
            scores, tokens, position, kept = step(self.model, tokens, position, kept)
            return scores

        return call

    def training(self, learns: str) -> Callable[[], Any]:
        optimiser: Any = optim.AdamW(1e-4)
        if learns:
            groups = {"learn": optimiser, "stay": optim.freeze()}
            optimiser = optim.partition(
                lambda name, _: "learn" if learns in name else "stay", groups
            )
        state = optimiser.init(self.model)

        def loss_of(model: Any, x: Any, labels: Any) -> Any:
            scores = model(x)
            return wf.cross_entropy(scores.reshape((-1, scores.shape[-1])), labels)

        def stepped(model: Any, state: Any, x: Any, labels: Any) -> Any:
            with wn.training():
                loss, slopes = weft.value_and_grad(loss_of)(model, x, labels)
            return (*optimiser.update(slopes, state, model), loss)

        step = weft.jit(stepped, donate=("model", "state"))

        def call() -> Any:
            nonlocal state
            self.model, state, loss = step(self.model, state, *self.data)
            return loss

        return call
