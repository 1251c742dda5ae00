"""Verification of matrix instructions, copies that feed them, and packed register pairs."""

from __future__ import annotations

from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.formats import fragment_registers
from weft.codegen.gpu.ir.swizzle import PIECE, Major
from weft.codegen.gpu.verify.scope import TYPE, Known, Scope
from weft.foundation.dtypes import BF16, F16, F32, F64, SI8, SI32, UI32, DType
from weft.target.matrix_atoms import ATOMS

NARROW: Final = (BF16, F16)
_MOST_SMALL: Final = 128
_WORD: Final = 32
"""Bits of a register."""
_COPY_LINE: Final = 16
"""Bytes that bulk copies are multiples of."""


def check_sm80(scope: Scope, node: ir.Sm80Stmt) -> None:
    match node:
        case ir.Gather(dtype=dtype, count=count):
            size = count * dtype.storage_bytes
            scope.need(size == PIECE, f"{count} elements of {dtype}")
        case ir.CpAsync(bytes=size):
            scope.need(size in (4, 8, PIECE), f"a copy of {size} bytes")
        case ir.WaitGroup(pending=pending):
            scope.need(pending >= 0, f"{pending} groups")
        case ir.LdMatrix(target=target):
            scope.registers(target, 4)
        case ir.LdRegister(target=target, dtype=dtype):
            scope.need(dtype in (F32, F64), f"a register of {dtype}", TYPE)
            scope.registers(target, 1, dtype)
        case ir.PackPair(target=target, low=low, high=high, dtype=dtype):
            scope.need(dtype in NARROW, f"a pair of {dtype}", TYPE)
            scope.registers(target, 1)
            scope.value(low)
            scope.value(high)
        case ir.PackSmall(target=target, low=low, high=high, least=least, dtype=dtype):
            scope.need(dtype in NARROW, f"a pair of {dtype}", TYPE)
            starts = (least, node.offset, least + node.offset)
            near = all(abs(start) <= _MOST_SMALL for start in starts)
            scope.need(near, f"small integers from {least} on, {node.offset} further")
            scope.registers(target, 1)
            scope.need(0 <= node.shift < _WORD and node.mask >= 0, "a part of no bits")
            for name in (low, high):
                found = scope.value(name)
                scope.need(found is None or found.is_integer, f"{name} is not an integer", TYPE)
        case ir.PackSigned(target=target, low=low, high=high, dtype=dtype):
            scope.need(dtype in NARROW, f"a pair of {dtype}", TYPE)
            scope.registers(target, 1)
            for name in (low, high):
                scope.value(name, SI8)
        case ir.ScalePair(target=target, factor=factor, dtype=dtype):
            scope.need(dtype in NARROW, f"a pair of {dtype}", TYPE)
            scope.registers(target, 1)
            scope.value(factor, dtype)
        case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
            found = _atom(scope, "sm80", a_dtype, b_dtype)
            held = a_dtype if a_dtype in (F32, F64) else None
            first, second = fragment_registers(a_dtype)
            scope.registers(acc, 4, found)
            scope.registers(a, first, held)
            scope.registers(b, second, held)


def check_sm90(scope: Scope, node: ir.Sm90Stmt) -> None:
    match node:
        case ir.MbarrierInit(barriers=name):
            scope.barriers(name)
        case ir.PrefetchMap(map=name):
            scope.map(name)
        case ir.TmaLoad(map=name, coords=coords, taps=taps):
            scope.map(name, len(coords), len(taps))
            for coord in (*coords, *taps):
                scope.scalar(coord)
        case ir.TmaStore(map=name, coords=coords):
            scope.map(name, len(coords))
            for coord in coords:
                scope.scalar(coord)
        case ir.BulkLoad(dtype=dtype, count=count):
            whole = count > 0 and count * dtype.storage_bytes % _COPY_LINE == 0
            scope.need(whole, f"{count} elements of {dtype} are not whole lines")
        case ir.Descriptor(name=name):
            scope.define(name, Known("descriptor"))
        case ir.Wgmma():
            _warpgroup(scope, node)
        case ir.WgmmaWait(acc=arrays):
            for name in arrays:
                scope.use(name, "registers")
        case ir.SetMaxNReg(count=count):
            scope.need(count % 8 == 0 and 24 <= count <= 256, f"{count} registers")
        case ir.StMatrix(source=source, count=count):
            scope.need(count in (2, 4), f"{count} matrices")
            scope.registers(source, count)
    pending = getattr(node, "pending", 0)
    scope.need(0 <= pending < 8, f"{pending} groups")


def _warpgroup(scope: Scope, node: ir.Wgmma) -> None:
    found = _atom(scope, "sm90", node.a_dtype, node.b_dtype)
    # Instructions on integers have fewer widths beyond 32 columns.
    n, step = node.n, 16 if node.a_dtype.is_integer and node.n > 32 else 8
    scope.need(n % step == 0 and 8 <= n <= 256, f"{n} columns")
    scope.whole_array(node.acc, n // 2)
    scope.registers(ir.RegAt(node.acc), 1, found)
    for side in (node.a, node.b):
        if isinstance(side, ir.RegAt):
            scope.registers(side, 4)
            scope.need(node.a_dtype in NARROW, f"{node.a_dtype} in registers", TYPE)
            continue
        scope.use(side.descriptor, "descriptor")
        scope.need(side.offset % 16 == 0, f"an operand begins at {side.offset}")
        along = side.major is Major.K or node.a_dtype.storage_bytes == 2
        scope.need(along, f"operands of {node.a_dtype} must lie along k")


def _atom(scope: Scope, arch: str, a: DType, b: DType) -> DType | None:
    """The dtype of the registers in which products of two dtypes are added up."""
    found = [atom.acc for atom in ATOMS[arch] if (atom.a, atom.b) == (a, b)]
    scope.need(found, f"matrices of {a} and {b}", TYPE)
    return sums_of(found[0]) if found else None


def sums_of(dtype: DType) -> DType:
    """What the registers hold in which numbers of a dtype are added up."""
    return SI32 if dtype is UI32 else dtype
