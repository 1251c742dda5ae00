"""Stores as LLVM code: a vector at once where its lanes are neighbours, two where they are every
second element and some lanes of a vector can be stored, else lane by lane; only the lanes whose
guards hold, where there are guards.
"""

from __future__ import annotations

from weft.codegen.cpu import ir
from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.formats import storage_type
from weft.codegen.cpu.index_code import IndexCode
from weft.foundation.dtypes import DType


def write_store(
    code: Code,
    indices: IndexCode,
    store: ir.Store,
    value: Val,
    base: str,
    dtype: DType,
    *,
    masks: bool,
) -> None:
    """A value as it is stored, written to where a store says. With `masks`, one instruction stores
    some lanes of a vector."""
    kind, align = storage_type(dtype), dtype.storage_bytes
    step = indices.step(store.address)
    one = indices.lanes is None or (step == 0 and value.lanes == 1)
    if not store.guards and (one or step == 1):
        value = value if one else code.spread(value, indices.lane_count)
        code.store(value, indices.pointer(base, kind, store.address), align)
        return
    lanes = 1 if one else indices.lane_count
    value = code.spread(value, lanes)
    if lanes > 1 and step == 1 and _move_evenly(indices, store):
        place = code.far_pointer(base, kind, indices.value(store.address))
        code.masked_store(value, place, indices.inside_lanes(store.guards), align)
        return
    if lanes > 1 and step == 2 and masks and not store.guards:
        _store_every_second(code, value, indices.pointer(base, kind, store.address), align)
        return
    for lane in range(lanes):
        _store_lane(code, indices, store, code.lane(value, lane), base, lane, align)


def _move_evenly(indices: IndexCode, store: ir.Store) -> bool:
    return all(indices.step(guard.expr) is not None for guard in store.guards)


def _store_lane(
    code: Code, indices: IndexCode, store: ir.Store, value: Val, base: str, lane: int, align: int
) -> None:
    def write() -> None:
        code.store(value, indices.pointer(base, value.scalar, store.address, lane), align)

    if store.guards:
        code.when(indices.inside(store.guards, lane), write)
    else:
        write()


def _store_every_second(code: Code, value: Val, pointer: str, align: int) -> None:
    """Lanes to elements 0, 2, 4, ... and nothing between them: each half of the lanes is spread
    over a vector, of which every second lane is stored."""
    kind, lanes = value.scalar, value.lanes
    mask = Val("<" + ", ".join(f"i1 {1 - lane % 2}" for lane in range(lanes)) + ">", "i1", lanes)
    for first in (0, lanes // 2):
        taken = ", ".join(f"i32 {first + n // 2}" for n in range(lanes))
        spread = f"shufflevector {value}, {value.type} poison, <{lanes} x i32> <{taken}>"
        place = code.pointer(pointer, kind, number(2 * first, "i64"))
        code.masked_store(code.assign(spread, kind, lanes), place, mask, align)
