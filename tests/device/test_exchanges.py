"""Collectives through NCCL on a GPU, between one rank: they are part of the graph."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import weft
from weft.driver.compile import compile_program
from weft.foundation.dtypes import BY_NAME
from weft.ptir import Builder
from weft.runtime.cuda import exchanges

pytestmark = pytest.mark.skipif(
    exchanges.bindings() is None, reason="needs the extra weft[nccl] and NCCL's library"
)
COLLECTIVES: dict[str, dict[str, Any]] = {
    "all_reduce": {"fn": "sum"},
    "all_gather": {"axis": 0},
    "reduce_scatter": {"axis": 0, "fn": "max"},
    "all_to_all": {"split": 0, "concat": 0},
    "collective_permute": {"sources": (0,), "targets": (0,)},
    "collective_broadcast": {},
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "si8", "ui8", "si32", "si64"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_collective_gives_the_reference(name: str, dtype: str) -> None:
    b = Builder()
    x = b.param(dtype, [12, 5])
    met = getattr(b, name)(x + x, groups=(0,), size=1, **COLLECTIVES[name])
    program = b.build(met + x)
    array = np.arange(60).reshape(12, 5).astype(BY_NAME[dtype].numpy)
    executable = compile_program(program, "sm90")
    (want,) = weft.run(program, [array], backend="reference")
    for _ in range(3):
        assert (executable.run([array])[0] == want).all()


def test_nobody_sends() -> None:
    b = Builder()
    x = b.param("f32", [7])
    met = b.collective_permute(x, groups=(0,), size=1, sources=(), targets=())
    (got,) = compile_program(b.build(met + x), "sm90").run([np.ones(7, np.float32)])
    assert (got == 1).all()


def test_a_replay_costs_little_more_than_a_copy() -> None:
    """Ten exchanges of 4 kB beside none, in one graph each: no step is the host's."""

    def chain(count: int) -> float:
        b = Builder()
        x = b.param("f32", [1024])
        y = x
        for _ in range(count):
            y = b.all_reduce(y + x, groups=(0,), size=1, fn="sum")
        executable, array = compile_program(b.build(y), "sm90"), np.ones(1024, np.float32)
        executable.run([array])
        started = time.perf_counter()
        for _ in range(50):
            executable.run([array])
        return (time.perf_counter() - started) / 50

    alone, ten = chain(1), chain(11)
    print(f"{(ten - alone) / 10 * 1e6:.1f} us an exchange, with the kernel before it")
    assert (ten - alone) / 10 < 2e-4
