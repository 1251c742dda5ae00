"""What ranks exchange. A process of StableHLO, a replica and a partition, is rank
`replica * partitions + partition`; the three readings of groups become lists of ranks here.

A manual computation of Shardy takes values that are the same on all ranks: each takes its part, and
what they make is gathered again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from weft.foundation.mesh import Mesh
from weft.interop.stablehlo.reading.reductions import (
    folded_in_order,
    identity_of,
    kind_of,
    run_on_tensors,
)
from weft.interop.stablehlo.reading.site import Lowering, Results, Site
from weft.interop.stablehlo.records import MESHES, RANKS
from weft.ptir.builder import Value

Groups: TypeAlias = list[list[int]]
_REDUCTIONS: Final = {"sum": "sum", "prod": "prod", "min": "min", "max": "max", "any": "sum",
                      "all": "prod"}  # fmt: skip
"""What a region computes, as a reduction over ranks; on i1 sums are or, and products and."""
_SHARDING: Final = re.compile(r"<@([\w.$-]+), \[([^\]]*)\]([^>]*)>")
_DIM: Final = re.compile(r"\{([^}]*)\}")
_NAME: Final = re.compile(r'"([^"]*)"')


def _ranks(at: Site) -> tuple[int, int]:
    """How many replicas and partitions run the module."""
    replicas, partitions = at.attr(RANKS)
    return replicas, partitions


def _rank_count(at: Site) -> int:
    replicas, partitions = _ranks(at)
    return int(replicas * partitions)


def _group_table(at: Site, name: str) -> Groups:
    table = at.attr(name)
    if not isinstance(table, np.ndarray) or table.ndim != 2:
        at.refuse(f"its {name} are not a table of numbers")
    return [[int(number) for number in row if number >= 0] for row in table]


def _process_groups(at: Site, rows: Groups, *, both: bool) -> Groups:
    """Groups of replicas or of partitions as groups of ranks; with `both`, of all partitions of
    some replicas, or of ranks as they are."""
    replicas, partitions = _ranks(at)
    rows = rows or [list(range(replicas))]
    channel = int(at.fields("channel_handle").get("handle", 0))
    if channel <= 0:
        found = [[r * partitions + p for r in row] for p in range(partitions) for row in rows]
    elif not both:
        found = [[r * partitions + p for p in row] for r in range(replicas) for row in rows]
    elif at.attr("use_global_device_ids") is None:
        found = [[r * partitions + p for p in range(partitions) for r in row] for row in rows]
    else:
        found = rows
    largest = max((rank for group in found for rank in group), default=0)
    if largest >= replicas * partitions:
        raise at.violation(
            f"its groups name rank {largest}, and the module is for {replicas} replicas of "
            f"{partitions} partitions; mhlo.num_replicas and mhlo.num_partitions say how many"
        )
    return found


def _even_groups(at: Site, groups: Groups) -> dict[str, Any] | None:
    """Groups as attributes, where they have one size and name every rank."""
    sizes = {len(group) for group in groups}
    flat = [rank for group in groups for rank in group]
    if len(sizes) != 1 or sorted(flat) != list(range(_rank_count(at))):
        return None
    return {"groups": flat, "size": sizes.pop(), "line": at.op.place}


def _require_even(at: Site, groups: Groups) -> dict[str, Any]:
    found = _even_groups(at, groups)
    if found is None:
        at.refuse(f"its groups {groups} do not have one size, or do not name each rank once")
    return found


def _everyone(at: Site) -> dict[str, Any]:
    count = _rank_count(at)
    return {"groups": list(range(count)), "size": count, "line": at.op.place}


def _of_rank(at: Site, numbers: Sequence[int]) -> Value:
    """The number of the rank that runs the program."""
    return at.b.emit("mesh_rank", numbers=list(numbers))


def _rows_of_all(at: Site, x: Value, groups: Mapping[str, Any]) -> Value:
    """A row of each member's operand."""
    row = at.b.reshape(x, (1, *x.shape))
    return at.b.emit("all_gather", row, **groups, axis=0)


# -- operations ----------------------------------------------------------------------------------


def _all_reduce(at: Site) -> Results:
    groups = _process_groups(at, _group_table(at, "replica_groups"), both=True)
    even = _even_groups(at, groups)
    return [_reduce_operand(at, x, index, groups, even) for index, x in enumerate(at.x)]


def _reduce_operand(
    at: Site, operand: Value, index: int, groups: Groups, even: Mapping[str, Any] | None
) -> Value:
    block, dtype = at.op.blocks[0], at.result(index).dtype
    x = operand if operand.dtype is dtype else at.b.cast(operand, dtype)
    kind = kind_of(block, dtype)
    if even is None:
        return _reduced_unevenly(at, x, kind, groups)
    if kind:
        return at.b.emit("all_reduce", x, **even, fn=_REDUCTIONS[kind])
    rows = _rows_of_all(at, x, even)
    return _fold_rows(at, rows)


def _fold_rows(at: Site, rows: Value) -> Value:
    """Rows put together in order by the region of an operation."""

    def combine(left: Sequence[Value], right: Sequence[Value]) -> list[Value]:
        return run_on_tensors(at, at.op.blocks[0], [*left, *right])

    return folded_in_order(at, [rows], [0], combine)[0]


def _reduced_unevenly(at: Site, x: Value, kind: str, groups: Groups) -> Value:
    """Groups of different sizes: all ranks send to all, and each takes the members of its own."""
    if not kind:
        at.refuse(f"its groups {groups} differ in size, and its region is none that has a name")
    count = _rank_count(at)
    mates = np.zeros((count, count), bool)
    for group in groups:
        mates[np.ix_(group, group)] = True
    rows = _rows_of_all(at, x, _everyone(at))
    mine = at.b.take(at.b.constant(mates), _of_rank(at, range(count)))
    mask = at.b.broadcast_to(at.b.reshape(mine, (count, *(1 for _ in x.shape))), rows.shape)
    nothing = at.full(identity_of(kind, x.dtype), rows)
    return at.b.emit(f"reduce_{kind}", at.b.select(mask, rows, nothing), axes=[0])


def _all_gather(at: Site) -> Results:
    groups = _require_even(at, _process_groups(at, _group_table(at, "replica_groups"), both=True))
    axis = int(at.attr("all_gather_dim"))
    return [at.b.emit("all_gather", x, **groups, axis=axis) for x in at.x]


def _reduce_scatter(at: Site) -> Results:
    groups = _require_even(at, _process_groups(at, _group_table(at, "replica_groups"), both=True))
    axis, dtype = int(at.attr("scatter_dimension")), at.result().dtype
    x = at.x[0] if at.x[0].dtype is dtype else at.b.cast(at.x[0], dtype)
    kind = kind_of(at.op.blocks[0], dtype)
    if kind:
        return at.b.emit("reduce_scatter", x, **groups, axis=axis, fn=_REDUCTIONS[kind])
    row = at.b.reshape(x, (1, *x.shape))
    return _fold_rows(at, at.b.emit("all_to_all", row, **groups, split=axis + 1, concat=0))


def _all_to_all(at: Site) -> Results:
    groups = _require_even(at, _process_groups(at, _group_table(at, "replica_groups"), both=False))
    if int(at.attr("split_count")) != groups["size"]:
        raise at.violation(
            f"its split_count is {at.attr('split_count')}, and a group has {groups['size']} ranks"
        )
    cut, joined = (int(at.attr(f"{name}_dimension")) for name in ("split", "concat"))
    return [at.b.emit("all_to_all", x, **groups, split=cut, concat=joined) for x in at.x]


def _collective_permute(at: Site) -> Results:
    pairs = _process_groups(at, _group_table(at, "source_target_pairs"), both=False)
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    attrs = {**_everyone(at), "sources": sources, "targets": targets}
    return [at.b.emit("collective_permute", x, **attrs) for x in at.x]


def _collective_broadcast(at: Site) -> Results:
    groups = _process_groups(at, _group_table(at, "replica_groups"), both=False)
    if at.attr("has_dynamic_root") is not None:
        at.refuse("the rank it comes from is known only at run time")
    even = _even_groups(at, groups)
    if even is not None:
        return [at.b.emit("collective_broadcast", x, **even) for x in at.x]
    return [_broadcast_to_some(at, x, groups) for x in at.x]


def _broadcast_to_some(at: Site, x: Value, groups: Groups) -> Value:
    """Groups that leave ranks out, or differ in size: all send to all. Those left out get zeros."""
    sources = [-1] * _rank_count(at)
    for group in groups:
        for rank in group:
            sources[rank] = group[0]
    rows = _rows_of_all(at, x, _everyone(at))
    taken = at.b.take(rows, _of_rank(at, [max(source, 0) for source in sources]))
    named = _of_rank(at, [int(source >= 0) for source in sources]) == at.b.literal(1, "si64")
    return at.b.select(at.b.broadcast_to(named, x.shape), taken, at.full(0, x))


def _id(at: Site) -> Value:
    """The number of the replica or the partition that runs the module."""
    replicas, partitions = _ranks(at)
    of_replica = at.op.name == "replica_id"
    if (replicas if of_replica else partitions) == 1:
        return at.b.literal(0, at.result().dtype)
    ranks = range(replicas * partitions)
    numbers = [rank // partitions if of_replica else rank % partitions for rank in ranks]
    return at.b.cast(_of_rank(at, numbers), at.result().dtype)


# -- manual computations -------------------------------------------------------------------------


def _manual_computation(at: Site) -> Results:
    manual = set(_NAME.findall(str(at.attr("manual_axes"))))
    given = _shardings(at, "in_shardings", manual)
    parts = [_slice_for_rank(at, x, *split) for x, split in zip(at.x, given, strict=True)]
    made = at.reader.inline(at.b, at.op.blocks[0], parts, at.env)
    splits = _shardings(at, "out_shardings", manual)
    return [_gather_parts(at, x, *split) for x, split in zip(made, splits, strict=True)]


_Split: TypeAlias = tuple[Mesh | None, dict[int, tuple[str, ...]]]


def _shardings(at: Site, name: str, manual: set[str]) -> list[_Split]:
    """For each value the mesh, and the axes of the mesh along which an axis of it is split."""
    text = str(at.attr(name))
    found = [_read_sharding(at, one, manual) for one in _SHARDING.finditer(text)]
    wanted = len(at.op.operands if name == "in_shardings" else at.op.results)
    if len(found) != wanted or ":(" in text:
        at.refuse(f"its {name} split an axis of the mesh, or name no mesh of the module")
    return found


def _read_sharding(at: Site, text: re.Match[str], manual: set[str]) -> _Split:
    mesh, dims, rest = text.groups()
    if "unreduced" in rest:
        at.refuse("a value of it is a sum that was not made yet")
    axes = at.attr(MESHES).get(mesh)
    names = [tuple(n for n in _NAME.findall(d) if n in manual) for d in _DIM.findall(dims)]
    split = {axis: over for axis, over in enumerate(names) if over}
    if not split:
        return None, {}
    found = Mesh(axes) if axes else None
    if found is None or found.count != _rank_count(at):
        at.refuse(
            f"the mesh @{mesh} has not the {_rank_count(at)} ranks of the module, in their order"
        )
    return found, split


def _slice_for_rank(
    at: Site, x: Value, mesh: Mesh | None, split: Mapping[int, tuple[str, ...]]
) -> Value:
    """A rank's part of what all have."""
    if mesh is None:
        return x
    sizes = list(at.static(x))
    starts = [at.b.constant(np.zeros(1, np.int64)) for _ in sizes]
    for axis, over in split.items():
        sizes[axis] //= mesh.size(over)
        place = _of_rank(at, mesh.places(over)) * sizes[axis]
        starts[axis] = at.b.reshape(place, (1,))
    return at.b.dynamic_slice(x, at.joined(starts, 0), sizes=sizes)


def _gather_parts(
    at: Site, x: Value, mesh: Mesh | None, split: Mapping[int, tuple[str, ...]]
) -> Value:
    """What all ranks have made, on each of them."""
    if mesh is not None:
        for axis, over in split.items():
            x = at.b.emit("all_gather", x, **mesh.groups(over), axis=axis, line=at.op.place)
    return x


COLLECTIVES: Final[Mapping[str, Lowering]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _collective_permute,
    "collective_broadcast": _collective_broadcast,
    "partition_id": _id,
    "replica_id": _id,
    "sdy.manual_computation": _manual_computation,
}
