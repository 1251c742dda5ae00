"""Stores as LLVM code: a vector at once where its lanes are neighbours, else lane by lane; only the
lanes whose guards hold, where there are guards.
"""

from __future__ import annotations

from weft.codegen.cpu import ir
from weft.codegen.cpu.code import Code, Val, type_of
from weft.codegen.cpu.formats import storage_type
from weft.codegen.cpu.index_code import IndexCode
from weft.foundation.dtypes import DType

_SUFFIX = {"float": "f32", "double": "f64"}


def write_store(
    code: Code, indices: IndexCode, store: ir.Store, value: Val, base: str, dtype: DType
) -> None:
    """A value as it is stored, written to where a store says."""
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
        _masked_store(code, value, place, indices.inside_lanes(store.guards), align)
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


def _masked_store(code: Code, value: Val, place: str, mask: Val, align: int) -> None:
    """The lanes of a vector for which a mask holds."""
    scalar = _SUFFIX.get(value.scalar, value.scalar)
    name = f"llvm.masked.store.v{value.lanes}{scalar}.p0"
    kind = type_of(value.scalar, value.lanes)
    code.declared[name] = f"declare void @{name}({kind}, ptr, i32, {mask.type})"
    code.line(f"call void @{name}({value}, ptr {place}, i32 {align}, {mask})")
