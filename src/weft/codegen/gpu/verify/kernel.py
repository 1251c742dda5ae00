"""What holds of a kernel: its frame, and each statement where it stands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.across import fills_a_line
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number, arity, supports
from weft.codegen.gpu.ir.formats import HELD, fragment_registers, held_bytes, results_per_group
from weft.codegen.gpu.ir.scalar import Lit, Name, Op, Scalar, TableAt, Wide
from weft.codegen.gpu.ir.swizzle import PIECE, Major
from weft.codegen.gpu.spelling.names import is_free
from weft.codegen.gpu.spelling.text import spelling
from weft.codegen.gpu.verify.frame import frame_findings
from weft.foundation.dtypes import BF16, F16, F32, F64, I1, SI8, SI32, UI32, UI64, DType
from weft.foundation.errors import Finding, SpecViolation
from weft.target.matrix_atoms import ATOMS, INTEGERS, TINY
from weft.target.target import Target

NAME: Final = "KernelName"
FIELD: Final = "KernelField"
TYPE: Final = "KernelType"
_NARROW: Final = (BF16, F16)
_RESULTS: Final = (F32, F64, BF16, F16, *TINY, SI32, UI32, *INTEGERS)
"""Results that fragments can have."""
_HELD_IN: Final = {
    ir.RegisterKind.F32: F32,
    ir.RegisterKind.F64: F64,
    ir.RegisterKind.S32: SI32,
    ir.RegisterKind.B32: None,
}
_MOST_SMALL: Final = 128
_MOST_REGISTERS: Final = 512
_MOST_TIMES: Final = 64
_BLOCK_WORDS: Final = 4
_WORD_BITS: Final = 32
_VECTORS: Final = (4, 8, 16)
"""Bytes of one access."""
_COPY_LINE: Final = 16
_RULES: Final = frozenset({"inside", "nonzero", "nonnegative"})
_LINE_WORDS: Final = 4
"""32-bit words of a line of the workspace that a thread keeps."""
_BARRIERS: Final = 16
"""Named barriers of a block."""


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


@dataclass(frozen=True)
class _Known:
    """What a name stands for: a number, a value, a variable, registers, or a descriptor."""

    what: str
    dtype: DType | None = None
    count: int = 0


@dataclass
class _Checker:
    """Goes through a kernel, statement by statement, with what is known so far."""

    kernel: ir.Kernel
    target: Target
    findings: list[Finding] = field(default_factory=list)
    known: dict[str, _Known] = field(default_factory=dict)
    statement: ir.Stmt | None = None
    number: int = 0

    def wrong(self, code: str, why: str) -> None:
        what = spelling(type(self.statement))
        where = f"kernel {self.kernel.name}, statement {self.number} ({what})"
        self.findings.append(Finding(code, where, why))

    def need(self, holds: object, why: str, code: str = FIELD) -> None:
        if not holds:
            self.wrong(code, why)

    # -- names

    def define(self, name: str, what: _Known) -> None:
        self.need(is_free(name), f"{name!r} cannot be a name", NAME)
        self.need(name not in self.known, f"{name} is defined already", NAME)
        self.known[name] = what

    def use(self, name: str, *kinds: str) -> _Known:
        found = self.known.get(name)
        if found is None or found.what not in kinds:
            self.wrong(NAME, f"there is no {kinds[0]} {name} here")
            return _Known(kinds[0])
        return found

    def value(self, name: str, dtype: DType | None = None) -> DType | None:
        """Use a value, of a dtype where one is asked for; its own dtype."""
        found = self.use(name, "value", "variable").dtype
        if dtype is not None and found is not None and found is not dtype:
            self.wrong(TYPE, f"{name} is {found}, not {dtype}")
        return found

    def registers(self, place: ir.RegAt, count: int, dtype: DType | None = None) -> None:
        """Use `count` registers of an array, of a dtype or, as none, 32 bits of anything."""
        found = self.use(place.array, "registers")
        if found.count and not 0 <= place.index <= found.count - count:
            why = f"{count} registers from {place.array}[{place.index}] on are not in the array"
            self.wrong(FIELD, f"{why} of {found.count}")
        if found.count and found.dtype is not dtype:
            self.wrong(TYPE, f"{place.array} holds {found.dtype or 'words'}")

    # -- numbers of the thread

    def scalar(self, value: Scalar) -> None:
        match value:
            case Lit(value=number):
                self.need(-(1 << 63) <= number < 1 << 63, f"{number} does not fit 64 bits")
            case Name(name=name):
                self.use(name, "number")
            case Wide(value=inner):
                self.scalar(inner)
            case TableAt(table=name, index=index):
                tables = [table.name for table in self.kernel.tables]
                self.need(name in tables, f"there is no table {name}", NAME)
                self.scalar(index)
            case Op(fn=fn, lhs=lhs, rhs=rhs):
                self.scalar(lhs)
                self.scalar(rhs)
                if isinstance(rhs, Lit):
                    low = {"div": 1, "mod": 1, "shl": 0, "shr": 0}.get(fn, rhs.value)
                    self.need(rhs.value >= low, f"{fn} by {rhs.value}")

    # -- statements

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
        match node:
            case ir.Let(name=name):
                self.define(name, _Known("number"))
            case ir.Set(name=name):
                self.use(name, "number")
            case ir.Registers(name=name, kind=kind, count=count):
                self.need(0 < count <= _MOST_REGISTERS, f"{count} registers")
                self.define(name, _Known("registers", _HELD_IN[kind], count))
            case ir.For() | ir.If() | ir.Roles():
                self.control(node)
            case ir.Epilogue():
                self.epilogue(node)
            case _ if isinstance(node, values.ValueStmt):
                self.single(node)
            case _ if isinstance(node, ir.Sm90Stmt):
                self.need(self.target.has("wgmma"), f"{self.target.name} does not have it")
                self.sm90(node)
            case _ if isinstance(node, ir.Sm80Stmt):
                self.sm80(node)
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
        for found in fields(node):
            value = getattr(node, found.name)
            match value:
                case Scalar():
                    self.scalar(value)
                case ir.Address(tile=tile, offset=offset):
                    tiles = [known.name for known in self.kernel.tiles]
                    self.need(tile in tiles, f"there is no tile {tile}", NAME)
                    self.scalar(offset)
                case ir.BarrierAt(barriers=name, index=index):
                    self.barriers(name)
                    self.scalar(index)
                case ir.Fragment():
                    self.need(0 < value.groups <= 32, f"{value.groups} groups")
                    self.parts(value)
                case DType():
                    self.need(value in HELD, f"kernels cannot hold {value}", TYPE)
            if found.name == "buffer":
                count = len(self.kernel.buffers)
                self.need(0 <= value < count, f"there is no buffer {value} of {count}")

    def barriers(self, name: str) -> None:
        arrays = [array.name for array in self.kernel.barriers]
        self.need(name in arrays, f"there are no barriers {name}", NAME)

    def control(self, node: ir.For | ir.If | ir.Roles) -> None:
        match node:
            case ir.For(var=var, step=step, body=body, times=times):
                self.need(0 < times <= _MOST_TIMES, f"{times} turns at a time")
                self.need(not isinstance(step, Lit) or step.value > 0, "a step must be positive")
                outer = dict(self.known)
                self.define(var, _Known("number"))
                self.block(body)
                self.known = outer
            case ir.If(then=then, otherwise=otherwise):
                self.block(then)
                self.block(otherwise)
            case ir.Roles(cases=cases):
                following = 0
                for case in cases:
                    self.need(
                        case.first == following and case.count > 0,
                        f"the warps of {case.name} do not begin where the last ones end",
                    )
                    following = case.first + case.count
                warps = self.kernel.threads // _WORD_BITS
                self.need(following == warps, f"{following} of {warps} warps have a role")
                for case in cases:
                    self.block(case.body)

    # -- elements

    def op(self, op: ElementOp) -> None:
        """Use the arguments of a function and define its value."""
        self.need(op.dtype in HELD, f"kernels cannot hold {op.dtype}", TYPE)
        dtypes = [self.value(name) for name in op.args]
        source = dtypes[0] if dtypes else op.dtype
        if op.fn == "select":
            source = op.dtype
        if None not in dtypes and op.dtype in HELD:
            self.function(op, dtypes, source or op.dtype)
        self.number_of(op.value, op.dtype, wanted=op.fn == "const")
        self.define(op.name, _Known("value", op.dtype))

    def function(self, op: ElementOp, dtypes: Sequence[DType | None], source: DType) -> None:
        if not supports(op.fn, source):
            self.wrong(TYPE, f"there is no {op.fn} of {source}")
        elif len(dtypes) != arity(op.fn, source):
            self.wrong(FIELD, f"{op.fn} does not take {len(dtypes)} arguments")
        elif op.fn == "select":
            self.need(dtypes == [I1, op.dtype, op.dtype], "select needs i1 and its dtype", TYPE)
        elif op.fn not in ("cast", "const"):
            makes = I1 if op.fn in ("lt", "le", "eq", "ge", "gt", "ne") else source
            same = all(dtype is source for dtype in dtypes)
            self.need(same and makes is op.dtype, f"{op.fn} of {source} makes {makes}", TYPE)

    def number_of(self, value: Number | None, dtype: DType, *, wanted: bool) -> None:
        """A constant of a dtype, or none."""
        if (value is not None) != wanted or isinstance(value, complex):
            self.wrong(FIELD, f"{value} is no number of {dtype}")
        elif value is not None and not dtype.is_float:
            low, high = (int(dtype.lowest), int(dtype.highest)) if dtype is not I1 else (0, 1)
            inside = isinstance(value, int) and low <= value <= high
            self.need(inside, f"{value} is no number of {dtype}")

    def single(self, node: values.ValueStmt) -> None:
        match node:
            case values.Compute(op=op):
                self.op(op)
            case values.ReadParam(name=name, dtype=dtype, low=low, high=high):
                self.need(dtype.is_integer, f"a parameter of {dtype}", TYPE)
                fits = -(1 << 31) <= low <= high < 1 << 31
                self.need(fits and node.element >= 0, f"a range of {low}..{high}")
                self.define(name, _Known("number"))
            case values.LoadVector(names=names, dtype=dtype):
                self.vector(len(names), dtype)
                for name in names:
                    self.define(name, _Known("value", dtype))
            case values.LoadAcross():
                self.across(node)
            case values.IndexValue(name=name, dtype=dtype):
                self.define(name, _Known("value", dtype))
            case values.Words(names=names, seed=seed, offset=offset):
                self.need(len(names) in (1, _BLOCK_WORDS), f"{len(names)} words at a time")
                for state in (seed, offset):
                    found = self.value(state)
                    self.need(found is None or found.is_integer, f"a state of {found}", TYPE)
                for name in names:
                    self.define(name, _Known("value", UI32))
            case values.Variable(name=name, dtype=dtype, start=start):
                self.number_of(start, dtype, wanted=True)
                self.define(name, _Known("variable", dtype))
            case values.Assign(name=name, source=source):
                self.value(source, self.use(name, "variable").dtype)
            case values.Choose(name=name, dtype=dtype, x=x, y=y):
                self.value(x, dtype)
                self.value(y, dtype)
                self.define(name, _Known("value", dtype))
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
                self.define(name, _Known("number"))
            case values.Report(value=source, rule=rule):
                self.need(self.kernel.reports, "the kernel does not say that it reports")
                found = self.value(source)
                self.need(found is None or found.is_integer, f"a check of {found}", TYPE)
                self.need(rule in _RULES, f"there is no rule {rule}")

    def exchanged(self, node: values.Shuffle | values.ShuffleDown) -> None:
        """What a lane takes from another one."""
        if isinstance(node, values.Shuffle):
            self.need(0 < node.mask < _WORD_BITS, f"a mask of {node.mask}")
        else:
            self.need(0 < node.count < _WORD_BITS, f"a lane {node.count} further on")
        self.value(node.source, node.dtype)
        self.define(node.name, _Known("value", node.dtype))

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
                self.need(0 < bits < _WORD_BITS, f"numbers of {bits} bits")
                for name in names:
                    self.define(name, _Known("number"))
            case values.SortKey(name=name, dtype=dtype, source=source):
                found = self.value(source)
                wanted = UI64 if found is not None and found.bits == UI64.bits else UI32
                self.need(found is None or dtype is wanted, f"a key of {found} is a {wanted}", TYPE)
                self.define(name, _Known("value", dtype))

    def across(self, node: values.LoadAcross) -> None:
        whole = fills_a_line(node.dtype, len(node.names))
        self.need(whole, f"{len(node.names)} elements of {node.dtype} do not fill a line")
        for name in node.names:
            self.define(name, _Known("value", node.dtype))

    def vector(self, count: int, dtype: DType) -> None:
        size = count * dtype.storage_bytes
        self.need(size in _VECTORS, f"{count} elements of {dtype} are no vector")

    def element(self, node: ir.Stmt) -> None:
        match node:
            case ir.LoadElement(name=name, dtype=dtype, fill=fill):
                self.number_of(fill, dtype, wanted=True)
                self.define(name, _Known("value", dtype))
            case ir.LoadShared(name=name, dtype=dtype):
                self.define(name, _Known("value", dtype))
            case ir.LoadSharedVector(names=names, dtype=dtype):
                size = len(names) * (held_bytes(dtype) if dtype in HELD else 0)
                self.need(size in _VECTORS, f"{len(names)} words of {dtype} are no vector")
                for name in names:
                    self.define(name, _Known("value", dtype))
            case ir.LoadStaged(names=names, dtype=dtype):
                if len(names) != 1:
                    self.vector(len(names), dtype)
                for name in names:
                    self.define(name, _Known("value", dtype))
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

    def meeting(self, number: Scalar, threads: int) -> None:
        whole = threads % _WORD_BITS == 0 and 0 < threads <= self.kernel.threads
        self.need(whole, f"{threads} threads cannot meet")
        inside = not isinstance(number, Lit) or 0 <= number.value < _BARRIERS
        self.need(inside, f"there are {_BARRIERS} barriers with numbers")

    def part(self, node: ir.PartStmt) -> None:
        """Parts of a sum go through the workspace, whole lines at a time."""
        self.need(self.kernel.workspace is not None, "the kernel has no workspace")
        match node:
            case ir.KeepSums(source=array) | ir.AddSums(target=array) | ir.GatherSums(target=array):
                found = self.use(array, "registers")
                whole = found.count * (2 if found.dtype is F64 else 1) % _LINE_WORDS == 0
                self.need(whole, f"the {found.count} registers of {array} are no whole lines")
                self.need(found.dtype is not None, f"{array} holds no numbers", TYPE)
                self.need(0 < node.threads <= self.kernel.threads, f"{node.threads} threads")
            case ir.AwaitTurn(number=number, threads=threads):
                self.meeting(number, threads)
            case ir.PassTurn(number=number, threads=threads):
                self.meeting(number, threads)
            case ir.CountOff(name=name, last=last, number=number, threads=threads):
                self.need(0 < last < 1 << 31, f"{last + 1} parts")
                self.meeting(number, threads)
                self.define(name, _Known("number"))

    def rows(self, node: ir.RowStmt) -> None:
        """Two rows of a whole array of sums, in groups of four elements."""
        array = node.source if isinstance(node, ir.RowMax) else node.target
        self.registers(ir.RegAt(array), 4, F32)
        found = self.use(array, "registers")
        self.need(found.count % 4 == 0, f"the {found.count} registers of {array} are no rows")
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
            self.define(name, _Known("value", F32))

    def results(self, place: ir.RegAt, dtype: DType, groups: int) -> None:
        held = dtype if dtype in (F32, F64) else None
        self.registers(place, groups * results_per_group(dtype), held)

    def epilogue(self, node: ir.Epilogue) -> None:
        self.need(node.out_dtype in _RESULTS, f"results of {node.out_dtype}", TYPE)
        self.registers(node.acc, 4 * node.fragment.groups, _sums(node.value_dtype))
        self.results(node.out, node.out_dtype, node.fragment.groups)
        outer = dict(self.known)
        self.define(node.value, _Known("value", node.value_dtype))
        for source in node.sources:
            self.parts(source)
            self.define(source.name, _Known("value", source.dtype))
            if isinstance(source, ir.RowValues):
                self.need(len(source.values) == 2, "a value for each of two rows")
                for name in source.values:
                    self.value(name, source.dtype)
            if isinstance(source, ir.RandomElements):
                self.need(source.dtype is UI32, f"words of {source.dtype}", TYPE)
                for state in (source.seed, source.offset):
                    found = self.value(state)
                    self.need(found is None or found.is_integer, f"a state of {found}", TYPE)
            if isinstance(source, ir.RegisterElements):
                self.need(source.dtype is F32, f"{source.dtype} in an accumulator", TYPE)
                self.registers(source.source, 4 * node.fragment.groups, F32)
            if isinstance(source, ir.SharedColumns | ir.StagedElements):
                kinds = (
                    (F32, *_NARROW, I1)
                    if isinstance(source, ir.StagedElements)
                    else (F32, *_NARROW)
                )
                self.need(source.dtype in kinds, f"{source.dtype} in shared memory", TYPE)
        for op in node.ops:
            self.op(op)
        self.value(node.result)
        self.known = outer

    # -- matrix instructions and copies

    def sm80(self, node: ir.Sm80Stmt) -> None:
        match node:
            case ir.Gather(dtype=dtype, count=count):
                size = count * dtype.storage_bytes
                self.need(size == PIECE, f"{count} elements of {dtype}")
            case ir.CpAsync(bytes=size):
                self.need(size in (4, 8, PIECE), f"a copy of {size} bytes")
            case ir.WaitGroup(pending=pending):
                self.need(pending >= 0, f"{pending} groups")
            case ir.LdMatrix(target=target):
                self.registers(target, 4)
            case ir.LdRegister(target=target, dtype=dtype):
                self.need(dtype in (F32, F64), f"a register of {dtype}", TYPE)
                self.registers(target, 1, dtype)
            case ir.PackPair(target=target, low=low, high=high, dtype=dtype):
                self.need(dtype in _NARROW, f"a pair of {dtype}", TYPE)
                self.registers(target, 1)
                self.value(low)
                self.value(high)
            case ir.PackSmall(target=target, low=low, high=high, least=least, dtype=dtype):
                self.need(dtype in _NARROW, f"a pair of {dtype}", TYPE)
                starts = (least, node.offset, least + node.offset)
                near = all(abs(start) <= _MOST_SMALL for start in starts)
                self.need(near, f"small integers from {least} on, {node.offset} further")
                self.registers(target, 1)
                self.need(0 <= node.shift < _WORD_BITS and node.mask >= 0, "a part of no bits")
                for name in (low, high):
                    found = self.value(name)
                    self.need(found is None or found.is_integer, f"{name} is no integer", TYPE)
            case ir.PackSigned(target=target, low=low, high=high, dtype=dtype):
                self.need(dtype in _NARROW, f"a pair of {dtype}", TYPE)
                self.registers(target, 1)
                for name in (low, high):
                    self.value(name, SI8)
            case ir.ScalePair(target=target, factor=factor, dtype=dtype):
                self.need(dtype in _NARROW, f"a pair of {dtype}", TYPE)
                self.registers(target, 1)
                self.value(factor, dtype)
            case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
                found = self.atom("sm80", a_dtype, b_dtype)
                held = a_dtype if a_dtype in (F32, F64) else None
                first, second = fragment_registers(a_dtype)
                self.registers(acc, 4, found)
                self.registers(a, first, held)
                self.registers(b, second, held)

    def sm90(self, node: ir.Sm90Stmt) -> None:
        match node:
            case ir.MbarrierInit(barriers=name):
                self.barriers(name)
            case ir.PrefetchMap(map=name):
                self.map(name)
            case ir.TmaLoad(map=name, coords=coords, taps=taps):
                self.map(name, len(coords), len(taps))
                for coord in (*coords, *taps):
                    self.scalar(coord)
            case ir.TmaStore(map=name, coords=coords):
                self.map(name, len(coords))
                for coord in coords:
                    self.scalar(coord)
            case ir.BulkLoad(dtype=dtype, count=count):
                whole = count > 0 and count * dtype.storage_bytes % _COPY_LINE == 0
                self.need(whole, f"{count} elements of {dtype} are no whole lines")
            case ir.Descriptor(name=name):
                self.define(name, _Known("descriptor"))
            case ir.Wgmma():
                self.warpgroup(node)
            case ir.WgmmaWait(acc=arrays):
                for name in arrays:
                    self.use(name, "registers")
            case ir.SetMaxNReg(count=count):
                self.need(count % 8 == 0 and 24 <= count <= 256, f"{count} registers")
            case ir.StMatrix(source=source, count=count):
                self.need(count in (2, 4), f"{count} matrices")
                self.registers(source, count)
        pending = getattr(node, "pending", 0)
        self.need(0 <= pending < 8, f"{pending} groups")

    def warpgroup(self, node: ir.Wgmma) -> None:
        found = self.atom("sm90", node.a_dtype, node.b_dtype)
        n, step = node.n, 16 if node.a_dtype.is_integer and node.n > 32 else 8
        self.need(n % step == 0 and 8 <= n <= 256, f"{n} columns")
        self.whole_array(node.acc, n // 2)
        self.registers(ir.RegAt(node.acc), 1, found)
        for side in (node.a, node.b):
            if isinstance(side, ir.RegAt):
                self.registers(side, 4)
                self.need(node.a_dtype in _NARROW, f"{node.a_dtype} in registers", TYPE)
                continue
            self.use(side.descriptor, "descriptor")
            self.need(side.offset % 16 == 0, f"an operand begins at {side.offset}")
            along = side.major is Major.K or node.a_dtype.storage_bytes == 2
            self.need(along, f"operands of {node.a_dtype} must lie along k")

    def atom(self, arch: str, a: DType, b: DType) -> DType | None:
        """The dtype of the registers in which products of two dtypes are added up."""
        found = [atom.acc for atom in ATOMS[arch] if (atom.a, atom.b) == (a, b)]
        self.need(found, f"matrices of {a} and {b}", TYPE)
        return _sums(found[0]) if found else None

    def whole_array(self, name: str, count: int) -> None:
        found = self.use(name, "registers")
        self.need(found.count == count, f"{name} does not have {count} registers")

    def map(self, name: str, rank: int | None = None, taps: int = 0) -> None:
        found = [known for known in self.kernel.maps if known.name == name]
        self.need(found, f"there is no map {name}", NAME)
        for known in found:
            own = len(known.sizes)
            self.need(rank in (None, own), f"{rank} places in a map of rank {own}")
            moving = len(known.window.steps) if known.window and rank is not None else 0
            self.need(taps == moving, f"{taps} taps where windows move over {moving} axes")


def _sums(dtype: DType) -> DType:
    """What the registers hold in which numbers of a dtype are added up."""
    return SI32 if dtype is UI32 else dtype
