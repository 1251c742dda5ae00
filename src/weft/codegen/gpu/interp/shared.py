"""Moves of elements between global memory, shared memory and the registers of a warp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.blocks import (
    WARP,
)
from weft.codegen.gpu.interp.elements import (
    draw_bits,
    epilogue,
    load_element,
    store_row,
    store_vectors,
)
from weft.codegen.gpu.interp.fragments import (
    matrix_rows,
)
from weft.codegen.gpu.interp.memory import (
    Array,
    from_bytes,
)
from weft.codegen.gpu.interp.products import Matrices
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes, among, is_whole
from weft.codegen.gpu.interp.values import keep
from weft.codegen.gpu.ir.formats import held_bytes
from weft.foundation.dtypes import DType
from weft.foundation.errors import InternalError

_EACH: Final = np.arange(WARP)


class Elements(Matrices):
    """A warp that loads, computes and stores elements."""

    def element(self, statement: ir.Stmt, mask: Lanes) -> None:
        memory = self.block.memory
        match statement:
            case ir.LoadElement(name=name, offset=offset, guard=guard):
                lanes = among(mask, self.value(guard))
                source = self.block.arrays[statement.buffer]
                found = load_element(source, self.value(offset), lanes, statement.fill)
                keep(self, name, statement.dtype, found)
            case ir.StMatrix(target=target, source=source_at, count=count):
                first = source_at.index
                rows = matrix_rows(self.registers[source_at.array], first, count)
                places = self.places(target)[: 8 * count]
                memory.store(places, rows, self.warp, "stmatrix")
            case ir.DrawBits():
                if not is_whole(mask):
                    raise Hazard("part of a warp draws random bits")
                draw_bits(statement, self)
            case ir.Epilogue(acc=acc, out=out):
                self.settled(acc.array)
                self.check_unread(out.array)
                epilogue(statement, self, mask)
            case ir.StShared() | ir.CountShared() | ir.StSharedVec() | ir.LoadShared():
                self.shared(statement, mask)
            case ir.LoadSharedVector() | ir.LoadStaged():
                self.shared(statement, mask)
            case ir.StGlobalVec():
                store_vectors(statement, self, mask)
            case ir.StGlobalRow(source=place, vector=vector):
                if not is_whole(mask):
                    raise Hazard("a row is stored by part of a warp")
                each = np.arange(WARP)
                count, what = 16 if vector else 4, "storing a row"
                memory.note_load(self.places(place), count, self.warp, what, each)
                store_row(statement, self, memory.load(self.places(place), count, what))
            case _:
                raise InternalError(f"no meaning for {type(statement).__name__}")

    def shared(self, statement: ir.SharedStmt, mask: Lanes) -> None:
        memory = self.block.memory
        match statement:
            case ir.StShared(target=target, source=name, dtype=dtype):
                data = self.elements[name].astype(dtype.numpy)[mask]
                rows = np.ascontiguousarray(data)[:, None].view(np.uint8)
                each = np.flatnonzero(mask)
                memory.store(self.places(target)[mask], rows, self.warp, "a store", each)
            case ir.CountShared(target=target):
                memory.count(self.places(target)[mask], self.warp)
            case ir.LoadShared(name=name, dtype=dtype, source=place):
                raw = self.read_shared(self.places(place), dtype.storage_bytes, mask)
                keep(self, name, dtype, from_bytes(raw, dtype)[:, 0])
            case ir.LoadSharedVector(names=names, dtype=dtype, source=place):
                places, word = self.places(place), held_bytes(dtype)
                if (places % (word * len(names))).any():
                    raise Hazard(f"a vector of {len(names)} words begins inside another")
                self.load_vector(names, dtype, places, word, mask)
            case ir.LoadStaged(names=names, dtype=dtype, source=place):
                size, places = dtype.storage_bytes, self.places(place)
                if (places % (size * len(names))).any():
                    raise Hazard(f"a vector of {len(names)} elements begins inside another")
                memory.note_staged(places[mask], size * len(names), self.warp)
                self.load_vector(names, dtype, places, size, mask)
            case ir.StSharedVec(target=target, source=source_at, count=count):
                first = source_at.index
                values = self.settled(source_at.array)[first : first + count]
                rows = np.ascontiguousarray(values.T).view(np.uint8)[mask]
                each = np.flatnonzero(mask)
                memory.store(self.places(target)[mask], rows, self.warp, "a store", each)

    def load_vector(
        self, names: Sequence[str], dtype: DType, places: Array, word: int, mask: Lanes
    ) -> None:
        """Elements that lie so many bytes apart, each by its name."""
        size = dtype.storage_bytes
        if word == size:
            raw = self.read_shared(places, word * len(names), mask)
            for name, found in zip(names, from_bytes(raw, dtype).T, strict=True):
                keep(self, name, dtype, found)
            return
        # What lies between them nobody has written.
        for number, name in enumerate(names):
            raw = self.read_shared(places + number * word, size, mask)
            keep(self, name, dtype, from_bytes(raw, dtype)[:, 0])

    def read_shared(self, places: Array, size: int, mask: Lanes) -> Array:
        """The bytes that each lane reads for itself; in place of lanes that do not, those of one
        that does."""
        memory = self.block.memory
        if is_whole(mask):
            return memory.load_each(places, size, self.warp, "a load", _EACH)
        each = np.flatnonzero(mask)
        memory.note_load(places[mask], size, self.warp, "a load", each)
        # A place that is read anyway: what is at that of an idle lane may not be there yet.
        return memory.load(np.where(mask, places, places[each[0]]), size, "a load")

    def shared_values(self, places: Array, dtype: DType) -> Array:
        """Values that begin at these bytes of shared memory."""
        data = self.block.memory.load(places, dtype.storage_bytes, "an epilogue")
        self.block.memory.note_load(places, dtype.storage_bytes, self.warp, "an epilogue")
        return from_bytes(data, dtype)[..., 0]
