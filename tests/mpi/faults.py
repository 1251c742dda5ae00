"""A script for two ranks: `faults.py KIND RANK` lets something happen to one of them."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import OrderedDict
from typing import Any

import numpy as np

import weft

kind, bad = sys.argv[1], int(sys.argv[2])
if os.environ.get("OMPI_COMM_WORLD_RANK") == str(bad):
    match kind:
        case "absent":
            sys.exit(0)
        case "asleep":
            time.sleep(600)
mesh = weft.mesh(data=-1)


@weft.spmd(mesh, split={"x": {0: "data"}})
def total(x: Any) -> Any:
    return weft.all_reduce(x.sum(), over="data")


@weft.spmd(mesh, split={"x": {0: "data"}})
def gathered(x: Any) -> Any:
    return weft.all_gather(x, over="data")


@weft.spmd(mesh)
def summed(x: Any) -> Any:
    scaled = {name: value * factor for name, value in x.items()}
    return weft.all_reduce(scaled, over="data")


factor = 1.0
x = np.arange(4, dtype=np.float32)
assert float(total(x)) == 6
if mesh.rank == bad:
    match kind:
        case "raise":
            raise ValueError("no data")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(0)
        case "end":
            sys.exit(0)
        case "sleep":
            time.sleep(600)
        case "mismatch":
            gathered(x).numpy()
        case "constant":
            factor = 2.0
if kind in ("constant", "order"):
    names = ["b", "a"] if kind == "order" and mesh.rank == bad else ["a", "b"]
    summed(OrderedDict((name, x) for name in names))
print(float(total(x)))
