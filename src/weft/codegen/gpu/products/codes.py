"""Products of few rows with quantised weights (of 4 or 8 bits): packed weights go from memory to
registers and into `mma.sync`.

    for each step of the warp: start to copy a run of codes of every column that the lane has, some
        steps ahead; read the runs that have come, and x; make numbers of the codes, pack them in
        pairs, multiply
    put the sums down; add up those of all warps, in order; epilogue; store

Columns of the result are the rows of the matrix instructions, so that a warp takes 16 of them, and
rows of x their columns, eight at a time. An instruction's element k belongs to a lane, not to a
place in memory: a lane's numbers are multiplied in the order in which x has them, four at a time,
and x is read in vectors in that order. Codes wait in shared memory, a ring of `stages` runs; a lane
reads what it has copied itself, so that nobody meets before the sums, which warps that share k hand
over at the end. Warps side by side have other columns and the same of k, so that they find in the
unit's own cache what one of them has read of x.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from weft.codegen.gpu.products.refusals import (
    algorithm_refusals,
    memory_refusals,
    unused_field_refusals,
)
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32, SI8
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.code_tiles import COLUMNS, MOST_SUMS, ROWS, registers_of, step_of
from weft.plan.completion import IN_REGISTERS, false_claims
from weft.plan.ir import MmaPlan, Plan
from weft.plan.text import told
from weft.region.forms.codes import LANES as SHARING
from weft.region.forms.codes import QUAD, Codes, find_codes, made_of
from weft.region.forms.small_integers import Field, Scaled, find_field, find_scaled
from weft.region.ir import Kernel, Let, Read, Tensor
from weft.target.target import Target

_USED: Final = frozenset({
    "header", "tile", "warp_tile", "cache", "epilogue", "local_edges", "arch", "algo_choice",
    "stages",
})  # fmt: skip
_FIXED: Final = {"roles": "single", "order": "rows"}
_MOST_WARPS: Final = 16
"""Of a block: their sums are joined in shared memory."""
_PADDING: Final = 2
"""Sums between the columns of a warp's, so that those of neighbours begin in different banks."""
_CELL: Final = 16
"""Bytes of a run in shared memory."""
_MUCH: Final = 1024
"""Elements of x that a lane's neighbours hold of a step, which leave registers for another one."""


@dataclass(frozen=True)
class _Stream:
    """Runs that a lane copies: what it reads, of which column, and where inner axes stand."""

    read: Read
    column: Scope
    inner: Mapping[str, Scalar]
    bytes: int
    word: int


@dataclass(frozen=True)
class _Made:
    """A weight's value, or that of an integer, or of the code whose bits it is, and a factor."""

    name: str
    factor: str
    field: Field | None = None


class Products(Elementwise):
    """A block makes some columns of all rows; its warps share what is summed over, or columns."""

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
        self.registers = target.limits.registers_per_unit
        self.contraction = kernel.roles.contraction
        self.weight, self.other = self.lets[found.weight], self.lets[found.other]
        self.only_stored.add(found.weight)
        scaled = find_scaled(kernel, found.weight)
        small = scaled is not None and scaled.high - scaled.low < SMALL[self.other.dtype]
        signed = scaled is not None and not scaled.offset and _is_signed(kernel, scaled.integer)
        self.scaled = scaled if small or signed else None
        """What weights are the products of, where they may be made in pairs."""
        self.fields = self.paired_fields()
        """Of which bits of codes the integers are made, by where inner axes stand."""
        self.high, self.wide, depth = plan.tile
        self.own = plan.warp_tile[1]
        """Columns of a warp."""
        self.beside = self.wide // self.own
        """Warps side by side, which read the same of x."""
        self.sharing = depth // step_of(found)
        """Warps, or rows of them, that share k."""
        self.warps = self.sharing * self.beside
        self.rows, self.columns, self.batches = (
            prod(kernel.sizes[name] for name in names)
            for names in (found.rows, found.columns, found.batch)
        )
        self.across = -(-self.columns // self.wide)
        self.pitch = self.high + _PADDING
        self.streams: list[_Stream] = []
        self.at_column = Scope(None, {}, [])
        self.loaded: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Vectors of codes that a step has read, by where they lie."""

    def paired_fields(self) -> Mapping[tuple[int, ...], Field]:
        """The bits of codes that integers are; none where the two of a pair have others."""
        found, scaled = self.found, self.scaled
        if scaled is None:
            return {}
        fields: dict[tuple[int, ...], Field] = {}
        for place, _ in found.points:
            at = dict(zip(found.inner, place, strict=True))
            field = find_field(self.kernel, scaled.integer, at)
            if field is None or field.mask >= SMALL[self.other.dtype]:
                return {}
            fields[place] = field
        places = [place for place, _ in found.points]
        alike = all(fields[x] == fields[y] for x, y in zip(places[::2], places[1::2], strict=True))
        return fields if alike else {}

    @property
    def part(self) -> int:
        """Sums of warps side by side, with room."""
        return self.wide * self.pitch

    @property
    def grid(self) -> int:
        return self.batches * self.across

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def resident(self) -> int:
        """As many blocks as there are registers for."""
        needed = registers_of(self.found, self.high, self.own)
        return max(1, self.registers // (needed * self.threads))

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
        columns = [self.column(root, number) for number in range(2 * self.own // COLUMNS)]
        rows = [self.row(root, number) for number in range(self.high // ROWS)]
        quads = len(self.found.points) // QUAD
        sums = 4 * (self.own // COLUMNS) * len(rows)
        body.append(ir.Registers("acc", ir.RegisterKind.F32, sums, zero=True))
        body.append(ir.Registers("a_part", ir.RegisterKind.B32, 2 * quads * len(columns)))
        body.append(ir.Registers("b_part", ir.RegisterKind.B32, 2 * quads * len(rows)))
        turn = self.step(columns, rows)
        size = self.sharing * self.part * 4
        self.tiles.append(ir.SharedTile("sums", 0, size))
        if self.streams:
            start = -(-size // _CELL) * _CELL
            room = len(self.streams) * self.plan.stages * self.threads * _CELL
            self.tiles.append(ir.SharedTile("codes", start, room))
            for ahead in range(self.plan.stages - 1):
                body += self.copy(self.share + ahead * self.sharing, Lit(ahead))
            body.append(ir.Let("slot", Lit(0)))
            body.append(ir.Let("free", Lit(self.plan.stages - 1)))
            turn = self.in_ring(turn)
        steps, each = Lit(self.steps), Lit(self.sharing)
        body.append(ir.For("step", self.share, steps, each, tuple(turn), times=self.turns))
        body += self.hand_over(len(rows))
        self.results(root)
        return body

    @property
    def share(self) -> Scalar:
        """Which part of k a warp has."""
        return WARP // self.beside if self.beside > 1 else WARP

    @property
    def start(self) -> Scalar:
        """Where a warp's columns begin in those of its block."""
        return (WARP % self.beside) * self.own if self.beside > 1 else Lit(0)

    @property
    def turns(self) -> int:
        """Steps that the compiler may interleave. It waits for the codes of all of them first: that
        pays where there are several rows of x; one, where x takes many registers."""
        return 2 if self.high > ROWS and len(self.found.points) * self.high <= _MUCH else 1

    @property
    def steps(self) -> int:
        return self.found.runs(self.kernel.sizes) // SHARING

    # -- the ring --------------------------------------------------------------------------------

    def in_ring(self, turn: list[ir.Stmt]) -> list[ir.Stmt]:
        """A step with the copies of a later one before it."""
        stages = self.plan.stages
        ahead = self.copy(Name("step") + (stages - 1) * self.sharing, Name("free"))
        after: list[ir.Stmt] = []
        for name in ("slot", "free"):
            after.append(ir.Set(name, Name(name) + 1))
            after.append(ir.If(Name(name).equals(stages), (ir.Set(name, Lit(0)),)))
        # Of this step's group and those behind it all but the oldest may still be on their way.
        return [*ahead, ir.WaitGroup(stages - 1), *turn, *after]

    def copy(self, step: Scalar, slot: Scalar) -> list[ir.Stmt]:
        """Start to copy a lane's runs of a step, if there is one."""
        scope = Scope(None, {}, [])
        places = self.places_of(scope, step)
        for number, stream in enumerate(self.streams):
            at = Scope(stream.column, {**places, **stream.inner}, scope.body)
            start = self.source(stream.read, at) * stream.word
            scope.body.append(
                ir.CpAsync(
                    self.cell(number, slot), self.numbers[stream.read.tensor], start, at.exists(),
                    stream.bytes,
                )
            )  # fmt: skip
        # A group without copies counts as well: what a lane waits for is how many groups are behind
        # it.
        return [ir.If(step < self.steps, tuple(scope.body)), ir.CommitGroup()]

    def cell(self, number: int, slot: Scalar) -> ir.Address:
        """Where a lane's run of a stream waits."""
        row = slot + number * self.plan.stages
        return ir.Address("codes", (row * self.threads + THREAD) * _CELL)

    def places_of(self, scope: Scope, step: Scalar) -> dict[str, Scalar]:
        """Where summed axes stand at the beginning of a lane's run."""
        found = self.found
        name = self.fresh("run")
        scope.body.append(ir.Let(name, step * SHARING + (LANE & (SHARING - 1))))
        names, sizes = (*found.outer, found.run), dict(self.kernel.sizes)
        sizes[found.run] //= found.count
        places = self.places(scope, Name(name), names, sizes)
        places[found.run] = places[found.run] * found.count
        return places | {lone: Lit(0) for lone in self.lone}

    # -- steps -----------------------------------------------------------------------------------

    def column(self, root: Scope, number: int) -> Scope:
        """One of a lane's columns: of every 16 that of its number, and the eighth from it."""
        name = self.fresh("column")
        first = Name("first") + self.start if self.beside > 1 else Name("first")
        root.body.append(ir.Let(name, first + (LANE >> 2) + number * (COLUMNS // 2)))
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
        places = self.places_of(inner, Name("step"))
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
    ) -> list[_Made]:
        """The numbers that a run of a column's codes stands for, in the order of x: or integers,
        and what they are scaled by."""
        found = self.found
        known = {n: at for n, at in places.items() if n != found.run and n not in found.inner}
        base = Scope(column, known, body)
        self.at_column = column
        groups: dict[tuple[int, ...], Group] = {}
        self.loaded = {}
        made = []
        for place, code in found.points:
            if place not in groups:
                axes = {name: Lit(at) for name, at in zip(found.inner, place, strict=True)}
                parent = Scope(base, {**axes}, body)
                at = {found.run: places[found.run]}
                groups[place] = group_at(parent, at, found.run, found.count, Lit(1))
            made.append(self.made_at(groups[place].instances[code], place))
        return made

    def made_at(self, point: Scope, place: tuple[int, ...]) -> _Made:
        """A weight: itself, or what it is the product of."""
        scaled = self.scaled
        if scaled is None:
            return _Made(self.value(self.weight.name, point), "")
        field = self.fields.get(place)
        code = scaled.integer if field is None else field.code
        return _Made(self.value(code, point), self.value(scaled.factor, point), field)

    def pack(self, target: ir.RegAt, pair: Sequence[_Made], body: list[ir.Stmt]) -> None:
        """Two weights into a register: from their integers, where these have a factor."""
        (low, high), dtype, scaled = pair, self.other.dtype, self.scaled
        if scaled is None:
            body.append(ir.PackPair(target, low.name, high.name, dtype))
            return
        assert low.factor == high.factor  # that of a run
        if _is_signed(self.kernel, scaled.integer):
            body.append(ir.PackSigned(target, low.name, high.name, dtype))
        else:
            body.append(self.pack_small(target, low, high, scaled))
        body.append(ir.ScalePair(target, low.factor, dtype))

    def pack_small(self, target: ir.RegAt, low: _Made, high: _Made, scaled: Scaled) -> ir.Stmt:
        names, dtype, field = (low.name, high.name), self.other.dtype, low.field
        if field is None:
            return ir.PackSmall(target, *names, scaled.low, scaled.offset, dtype)
        return ir.PackSmall(target, *names, 0, scaled.offset, dtype, field.shift, field.mask)

    def read_vectors(self, let: Let, read: Read, group: Group) -> None:
        """Vectors of codes, each once, whichever halves are asked for."""
        head = group.instances[0]
        there = self.indexer.holds(self.kernel.open_guards(read), self.known(read, head))
        if there == Lit(0):
            name = self.fresh()
            zero = 0.0 if let.dtype.is_float else 0
            head.body.append(values.Compute(ElementOp(name, let.dtype, "const", (), zero)))
            for instance in group.instances:
                instance.made[let.name] = name
            return
        key = (read.tensor, self.source(read, head), len(group.instances))
        if key not in self.loaded:
            size = len(group.instances) * let.dtype.storage_bytes
            if size > _CELL or there != Lit(1):
                super().read_vectors(let, read, group)
            else:
                self.read_staged(let, read, group)
            self.loaded[key] = tuple(point.made[let.name] for point in group.instances)
        for instance, name in zip(group.instances, self.loaded[key], strict=True):
            instance.made[let.name] = name

    def read_staged(self, let: Let, read: Read, group: Group) -> None:
        """A run that was copied some steps before."""
        head = group.instances[0]
        names = tuple(self.fresh() for _ in group.instances)
        for instance, name in zip(group.instances, names, strict=True):
            instance.made[let.name] = name
        cell = self.cell(len(self.streams), Name("slot"))
        head.body.append(ir.LoadStaged(names, let.dtype, cell))
        inner = {name: at for name, at in head.known().items() if name in self.found.inner}
        word = let.dtype.storage_bytes
        self.streams.append(_Stream(read, self.at_column, inner, len(names) * word, word))

    def is_read_once(self, let: Let) -> bool:
        return True

    def multiply(
        self, made: Sequence[Sequence[_Made]], quad: int, rows: int, body: list[ir.Stmt]
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
        own = self.share * self.part + (LANE >> 2) * self.pitch + (LANE & 3) * 2
        yield ir.Let("own", own + self.start * self.pitch if self.beside > 1 else own)
        for block in range(self.own // COLUMNS):
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
        for warp in range(self.sharing):
            name = self.fresh("part")
            address = ir.Address("sums", (place + warp * self.part) * 4)
            body.append(ir.LoadShared(name, F32, address))
            if total:
                made = self.fresh("sum")
                body.append(values.Compute(ElementOp(made, F32, "add", (total, name))))
                name = made
            total = name
        return total


def _codes(kernel: Kernel, found: Codes) -> list[Let]:
    """What runs are read of."""
    lets = made_of(kernel, found.weight)
    return [let for let in lets if isinstance(let.expr, Read) and found.run in let.axes]


def _is_signed(kernel: Kernel, name: str) -> bool:
    """Whether an integer is a signed one of 8 bits, as it is read."""
    let = kernel.let(name)
    return let.dtype is SI8 and isinstance(let.expr, Read)


# -- the template --------------------------------------------------------------------------------


def refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MmaPlan, target: Target
) -> Iterator[Finding]:
    """Why the template cannot carry out a kernel, or not with the plan."""
    found = find_codes(kernel, tensors)
    if found is None:
        yield refuse("NotOfCodes", f"{kernel.name} is no product with weights of few bits")
        return
    yield from _field_refusals(kernel, plan)
    yield from _tile(kernel, found, plan, target)


def _field_refusals(kernel: Kernel, plan: MmaPlan) -> Iterator[Finding]:
    yield from unused_field_refusals(plan, _USED, _FIXED, "the template of codes")
    if plan.cache not in ((), IN_REGISTERS):
        yield refuse("PlanField", f"{told(plan, 'cache')}: both operands go to registers")
    for why in (*false_claims(kernel, plan), *algorithm_refusals(kernel, plan)):
        yield refuse("PlanField", why)


def _tile(kernel: Kernel, found: Codes, plan: MmaPlan, target: Target) -> Iterator[Finding]:
    rows, columns = (
        prod(kernel.sizes[name] for name in names) for names in (found.rows, found.columns)
    )
    (high, wide, depth), step = plan.tile, step_of(found)
    tall, own = plan.warp_tile
    if high != ROWS * -(-rows // ROWS) or wide < COLUMNS or wide % COLUMNS:
        yield refuse("Tile", f"{high}x{wide} is not all {rows} rows and multiples of {COLUMNS}")
    elif tall != high or own < COLUMNS or own % COLUMNS or wide % own:
        yield refuse(
            "Tile", f"warps of {tall}x{own} do not share k and multiples of {COLUMNS} columns"
        )
    elif depth % step or not 0 < depth // step * (wide // own) <= _MOST_WARPS:
        yield refuse(
            "Tile", f"{depth} is not a step of {step} for each of up to {_MOST_WARPS} warps"
        )
    elif high * own // LANES > MOST_SUMS:
        yield refuse("Registers", f"{high * own // LANES} sums of a thread are too many")
    else:
        warps = depth // step * (wide // own)
        sums = depth // step * wide * (high + _PADDING) * 4
        codes = (
            2 * (own // COLUMNS) * plan.stages * warps * LANES * _CELL * len(_codes(kernel, found))
        )
        yield from memory_refusals(sums + codes + _CELL, target)
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
