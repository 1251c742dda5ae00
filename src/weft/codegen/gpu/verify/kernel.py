"""Verification of a kernel: its declarations, and each statement in its context."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.unaligned_reads import fills_a_line
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number, arity, supports
from weft.codegen.gpu.ir.formats import HELD, held_bytes, results_per_group
from weft.codegen.gpu.ir.scalar import Lit, Scalar
from weft.codegen.gpu.spelling.names import is_free
from weft.codegen.gpu.verify.frame import frame_findings
from weft.codegen.gpu.verify.matrices import NARROW, check_sm80, check_sm90, sums_of
from weft.codegen.gpu.verify.scope import FIELD, NAME, TYPE, WARP, Known, Scope
from weft.foundation.dtypes import BF16, F16, F32, F64, I1, SI32, UI32, UI64, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.target.matrix_atoms import INTEGERS, TINY
from weft.target.target import Target

_RESULTS: Final = (F32, F64, BF16, F16, *TINY, SI32, UI32, *INTEGERS)
"""Results that fragments can have."""
_HELD_IN: Final = {
    ir.RegisterKind.F32: F32,
    ir.RegisterKind.F64: F64,
    ir.RegisterKind.S32: SI32,
    ir.RegisterKind.B32: None,
}
_MOST_REGISTERS: Final = 512
_MOST_TIMES: Final = 64
"""Elements of an array of registers, and turns that are written out: what is longer is no kernel
of Weft."""
_BLOCK_WORDS: Final = 4
_VECTORS: Final = (4, 8, 16)
"""Bytes of one access."""
_RULES: Final = frozenset({"inside", "nonzero", "nonnegative"})
_PANEL: Final = 32
"""Registers of a panel of 64 columns."""
_LINE_WORDS: Final = 4
"""32-bit words of a line of the workspace that a thread keeps."""


_PLAIN: Final = frozenset({str, int, bool, tuple, type(None), ElementOp})
"""Fields that mean nothing by their types."""


@cache
def _names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a statement or of a part of one."""
    return tuple(found.name for found in fields(kind))


def verify(kernel: ir.Kernel, target: Target) -> None:
    """Raise with everything that is wrong with a kernel."""
    found = list(findings(kernel, target))
    if found:
        raise SpecViolation.of(found)


def findings(kernel: ir.Kernel, target: Target) -> Iterator[Finding]:
    """Everything that is wrong with a kernel."""
    if not is_free(kernel.name):
        yield Finding(NAME, "", f"{kernel.name!r} cannot be the name of a kernel")
        return
    yield from frame_findings(kernel, target)
    checker = _Checker(kernel, target)
    checker.block(kernel.body)
    yield from checker.findings


class _Checker(Scope):
    """Goes through a kernel, statement by statement."""

    def block(self, body: Sequence[ir.Stmt]) -> None:
        """Statements in a scope of their own."""
        outer = dict(self.known)
        for statement in body:
            self.number += 1
            self.statement = statement
            self.parts(statement)
            self.check(statement)
        self.known = outer

    def check(self, node: ir.Stmt) -> None:
        # Most of them, before they are compared with all the others.
        if isinstance(node, values.VALUES):
            self.single(node)
            return
        match node:
            case ir.Let(name=name):
                self.define(name, Known("number"))
            case ir.Set(name=name):
                self.use(name, "number")
            case ir.TakeSet():
                self.need(self.kernel.sets > 1, "the kernel has one set of buffers")
            case ir.Registers(name=name, kind=kind, count=count):
                self.need(0 < count <= _MOST_REGISTERS, f"{count} registers")
                self.define(name, Known("registers", _HELD_IN[kind], count))
            case ir.For() | ir.If() | ir.Roles():
                self.control(node)
            case ir.DrawBits():
                self.bits(node)
            case ir.Epilogue():
                self.epilogue(node)
            case _ if isinstance(node, ir.Sm90Stmt):
                self.need(self.target.has("wgmma"), f"{self.target.name} does not have it")
                check_sm90(self, node)
            case _ if isinstance(node, ir.Sm80Stmt):
                check_sm80(self, node)
            case ir.AddRegisters(target=target, source=source):
                count = self.use(source, "registers").count
                self.whole_array(target, count)
                for array in (target, source):
                    self.registers(ir.RegAt(array), 1, F32)
            case _ if isinstance(node, ir.ClusterStmt):
                self.need(self.kernel.cluster > 1, "the kernel has no clusters")
                if isinstance(node, ir.StCluster | ir.SendCluster):
                    self.value(node.source)
            case _ if isinstance(node, ir.PartStmt):
                self.part(node)
            case _ if isinstance(node, ir.RowStmt):
                self.rows(node)
            case _ if isinstance(node, ir.ChainStmt):
                self.need(self.target.has("griddepcontrol"), f"{self.target.name} has no chains")
            case _:
                self.element(node)

    def parts(self, node: Any) -> None:
        """What a field means by its type or its name, in every statement."""
        for name in _names_of(node.__class__):
            value = getattr(node, name)
            if name == "buffer":
                count = len(self.kernel.buffers)
                self.need(0 <= value < count, f"there is no buffer {value} of {count}")
            if type(value) in _PLAIN:
                continue
            match value:
                case Scalar():
                    self.scalar(value)
                case ir.Address(tile=tile, offset=offset):
                    self.tile(tile)
                    self.scalar(offset)
                case ir.BarrierAt(barriers=name, index=index):
                    self.barriers(name)
                    self.scalar(index)
                case ir.Fragment():
                    self.need(0 < value.groups <= 32, f"{value.groups} groups")
                    self.parts(value)
                case DType():
                    self.need(value in HELD, f"kernels cannot hold {value}", TYPE)

    def control(self, node: ir.For | ir.If | ir.Roles) -> None:
        match node:
            case ir.For(var=var, step=step, body=body, times=times):
                self.need(0 < times <= _MOST_TIMES, f"{times} turns at a time")
                self.need(not isinstance(step, Lit) or step.value > 0, "a step must be positive")
                outer = dict(self.known)
                self.define(var, Known("number"))
                self.block(body)
                self.known = outer
            case ir.If(then=then, otherwise=otherwise):
                self.block(then)
                self.block(otherwise)
            case ir.Roles(cases=cases):
                # Roles are told apart by the number of the warp, one comparison each: so their
                # warps follow one another.
                following = 0
                for case in cases:
                    self.need(
                        case.first == following and case.count > 0,
                        f"the warps of {case.name} do not begin where the last ones end",
                    )
                    following = case.first + case.count
                warps = self.kernel.threads // WARP
                self.need(following == warps, f"{following} of {warps} warps have a role")
                for case in cases:
                    self.block(case.body)

    # -- elements

    def op(self, op: ElementOp) -> None:
        """Use the arguments of a function and define its value."""
        if not (is_held := op.dtype in HELD):
            self.wrong(TYPE, f"kernels cannot hold {op.dtype}")
        dtypes = [self.value(name) for name in op.args]
        source = dtypes[0] if dtypes else op.dtype
        if op.fn == "select":
            source = op.dtype
        if is_held and all(dtype is not None for dtype in dtypes):
            self.function(op, dtypes, source or op.dtype)
        self.number_of(op.value, op.dtype, wanted=op.fn == "const")
        self.define(op.name, Known("value", op.dtype))

    def function(self, op: ElementOp, dtypes: Sequence[DType | None], source: DType) -> None:
        if not supports(op.fn, source):
            self.wrong(TYPE, f"there is no {op.fn} of {source}")
        elif len(dtypes) != arity(op.fn, source):
            self.wrong(FIELD, f"{op.fn} does not take {len(dtypes)} arguments")
        elif op.fn == "select":
            self.need(dtypes == [I1, op.dtype, op.dtype], "select needs i1 and its dtype", TYPE)
        elif op.fn not in ("cast", "const"):
            makes = I1 if op.fn in ("lt", "le", "eq", "ge", "gt", "ne") else source
            if makes is not op.dtype or any(dtype is not source for dtype in dtypes):
                self.wrong(TYPE, f"{op.fn} of {source} makes {makes}")

    def number_of(self, value: Number | None, dtype: DType, *, wanted: bool) -> None:
        """A constant of a dtype, or none."""
        if (value is not None) != wanted or isinstance(value, complex):
            self.wrong(FIELD, f"{value} is not a number of {dtype}")
        elif value is not None and not dtype.is_float:
            low, high = (int(dtype.lowest), int(dtype.highest)) if dtype is not I1 else (0, 1)
            inside = isinstance(value, int) and low <= value <= high
            self.need(inside, f"{value} is not a number of {dtype}")

    def single(self, node: values.ValueStmt) -> None:
        match node:
            case values.Compute(op=op):
                self.op(op)
            case values.ReadParam(name=name, dtype=dtype, low=low, high=high):
                self.need(dtype.is_integer, f"a parameter of {dtype}", TYPE)
                fits = -(1 << 31) <= low <= high < 1 << 31
                self.need(fits and node.element >= 0, f"a range of {low}..{high}")
                self.define(name, Known("number"))
            case values.LoadVector(names=names, dtype=dtype):
                self.vector(len(names), dtype)
                for name in names:
                    self.define(name, Known("value", dtype))
            case values.LoadAcross():
                self.across(node)
            case values.IndexValue(name=name, dtype=dtype):
                self.define(name, Known("value", dtype))
            case values.Words(names=names, seed=seed, offset=offset):
                self.need(len(names) in (1, _BLOCK_WORDS), f"{len(names)} words at a time")
                for state in (seed, offset):
                    found = self.value(state)
                    self.need(found is None or found.is_integer, f"a state of {found}", TYPE)
                for name in names:
                    self.define(name, Known("value", UI32))
            case values.Variable(name=name, dtype=dtype, start=start):
                self.number_of(start, dtype, wanted=True)
                self.define(name, Known("variable", dtype))
            case values.Assign(name=name, source=source):
                self.value(source, self.use(name, "variable").dtype)
            case values.Choose(name=name, dtype=dtype, x=x, y=y):
                self.value(x, dtype)
                self.value(y, dtype)
                self.define(name, Known("value", dtype))
            case values.Shuffle() | values.ShuffleDown():
                self.exchanged(node)
            case values.Alike() | values.SortKey():
                self.sorting(node)
            case values.StoreElement() | values.StoreVector() | values.CombineElement():
                self.stored(node)
            case values.PlaceOf(name=name, source=source, size=size):
                found = self.value(source)
                self.need(found is None or found.is_integer, f"a place of {found}", TYPE)
                self.need(0 < size < 1 << 31, f"a range of {size}")
                self.define(name, Known("number"))
            case values.Report(value=source, rule=rule):
                self.need(self.kernel.reports, "the kernel does not say that it reports")
                found = self.value(source)
                self.need(found is None or found.is_integer, f"a check of {found}", TYPE)
                self.need(rule in _RULES, f"there is no rule {rule}")

    def exchanged(self, node: values.Shuffle | values.ShuffleDown) -> None:
        """What a lane takes from another one."""
        if isinstance(node, values.Shuffle):
            self.need(0 < node.mask < WARP, f"a mask of {node.mask}")
        else:
            self.need(0 < node.count < WARP, f"a lane {node.count} further on")
        self.value(node.source, node.dtype)
        self.define(node.name, Known("value", node.dtype))

    def stored(
        self, node: values.StoreElement | values.StoreVector | values.CombineElement
    ) -> None:
        match node:
            case values.StoreElement(dtype=dtype, source=source):
                self.value(source, dtype)
            case values.StoreVector(dtype=dtype, sources=sources):
                self.vector(len(sources), dtype)
                for source in sources:
                    self.value(source, dtype)
            case values.CombineElement(dtype=dtype, fn=fn, source=source):
                self.need(dtype in values.COMBINED, f"{dtype} is not combined in one step", TYPE)
                self.need(fn in values.COMBINING, f"elements are not combined by {fn}")
                self.value(source, dtype)

    def sorting(self, node: values.Alike | values.SortKey) -> None:
        match node:
            case values.Alike(names=names, bits=bits):
                self.need(len(names) == 2, f"{len(names)} numbers of lanes")
                self.need(0 < bits < WARP, f"numbers of {bits} bits")
                for name in names:
                    self.define(name, Known("number"))
            case values.SortKey(name=name, dtype=dtype, source=source):
                found = self.value(source)
                wanted = UI64 if found is not None and found.bits == UI64.bits else UI32
                self.need(found is None or dtype is wanted, f"a key of {found} is a {wanted}", TYPE)
                self.define(name, Known("value", dtype))

    def across(self, node: values.LoadAcross) -> None:
        whole = fills_a_line(node.dtype, len(node.names))
        self.need(whole, f"{len(node.names)} elements of {node.dtype} do not fill a line")
        for name in node.names:
            self.define(name, Known("value", node.dtype))

    def vector(self, count: int, dtype: DType) -> None:
        size = count * dtype.storage_bytes
        self.need(size in _VECTORS, f"{count} elements of {dtype} are not a vector")

    def element(self, node: ir.Stmt) -> None:
        match node:
            case ir.LoadElement(name=name, dtype=dtype, fill=fill):
                self.number_of(fill, dtype, wanted=True)
                self.define(name, Known("value", dtype))
            case ir.LoadShared(name=name, dtype=dtype):
                self.define(name, Known("value", dtype))
            case ir.LoadSharedVector(names=names, dtype=dtype):
                size = len(names) * (held_bytes(dtype) if dtype in HELD else 0)
                self.need(size in _VECTORS, f"{len(names)} words of {dtype} are not a vector")
                for name in names:
                    self.define(name, Known("value", dtype))
            case ir.LoadStaged(names=names, dtype=dtype):
                if len(names) != 1:
                    self.vector(len(names), dtype)
                for name in names:
                    self.define(name, Known("value", dtype))
            case ir.StShared(source=name):
                self.value(name)
            case ir.StSharedVec(source=source, count=count):
                self.need(count == 2, f"{count} registers at a time")
                known = self.use(source.array, "registers").dtype
                self.registers(source, count, F32 if known is F32 else None)
            case ir.StGlobalVec(source=source, dtype=dtype, fragment=fragment, width=width):
                self.need(dtype in _RESULTS, f"fragments of {dtype} are not stored", TYPE)
                self.need(width in (1, 2), f"{width} elements at a time")
                self.results(source, dtype, fragment.groups)
            case ir.StGlobalRow(dtype=dtype):
                whole = dtype in _RESULTS and dtype.storage_bytes in (2, 4)
                self.need(whole, f"rows of {dtype} are not stored", TYPE)
            case ir.NamedBarrier(number=number, threads=threads):
                self.meeting(number, threads)

    def part(self, node: ir.PartStmt) -> None:
        """Parts of a sum go through the workspace, whole lines at a time."""
        self.need(self.kernel.workspace is not None, "the kernel has no workspace")
        match node:
            case ir.KeepSums(source=array) | ir.AddSums(target=array) | ir.GatherSums(target=array):
                found = self.use(array, "registers")
                whole = found.count * (2 if found.dtype is F64 else 1) % _LINE_WORDS == 0
                self.need(whole, f"the {found.count} registers of {array} are not whole lines")
                self.need(found.dtype is not None, f"{array} holds no numbers", TYPE)
                self.need(0 < node.threads <= self.kernel.threads, f"{node.threads} threads")
            case ir.AwaitTurn(number=number, threads=threads):
                self.meeting(number, threads)
            case ir.PassTurn(number=number, threads=threads):
                self.meeting(number, threads)
            case ir.CountOff(name=name, last=last, number=number, threads=threads):
                if isinstance(last, Lit):
                    self.need(0 < last.value < 1 << 31, f"{last.value + 1} parts")
                self.meeting(number, threads)
                self.define(name, Known("number"))

    def rows(self, node: ir.RowStmt) -> None:
        """Two rows of a whole array of sums, in groups of four elements."""
        if isinstance(node, ir.AddShifted | ir.PoolPairs):
            self.panels(node)
            return
        array = node.source if isinstance(node, ir.RowMax | ir.RowSum) else node.target
        self.registers(ir.RegAt(array), 4, F32)
        found = self.use(array, "registers")
        self.need(found.count % 4 == 0, f"the {found.count} registers of {array} are not rows")
        made: tuple[str, ...] = () if isinstance(node, ir.RowScale) else node.names
        used: tuple[str, ...] = ()
        if isinstance(node, ir.RowExp):
            used = node.shifts
            self.need(math.isfinite(node.scale), f"a scale of {node.scale}")
        elif isinstance(node, ir.RowScale):
            used = node.factors
        for pair in (made, used):
            self.need(len(pair) in (0, 2), f"{len(pair)} names for two rows")
        for name in used:
            self.value(name, F32)
        for name in made:
            self.define(name, Known("value", F32))

    def panels(self, node: ir.AddShifted | ir.PoolPairs) -> None:
        """Whole arrays of sums, in panels of 64 columns."""
        count = self.use(node.source, "registers").count
        self.registers(ir.RegAt(node.source), 1, F32)
        self.need(count % _PANEL == 0, f"the {count} registers of {node.source} are not panels")
        if isinstance(node, ir.AddShifted):
            self.need(node.by in (-1, 1), f"neighbours {node.by} columns away")
            self.need(node.target != node.source, f"{node.source} is added to itself")
            self.whole_array(node.target, count)
            self.registers(ir.RegAt(node.target), 1, F32)
            return
        self.need(count == 2 * _PANEL, f"{node.source} is not two panels")
        self.need(len(node.names) == _PANEL // 2, f"{len(node.names)} names for a panel")
        for name in node.names:
            self.define(name, Known("value", F32))

    def results(self, place: ir.RegAt, dtype: DType, groups: int) -> None:
        held = dtype if dtype in (F32, F64) else None
        self.registers(place, groups * results_per_group(dtype), held)

    def state(self, node: ir.RandomElements | ir.DrawBits) -> None:
        for state in (node.seed, node.offset):
            found = self.value(state)
            self.need(found is None or found.is_integer, f"a state of {found}", TYPE)

    def bits(self, node: ir.DrawBits) -> None:
        self.state(node)
        self.registers(node.out, -(-node.fragment.groups // 8))
        # Along the axis on which neighbours share words the stream must go in steps of 1, and along
        # the other one in multiples of what is shared: else a block would be cut.
        along = {1: (1, 1), 2: (node.column_factor, node.row_factor)}
        along[4] = along[2] if node.column_factor == 1 else along[2][::-1]
        self.need(node.shared in along, f"{node.shared} neighbours")
        step, across = along.get(node.shared, (1, 0))
        together = step == 1 and across % node.shared == 0
        self.need(together, "neighbours do not have the words of one block of their stream")
        self.need(0 <= node.least < 1 << 32, f"{node.least} is not a word")

    def epilogue(self, node: ir.Epilogue) -> None:
        self.need(node.out_dtype in _RESULTS, f"results of {node.out_dtype}", TYPE)
        self.registers(node.acc, 4 * node.fragment.groups, sums_of(node.value_dtype))
        self.results(node.out, node.out_dtype, node.fragment.groups)
        outer = dict(self.known)
        self.define(node.value, Known("value", node.value_dtype))
        for source in node.sources:
            self.parts(source)
            self.define(source.name, Known("value", source.dtype))
            if isinstance(source, ir.RowValues):
                self.need(len(source.values) == 2, "a value for each of two rows")
                for name in source.values:
                    self.value(name, source.dtype)
            if isinstance(source, ir.RandomElements):
                self.need(source.dtype is UI32, f"words of {source.dtype}", TYPE)
                self.state(source)
            if isinstance(source, ir.BitElements):
                self.need(source.dtype is I1, f"bits of {source.dtype}", TYPE)
                self.registers(source.source, -(-node.fragment.groups // 8))
            if isinstance(source, ir.RegisterElements):
                self.need(source.dtype is F32, f"{source.dtype} in an accumulator", TYPE)
                self.registers(source.source, 4 * node.fragment.groups, F32)
            if isinstance(source, ir.SharedColumns | ir.StagedElements):
                kinds = (
                    (F32, *NARROW, I1) if isinstance(source, ir.StagedElements) else (F32, *NARROW)
                )
                self.need(source.dtype in kinds, f"{source.dtype} in shared memory", TYPE)
        for op in node.ops:
            self.op(op)
        self.value(node.result)
        self.known = outer
