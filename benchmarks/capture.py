"""What it costs to write and rerun small programs: Weft beside torch eager, jax.jit and tinygrad.

    python benchmarks/capture.py [--backend cpu] [--repeats 41]

Peers that are not installed are left out. Every line is the median of interleaved repeats in one
process and one thread; tensors are 8 by 8, so that nothing but overhead is measured.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import weft

LENGTH = 200
"""Instructions in a chain."""
CALLS = 50
"""How often a call that is measured alone is made in a row, each timed on its own."""
RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 8)).astype(np.float32)
Y = RNG.standard_normal((8, 8)).astype(np.float32)


@dataclass
class Line:
    """One thing that is measured: what a call does, and how many instructions it counts for."""

    name: str
    run: Callable[[], Any]
    per: int = 1
    calls: int = 1

    def __post_init__(self) -> None:
        self.seconds: list[float] = []

    @property
    def microseconds(self) -> float:
        return statistics.median(self.seconds) / self.per * 1e6


def weft_lines() -> list[Line]:
    x, y = weft.asarray(X), weft.asarray(Y)

    def chain(a: Any) -> Any:
        for _ in range(LENGTH // 2):
            a = a + y
            a = a * x
        return a

    jitted = weft.jit(lambda a: a + y)
    return [
        Line("weft capture, per instruction", lambda: chain(x), LENGTH),
        Line("weft lazy re-run, per instruction", lambda: chain(x).eval(), LENGTH),
        Line("weft jit call", lambda: jitted(x), calls=CALLS),
    ]


def torch_lines() -> list[Line]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)

    def chain() -> Any:
        a = x
        for _ in range(LENGTH // 2):
            a = a + y
            a = a * x
        return a

    return [Line(f"torch {torch.__version__} eager, per op", chain, LENGTH)]


def jax_lines() -> list[Line]:
    jax: Any = importlib.import_module("jax")
    x, y = jax.numpy.asarray(X), jax.numpy.asarray(Y)
    jitted = jax.jit(lambda a: a + y)
    version = jax.__version__

    def eager() -> Any:
        return (x + y).block_until_ready()

    return [
        Line(f"jax {version} eager, per op", eager, calls=CALLS),
        Line(f"jax {version} jit call", lambda: jitted(x).block_until_ready(), calls=CALLS),
    ]


def tinygrad_lines() -> list[Line]:
    tinygrad: Any = importlib.import_module("tinygrad")
    # Nothing is run, so the device that needs no compiler will do.
    x, y = (tinygrad.Tensor(array, device="PYTHON").realize() for array in (X, Y))

    def chain() -> Any:
        a = x
        for _ in range(LENGTH // 20):
            a = a + y
            a = a * x
        return a

    return [Line("tinygrad capture, per op", chain, LENGTH // 10)]


def collected() -> list[Line]:
    lines = weft_lines()
    for make in (torch_lines, jax_lines, tinygrad_lines):
        try:
            lines += make()
        except (ImportError, RuntimeError) as error:
            print(f"left out: {error}", file=sys.stderr)
    return lines


def measure(lines: list[Line], repeats: int) -> None:
    for line in lines:
        for _ in range(3):
            line.run()
    for _ in track(range(repeats), description="measuring"):
        for line in lines:
            for _ in range(line.calls):
                started = time.perf_counter()
                line.run()
                line.seconds.append(time.perf_counter() - started)


def show(lines: list[Line]) -> None:
    table = Table("what", "µs", title="overhead, median")
    for line in lines:
        table.add_row(line.name, f"{line.microseconds:.2f}")
    Console().print(table)
    torch = next((line for line in lines if line.name.startswith("torch")), None)
    if torch is not None:
        print(f"capture / torch eager dispatch: {lines[0].microseconds / torch.microseconds:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default=weft.default_backend())
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    weft.set_default_backend(options.backend)
    lines = collected()
    measure(lines, options.repeats)
    show(lines)


if __name__ == "__main__":
    main()
