"""Matrix instructions: what their statements do to a warp."""

from __future__ import annotations

from weft.codegen.gpu import ir
from weft.codegen.gpu.interp.blocks import (
    Pending,
    Timing,
)
from weft.codegen.gpu.interp.copies import Copies
from weft.codegen.gpu.interp.fragments import (
    apply_mma,
    apply_wgmma,
    load_matrices,
    operand_places,
)
from weft.codegen.gpu.interp.memory import (
    Array,
    from_bytes,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes
from weft.codegen.gpu.swizzle import descriptor


class Matrices(Copies):
    """A warp that multiplies matrices."""

    def wgmma(self, statement: ir.Stmt, mask: Lanes) -> None:
        if not mask.all():
            raise Hazard("a matrix instruction is reached by part of a warp")
        match statement:
            case ir.Descriptor(name=name, layout=layout, major=major):
                start = self.one(self.address(statement.address), mask)
                self.descriptors[name] = (start, descriptor(layout, major))
            case ir.Wgmma():
                self.matrix_open.append(self.issue(statement))
            case ir.WgmmaCommit():
                self.matrix.append(self.matrix_open)
                self.matrix_open = []
            case ir.WgmmaWait(pending=pending):
                while len(self.matrix) > pending:
                    for instruction in self.matrix.pop(0):
                        self.multiply(instruction)

    def issue(self, statement: ir.Wgmma) -> Pending:
        sides = ((statement.a, 64), (statement.b, statement.n))
        size = statement.a_dtype.storage_bytes
        a, b = (
            operand_places(*self.descriptors[side.descriptor], side.offset, side.major, count, size)
            for side, count in sides
        )
        # The warp's own rows of A, all of B.
        rows = a[16 * (self.warp % 4) : 16 * (self.warp % 4) + 16]
        pending = Pending(statement, rows, b)
        for places in (rows, b):
            self.block.memory.load(places, size, "a matrix instruction")
            self.block.memory.check_fenced(places, "a matrix instruction")
        if self.block.timing is Timing.EARLY:
            self.multiply(pending)
        return pending

    def multiply(self, pending: Pending) -> None:
        if pending.done:
            return
        pending.done = True
        memory, statement = self.block.memory, pending.statement
        what, size = "a matrix instruction", statement.a_dtype.storage_bytes
        a, b = (memory.load(places, size, what) for places in (pending.a_places, pending.b_places))
        for places in (pending.a_places, pending.b_places):
            memory.note_load(places, size, self.warp, what)
        dtypes = (statement.a_dtype, statement.b_dtype)
        acc = self.registers[statement.acc]
        apply_wgmma(acc, (a, b), dtypes, accumulate=statement.accumulate)

    def settled(self, array: str) -> Array:
        """A register array that no matrix instruction is still going to write."""
        groups = [*self.matrix, self.matrix_open]
        if any(p.statement.acc == array for group in groups for p in group):
            raise Hazard(f"{array} is used while matrix instructions write it")
        return self.registers[array]

    def sm80(self, statement: ir.Stmt, mask: Lanes) -> None:
        match statement:
            case ir.CpAsync():
                self.cp_async(statement, mask)
            case ir.CommitGroup():
                self.copies.append(self.copies_open)
                self.copies_open = []
            case ir.WaitGroup(pending=pending):
                while len(self.copies) > pending:
                    for places, data in self.copies.pop(0):
                        self.block.memory.arrive(places, data)
            case ir.LdMatrix(target=target, source=source, transposed=transposed):
                rows = self.block.memory.load(self.places(source), 16, "ldmatrix")
                self.block.memory.note_load(self.places(source), 16, self.warp, "ldmatrix")
                first = target.index
                load_matrices(self.registers[target.array], first, rows, transposed=transposed)
            case ir.LdRegister(target=target, source=source, dtype=dtype):
                size, places = dtype.storage_bytes, self.places(source)
                raw = self.block.memory.load(places, size, "a fragment's load")
                self.block.memory.note_load(places, size, self.warp, "a fragment's load")
                self.registers[target.array][target.index] = from_bytes(raw, dtype)[:, 0]
            case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
                at = [part.index for part in (acc, a, b)]
                arrays = [self.registers[part.array] for part in (acc, a, b)]
                apply_mma(arrays, at, (a_dtype, b_dtype))
            case ir.Gather():
                self.gather(statement, mask)
