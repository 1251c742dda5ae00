"""A model of training on many GPUs: the time of a step, the share of communication in it, and
whether the model fits into memory.

Nodes of some GPUs with fast links, and slower links between nodes. An all-reduce is a ring within
each node, then, with what each GPU has of the sum, a ring or a tree between nodes, whichever is
faster. Backward hides exchange behind at most two thirds of the arithmetic, and never the last
bucket. Left out: ranks that are late, loading of data, memory of activations.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from weft.foundation.records import dataclass

_GRADIENT_BYTES: Final = 2
"""A gradient of bf16."""
_OWN_BYTES: Final = 4
"""Of each parameter, on each GPU: bf16 weights and gradients."""
_STATE_BYTES: Final = 12
"""Of each parameter: f32 weights and two moments of Adam; they can be split over ranks."""
_LAST_BUCKET: Final = 25e6
"""Bytes of gradients that are there only when backward ends."""
_HIDES: Final = 2 / 3
"""The part of a step's arithmetic that exchange can go beside."""


@dataclass(frozen=True)
class Link:
    """What a GPU sends over: bytes a second each way, and seconds a hop."""

    rate: float
    hop: float

    def ring(self, size: float, count: int) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return 2 * (count - 1) / count * size / self.rate + 2 * (count - 1) * self.hop

    def tree(self, size: float, count: int) -> float:
        return 2 * size / self.rate + 2 * math.ceil(math.log2(count)) * self.hop if count > 1 else 0


@dataclass(frozen=True)
class Cluster:
    """GPUs in nodes. The figures are those of H100 and H200 nodes: NVLink at 80 % of 450 GB/s,
    400 Gb/s a GPU between nodes at 85 %, and 45 % of the peak of bf16 products."""

    per_node: int = 8
    inside: Link = Link(360e9, 6e-6)
    between: Link = Link(42.5e9, 12e-6)
    flops: float = 0.45 * 989e12
    memory: float = 141e9

    def all_reduce(self, size: float, count: int) -> float:
        """Seconds of an all-reduce over so many GPUs."""
        own = min(count, self.per_node)
        nodes = math.ceil(count / self.per_node)
        share = size / own
        across = min(self.between.ring(share, nodes), self.between.tree(share, nodes))
        return self.inside.ring(size, own) + across


@dataclass(frozen=True)
class Model:
    """A transformer, and the tokens that a GPU takes in a step."""

    parameters: float
    layers: int
    width: int
    tokens: int


MODELS: Final = {
    "gpt2": Model(124e6, 12, 768, 16 * 1024),
    "llama-1b": Model(1.24e9, 16, 2048, 4 * 4096),
    "llama-8b": Model(8.03e9, 32, 4096, 2 * 4096),
}


@dataclass(frozen=True)
class Step:
    """A step of training, in seconds and bytes for each GPU."""

    compute: float
    exchange: float
    """Of gradients: over the ranks that have the same weights."""
    tensor: float
    """Of activations: over the ranks that share a layer, and nothing hides it."""
    exposed: float
    """What is left of the exchange when backward hides what it can."""
    state: float

    @property
    def efficiency(self) -> float:
        """Of a GPU, against one that exchanges nothing."""
        return self.compute / (self.compute + self.tensor + self.exposed)

    @property
    def efficiency_without_overlap(self) -> float:
        return self.compute / (self.compute + self.tensor + self.exchange)


def step_of(
    model: Model, cluster: Cluster, gpus: int, *, split: int = 1, sharded: bool = False
) -> Step:
    """A step on so many GPUs. Each layer is split over `split` of them, in one node; `sharded`
    splits the optimiser's state over those that have the same weights."""
    ranks = gpus // split
    compute = 6 * model.parameters * model.tokens / cluster.flops
    gradients = _GRADIENT_BYTES * model.parameters / split
    rest = replace(cluster, per_node=max(1, cluster.per_node // split))
    exchange = rest.all_reduce(gradients, ranks) if ranks > 1 else 0.0
    last = rest.all_reduce(min(gradients, _LAST_BUCKET), ranks) if ranks > 1 else 0.0
    activations = 2 * model.tokens * split * model.width
    tensor = 4 * model.layers * cluster.inside.ring(activations, split) if split > 1 else 0.0
    state = (_OWN_BYTES + _STATE_BYTES / (ranks if sharded else 1)) * model.parameters / split
    return Step(compute, exchange, tensor, max(last, exchange - _HIDES * compute), state)
