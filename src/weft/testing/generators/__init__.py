"""How each op is added to a random program, one file per family. Importing this package fills the
table in `registry`."""

from weft.ptir.op import Op
from weft.ptir.ops import collective
from weft.ptir.ops.callback import Callback
from weft.ptir.ops.constant import CustomCall
from weft.testing.generators import (
    coarse,
    contraction,
    control,
    custom,
    elementwise,
    functions,
    idioms,
    indexing,
    linear_algebra,
    movement,
    quantisation,
    random,
    reduction,
    scheduling,
    tuples,
    window,
)
from weft.testing.generators.growth import grow
from weft.testing.generators.registry import GENERATORS, generates

NOT_GENERATED: dict[type[Op], str] = {
    CustomCall: "a call of an unknown target runs on no backend but its own",
    Callback: "a function of one process cannot be part of a program that is written down",
    **dict.fromkeys(
        (
            collective.AllReduce,
            collective.AllGather,
            collective.ReduceScatter,
            collective.AllToAll,
            collective.CollectivePermute,
            collective.CollectiveBroadcast,
            collective.Rank,
            collective.MarkVarying,
            collective.AssertSame,
        ),
        "a program for several ranks needs as many to run it",
    ),
    collective.Reshard: "it names axes of a mesh, and a program alone has none",
}
"""Ops without a generator, and why."""

__all__ = [
    "GENERATORS",
    "NOT_GENERATED",
    "coarse",
    "contraction",
    "control",
    "custom",
    "elementwise",
    "functions",
    "generates",
    "grow",
    "idioms",
    "indexing",
    "linear_algebra",
    "movement",
    "quantisation",
    "random",
    "reduction",
    "scheduling",
    "tuples",
    "window",
]
