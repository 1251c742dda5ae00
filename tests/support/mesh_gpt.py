"""A small GPT that is trained on the ranks of a mesh: batches are split along `data`, heads and the
inner axis of the MLP along `model`. On one rank it is an ordinary GPT."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft import functional as F
from weft import optim

WORDS, WIDTH, HEADS, LENGTH, BATCH = 11, 8, 2, 6, 8
SPLITS = {
    "qkv": {1: "model"},
    "project": {1: "model"},
    "up": {0: "model"},
    "down": {1: "model"},
}


def parameters(dtype: Any, layers: int) -> dict[str, Any]:
    source = np.random.default_rng(0)
    shapes = {"words": (WORDS, WIDTH), "places": (LENGTH, WIDTH), "norm": (WIDTH,)}
    for layer in range(layers):
        shapes |= {
            f"{layer}.norm1": (WIDTH,),
            f"{layer}.norm2": (WIDTH,),
            f"{layer}.qkv": (3, HEADS, WIDTH // HEADS, WIDTH),
            f"{layer}.project": (WIDTH, HEADS, WIDTH // HEADS),
            f"{layer}.up": (4 * WIDTH, WIDTH),
            f"{layer}.down": (WIDTH, 4 * WIDTH),
        }
    return {
        name: (1 if "norm" in name else 0) + 0.2 * source.standard_normal(shape).astype(dtype)
        for name, shape in shapes.items()
    }


def _normed(x: Any, weight: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * weft.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * weight


def loss_of(p: dict[str, Any], tokens: Any) -> Any:
    """The loss of this rank's batch; the same along `model`."""
    x = p["words"][tokens[:, :-1]] + p["places"]
    hidden = weft.asarray(np.triu(np.full((LENGTH, LENGTH), -1e9), 1), dtype=x.dtype)
    for layer in range(sum("qkv" in name for name in p)):
        h = _normed(x, p[f"{layer}.norm1"])
        q, k, v = (weft.einsum("btd,hkd->bhtk", h, p[f"{layer}.qkv"][i]) for i in range(3))
        scores = weft.einsum("bhtk,bhsk->bhts", q, k) / (WIDTH // HEADS) ** 0.5 + hidden
        mixed = weft.einsum("bhts,bhsk->bhtk", F.softmax(scores, -1), v)
        x = x + _summed(weft.einsum("bhtk,dhk->btd", mixed, p[f"{layer}.project"]))
        h = F.gelu(weft.einsum("btd,ed->bte", _normed(x, p[f"{layer}.norm2"]), p[f"{layer}.up"]))
        x = x + _summed(weft.einsum("bte,de->btd", h, p[f"{layer}.down"]))
    logits = weft.einsum("btd,wd->btw", _normed(x, p["norm"]), p["words"])
    return F.cross_entropy(logits.reshape((-1, WORDS)), tokens[:, 1:].reshape((-1,)))


def _summed(x: Any) -> Any:
    return weft.all_reduce(x, over="model")


def trained(mesh: weft.Mesh, steps: int, dtype: Any, layers: int = 1) -> list[float]:
    """The loss of each step."""
    params: dict[str, Any] = {}
    whole = parameters(dtype, layers)
    for name, array in whole.items():
        split = SPLITS.get(name.rpartition(".")[2])
        params[name] = weft.shard(array, mesh, split) if split else weft.asarray(array)
    optimiser = optim.AdamW(1e-2)
    state = optimiser.init({name: weft.asarray(x) for name, x in whole.items()})
    for slot in ("mean", "square"):
        pairs = zip(state[slot], sorted(params), strict=True)
        state[slot] = [_like(x, params[name]) for x, name in pairs]

    start = dict(params)

    @weft.spmd(mesh, split={"tokens": {0: "data"}})
    def step(params: Any, state: Any, tokens: Any) -> Any:
        loss, slopes = weft.value_and_grad(loss_of)(params, tokens)
        slopes, loss = weft.all_reduce((slopes, loss), "mean", over="data")
        own, held = optimiser.update(slopes, state, params)
        made = {name: _dressed(x, start[name]) for name, x in own.items()}
        for slot in ("mean", "square"):
            pairs = zip(held[slot], sorted(start), strict=True)
            held[slot] = [_dressed(x, start[name]) for x, name in pairs]
        return made, held, loss

    run, losses = weft.jit(step), []
    for number in range(steps):
        tokens = np.random.default_rng(number % 7).integers(0, WORDS, (BATCH, LENGTH + 1))
        params, state, loss = run(params, state, tokens.astype(np.int32))
        losses.append(float(loss))
    return losses


def _dressed(x: Any, like: Any) -> Any:
    return weft.Sharded(x, like.mesh, like.split) if isinstance(like, weft.Sharded) else x


def _like(x: Any, like: Any) -> Any:
    return weft.shard(x, like.mesh, like.split) if isinstance(like, weft.Sharded) else x
