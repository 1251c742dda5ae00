"""What exchanges between ranks take: Weft's `all_reduce` beside mpi4py's own call, and beside
kernels.

    weft launch -n 2 benchmarks/exchanges.py
    python benchmarks/exchanges.py --simulated

Both are measured in turns, on every rank from a barrier on; the table has medians in microseconds
of the slowest rank, and the least time, as on a machine that has nothing else to do. `call` is what
calling any program takes, of a kernel on 1 KiB here; an exchange is a step in one. `kernels` is a
chain of products, `apart` these and then an exchange of 4 MiB, `together` one program that has both
and needs neither for the other. `--simulated` measures an exchange of 64 bytes between ranks that
are threads of one process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

import weft
from weft.foundation.ranks import Meeting, world_here
from weft.ptir import Builder
from weft.runtime.rendezvous import run_ranks

SIZES = (1 << 10, 64 << 10, 1 << 20, 4 << 20)


def reduced(b: Any, value: Any, ranks: int) -> Any:
    return b.emit("all_reduce", value, groups=list(range(ranks)), size=ranks, fn="sum")


def products(b: Any, x: Any, count: int) -> Any:
    y = x
    for _ in range(count):
        y = b.emit("dot_general", y, x, contract_lhs=[1], contract_rhs=[0])
    return y


def program(elements: int, ranks: int, size: int, count: int) -> Callable[..., Any]:
    """An exchange of so many elements, and so many products, of which either may be none."""
    b = Builder(f"exchange{elements}_{count}")
    x = b.param("f32", (elements,)) if elements else None
    y = b.param("f32", (size, size)) if count else None
    results = [reduced(b, x, ranks)] if x is not None else []
    results += [products(b, y, count)] if y is not None else []
    return weft.compile(b.build(*results), "cpu")


def called() -> Callable[[], Any]:
    """A program that has next to nothing to do."""
    b = Builder("call")
    program = weft.compile(b.build(b.emit("neg", b.param("f32", (256,)))), "cpu")
    return partial(program, np.ones(256, np.float32))


def seconds(comm: Any, calls: dict[str, Callable[[], Any]], turns: int) -> dict[str, Any]:
    """For each call the seconds of every turn, those of the slowest rank."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 3):
        for name, call in calls.items():
            comm.Barrier()
            start = time.perf_counter()
            call()
            took = comm.allreduce(time.perf_counter() - start, MPI.MAX)
            if turn >= 3:
                found[name].append(took)
    return {name: np.array(times) for name, times in found.items()}


def told(comm: Any, what: str, times: dict[str, Any], base: str) -> None:
    if comm.rank:
        return
    median, least = ({n: 1e6 * f(t) for n, t in times.items()} for f in (np.median, np.min))
    for name in times:
        ratio = f"{median[name] / median[base]:5.2f} x  {least[name] / least[base]:5.2f} x"
        print(f"{what:>8} {name:10} {median[name]:10.0f} {least[name]:10.0f}  {ratio}", flush=True)


def simulated(turns: int) -> None:
    """What a collective of simulated ranks takes."""
    print("simulated ranks   median µs   least µs of a collective")
    for ranks in (2, 8, 64):
        meeting = Meeting("all_reduce", tuple(range(ranks)))

        def program(rank: int, meeting: Meeting = meeting) -> float:
            world, x = world_here(), np.ones(16, np.float32)
            start = time.perf_counter()
            for _ in range(50):
                world.all_reduce(meeting, x, "sum")
            return 1e6 * (time.perf_counter() - start) / 50

        took = [max(run_ranks(ranks, program)) for _ in range(turns)]
        print(f"{ranks:15} {np.median(took):11.0f} {np.min(took):10.0f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--size", type=int, default=256, help="rows of the matrices")
    parser.add_argument("--products", type=int, default=20)
    parser.add_argument("--simulated", action="store_true")
    given = parser.parse_args()
    if given.simulated:
        simulated(given.turns)
        return
    comm, ranks = MPI.COMM_WORLD, weft.mesh(data=-1).count
    if comm.rank == 0:
        print(
            f"{ranks} ranks\n{'bytes':>8} {'':10} {'median µs':>10} {'least µs':>10}  ratio of both"
        )
    call = called()
    for size in SIZES:
        x = np.ones(size // 4, np.float32)
        result = np.empty_like(x)
        ours = program(x.size, ranks, 0, 0)
        calls: dict[str, Callable[[], Any]] = {
            "mpi4py": partial(comm.Allreduce, x, result),
            "weft": partial(ours, x),
            "call": call,
        }
        told(comm, f"{size}", seconds(comm, calls, given.turns), "mpi4py")
    x = np.ones(1 << 20, np.float32)
    y = np.eye(given.size, dtype=np.float32)
    exchange = program(x.size, ranks, 0, 0)
    kernels = program(0, ranks, given.size, given.products)
    both = program(x.size, ranks, given.size, given.products)
    beside: dict[str, Callable[[], Any]] = {
        "kernels": partial(kernels, y),
        "exchange": partial(exchange, x),
        "apart": lambda: (kernels(y), exchange(x)),
        "together": partial(both, x, y),
    }
    told(comm, f"{4 << 20}", seconds(comm, beside, given.turns), "apart")


if __name__ == "__main__":
    main()
