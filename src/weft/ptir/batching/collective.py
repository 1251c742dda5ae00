"""The rules of collectives: the ranks meet once for the whole batch."""

from __future__ import annotations

from dataclasses import replace

from weft.foundation.axes import normalise_axis
from weft.ptir.batching.rules import Batching, batches
from weft.ptir.op_rules import op_as
from weft.ptir.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    AssertSame,
    CollectiveBroadcast,
    CollectivePermute,
    MarkVarying,
    ReduceScatter,
    Reshard,
)
from weft.ptir.term import Term


@batches(AllReduce, CollectivePermute, CollectiveBroadcast, MarkVarying, AssertSame)
def on_each_rank(b: Batching) -> Term:
    return b.emit(b.op, b.operands[0])


@batches(Reshard)
def reshard(b: Batching) -> Term:
    return b.emit(Reshard(("", *op_as(b, Reshard).axes)), b.operands[0])


@batches(AllGather)
def all_gather(b: Batching) -> Term:
    op = op_as(b, AllGather)
    return b.emit(replace(op, axis=_further(b, op.axis)), b.operands[0])


@batches(ReduceScatter)
def reduce_scatter(b: Batching) -> Term:
    op = op_as(b, ReduceScatter)
    return b.emit(replace(op, axis=_further(b, op.axis)), b.operands[0])


@batches(AllToAll)
def all_to_all(b: Batching) -> Term:
    op = op_as(b, AllToAll)
    split, concat = _further(b, op.split), _further(b, op.concat)
    return b.emit(replace(op, split=split, concat=concat), b.operands[0])


def _further(b: Batching, axis: int) -> int:
    return normalise_axis(axis, len(b.shape(0))) + 1
