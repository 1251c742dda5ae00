"""A script for two ranks: gradients that are exchanged together while kernels run, against each of
them exchanged alone by the reference interpreter, bit for bit. Prints `right` where all agree."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import weft
from weft.driver.ranks import launched_world
from weft.foundation.dtypes import BF16, F32, F64, I1, SI32, DType
from weft.ptir import Builder
from weft.ptir.interp import Interpreter
from weft.ptir.ir import Program
from weft.region import exchanges
from weft.runtime.artifact import HostCall
from weft.runtime.rendezvous import run_ranks

SHAPES = ((5,), (33, 7), (64, 64), (), (1000,))


def program(dtype: DType, name: str) -> Program:
    """Exchanges of several sizes, and products that need none of them."""
    b = Builder(name)
    values = [b.param(dtype, shape) for shape in SHAPES]
    product = y = b.param(F32, (64, 64))
    reduced = []
    for value, shape in zip(values, SHAPES, strict=True):
        doubled = b.emit("concat", value, value, axis=0) if shape else value
        fn = "max" if dtype is I1 else "sum"
        reduced.append(b.emit("all_reduce", doubled, groups=[0, 1], size=2, fn=fn))
        product = b.emit("dot_general", product, y, contract_lhs=[1], contract_rhs=[0])
    return b.build(*reduced, product)


def given(dtype: DType, rank: int) -> list[Any]:
    source = np.random.default_rng(rank)
    parts = [(source.standard_normal(shape) * 3).astype(np.float32) for shape in SHAPES]
    return [np.asarray(p > 0 if dtype is I1 else p).astype(dtype.numpy) for p in parts] + [
        np.eye(64, dtype=np.float32)
    ]


def on_rank(interpreter: Interpreter, dtype: DType, rank: int) -> Any:
    return interpreter.run(given(dtype, rank))


def check(dtype: DType, rank: int, name: str) -> None:
    made = program(dtype, name)
    wanted = run_ranks(2, partial(on_rank, Interpreter(made), dtype))[rank]
    compiled = weft.compile(made, "cpu")
    calls = [step for step in compiled.artifact.steps if isinstance(step, HostCall)]
    assert len(calls) < len(SHAPES), [call.label for call in calls]
    for _ in range(3):
        for found, one in zip(compiled(*given(dtype, rank)), wanted, strict=True):
            assert np.asarray(found).tobytes() == np.asarray(one).tobytes(), dtype


if __name__ == "__main__":
    mesh = weft.mesh(data=-1)
    rank = launched_world().rank
    for size in (1 << 12, 4 << 20):
        exchanges.BUCKET = size
        for dtype in (F32, F64, SI32, BF16, I1):
            check(dtype, rank, f"buckets_of_{size}")
    print(f"right {rank}", flush=True)
