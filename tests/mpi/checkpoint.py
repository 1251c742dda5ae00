"""A script for ranks: `checkpoint.py save|load|kill PATH`. It saves a split tensor and what all
have, loads them, or is killed while it saves others. Prints `right` where what was loaded is what
was saved."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import numpy as np

import weft
from weft.interop import checkpoints

kind, path = sys.argv[1:]
mesh = weft.mesh(data=-1)
whole = np.arange(48, dtype=np.float32).reshape(12, 4)


def tree(array: Any) -> dict[str, Any]:
    return {"w": weft.shard(array, mesh, {0: "data"}), "b": weft.asarray(array[0]), "step": 3}


def killed(mesh: Any, why: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


match kind:
    case "save":
        weft.save(path, tree(whole), mesh=mesh)
    case "kill":
        if mesh.rank == 1:
            checkpoints.together = killed
        weft.save(path, tree(-whole), mesh=mesh)
    case "load":
        found = weft.load(path, tree(0 * whole))
        assert found["w"].value.shape == (12 // mesh.count, 4)
        assert np.array_equal(found["w"].numpy(), whole)
        assert np.array_equal(found["b"].numpy(), whole[0])
        print(f"right {mesh.rank}", flush=True)
