"""Kernels and their statements as CUDA text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Final

import numpy as np

from weft.codegen.gpu import ir
from weft.codegen.gpu.ir.element_ops import ElementOp, literal
from weft.codegen.gpu.ir.formats import SMALL, fragment_registers, held
from weft.codegen.gpu.ir.scalar import Scalar, scalar
from weft.codegen.gpu.ir.swizzle import PIECE, descriptor
from weft.codegen.gpu.ir.values import (
    VALUES,
    Alike,
    CombineElement,
    Compute,
    LoadAcross,
    SortKey,
    ValueStmt,
    Words,
)
from weft.codegen.gpu.spelling.called_functions import only_called
from weft.codegen.gpu.spelling.prelude import (
    angles,
    elements,
    instructions,
    matrix,
    partial_sums,
    rows,
    sorting,
)
from weft.codegen.gpu.spelling.print.elements import draw_bits, epilogue, store_vectors
from weft.codegen.gpu.spelling.print.scalars import at, braced, text
from weft.codegen.gpu.spelling.print.values import ValuePrinter, get_shared, load_lines, put_shared
from weft.foundation.dtypes import F32
from weft.foundation.errors import InternalError

BASE_ALIGNMENT: Final = 1024
"""Alignment of the start of shared memory: that of the widest swizzle."""


def cuda(kernel: ir.Kernel) -> str:
    """The whole source of a kernel."""
    own = [*_signature(kernel), *_entry_lines(kernel), *_body_lines(kernel), "}", ""]
    return "\n".join([*only_called(_head_lines(kernel), own), *own])


def _draws(statement: ir.Stmt) -> bool:
    """Whether an epilogue has random words."""
    sources = statement.sources if isinstance(statement, ir.Epilogue) else ()
    return any(isinstance(source, ir.RandomElements) for source in sources)


class _Statements:
    """All statements of a kernel, and what kinds of them there are: of thousands, some dozen."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self._all = list(ir.walk(kernel.body))
        self._kinds = set(map(type, self._all))

    def have(self, kinds: type | UnionType) -> bool:
        """Whether one is of these kinds."""
        return any(issubclass(kind, kinds) for kind in self._kinds)

    def of(self, kinds: type | UnionType) -> list[ir.Stmt]:
        """Those of these kinds, in order."""
        found = {kind for kind in self._kinds if issubclass(kind, kinds)}
        return [one for one in self._all if type(one) in found] if found else []


def _random(statements: _Statements) -> Iterator[str]:
    if statements.have(Words):
        yield elements.philox()
    if any(map(_draws, statements.of(ir.Epilogue))):
        yield elements.philox_side_by_side()
    if statements.have(ir.DrawBits):
        yield elements.draw_bits()


def _of_rows(statements: _Statements) -> Iterator[str]:
    if statements.have(ir.RowStmt):
        yield rows.ROWS
    if statements.have(ir.RowSum):
        yield rows.ROW_SUMS
    if statements.have(ir.AddShifted | ir.PoolPairs):
        yield rows.POOLS


def _head_lines(kernel: ir.Kernel) -> Iterator[str]:
    statements = _Statements(kernel)
    yield instructions.COMMON
    yield elements.ELEMENTS
    yield elements.FORMATS
    if angles.FUNCTIONS & {op.fn for op in _element_ops(statements.of(Compute | ir.Epilogue))}:
        yield angles.ANGLES
    yield from _random(statements)
    if statements.have(ValueStmt | ir.LoadElement):
        yield instructions.THREADS
    if statements.have(Alike | SortKey):
        yield sorting.SORTING
    if statements.have(CombineElement):
        yield instructions.COMBINING
    if statements.have(LoadAcross):
        yield instructions.ACROSS
    if statements.have(ir.Sm90Stmt):
        yield instructions.SM90
    if statements.have(ir.Sm80Stmt):
        yield instructions.SM80
    if statements.have(ir.PackSmall | ir.PackSigned | ir.ScalePair):
        yield instructions.SMALL
    if any(isinstance(s, ir.CpAsync) and s.bytes < PIECE for s in statements.of(ir.CpAsync)):
        yield instructions.PARTS_OF_PIECES
    if statements.have(ir.ClusterStmt):
        yield instructions.CLUSTERS
    if statements.have(ir.ChainStmt):
        yield instructions.CHAINS
    if statements.have(ir.PartStmt):
        yield partial_sums.PARTS
    yield from _of_rows(statements)
    functions: dict[str, str] = {}
    for statement in statements.of(ir.TmaLoad | ir.Wgmma | ir.MmaSync):
        match statement:
            case ir.TmaLoad(coords=coords, once=once, taps=taps):
                blocks, window = kernel.cluster if statement.everywhere else 1, bool(taps)
                name = instructions.tma_load_name(blocks, once=once, window=window)
                made = instructions.tma_load(len(coords), blocks, once=once, window=window)
                functions[f"{name}_{len(coords)}"] = made
            case ir.Wgmma():
                shape = _wgmma_instruction(statement)
                functions[shape.name] = shape.text()
            case ir.MmaSync(a_dtype=a_dtype, b_dtype=b_dtype):
                name = matrix.mma_name(a_dtype, b_dtype)
                functions[name] = matrix.mma_sync(a_dtype, b_dtype)
    yield from functions.values()
    for table in kernel.tables:
        values = ", ".join(map(str, table.values))
        yield f"__device__ const int {table.name}[{len(table.values)}] = {{{values}}};"


def _wgmma_instruction(statement: ir.Wgmma) -> matrix.Wgmma:
    """The instruction that carries out a product."""
    a = None if isinstance(statement.a, ir.RegAt) else statement.a.major
    return matrix.Wgmma(statement.n, statement.a_dtype, statement.b_dtype, a, statement.b.major)


def _element_ops(statements: Iterable[ir.Stmt]) -> Iterator[ElementOp]:
    """What is done to single elements, in threads and on fragments."""
    for statement in statements:
        match statement:
            case Compute(op=op):
                yield op
            case ir.Epilogue(ops=ops):
                yield from ops


def _signature(kernel: ir.Kernel) -> Iterator[str]:
    maps = [f"const __grid_constant__ TensorMap m{i}" for i, _ in enumerate(kernel.maps)]
    buffers = [f"char* b{i}" for i, _ in enumerate(kernel.buffers)]
    if kernel.sets > 1:
        yield f"struct Sets_ {{ char* buffers[{kernel.sets}][{len(kernel.buffers)}]; }};"
        buffers = ["const __grid_constant__ Sets_ sets_"]
    buffers += ["u64* error"] if kernel.reports else []
    buffers += ["u32* workspace"] if kernel.workspace else []
    # The second bound, even where it is one block a multiprocessor, lets setmaxnreg take effect.
    bounds = f"{kernel.threads}, {kernel.resident}"
    cluster = f"__cluster_dims__({kernel.cluster}, 1, 1) " if kernel.cluster > 1 else ""
    yield f'extern "C" __global__ void {cluster}__launch_bounds__({bounds})'
    yield f"{kernel.name}({', '.join(maps + buffers)}) {{"


def _entry_lines(kernel: ir.Kernel) -> Iterator[str]:
    if kernel.shared_bytes:
        yield f"  extern __shared__ __align__({BASE_ALIGNMENT}) unsigned char shared_bytes[];"
        yield "  const u32 shared = (u32)__cvta_generic_to_shared(shared_bytes);"
        yield f"  if (shared & {BASE_ALIGNMENT - 1}) __trap();"
    yield "  const int thread = threadIdx.x;"
    yield "  const int lane = thread & 31;"
    # The shuffle tells the compiler that the warp number is the same for all lanes.
    yield "  const int warp = __shfl_sync(0xffffffffu, thread >> 5, 0);"
    yield "  const int block = blockIdx.x;"


def _body_lines(kernel: ir.Kernel) -> Iterator[str]:
    printer = _Printer(kernel)
    for line in printer.block(kernel.body):
        yield "  " + line


def _with_hidden_counter(var: str, lines: Iterable[str]) -> Iterable[str]:
    """The body of a loop whose turns are interleaved, its counter hidden where it is compared with
    a number. NVRTC 13.0 counts such a loop from another number, and forgets that in some of the
    comparisons: of `step >= 2` and `step >= 3` in a loop by threes it made tests of `step - 3`,
    and results of the first rows were not stored."""
    compared = re.compile(rf"\({var} (<|<=|==|!=|>=|>) (-?\d+)\)")
    written = list(lines)
    found = [compared.sub(rf"({var}_unknown \1 \2)", line) for line in written]
    return [f"int {var}_unknown = as_unknown({var});", *found] if found != written else written


class _Printer:
    """Prints statements of one kernel."""

    def __init__(self, kernel: ir.Kernel) -> None:
        self.tiles = {tile.name: tile.offset for tile in kernel.tiles}
        self.barriers = {array.name: array for array in kernel.barriers}
        self.maps = {found.name: f"m{i}" for i, found in enumerate(kernel.maps)}
        self.values = ValuePrinter()
        self.buffers = len(kernel.buffers)
        self.blocks = kernel.cluster
        self.first_word = kernel.workspace.first_word if kernel.workspace else 0

    def block(self, body: tuple[ir.Stmt, ...]) -> Iterator[str]:
        for statement in body:
            yield from self.statement(statement)

    def statement(self, statement: ir.Stmt) -> Iterator[str]:
        # Most of them, before they are compared with all the others.
        if isinstance(statement, VALUES):
            yield from self.values.lines(statement)
            return
        match statement:
            case ir.Let() | ir.Set() | ir.TakeSet():
                yield from self.number(statement)
            case ir.Registers(name=name, kind=kind, count=count):
                yield f"{kind.value} {name}[{count}]{' = {}' if statement.zero else ''};"
            case ir.For() | ir.If() | ir.Roles():
                yield from self.control(statement)
            case ir.LoadElement() | ir.StShared() | ir.StSharedVec() | ir.LoadShared():
                yield from self.element(statement)
            case ir.CountShared(target=target):
                yield f"count_shared({self.address(target)});"
            case ir.LoadSharedVector(names=names, dtype=dtype, source=place):
                yield from self.values.load_shared_vector(names, dtype, self.address(place))
            case ir.LoadStaged(names=names, dtype=dtype, source=place):
                yield from self.values.load_staged(names, dtype, self.address(place))
            case ir.DrawBits():
                yield from draw_bits(statement)
            case ir.Epilogue():
                yield from epilogue(statement, self.address)
            case ir.StGlobalVec():
                yield from store_vectors(statement)
            case ir.StGlobalRow():
                yield self.store_row(statement)
            case _ if isinstance(statement, ir.Sm80Stmt):
                yield self.sm80(statement)
            case ir.StMatrix(target=target, source=source, count=count):
                values = ", ".join(at(source, i) for i in range(count))
                yield f"stmatrix_x{count}({self.address(target)}, {values});"
            case ir.NamedBarrier(number=number, threads=threads):
                yield f"named_barrier({text(number)}, {threads});"
            case ir.SyncThreads():
                yield "__syncthreads();"
            case ir.SyncWarp():
                yield "__syncwarp();"
            case ir.ClusterArrive() | ir.ClusterWait() | ir.StCluster() | ir.SendCluster():
                yield self.cluster(statement)
            case _ if isinstance(statement, ir.PartStmt):
                yield self.part(statement)
            case _ if isinstance(statement, ir.AddRegisters | ir.RowStmt):
                yield from self.sums(statement)
            case ir.AdmitNext():
                yield "admit_next();"
            case ir.AwaitPrevious():
                yield "await_previous();"
            case _:
                yield from self.sm90(statement)

    def number(self, statement: ir.Let | ir.Set | ir.TakeSet) -> Iterator[str]:
        match statement:
            case ir.Let(name=name, value=value, pinned=pinned):
                yield f"int {name} = {text(value)};{f' pin({name});' if pinned else ''}"
            case ir.Set(name=name, value=value):
                yield f"{name} = {text(value)};"
            case ir.TakeSet(number=number):
                yield f"const int set_ = {text(number)};"
                yield from (f"char* b{i} = sets_.buffers[set_][{i}];" for i in range(self.buffers))

    def control(self, statement: ir.For | ir.If | ir.Roles) -> Iterator[str]:
        match statement:
            case ir.For(var=var, body=body):
                yield f"#pragma unroll {statement.times}"
                bounds = f"int {var} = {text(scalar(statement.start))}; "
                bounds += f"{var} < {text(scalar(statement.stop))}; "
                bounds += f"{var} += {text(scalar(statement.step))}"
                lines: Iterable[str] = self.block(body)
                if statement.times > 1:
                    lines = _with_hidden_counter(var, lines)
                yield from braced(f"for ({bounds})", lines)
            case ir.If(cond=cond, then=then, otherwise=otherwise):
                yield from braced(f"if ({text(cond)})", self.block(then))
                if otherwise:
                    yield from braced("else", self.block(otherwise))
            case ir.Roles(cases=cases):
                for number, case in enumerate(cases):
                    last = number == len(cases) - 1
                    test = "" if last else f"if (warp < {case.first + case.count})"
                    head = f"else {test}".strip() if number else test
                    yield from braced(head, self.block(case.body))

    def element(
        self, statement: ir.LoadElement | ir.StShared | ir.StSharedVec | ir.LoadShared
    ) -> Iterator[str]:
        match statement:
            case ir.LoadElement(name=name, dtype=dtype, buffer=buffer, offset=offset, guard=guard):
                self.values.name(name, dtype)
                fill, constant = statement.fill, statement.constant
                yield load_lines(name, dtype, buffer, offset, guard, fill=fill, constant=constant)
            case ir.StShared(target=target, source=name, dtype=dtype):
                kind = held(dtype)
                yield put_shared(self.address(target), f"({kind}){name}")
            case ir.StSharedVec(target=target, source=source, count=count):
                values = ", ".join(f"bits({at(source, i)})" for i in range(count))
                yield f"store_shared_v{count}({self.address(target)}, {values});"
            case ir.LoadShared(name=name, dtype=dtype, source=place):
                value = get_shared(self.address(place), dtype)
                yield f"{self.values.name(name, dtype)} = {value};"

    def cluster(self, statement: ir.ClusterStmt) -> str:
        match statement:
            case ir.ClusterArrive(relaxed=relaxed):
                return f"cluster_arrive{'_relaxed' if relaxed else ''}();"
            case ir.ClusterWait():
                return "cluster_wait();"
            case ir.StCluster(target=target, block=block, source=name, dtype=dtype):
                there = f"in_block({self.address(target)}, {text(block)})"
                return f"store_cluster({there}, bits(({held(dtype)}){name}));"
            case ir.SendCluster(target=target, block=block, source=name, dtype=dtype):
                places = (self.address(target), self.barrier(statement.barrier))
                there, met = (f"in_block({place}, {text(block)})" for place in places)
                return f"send_cluster({there}, bits(({held(dtype)}){name}), {met});"

    def part(self, statement: ir.PartStmt) -> str:
        member, threads = text(statement.member), statement.threads
        if isinstance(statement, ir.KeepSums | ir.AddSums | ir.GatherSums):
            words = f"workspace + {self.first_word} + {text(statement.start)}"
            match statement:
                case ir.KeepSums(source=array):
                    return f"keep_sums<{threads}>({array}, {words}, {member});"
                case ir.AddSums(target=array):
                    return f"add_sums<{threads}>({array}, {words}, {member});"
                case ir.GatherSums(target=array, stride=stride, count=count):
                    function = f"gather_sums<{count}, {threads}>"
                    return f"{function}({array}, {words}, {stride}ll, {member});"
        counter = f"workspace + {text(statement.counter)}"
        meeting = f"{member} == 0, {text(statement.number)}, {threads}"
        match statement:
            case ir.CountOff(name=name, last=last):
                return f"int {name} = count_off({counter}, {text(last)}, {meeting});"
            case ir.AwaitTurn(value=value):
                return f"await_turn({counter}, {text(value)}, {meeting});"
            case ir.PassTurn(value=value):
                return f"pass_turn({counter}, {text(value)}, {meeting});"

    def sm80(self, statement: ir.Sm80Stmt) -> str:
        match statement:
            case ir.Gather():
                return self.gather(statement)
            case ir.CpAsync(target=target, buffer=buffer, offset=offset, guard=guard):
                source = f"b{buffer} + {text(offset)}"
                name = "cp_async"
                if statement.bytes < PIECE:
                    name = f"cp_async_part<{statement.bytes}>"
                return f"{name}({self.address(target)}, {source}, {text(guard)});"
            case ir.CommitGroup():
                return "cp_async_commit();"
            case ir.WaitGroup(pending=pending):
                return f"cp_async_wait<{pending}>();"
            case ir.LdMatrix(target=target, source=source, transposed=transposed):
                values = ", ".join(at(target, i) for i in range(4))
                name = "ldmatrix_transposed" if transposed else "ldmatrix"
                return f"{name}({values}, {self.address(source)});"
            case ir.LdRegister(target=target, source=source):
                return f"load_register({at(target, 0)}, {self.address(source)});"
            case ir.PackPair(target=target, low=low, high=high, dtype=dtype):
                return f"{at(target, 0)} = {self.values.packed((low, high), 0, dtype)};"
            case ir.PackSmall(target=target, dtype=dtype):
                back = statement.least + statement.offset - SMALL[dtype]
                back = int(np.array(back, dtype.numpy).view(np.uint16))
                pair = self.values.small(statement)
                return (
                    f"{at(target, 0)} = pack_small_{dtype.name}({pair}, {back << 16 | back:#x}u);"
                )
            case ir.PackSigned(target=target, low=low, high=high, dtype=dtype):
                pair = self.values.byte_pair(low, high)
                return f"{at(target, 0)} = pack_signed_{dtype.name}({pair});"
            case ir.ScalePair(target=target, factor=factor, dtype=dtype):
                place = at(target, 0)
                return f"{place} = scale_pair_{dtype.name}({place}, {factor});"
            case ir.MmaSync(acc=acc, a=a, b=b, a_dtype=a_dtype, b_dtype=b_dtype):
                counts = zip((acc, a, b), (4, *fragment_registers(a_dtype)), strict=True)
                parts = [at(place, i) for place, count in counts for i in range(count)]
                return f"{matrix.mma_name(a_dtype, b_dtype)}({', '.join(parts)});"

    def store_row(self, statement: ir.StGlobalRow) -> str:
        size = statement.dtype.storage_bytes
        row = f"b{statement.buffer} + ({text(statement.offset)}) * {size}"
        if statement.vector:
            place = f"({text(statement.place)}) * {16 // size}"
            inside = f"{place} < {text(statement.count)}"
            staged = self.address(statement.source)
            return f"store_row_vector({row} + ({place}) * {size}, {staged}, {inside});"
        word = f"load_staged({self.address(statement.source)})"
        rest = f"{text(statement.place)}, {text(statement.count)}"
        return f"store_row_{size}({row}, {word}, {rest});"

    def gather(self, statement: ir.Gather) -> str:
        bits = 8 * statement.dtype.storage_bytes
        place = f"(const u{bits}*)b{statement.buffer} + {text(statement.offset)}"
        limit = f"({text(statement.guard)}) ? {text(statement.limit)} : 0"
        function = f"gather<{statement.count}, {statement.step}>"
        constant = "true" if statement.constant else "false"
        return f"{function}({self.address(statement.target)}, {place}, {limit}, {constant});"

    def sm90(self, statement: ir.Stmt) -> Iterator[str]:
        match statement:
            case ir.MbarrierInit(barriers=name):
                array = self.barriers[name]
                for index in range(array.count):
                    place = self.barrier(ir.BarrierAt(name, scalar(index)))
                    yield f"mbarrier_init({place}, {array.arrivals});"
            case ir.MbarrierInitFence():
                yield "mbarrier_init_fence();"
            case ir.MbarrierExpectTx(barrier=barrier, bytes=count):
                yield f"mbarrier_expect_tx({self.barrier(barrier)}, {count});"
            case ir.MbarrierArrive(barrier=barrier, everywhere=True):
                for block in range(self.blocks):
                    yield f"mbarrier_arrive_there(in_block({self.barrier(barrier)}, {block}));"
            case ir.MbarrierArrive(barrier=barrier):
                yield f"mbarrier_arrive({self.barrier(barrier)});"
            case ir.MbarrierWait(barrier=barrier, parity=parity):
                yield f"mbarrier_wait({self.barrier(barrier)}, {text(parity)});"
            case ir.PrefetchMap(map=name):
                yield f"prefetch_map({self.maps[name]});"
            case ir.TmaLoad(target=target, map=name, coords=coords, barrier=barrier):
                places = ", ".join(map(text, (*coords, *statement.taps)))
                head = f"{self.address(target)}, {self.maps[name]}, {self.barrier(barrier)}"
                blocks, window = self.blocks if statement.everywhere else 1, bool(statement.taps)
                function = instructions.tma_load_name(blocks, once=statement.once, window=window)
                yield f"{function}({head}, {places});"
            case ir.BulkLoad(target=target, buffer=buffer, dtype=dtype, barrier=barrier):
                size = dtype.storage_bytes
                source = f"b{buffer} + {text(statement.offset)} * {size}"
                head = f"{self.address(target)}, {source}, {statement.count * size}"
                yield f"bulk_load({head}, {self.barrier(barrier)});"
            case ir.TmaStore(source=source, map=name, coords=coords):
                places = ", ".join(map(text, coords))
                yield f"tma_store({self.address(source)}, {self.maps[name]}, {places});"
            case ir.TmaCommit():
                yield "tma_commit();"
            case ir.TmaWaitRead(pending=pending):
                yield f"tma_wait_read<{pending}>();"
            case ir.ProxyFence():
                yield "proxy_fence();"
            case _:
                yield from self.wgmma(statement)

    def wgmma(self, statement: ir.Stmt) -> Iterator[str]:
        match statement:
            case ir.Descriptor(name=name, address=address, layout=layout, major=major):
                bits = descriptor(layout, major)
                yield f"u64 {name} = descriptor({self.address(address)}, {bits:#x}ull);"
            case ir.WgmmaFence():
                yield "wgmma_fence();"
            case ir.Wgmma(acc=acc, a=a, b=b):
                sides = (self.factor(a), self.factor(b))
                function = f"{_wgmma_instruction(statement).name}<{int(statement.accumulate)}>"
                yield f"{function}({acc}, {', '.join(sides)});"
            case ir.WgmmaCommit():
                yield "wgmma_commit();"
            case ir.WgmmaWait(pending=pending, acc=arrays):
                yield f"wgmma_wait<{pending}>();"
                yield from (f"hold({name});" for name in arrays)
            case ir.SetMaxNReg(count=count, grow=grow):
                yield f"{'grow' if grow else 'shrink'}_registers<{count}>();"
            case _:
                raise InternalError(f"no CUDA text for {type(statement).__name__}")

    def factor(self, side: ir.WgmmaOperand | ir.RegAt) -> str:
        """An operand of a matrix instruction: its descriptor, or its registers."""
        if isinstance(side, ir.RegAt):
            return ", ".join(at(side, i) for i in range(4))
        # Descriptors have addresses in pieces of 16 bytes, in their lowest bits: a step needs no
        # new one.
        return f"{side.descriptor} + {side.offset // 16}"

    def sums(self, statement: ir.AddRegisters | ir.RowStmt) -> Iterator[str]:
        match statement:
            case ir.AddRegisters(target=total, source=part):
                flags = f"{int(statement.first)}, {int(statement.clear)}"
                yield f"add_registers<{flags}>({total}, {part});"
            case ir.RowMax(names=names, source=array):
                yield f"{self.values.declared(names, F32)};"
                yield f"row_max({array}, {', '.join(names)});"
            case ir.RowSum(names=names, source=array):
                yield f"{self.values.declared(names, F32)};"
                yield f"row_sum({array}, {', '.join(names)});"
            case ir.RowExp(names=names, target=array, shifts=shifts, scale=scale, early=early):
                yield f"{self.values.declared(names, F32)};"
                given = ", ".join((*shifts, *names))
                called = f"row_exp<{int(early)}>"
                yield f"{called}({array}, {literal(scale, F32)}, {given});"
            case ir.RowScale(target=array, factors=factors):
                yield f"row_scale({array}, {', '.join(factors)});"
            case ir.AddShifted(target=total, source=part, by=by):
                yield f"add_shifted<{by}>({total}, {part}, lane);"
            case ir.PoolPairs(names=names, source=array):
                yield f"{self.values.declared(names, F32)};"
                for number, name in enumerate(names):
                    yield f"{name} = pool_pair({array}, {2 * number});"

    def address(self, address: ir.Address) -> str:
        return self.place(self.tiles[address.tile], address.offset)

    def barrier(self, barrier: ir.BarrierAt) -> str:
        return self.place(self.barriers[barrier.barriers].offset, barrier.index * 8)

    def place(self, start: int, offset: Scalar) -> str:
        return f"shared + {text(offset + start)}"
