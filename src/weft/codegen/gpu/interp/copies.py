"""Barriers, TMA and asynchronous copies as the interpreter runs them for a warp."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.blocks import (
    WARP,
    Block,
    Copy,
    Timing,
    Warp,
)
from weft.codegen.gpu.interp.elements import (
    in_range,
    load_element,
)
from weft.codegen.gpu.interp.memory import (
    COPY_LINE,
    Array,
    Mbarrier,
    as_bytes,
    box_elements,
    box_places,
    window_elements,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes, among, each_lane


class Copies(Warp):
    """A warp that asks for copies."""

    def mbarrier(
        self, statement: ir.MbarrierInit | ir.MbarrierExpectTx | ir.MbarrierArrive, mask: Lanes
    ) -> None:
        lanes, races = int(mask.sum()), self.block.memory.races
        match statement:
            case ir.MbarrierInit(barriers=name):
                found = next(a for a in self.block.kernel.barriers if a.name == name)
                self.block.barriers[name] = [Mbarrier(found.arrivals) for _ in range(found.count)]
            case ir.MbarrierExpectTx(barrier=barrier, bytes=count):
                known = races.release(self.warp)
                for lane in each_lane(mask):
                    found_barrier = self.barrier(barrier, lane)
                    # Expected before it arrives: were it the other way round, the phase could end
                    # with no byte expected.
                    found_barrier.expect(count)
                    found_barrier.arrive(1, barrier.barriers, known, self.block.number)
            case ir.MbarrierArrive(barrier=barrier, everywhere=everywhere):
                known = races.release(self.warp)
                for block in self.blocks(everywhere=everywhere):
                    reached = self.barrier(barrier, mask, block)
                    reached.arrive(lanes, barrier.barriers, known, self.block.number)

    def copy_engine(
        self,
        statement: ir.TmaLoad | ir.BulkLoad | ir.TmaStore | ir.TmaCommit | ir.TmaWaitRead,
        mask: Lanes,
    ) -> None:
        if isinstance(statement, ir.BulkLoad):
            for lane in each_lane(mask):
                self.bulk_load(statement, lane)
            return
        if mask.sum() != 1:
            raise Hazard(f"{type(statement).__name__} is issued by {int(mask.sum())} lanes")
        match statement:
            case ir.TmaLoad():
                self.tma_load(statement, mask)
            case ir.TmaStore():
                self.stores_open.append(self.tma_store(statement, mask))
            case ir.TmaCommit():
                self.stores.append(self.stores_open)
                self.stores_open = []
            case ir.TmaWaitRead(pending=pending):
                while len(self.stores) > pending:
                    for store in self.stores.pop(0):
                        store()

    def tma_load(self, statement: ir.TmaLoad, mask: Lanes) -> None:
        found = self.block.kernel.map(statement.map)
        coords = tuple(self.one(c, mask) for c in statement.coords)
        if found.window is None:
            offsets, inside = box_elements(found, coords)
        else:
            taps = tuple(self.one(tap, mask) for tap in statement.taps)
            offsets, inside = window_elements(found, coords, taps)
        source = self.block.arrays[found.buffer]
        in_range(source, offsets[inside])
        # What is outside of the tensor is brought as zeros.
        data = np.where(inside, source[np.where(inside, offsets, 0)], source.dtype.type(0))
        places = box_places(found, self.address(statement.target, mask))
        for block in self.blocks(everywhere=statement.everywhere):
            self.copy(places, as_bytes(data), self.barrier(statement.barrier, mask, block), block)

    def bulk_load(self, statement: ir.BulkLoad, mask: Lanes) -> None:
        first = self.one(statement.offset, mask)
        start = self.address(statement.target, mask)
        size = statement.dtype.storage_bytes
        if first * size % COPY_LINE or start % COPY_LINE:
            raise Hazard("a copy begins at an address that is not a whole line of 16 bytes")
        source = self.block.arrays[statement.buffer]
        index = first + np.arange(statement.count)
        in_range(source, index)
        places = start + np.arange(statement.count * size)
        self.block.memory.check_loaded(self.block.memory.places(places, 1))
        self.copy(places, as_bytes(source[index]), self.barrier(statement.barrier, mask))

    def copy(
        self, places: Array, data: Array, barrier: Mbarrier, block: Block | None = None
    ) -> None:
        """Bytes that the copy engine brings to a block, now or later."""
        block = block or self.block
        block.memory.places(places, 1)
        if np.count_nonzero(block.memory.awaited[places]):
            raise Hazard("two copies write the same shared memory")
        if block is self.block:
            block.memory.announce(places, self.warp)
        else:
            block.memory.announce_from_afar(places, self.afar.get(block.number))
        block.expect(Copy(places, data, barrier))

    def tma_store(self, statement: ir.TmaStore, mask: Lanes) -> Callable[[], None]:
        found = self.block.kernel.map(statement.map)
        coords = tuple(self.one(c, mask) for c in statement.coords)
        offsets, inside = box_elements(found, coords)
        places = box_places(found, self.address(statement.source, mask))
        memory, target = self.block.memory, self.block.arrays[found.buffer]
        # The copy engine does not see plain stores until a proxy fence has ordered them.
        memory.check_fenced(places, "a store by the copy engine")
        memory.note_load(places, 1, self.warp, "a store by the copy engine")

        # Read when the store is waited for, at the latest: what is written there before is what
        # would be stored by mistake.
        def store() -> None:
            memory.note_load(places, 1, self.warp, "a store by the copy engine")
            data = memory.bytes[places].view(target.dtype).reshape(offsets.shape)
            target[offsets[inside]] = data[inside]

        if self.block.timing is Timing.EARLY:
            store()
            return lambda: None
        return store

    def cp_async(self, statement: ir.CpAsync, mask: Lanes) -> None:
        guard = among(mask, self.value(statement.guard))
        offsets = np.broadcast_to(np.asarray(self.value(statement.offset)), (WARP,))
        source = self.block.arrays[statement.buffer].view(np.uint8)
        size = statement.bytes
        if guard.any() and (offsets[guard] % size).any():
            raise Hazard(
                f"an asynchronous copy begins at an address that is not a multiple of {size}"
            )
        index = np.where(guard, offsets, 0)[:, None] + np.arange(size)
        in_range(source, index[guard])
        data = np.where(guard[:, None], source[index], 0).astype(np.uint8)[mask]
        places = self.block.memory.places(self.places(statement.target)[mask], size)
        if np.count_nonzero(self.block.memory.awaited[places]):
            raise Hazard("two copies write the same shared memory")
        self.block.memory.announce(places, self.warp)
        if self.block.timing is Timing.EARLY:
            self.block.memory.arrive(places, data)
        self.copies_open.append((places, data, np.flatnonzero(mask)))

    def gather(self, statement: ir.Gather, mask: Lanes) -> None:
        source = self.block.arrays[statement.buffer]
        guard = among(mask, self.value(statement.guard))
        limit = np.broadcast_to(np.asarray(self.value(statement.limit)), (WARP,))
        start = np.asarray(self.value(statement.offset))
        columns = [
            load_element(source, start + i * statement.step, guard & (limit > i), 0)
            for i in range(statement.count)
        ]
        rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)[mask]
        self.block.memory.store(self.places(statement.target)[mask], rows, self.warp, "a gather")
