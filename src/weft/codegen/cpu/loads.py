"""How vectors are loaded: neighbours as one, others lane by lane, and what a guard keeps out as the
value that stands there instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.codegen.cpu import ir
from weft.codegen.cpu.code import Code, Val, number
from weft.codegen.cpu.formats import Formats, number_of, storage_type
from weft.codegen.cpu.index_code import IndexCode
from weft.foundation.index_expr import Expr, Guard


@dataclass(frozen=True)
class Loads:
    """Loads of a routine, with instructions that its machine has."""

    code: Code
    indices: IndexCode
    formats: Formats
    routine: ir.Routine
    features: frozenset[str]
    pointers: Sequence[str]

    def plain(self, buffer: int, address: Expr) -> Val:
        """What is stored at an address, in every lane."""
        code, base, indices = self.code, self.pointers[buffer], self.indices
        dtype = self.routine.dtype_of(buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        step, lanes = indices.step(address), indices.lane_count
        if step in (0, 1) or lanes == 1:
            place = indices.pointer(base, kind, address)
            return code.load(kind, place, lanes if step == 1 else 1, align)
        if step == 2 and self._joins_every_second(lanes):
            place = indices.pointer(base, kind, address)
            return code.every_second(kind, place, lanes, align)
        parts = [
            code.load(kind, indices.pointer(base, kind, address, lane), 1, align)
            for lane in range(lanes)
        ]
        return code.gather_lanes(parts)

    def neighbours(self, run: ir.LoadRun, first: int, width: int, lane: int = 0) -> Val:
        """So many neighbours of a run, as they are stored: those at the beginning of the buffer
        instead, turned into the fill, where a guard fails."""
        code, indices, base = self.code, self.indices, self.pointers[run.buffer]
        dtype = self.routine.dtype_of(run.buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        if not run.guards:
            place = indices.pointer(base, kind, run.address + first, lane)
            return code.load(kind, place, width, align)
        inside = indices.inside(run.guards, lane)
        address = code.select(inside, indices.value(run.address + first, lane), number(0, "i64"))
        loaded = code.load(kind, code.pointer(base, kind, address), width, align)
        fill = self.formats.to_storage(number_of(run.fill, dtype), dtype)
        return code.select(inside, loaded, fill)

    def turns_lines(self, run: ir.LoadRun) -> bool:
        """Whether neighbours fill registers of AVX-512 that hold a transposed tile in each
        quarter."""
        size = self.routine.dtype_of(run.buffer).storage_bytes
        few = self.indices.lane_count * size == 16
        return few and "avx512f" in self.features and run.count * size % 64 == 0

    def guarded(self, load: ir.Load) -> Val:
        """Where a guard fails, element 0 is read instead and `fill` is the value: for all lanes at
        once where they are neighbours, else lane by lane."""
        code, base, indices = self.code, self.pointers[load.buffer], self.indices
        dtype = self.routine.dtype_of(load.buffer)
        kind, align = storage_type(dtype), dtype.storage_bytes
        moves = any(indices.step(guard.expr) != 0 for guard in load.guards)
        varies = moves or indices.step(load.address) != 0
        lanes = indices.lane_count if varies else 1
        fill = number_of(load.fill, dtype)
        step = indices.step(load.address)
        every_second = step == 2 and self._joins_every_second(lanes)
        together = every_second or step == 1
        if not moves and together and self._has_room(load.buffer, (step or 1) * lanes):
            inside = indices.inside(load.guards, 0)
            address = code.select(inside, indices.value(load.address), number(0, "i64"))
            place = code.pointer(base, kind, address)
            read = code.every_second if every_second else code.load
            return code.select(
                inside, self.formats.from_storage(read(kind, place, lanes, align), dtype), fill
            )
        if moves and together and self._masks(load.guards, kind):
            mask = indices.inside_lanes(load.guards)
            place = code.far_pointer(base, kind, indices.value(load.address))
            fill = self.formats.to_storage(code.spread(fill, lanes), dtype)
            read_some = code.every_second_masked if every_second else code.masked_load
            return self.formats.from_storage(read_some(kind, place, mask, fill, align), dtype)
        if step == 1 and self._moves_evenly(load.guards) and self._has_room(load.buffer, lanes):
            return self._around_the_edge(load, fill)
        return self._lane_by_lane(load, lanes, fill)

    def _around_the_edge(self, load: ir.Load, fill: Val) -> Val:
        """All lanes as neighbours, whichever of them a guard keeps out, and then the fill in place
        of these. What is read beside them lies in the buffer, but for the few vectors that begin
        before it or end behind it."""
        code, indices = self.code, self.indices
        dtype, lanes = self.routine.dtype_of(load.buffer), indices.lane_count
        kind = storage_type(dtype)
        address = indices.value(load.address)
        last = self.routine.buffers[load.buffer].elements - lanes
        beyond = code.compare("icmp ugt", address, number(last, "i64"))
        place = code.select(beyond, number(0, "i64"), address)
        pointer = code.pointer(self.pointers[load.buffer], kind, place)
        found = self.formats.from_storage(
            code.load(kind, pointer, lanes, dtype.storage_bytes), dtype
        )
        usual = code.select(indices.inside_lanes(load.guards), found, fill)
        return code.rarely(beyond, [usual], lambda: [self._lane_by_lane(load, lanes, fill)])[0]

    def _lane_by_lane(self, load: ir.Load, lanes: int, fill: Val) -> Val:
        code, base, indices = self.code, self.pointers[load.buffer], self.indices
        dtype = self.routine.dtype_of(load.buffer)
        kind, parts = storage_type(dtype), []
        for lane in range(lanes):
            inside = indices.inside(load.guards, lane)
            address = code.select(inside, indices.value(load.address, lane), number(0, "i64"))
            raw = code.load(kind, code.pointer(base, kind, address), 1, dtype.storage_bytes)
            parts.append(code.select(inside, self.formats.from_storage(raw, dtype), fill))
        return code.gather_lanes(parts) if lanes > 1 else parts[0]

    def _masks(self, guards: Sequence[Guard], kind: str) -> bool:
        """Whether one instruction loads those lanes whose guards hold, which move by a step."""
        whole = kind in ("float", "double", "i32", "i64") and self.indices.lane_count >= 4
        return "avx512f" in self.features and whole and self._moves_evenly(guards)

    def _moves_evenly(self, guards: Sequence[Guard]) -> bool:
        """Whether guards move by the same step from each lane to the next."""
        return all(self.indices.step(guard.expr) is not None for guard in guards)

    def _joins_every_second(self, lanes: int) -> bool:
        """Whether reading what lies between as well, and dropping it, is faster than lane by
        lane: one instruction takes any lanes of two vectors."""
        return "avx512f" in self.features and lanes >= 8

    def _has_room(self, buffer: int, lanes: int) -> bool:
        """Whether a vector can be read from the beginning of a buffer."""
        return buffer < len(self.routine.buffers) and self.routine.buffers[buffer].elements >= lanes
