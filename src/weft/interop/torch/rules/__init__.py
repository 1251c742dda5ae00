"""What every op of ATen is in Weft's functions.

A rule takes tensors of Weft and settings, with the names and the order that torch has for them, and
gives tensors of Weft. So its gradient, its batches and every backend are those of the functions it
is written in. Nothing here knows torch: ops have names (`aten.add.Tensor`, or `aten.add` for every
overload).
"""

from weft.interop.torch.rules import (
    attention,
    casts,
    convolutions,
    creation,
    indices,
    layers,
    matrices,
    numbers,
    pools,
    randoms,
    recurrent,
    reductions,
    resampling,
    shapes,
)
from weft.interop.torch.rules.table import found, rule

PARTS = (
    attention, casts, convolutions, creation, indices, layers, matrices, numbers, pools, randoms,
    recurrent, reductions, resampling, shapes,
)  # fmt: skip
"""The files of rules, which fill the table when they are imported."""

__all__ = ["PARTS", "found", "rule"]
