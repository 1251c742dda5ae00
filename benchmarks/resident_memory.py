"""Resident memory over many compilations: whether what is dropped is given back.

    python benchmarks/resident_memory.py [--count 5000] [--same]

Every program is another one, of other sizes and constants, compiled, run and dropped; with `--same`
it is one program, whose machine code comes from the disk. Printed is the memory after every tenth
of them, once the caches of the process are empty, and how much each program left after the third:
until then the process settles, by some megabytes. A few hundred kilobytes more or less are
Python's: it gives memory back by the megabyte, and only those in which nothing is alive.

A program of two kernels leaves about 2 kB, and none of it is Weft's: no object and no block of
Python is left. 1.6 kB of it are in use, counted by the C library: 1.2 kB are what llvmlite notes
with every run of passes and never gives back, the rest what stays behind of each of its builders
(`_MOST_MODULES` in `weft.runtime.jit`). What is between them is free, and too small to be used.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
from pathlib import Path

import numpy as np

import weft
from weft.driver.compile import compile_program
from weft.ptir import Builder, Program

PARTS = 10
SETTLED = 3
"""After so many of them what a program leaves is counted."""
ALLOWED = 2.5
"""Kilobytes that a program may leave: llvmlite's, and what the process needs for other reasons."""


def resident() -> float:
    """Resident memory in kilobytes, after a collection."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def program(number: int) -> Program:
    """Kernels of their own, with sizes and constants of their own."""
    b = Builder("resident")
    x = b.param("f32", shape(number))
    return b.build(b.reduce_sum(x * float(number) + 1.0, [1]), b.tanh(x - float(number)))


def shape(number: int) -> tuple[int, int]:
    return 4 + number % 64, 8 + number // 64


def once(number: int) -> None:
    compile_program(program(number))(np.ones(shape(number), np.float32))


def measure(count: int, same: bool) -> float:
    """The kilobytes that a program leaves, once the process has settled."""
    each = max(1, count // PARTS)
    found: list[float] = []
    for part in range(PARTS):
        for number in range(part * each, (part + 1) * each):
            once(0 if same else number)
        weft.clear_caches()
        found.append(resident())
        print(f"{(part + 1) * each:>6} programs  {found[-1] / 1024:8.1f} MB", flush=True)
    return (found[-1] - found[SETTLED - 1]) / (each * (PARTS - SETTLED))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--same", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WEFT_CACHE"] = folder
        left = measure(options.count, options.same)
    verdict = "no more than" if left < ALLOWED else "MORE than"
    print(f"{left:.2f} kB left by each program: {verdict} the {ALLOWED} kB that are allowed")


if __name__ == "__main__":
    main()
