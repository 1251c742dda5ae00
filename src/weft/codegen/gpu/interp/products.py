"""Matrix instructions (wgmma, mma.sync) as the interpreter runs them for a warp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
    register_matrix,
)
from weft.codegen.gpu.interp.memory import (
    Array,
    from_bytes,
)
from weft.codegen.gpu.interp.races import Hazard
from weft.codegen.gpu.interp.scalars import Lanes, is_whole
from weft.codegen.gpu.interp.values import keep
from weft.codegen.gpu.ir.formats import SMALL
from weft.codegen.gpu.ir.swizzle import descriptor
from weft.foundation import functions
from weft.foundation.dtypes import F32, DType


class Matrices(Copies):
    """A warp that multiplies matrices."""

    def wgmma(self, statement: ir.Stmt, mask: Lanes) -> None:
        if not is_whole(mask):
            raise Hazard("a matrix instruction is reached by part of a warp")
        match statement:
            case ir.Descriptor(name=name, layout=layout, major=major):
                start = self.address(statement.address, mask)
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
        size = statement.a_dtype.storage_bytes
        rows = None
        if isinstance(statement.a, ir.WgmmaOperand):
            # The warp's own rows of A, all of B.
            rows = self.operand(statement.a, 64, size)[16 * (self.warp % 4) :][:16]
        pending = Pending(statement, rows, self.operand(statement.b, statement.n, size))
        for places in (rows, pending.b_places):
            if places is not None:
                self.block.memory.check_readable(places, size, "a matrix instruction")
        if self.block.timing is Timing.EARLY:
            self.multiply(pending)
        return pending

    def operand(self, side: ir.WgmmaOperand, count: int, size: int) -> Array:
        """The shared bytes at which elements of an operand begin."""
        start, bits = self.descriptors[side.descriptor]
        return operand_places(start, bits, side.offset, side.major, count, size)

    def multiply(self, pending: Pending) -> None:
        # Issued early, and waited for like the others.
        if pending.done:
            return
        pending.done = True
        statement = pending.statement
        b = self.factor(pending.b_places, statement.b_dtype)
        if isinstance(statement.a, ir.RegAt):
            held = self.registers[statement.a.array][statement.a.index :][:4]
            a = register_matrix(held, statement.a_dtype, bands=2)
        else:
            assert pending.a_places is not None
            a = self.factor(pending.a_places, statement.a_dtype)
        acc = self.registers[statement.acc]
        apply_wgmma(acc, (a, b), statement.a_dtype, accumulate=statement.accumulate)

    def factor(self, places: Array, dtype: DType) -> Array:
        """The [outer, k] elements of an operand in shared memory."""
        memory, what, size = self.block.memory, "a matrix instruction", dtype.storage_bytes
        # Read when the instruction is carried out, which may be as late as the wait for it.
        found = memory.load(places, size, what)
        memory.note_load(places, size, self.warp, what)
        return from_bytes(found, dtype)[..., 0].astype(np.float32)

    def add_registers(self, statement: ir.AddRegisters, mask: Lanes) -> None:
        total, part = self.registers[statement.target], self.settled(statement.source)
        total[...] = (0 if statement.first else total) + part
        if statement.clear:
            part[...] = 0

    def add_shifted(self, statement: ir.AddShifted) -> None:
        """Panels as matrices: 8 groups of a pair of columns of each lane of a quad."""
        total, part = self.settled(statement.target), self.settled(statement.source)
        columns = part.reshape(-1, 8, 2, 2, 8, 4).transpose(0, 2, 4, 1, 5, 3)
        lines = np.pad(columns.reshape(-1, 64), ((0, 0), (1, 1)))
        # A panel is 64 columns; a column that is moved in from beyond it is zero.
        moved = lines[:, 1 + statement.by :][:, :64].reshape(columns.shape)
        total += moved.transpose(0, 3, 1, 5, 2, 4).reshape(total.shape)

    def pool_pairs(self, statement: ir.PoolPairs) -> None:
        pairs = self.settled(statement.source).reshape(2, -1, 2, 32).max(axis=(0, 2))
        for name, found in zip(statement.names, pairs, strict=True):
            keep(self, name, F32, found)

    def rows(self, statement: ir.RowStmt, mask: Lanes) -> None:
        """Statements on the two rows that each lane has of an accumulator."""
        if isinstance(statement, ir.AddShifted | ir.PoolPairs):
            if not is_whole(mask):
                raise Hazard("neighbours are met by part of a warp")
            if isinstance(statement, ir.AddShifted):
                self.add_shifted(statement)
            else:
                self.pool_pairs(statement)
            return
        array = (
            statement.source if isinstance(statement, ir.RowMax | ir.RowSum) else statement.target
        )
        x = self.settled(array)
        # Registers come in fours: two of the lane's upper row, two of its lower one.
        lower = (np.arange(len(x)) % 4 // 2).astype(bool)
        with np.errstate(**functions.QUIET):
            match statement:
                case ir.RowMax(names=names):
                    for name, row in zip(names, (~lower, lower), strict=True):
                        keep(self, name, F32, x[row].max(axis=0))
                case ir.RowSum(names=names):
                    for name, row in zip(names, (~lower, lower), strict=True):
                        keep(self, name, F32, x[row].sum(axis=0, dtype=np.float32))
                case ir.RowExp(names=names, shifts=shifts, scale=scale, early=early):
                    upper, under = (self.elements[name] for name in shifts)
                    shift = np.where(lower[:, None], under, upper)
                    rate = np.float32(scale)
                    x[...] = np.exp2((x - shift) * rate if early else x * rate - shift)
                    for name, row in zip(names, (~lower, lower), strict=True):
                        keep(self, name, F32, x[row].sum(axis=0, dtype=np.float32))
                case ir.RowScale(factors=factors):
                    upper, under = (self.elements[name] for name in factors)
                    x *= np.where(lower[:, None], under, upper)

    def settled(self, array: str) -> Array:
        """A register array that no matrix instruction is still going to write."""
        if any(p.statement.acc == array for p in self.in_flight):
            raise Hazard(f"{array} is used while matrix instructions write it")
        return self.registers[array]

    def check_unread(self, array: str) -> None:
        """Registers that are about to change are not what a matrix instruction still reads."""
        for pending in self.in_flight:
            side = pending.statement.a
            if isinstance(side, ir.RegAt) and side.array == array:
                raise Hazard(f"{array} is changed while matrix instructions read it")

    @property
    def in_flight(self) -> list[Pending]:
        """Matrix instructions that nobody has waited for."""
        return [pending for group in (*self.matrix, self.matrix_open) for pending in group]

    def pack(self, target: ir.RegAt, pair: Sequence[Array], dtype: DType) -> None:
        """Two numbers of every lane into a register."""
        made = np.stack([numbers.astype(dtype.numpy) for numbers in pair], axis=1)
        self.registers[target.array][target.index] = made.view(np.uint32)[:, 0]

    def sm80(self, statement: ir.Stmt, mask: Lanes) -> None:
        match statement:
            case ir.CpAsync():
                self.cp_async(statement, mask)
            case ir.CommitGroup():
                self.copies.append(self.copies_open)
                self.copies_open = []
            case ir.WaitGroup(pending=pending):
                while len(self.copies) > pending:
                    for places, data, lanes in self.copies.pop(0):
                        memory = self.block.memory
                        if self.block.timing is not Timing.EARLY:
                            memory.arrive(places, data)
                        memory.races.note_writes(self.warp, places, lanes)
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
            case ir.PackPair(target=target, low=low, high=high, dtype=dtype):
                self.pack(target, [self.elements[low], self.elements[high]], dtype)
            case ir.PackSigned(target=target, low=low, high=high, dtype=dtype):
                self.pack(target, [self.elements[low], self.elements[high]], dtype)
            case ir.PackSmall(target=target, low=low, high=high, least=least, dtype=dtype):
                ints = [self.elements[name].astype(np.int64) for name in (low, high)]
                if statement.mask:
                    ints = [number >> statement.shift & statement.mask for number in ints]
                if any(((n < least) | (n >= least + SMALL[dtype])).any() for n in ints):
                    raise Hazard(f"an integer is not one of {SMALL[dtype]} from {least} on")
                self.pack(target, [n + statement.offset for n in ints], dtype)
            case ir.ScalePair(target=target, factor=factor, dtype=dtype):
                words = np.ascontiguousarray(self.registers[target.array][target.index])
                pairs = words.astype(np.uint32).view(dtype.numpy).reshape(-1, 2).astype(np.float32)
                by = self.elements[factor].astype(dtype.numpy).astype(np.float32)
                with np.errstate(all="ignore"):
                    self.pack(target, [pairs[:, 0] * by, pairs[:, 1] * by], dtype)
            case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
                at = [part.index for part in (acc, a, b)]
                arrays = [self.registers[part.array] for part in (acc, a, b)]
                apply_mma(arrays, at, (a_dtype, b_dtype))
            case ir.Gather():
                self.gather(statement, mask)
