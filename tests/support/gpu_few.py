"""Attention of few queries, and faults in it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.gpu_attention import Case
from weft.codegen.gpu import ir
from weft.codegen.gpu.interp import Timing, run
from weft.ptir import Builder, Program


def cached(length: int, batch: int = 2, heads: int = 4, shared: int = 2) -> Program:
    """A step of generation: a row of keys and of values is put into caches at a place, and a query
    sees what is there up to it."""
    b = Builder("step")
    q = b.param("bf16", [batch, heads, 1, 64])
    own = heads // shared
    rows = [b.param("bf16", [batch, own, 1, 64]) for _ in range(2)]
    caches = [b.param("bf16", [batch, own, length, 64]) for _ in range(2)]
    place = b.param("si32", [])
    zero = b.full([1], 0, "si32")
    start = b.concat([zero, zero, b.reshape(place, [1]), zero], 0)
    k, v = (
        b.emit("dynamic_update_slice", cache, row, start, sizes=[batch, own, 1, 64])
        for cache, row in zip(caches, rows, strict=True)
    )
    shape = [1, 1, 1, length]
    seen = b.iota("si32", shape, 3) <= b.broadcast_to(place, shape)
    mask = b.emit("select", seen, b.full(shape, 0.0, "f32"), b.full(shape, -math.inf, "f32"))
    return b.build(b.emit("weft.attention", q, k, v, mask, causal=False)[0], k, v)


FAULTY = Case(dtype="f16", heads=2, shared=2, queries=2, keys=700)


def results_of(kernel: ir.Kernel, timing: Timing = Timing.LATE, seed: int = 0) -> NDArray[Any]:
    rng = np.random.default_rng(7)
    rows = FAULTY.heads * FAULTY.queries
    sizes = (rows * FAULTY.depth, FAULTY.keys * FAULTY.depth, FAULTY.keys * FAULTY.width)
    made = [rng.standard_normal(size).astype(np.float16) for size in sizes]
    made.append(np.full(rows * FAULTY.width, np.nan, np.float16))
    tensors = dict(zip(kernel.buffers, made, strict=True))
    run(kernel, tensors, timing, seed)
    return tensors[kernel.buffers[-1]]
