"""Products of few rows with weights of few bits: codes from memory to registers, `mma.sync`.

    for each step of the warp: read a run of codes of every column that the lane has, and x;
        make numbers of the codes, pack them in pairs, multiply
    put the sums down; add up those of all warps, in order; epilogue; store

Columns of the result are the rows of the matrix instructions, so that a warp takes 16 of them, and
rows of x their columns, eight at a time. An instruction's element k belongs to a lane, not to a
place in memory: a lane's numbers are multiplied in the order in which x has them, four at a time,
and x is read in vectors in that order. Nothing goes through shared memory but the sums, which warps
that share k hand over at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.scopes import Group, Scope, group_at
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.formats import SMALL
from weft.codegen.gpu.ir.scalar import BLOCK, LANE, LANES, THREAD, WARP, Lit, Name, Scalar, both
from weft.codegen.gpu.maps.map import Elementwise
from weft.codegen.gpu.products.refusals import algorithm_refusals, memory_refusals
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32
from weft.foundation.errors import Finding
from weft.plan.code_tiles import COLUMNS, MOST_SUMS, ROWS, step_of
from weft.plan.completion import IN_REGISTERS, false_claims
from weft.plan.ir import Header, MmaPlan, Plan
from weft.plan.text import told
from weft.region.forms.codes import LANES as SHARING
from weft.region.forms.codes import QUAD, Codes, find_codes, find_scaled
from weft.region.ir import Kernel, Let, Read, Tensor
from weft.target.target import Target

_USED: Final = frozenset({
    "header", "tile", "warp_tile", "cache", "epilogue", "local_edges", "arch", "algo_choice",
})  # fmt: skip
_FIXED: Final = {"roles": "single", "order": "rows"}
_MOST_WARPS: Final = 16
_PADDING: Final = 2
"""Sums between the columns of a warp's, so that those of neighbours begin in different banks."""
_AHEAD: Final = 64
"""Bytes of codes of a column that a lane asks for before it needs them."""


class Products(Elementwise):
    """A block makes some columns of all rows; its warps share what is summed over."""

    def __init__(
        self,
        kernel: Kernel,
        tensors: Mapping[str, Tensor],
        refs: Refs,
        plan: MmaPlan,
        target: Target,
    ) -> None:
        super().__init__(kernel, refs, target)
        found = find_codes(kernel, tensors)
        assert found is not None  # `refusals` has refused the rest
        assert kernel.roles is not None
        self.found, self.plan = found, plan
        self.contraction = kernel.roles.contraction
        self.weight, self.other = self.lets[found.weight], self.lets[found.other]
        self.only_stored.add(found.weight)
        scaled = find_scaled(kernel, found.weight)
        small = scaled is not None and scaled.high - scaled.low < SMALL[self.other.dtype]
        self.scaled = scaled if small else None
        """What weights are the products of, where they may be made in pairs."""
        self.high, self.wide, depth = plan.tile
        self.warps = depth // step_of(found)
        self.rows, self.columns, self.batches = (
            prod(kernel.sizes[name] for name in names)
            for names in (found.rows, found.columns, found.batch)
        )
        self.across = -(-self.columns // self.wide)
        self.pitch = self.high + _PADDING
        self.tiles.append(ir.SharedTile("sums", 0, self.warps * self.part * 4))
        self.loaded: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Vectors of codes that a step has read, by where they lie."""

    @property
    def part(self) -> int:
        """Sums of a warp, with room."""
        return self.wide * self.pitch

    @property
    def grid(self) -> int:
        return self.batches * self.across

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def resident(self) -> int:
        """As many blocks as registers are left for, where a thread has few sums."""
        sums = self.high * self.wide // LANES
        room = 2 if sums <= MOST_SUMS // 4 else 1
        return max(1, min(room, 512 // self.threads))

    # -- the product -----------------------------------------------------------------------------

    def work(self) -> list[ir.Stmt]:
        root = Scope(None, {}, [])
        body = root.body
        tile: Scalar = BLOCK
        if self.batches > 1:
            body.append(ir.Let("matrix", BLOCK // self.across))
            body.append(ir.Let("tile", BLOCK % self.across))
            root.axes = self.places(root, Name("matrix"), self.found.batch)
            tile = Name("tile")
        else:
            root.axes = {name: Lit(0) for name in self.found.batch}
        body.append(ir.Let("first", tile * self.wide))
        columns = [self.column(root, number) for number in range(2 * self.wide // COLUMNS)]
        rows = [self.row(root, number) for number in range(self.high // ROWS)]
        quads = len(self.found.points) // QUAD
        sums = 4 * (self.wide // COLUMNS) * len(rows)
        body.append(ir.Registers("acc", ir.RegisterKind.F32, sums, zero=True))
        body.append(ir.Registers("a_part", ir.RegisterKind.B32, 2 * quads * len(columns)))
        body.append(ir.Registers("b_part", ir.RegisterKind.B32, 2 * quads * len(rows)))
        steps = self.found.runs(self.kernel.sizes) // SHARING
        turn = self.step(columns, rows)
        times = max(1, min(_AHEAD // self.run_bytes, -(-steps // self.warps)))
        body.append(ir.For("step", WARP, Lit(steps), Lit(self.warps), tuple(turn), times=times))
        body += self.hand_over(len(rows))
        self.results(root)
        return body

    @property
    def run_bytes(self) -> int:
        reads = [let.dtype.storage_bytes for let in self.lets.values() if self.is_code(let)]
        return self.found.count * max(reads)

    def is_code(self, let: Let) -> bool:
        return isinstance(let.expr, Read) and self.found.run in let.axes and let is not self.other

    def column(self, root: Scope, number: int) -> Scope:
        """One of a lane's columns: of every 16 that of its number, and the eighth from it."""
        name = self.fresh("column")
        root.body.append(ir.Let(name, Name("first") + (LANE >> 2) + number * (COLUMNS // 2)))
        whole = self.columns % self.wide == 0
        inside: Scalar = Lit(1) if whole else Name(name) < self.columns
        axes = self.places(root, Name(name), self.found.columns)
        return Scope(root, axes, root.body, inside)

    def row(self, root: Scope, number: int) -> Scope:
        """The row of x that a lane has of every eight."""
        name = self.fresh("row")
        root.body.append(ir.Let(name, (LANE >> 2) + number * ROWS))
        whole = self.rows % ROWS == 0
        inside: Scalar = Lit(1) if whole else Name(name) < self.rows
        axes = self.places(root, Name(name), self.found.rows)
        return Scope(root, axes, root.body, inside)

    def step(self, columns: Sequence[Scope], rows: Sequence[Scope]) -> list[ir.Stmt]:
        """A run of each lane: what it reads, makes of it, and multiplies."""
        found = self.found
        inner = Scope(None, {}, [])
        body = inner.body
        body.append(ir.Let("run", Name("step") * SHARING + (LANE & (SHARING - 1))))
        names, sizes = (*found.outer, found.run), dict(self.kernel.sizes)
        sizes[found.run] //= found.count
        places = self.places(inner, Name("run"), names, sizes)
        places[found.run] = places[found.run] * found.count
        places |= {name: Lit(0) for name in self.lone}
        for number, row in enumerate(rows):
            self.fetch(Scope(row, dict(places), body), number)
        made = [self.weights(column, places, body) for column in columns]
        for quad in range(len(found.points) // QUAD):
            self.multiply(made, quad, len(rows), body)
        return body

    @property
    def lone(self) -> list[str]:
        """Summed axes of one element."""
        assert self.kernel.roles is not None
        return [name for name in self.kernel.roles.k if self.kernel.sizes[name] == 1]

    def fetch(self, scope: Scope, number: int) -> None:
        """What a lane has of a row of x, into registers."""
        found, read = self.found, self.other.expr
        assert isinstance(read, Read)
        scope.axes |= {name: Lit(0) for name in found.inner}
        start, inside = self.offset(self.address(read), scope), scope.exists()
        first = len(found.points) // 2 * number
        for at in range(0, len(found.places), found.width):
            names = tuple(self.fresh("x") for _ in range(found.width))
            scope.body.append(
                values.LoadVector(
                    names, self.numbers[read.tensor], self.other.dtype, start + found.places[at],
                    inside, self.is_constant(read.tensor),
                )
            )  # fmt: skip
            for pair in range(0, found.width, 2):
                target = ir.RegAt("b_part", first + (at + pair) // 2)
                scope.body.append(
                    ir.PackPair(target, names[pair], names[pair + 1], self.other.dtype)
                )

    def weights(
        self, column: Scope, places: Mapping[str, Scalar], body: list[ir.Stmt]
    ) -> list[tuple[str, str]]:
        """The numbers that a run of a column's codes stands for, in the order of x: or integers,
        and what they are scaled by."""
        found, scaled = self.found, self.scaled
        known = {n: at for n, at in places.items() if n != found.run and n not in found.inner}
        base = Scope(column, known, body)
        groups: dict[tuple[int, ...], Group] = {}
        self.loaded = {}
        made = []
        for place, code in found.points:
            if place not in groups:
                axes = {name: Lit(at) for name, at in zip(found.inner, place, strict=True)}
                parent = Scope(base, {**axes}, body)
                at = {found.run: places[found.run]}
                groups[place] = group_at(parent, at, found.run, found.count, Lit(1))
            point = groups[place].instances[code]
            made.append(self.value(self.weight.name if scaled is None else scaled.integer, point))
        factors = [
            "" if scaled is None else self.value(scaled.factor, groups[place].instances[code])
            for place, code in found.points
        ]
        return list(zip(made, factors, strict=True))

    def pack(self, target: ir.RegAt, pair: Sequence[tuple[str, str]], body: list[ir.Stmt]) -> None:
        """Two weights into a register: from their integers, where these share a factor."""
        ((low, factor), (high, other)), dtype = pair, self.other.dtype
        if self.scaled is None:
            body.append(ir.PackPair(target, low, high, dtype))
            return
        assert factor == other  # the factor of a run
        body.append(ir.PackSmall(target, low, high, self.scaled.low, self.scaled.offset, dtype))
        body.append(ir.ScalePair(target, factor, dtype))

    def read_vectors(self, let: Let, read: Read, group: Group) -> None:
        """Vectors of codes, each once, whichever halves are asked for."""
        head = group.instances[0]
        guard = self.guard(read, head)
        if guard == Lit(0):
            name = self.fresh()
            zero = 0.0 if let.dtype.is_float else 0
            head.body.append(values.Compute(ElementOp(name, let.dtype, "const", (), zero)))
            for instance in group.instances:
                instance.made[let.name] = name
            return
        key = (read.tensor, self.source(read, head), guard, len(group.instances))
        if key not in self.loaded:
            super().read_vectors(let, read, group)
            self.loaded[key] = tuple(point.made[let.name] for point in group.instances)
        for instance, name in zip(group.instances, self.loaded[key], strict=True):
            instance.made[let.name] = name

    def is_read_once(self, let: Let) -> bool:
        return True

    def multiply(
        self, made: Sequence[Sequence[tuple[str, str]]], quad: int, rows: int, body: list[ir.Stmt]
    ) -> None:
        """Four numbers of each lane's columns, with all rows."""
        dtype, quads = self.other.dtype, len(self.found.points) // QUAD
        for block in range(len(made) // 2):
            target = 4 * (block * quads + quad)
            for pair in (0, 1):
                for half in (0, 1):
                    two = made[2 * block + half][QUAD * quad + 2 * pair :][:2]
                    self.pack(ir.RegAt("a_part", target + 2 * pair + half), two, body)
            for row in range(rows):
                body.append(
                    ir.MmaSync(
                        ir.RegAt("acc", 4 * (block * rows + row)),
                        ir.RegAt("a_part", target),
                        ir.RegAt("b_part", 2 * (row * quads + quad)),
                        dtype,
                        dtype,
                    )
                )

    # -- results ---------------------------------------------------------------------------------

    def hand_over(self, rows: int) -> Iterator[ir.Stmt]:
        """A warp's sums, column by column, into shared memory."""
        yield ir.Let("own", WARP * self.part + (LANE >> 2) * self.pitch + (LANE & 3) * 2)
        for block in range(self.wide // COLUMNS):
            for row in range(rows):
                for half in (0, 1):
                    column = block * COLUMNS + half * (COLUMNS // 2)
                    start = Name("own") + (column * self.pitch + row * ROWS)
                    register = ir.RegAt("acc", 4 * (block * rows + row) + 2 * half)
                    yield ir.StSharedVec(ir.Address("sums", start * 4), register, 2)
        yield ir.SyncThreads()

    def results(self, root: Scope) -> None:
        """Every result by one thread: the sums of all warps, and what is made of them."""
        count = self.wide * self.rows
        var = "turn"
        scope = Scope(root, {}, [])
        body = scope.body
        body.append(ir.Let("result", Name(var) * self.threads + THREAD))
        body.append(ir.Let("across", Name("result") % self.wide))
        body.append(ir.Let("down", Name("result") // self.wide))
        inside: Scalar = Lit(1)
        if count % self.threads:
            inside = Name("result") < count
        if self.columns % self.wide:
            inside = both(inside, Name("first") + Name("across") < self.columns)
        point = Scope(scope, {}, [])
        body = point.body
        total = self.total(body)
        body.append(ir.Let("at_column", Name("first") + Name("across")))
        point.axes = self.places(point, Name("at_column"), self.found.columns)
        point.axes |= self.places(point, Name("down"), self.found.rows)
        group = group_at(point, {}, None, 1, Lit(1))
        point.made[self.contraction] = total
        self.store_points(group, None, {**root.axes, **point.axes})
        work: list[ir.Stmt] = [*point.body] if inside == Lit(1) else [ir.If(inside, tuple(body))]
        turns = -(-count // self.threads)
        root.body.append(ir.For(var, 0, turns, 1, (*scope.body, *work)))

    def total(self, body: list[ir.Stmt]) -> str:
        """The sums of all warps added up, the first warp's first."""
        place = Name("across") * self.pitch + Name("down")
        total = ""
        for warp in range(self.warps):
            name = self.fresh("part")
            address = ir.Address("sums", (place + warp * self.part) * 4)
            body.append(ir.LoadShared(name, F32, address))
            if total:
                made = self.fresh("sum")
                body.append(values.Compute(ElementOp(made, F32, "add", (total, name))))
                name = made
            total = name
        return total


# -- the template --------------------------------------------------------------------------------


def refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, target: Target
) -> Iterator[Finding]:
    """Why the template cannot carry out a kernel, or not with the plan."""
    found = find_codes(kernel, tensors)
    if found is None:
        yield refuse("NotOfCodes", f"{kernel.name} is no product with weights of few bits")
        return
    yield from _fields(kernel, plan)
    yield from _tile(kernel, found, plan, target)


def _fields(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    usual = MmaPlan(Header("", ""), plan.tile)
    for known in fields(plan):
        given = getattr(plan, known.name)
        wanted = _FIXED.get(known.name, getattr(usual, known.name))
        if known.name not in _USED and given != wanted:
            said = told(plan, known.name)
            yield refuse("PlanField", f"{said} has no effect in the template of codes")
    if plan.cache not in ((), IN_REGISTERS):
        yield refuse("PlanField", f"{told(plan, 'cache')}: both operands go to registers")
    for why in (*false_claims(kernel, plan), *algorithm_refusals(kernel, plan)):
        yield refuse("PlanField", why)


def _tile(kernel: Kernel, found: Codes, plan: MmaPlan, target: Target) -> Iterator[Finding]:
    rows, columns = (
        prod(kernel.sizes[name] for name in names) for names in (found.rows, found.columns)
    )
    (high, wide, depth), step = plan.tile, step_of(found)
    if high != ROWS * -(-rows // ROWS) or wide < COLUMNS or wide % COLUMNS:
        yield refuse("Tile", f"{high}x{wide} is not all {rows} rows and multiples of {COLUMNS}")
    elif plan.warp_tile != (high, wide):
        yield refuse("Tile", f"warps share k alone: each has {high}x{wide}")
    elif depth % step or not 0 < depth // step <= _MOST_WARPS:
        yield refuse(
            "Tile", f"{depth} is not a step of {step} for each of up to {_MOST_WARPS} warps"
        )
    elif high * wide // LANES > MOST_SUMS:
        yield refuse("Registers", f"{high * wide // LANES} sums of a thread are too many")
    else:
        sums = depth // step * wide * (high + _PADDING) * 4
        yield from memory_refusals(sums, target)
    batch = prod(kernel.sizes[name] for name in found.batch)
    yield from too_many(columns, found.runs(kernel.sizes), blocks=batch * columns)


class CodesTemplate:
    """Products of few rows with weights of few bits."""

    name: Final = "codes"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MmaPlan) and plan.arch == "codes"

    def accepts(self, job: Job[MmaPlan]) -> list[Finding]:
        return [
            *kernel_refusals(job.short, job.tensors),
            *refusals(job.kernel, job.tensors, job.plan, job.target),
        ]

    def build(self, job: Job[MmaPlan], name: str) -> ir.Kernel:
        return Products(job.short, job.tensors, job.refs, job.plan, job.target).kernel_called(
            name, job.tensors
        )


TEMPLATE: Final = CodesTemplate()
