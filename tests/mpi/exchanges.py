"""A script for two ranks: every exchange on every dtype, against the simulated mesh; and a step of
training, against one rank. Prints `right` where all agree."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np

import weft
from weft import functional as F
from weft import nn, optim
from weft.driver.ranks import launched_world
from weft.foundation.dtypes import ALL, DType
from weft.foundation.ranks import World, as_rank
from weft.ptir import Builder
from weft.ptir.interp import Interpreter
from weft.runtime.rendezvous import run_ranks

PAIR = {"groups": [0, 1], "size": 2}
OPS: list[tuple[str, dict[str, Any]]] = [
    *(("all_reduce", {**PAIR, "fn": fn}) for fn in ("sum", "prod", "min", "max")),
    ("all_gather", {**PAIR, "axis": 1}),
    *(("reduce_scatter", {**PAIR, "axis": 0, "fn": fn}) for fn in ("sum", "max")),
    ("all_to_all", {**PAIR, "split": 0, "concat": 1}),
    ("collective_permute", {**PAIR, "sources": [0], "targets": [1]}),
    ("collective_broadcast", {"groups": [1, 0], "size": 2}),
]


def parts(dtype: DType) -> list[Any]:
    source = np.random.default_rng(1)
    return [source.integers(0, 4, (4, 3)).astype(np.int8).astype(dtype.numpy) for _ in range(2)]


def on_rank(interpreter: Interpreter, x: list[Any], rank: int) -> Any:
    return interpreter.run([x[rank]])


def exchanges(world: World) -> int:
    count = 0
    for dtype in ALL:
        x = parts(dtype)
        for op, attrs in OPS:
            if dtype.is_complex and attrs.get("fn") in ("min", "max"):
                continue
            b = Builder("exchange")
            program = b.build(b.emit(op, b.param(dtype, x[0].shape), **attrs))
            interpreter = Interpreter(program)
            wanted = run_ranks(2, partial(on_rank, interpreter, x))[world.rank][0]
            with as_rank(world):
                found = np.asarray(interpreter.run([x[world.rank]])[0])
            compiled = weft.compile(program, "cpu")(x[world.rank])[0] if dtype.bits == 32 else found
            for one in (found, np.asarray(compiled)):
                assert one.dtype == wanted.dtype, (op, dtype)
                assert np.array_equal(one.astype(np.complex128), wanted.astype(np.complex128)), (
                    op,
                    dtype,
                )
            count += 1
    return count


def trained(mesh: weft.Mesh) -> list[float]:
    same = weft.replicate({"step": np.array(mesh.rank), "rate": weft.asarray(0.5)}, mesh)
    assert same["step"].shape == same["rate"].shape == ()
    assert same["step"] == 0
    nn.manual_seed(mesh.rank)
    model = weft.replicate(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)), mesh)
    optimiser = optim.AdamW(1e-2)
    state = optimiser.init(model)

    @weft.spmd(mesh)
    def step(model: Any, state: Any, batch: Any) -> Any:
        x, y = batch
        loss, slopes = weft.value_and_grad(lambda m: F.cross_entropy(m(x), y))(model)
        slopes, loss = weft.all_reduce((slopes, loss), "mean", over="data")
        return *optimiser.update(slopes, state, model), loss

    x = np.random.default_rng(0).standard_normal((32, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(np.int32)
    fast = weft.jit(step, donate=("model", "state"))
    losses = []
    for batch in weft.shard_batches((x, y), 16, mesh, epochs=2):
        model, state, loss = fast(model, state, batch)
        losses.append(float(loss))
    whole = weft.shard(x, mesh, {0: "data"})
    assert np.array_equal(whole.numpy(), x)
    return losses


if __name__ == "__main__":
    mesh = weft.mesh(data=-1)
    assert mesh.count == 2
    assert exchanges(launched_world()) > 150
    alone = [float(text) for text in sys.argv[1].split(",")]
    assert np.allclose(trained(mesh), alone, rtol=1e-5), (trained(mesh), alone)
    print(f"right {mesh.rank}", flush=True)
