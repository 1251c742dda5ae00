"""Products of few rows with quantised weights (of 4 or 8 bits): packed weights go from memory to
registers and into `mma.sync`.

    for each step of the warp: start to copy a run of codes of every column that the lane has, some
        steps ahead; read the runs that have come, and x; make numbers of the codes, pack them in
        pairs, multiply
    put the sums down; add up those of all warps, in order; epilogue; store

Columns of the result are the rows of the matrix instructions, so that a warp takes 16 of them, and
rows of x their columns, eight at a time. An instruction's element k belongs to a lane, not to a
place in memory: a lane's numbers are multiplied in the order in which x has them, four at a time,
and x is read in vectors in that order. Codes wait in shared memory, a ring of `stages` turns for
each warp: a lane reads what it has copied itself, or what lanes of its warp have, so that warps do
not meet before the sums, which those that share k hand over at the end. Warps side by side have
other columns and the same of k: they find in the unit's own cache what one of them has read of x.

What a column's runs share, such as the scale of each group of codes, a block copies before the
first step, in whole rows: read where it is used, every column's would be a cache line of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals
from weft.codegen.gpu.body.scopes import Group, Scope, group_at
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.formats import SMALL
from weft.codegen.gpu.ir.scalar import (
    BLOCK,
    LANE,
    LANES,
    THREAD,
    WARP,
    Lit,
    Name,
    Scalar,
    both,
    least,
)
from weft.codegen.gpu.maps.map import Elementwise
from weft.codegen.gpu.products.codes_layout import (
    CELL,
    PADDING,
    Ring,
    Stream,
    find_kept,
    paired_fields,
    refusals,
)
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import F32, SI8
from weft.foundation.errors import Finding
from weft.foundation.index_expr import coefficient
from weft.foundation.records import dataclass
from weft.plan.code_tiles import COLUMNS, ROWS, registers_of, step_of
from weft.plan.ir import MmaPlan, Plan
from weft.region.forms.codes import LANES as SHARING
from weft.region.forms.codes import QUAD, find_codes
from weft.region.forms.small_integers import Field, Scaled, find_scaled
from weft.region.ir import Kernel, Let, Read, Tensor
from weft.target.target import Target

_HALF: Final = COLUMNS // 2
"""Columns that the lanes of a warp have side by side."""
_QUARTERS: Final = 4
"""Of a unit."""
_MUCH: Final = 1024
"""Elements of x that a lane's neighbours hold of a step, which leave registers for another one."""


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
        self.fields = paired_fields(kernel, found, self.scaled, self.other.dtype)
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
        self.pitch = self.high + PADDING
        self.part = self.wide * self.pitch
        """Sums of warps side by side, with room."""
        self.ring = Ring(found.together, self.own, self.warps, plan.stages)
        self.streams: list[Stream] = []
        self.taken = 0
        """Streams that the weights being made have read."""
        self.own_column = self.own_part = 0
        """Which weights are being made: of which column of a lane, and of which of its runs."""
        self.loaded: dict[tuple[object, ...], tuple[str, ...]] = {}
        """Vectors of codes that a step has read, by where they lie."""
        self.kept = find_kept(kernel, tensors, found, self.wide)
        """What is kept of a block's columns, by the Let that reads it."""
        self.kept_in = {name: f"kept{number}" for number, name in enumerate(self.kept)}
        """And the tile that it is kept in."""

    @property
    def grid(self) -> int:
        return self.batches * self.across

    @property
    def threads(self) -> int:
        return LANES * self.warps

    @property
    def resident(self) -> int:
        """As many blocks as there are registers for: each quarter of a unit has its own."""
        needed = registers_of(self.found, self.high, self.own)
        warps = _QUARTERS * (self.registers // _QUARTERS // (needed * LANES))
        return max(1, warps // self.warps)

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
        columns = [
            self.column(root, (LANE >> 2) + number * _HALF) for number in range(self.own // _HALF)
        ]
        rows = [self.row(root, number) for number in range(self.high // ROWS)]
        quads = len(self.found.points) // QUAD
        sums = 4 * (self.own // COLUMNS) * len(rows)
        body.append(ir.Registers("acc", ir.RegisterKind.F32, sums, zero=True))
        body.append(ir.Registers("a_part", ir.RegisterKind.B32, 2 * quads * len(columns)))
        body.append(ir.Registers("b_part", ir.RegisterKind.B32, 2 * quads * len(rows)))
        turn = [s for part in range(self.ring.parts) for s in self.step(part, columns, rows)]
        size = self.sharing * self.part * 4
        self.tiles.append(ir.SharedTile("sums", 0, size))
        if self.streams:
            start = -(-size // CELL) * CELL
            room = len(self.streams) * self.ring.bytes
            self.tiles.append(ir.SharedTile("codes", start, room))
            size = start + room
        if self.kept:
            body += self.keep(root, -(-size // CELL) * CELL)
        if self.streams:
            turn = self.in_ring(self.begin_ring(root), turn)
        if self.kept:
            body.append(ir.WaitGroup(self.plan.stages - 1 if self.streams else 0))
            body.append(ir.SyncThreads())
        loop = ir.For("step", self.share, self.steps, self.sharing, tuple(turn), times=self.turns)
        body.append(loop)
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
        pays where there are several rows of x; one, where x takes many registers, or a step has
        several runs of each column."""
        several = self.high > ROWS and len(self.found.points) * self.high <= _MUCH
        return 2 if several and self.ring.parts == 1 else 1

    @property
    def steps(self) -> int:
        return self.found.runs(self.kernel.sizes) // self.ring.line

    # -- the ring --------------------------------------------------------------------------------

    def begin_ring(self, root: Scope) -> list[Scope]:
        """Copy the first turns; the columns of which a lane copies."""
        line, each = self.ring.line, LANES // self.ring.line
        columns = [
            self.column(root, LANE // line + each * number) for number in range(self.own // each)
        ]
        root.body.append(ir.Let("put", self.ring.place(LANE // line, LANE & (line - 1))))
        for part in range(self.ring.parts):
            piece = (LANE & (SHARING - 1)) + part * SHARING
            root.body.append(ir.Let(f"take{part}", self.ring.place(LANE >> 2, piece)))
        for ahead in range(self.plan.stages - 1):
            root.body += self.copy(columns, self.share + ahead * self.sharing, Lit(ahead))
        root.body.append(ir.Let("slot", Lit(0)))
        root.body.append(ir.Let("free", Lit(self.plan.stages - 1)))
        return columns

    def in_ring(self, columns: Sequence[Scope], turn: list[ir.Stmt]) -> list[ir.Stmt]:
        """A step with the copies of a later one before it."""
        stages = self.plan.stages
        ahead = self.copy(columns, Name("step") + (stages - 1) * self.sharing, Name("free"))
        after: list[ir.Stmt] = []
        for name in ("slot", "free"):
            after.append(ir.Set(name, Name(name) + 1))
            after.append(ir.If(Name(name).equals(stages), (ir.Set(name, Lit(0)),)))
        if self.ring.parts == 1:
            # Of this step's group and those behind it all but the oldest may still be on their way.
            return [*ahead, ir.WaitGroup(stages - 1), *turn, *after]
        # Lanes read what others have copied; behind the meeting nobody reads what they write over.
        return [ir.WaitGroup(stages - 2), ir.SyncWarp(), *ahead, *turn, *after]

    def keep(self, root: Scope, start: int) -> Iterator[ir.Stmt]:
        """Start to copy what is kept of the block's columns."""
        for name, kept in self.kept.items():
            tile, var = self.kept_in[name], self.fresh("piece")
            self.tiles.append(ir.SharedTile(tile, start, self.wide * kept.pitch))
            start += self.wide * kept.pitch
            pieces = kept.bytes // CELL
            scope = Scope(root, {}, [])
            across, piece = self.fresh("across"), self.fresh("part")
            scope.body.append(ir.Let(across, Name(var) // pieces))
            scope.body.append(ir.Let(piece, Name(var) % pieces))
            column = self.fresh("column")
            scope.body.append(ir.Let(column, Name("first") + Name(across)))
            scope.axes = self.places(scope, Name(column), self.found.columns)
            scope.axes |= {outer: Lit(0) for outer in self.found.outer}
            whole = self.columns % self.wide == 0
            inside: Scalar = Lit(1) if whole else Name(column) < self.columns
            source = (self.source(kept.read, scope) * kept.word) + Name(piece) * CELL
            target = ir.Address(tile, Name(across) * kept.pitch + Name(piece) * CELL)
            buffer = self.numbers[kept.read.tensor]
            scope.body.append(ir.CpAsync(target, buffer, source, inside, CELL))
            yield ir.For(var, THREAD, Lit(self.wide * pieces), self.threads, tuple(scope.body))
        yield ir.CommitGroup()

    def load(self, name: str, let: Let, read: Read, scope: Scope) -> ir.Stmt:
        """What is kept of the columns is read from there."""
        kept = self.kept.get(let.name)
        if kept is None:
            return super().load(name, let, read, scope)
        number = self.indexer.scalar(kept.number, scope.known())
        column = (LANE >> 2) + self.start + self.own_column
        place = column * kept.pitch + number * kept.word
        return ir.LoadStaged((name,), let.dtype, ir.Address(self.kept_in[let.name], place))

    def copy(self, columns: Sequence[Scope], step: Scalar, slot: Scalar) -> list[ir.Stmt]:
        """Start to copy the runs of a step, if there is one: a lane its own, or those of a whole
        cache line with its neighbours."""
        scope = Scope(None, {}, [])
        ahead: Scalar = Lit(0)
        if self.ring.parts == 1:
            places = self.places_of(scope, step)
        else:
            places = {name: Lit(0) for name in (*self.found.outer, self.found.run, *self.lone)}
            ahead = (step * self.ring.line + (LANE & (self.ring.line - 1))) * CELL
        for number, stream in enumerate(self.streams):
            step_of_column = self.between(columns, stream)
            for index, column in enumerate(columns):
                first = columns[0] if step_of_column else column
                at = Scope(first, {**places, **stream.inner}, scope.body)
                start = (
                    self.source(stream.read, at) + step_of_column * index
                ) * stream.word + ahead
                cell = self.ring.cell(number, slot, index * (LANES // self.ring.line), "put")
                buffer = self.numbers[stream.read.tensor]
                scope.body.append(ir.CpAsync(cell, buffer, start, column.exists(), stream.bytes))
        # A group without copies counts as well: what a lane waits for is how many groups are behind
        # it.
        return [ir.If(step < self.steps, tuple(scope.body)), ir.CommitGroup()]

    def between(self, columns: Sequence[Scope], stream: Stream) -> int:
        """How many elements lie between the columns that a lane copies, if they are as many."""
        names = [name for name in self.found.columns if self.kernel.sizes[name] > 1]
        if len(names) != 1 or len(columns) == 1:
            return 0
        return coefficient(self.address(stream.read), names[0]) * (LANES // self.ring.line)

    def places_of(self, scope: Scope, step: Scalar) -> dict[str, Scalar]:
        """Where summed axes stand at the beginning of a lane's run."""
        found = self.found
        own = LANE & (SHARING - 1)
        names, sizes = (*found.outer, found.run), dict(self.kernel.sizes)
        sizes[found.run] //= found.count
        # Where lanes that share a row share the outer axes too, these depend on the step alone.
        together = sizes[found.run] % SHARING == 0
        if together:
            sizes[found.run] //= SHARING
        name = self.fresh("run")
        scope.body.append(ir.Let(name, step if together else step * SHARING + own))
        places = self.places(scope, Name(name), names, sizes)
        if together:
            places[found.run] = places[found.run] * SHARING + own
        places[found.run] = places[found.run] * found.count
        return places | {lone: Lit(0) for lone in self.lone}

    # -- steps -----------------------------------------------------------------------------------

    def column(self, root: Scope, number: Scalar) -> Scope:
        """One of a warp's columns."""
        name = self.fresh("column")
        first = Name("first") + self.start if self.beside > 1 else Name("first")
        root.body.append(ir.Let(name, first + number))
        whole = self.columns % self.wide == 0
        inside: Scalar = Lit(1) if whole else Name(name) < self.columns
        axes = self.places(root, Name(name), self.found.columns)
        return Scope(root, axes, root.body, inside)

    def row(self, root: Scope, number: int) -> Scope:
        """The row of x that a lane has of every eight: where there is none the last, which lies in
        the cache, and of which the results go nowhere."""
        name = self.fresh("row")
        row = (LANE >> 2) + number * ROWS
        whole = self.rows % ROWS == 0
        root.body.append(ir.Let(name, row if whole else least(row, self.rows - 1)))
        return Scope(root, self.places(root, Name(name), self.found.rows), root.body)

    def step(self, part: int, columns: Sequence[Scope], rows: Sequence[Scope]) -> list[ir.Stmt]:
        """A run of each lane: what it reads, makes of it, and multiplies."""
        found = self.found
        inner = Scope(None, {}, [])
        body = inner.body
        places = self.places_of(inner, Name("step") * self.ring.parts + part)
        self.own_part = part
        for number, row in enumerate(rows):
            self.fetch(Scope(row, dict(places), body), number)
        made = [self.weights(number, column, places, body) for number, column in enumerate(columns)]
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
        self, number: int, column: Scope, places: Mapping[str, Scalar], body: list[ir.Stmt]
    ) -> list[_Made]:
        """The numbers that a run of a column's codes stands for, in the order of x: or integers,
        and what they are scaled by."""
        found = self.found
        known = {n: at for n, at in places.items() if n != found.run and n not in found.inner}
        base = Scope(column, known, body)
        self.own_column, self.taken = number * _HALF, 0
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
            if size > CELL or there != Lit(1):
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
        cell = self.ring.cell(self.taken, Name("slot"), self.own_column, f"take{self.own_part}")
        head.body.append(ir.LoadStaged(names, let.dtype, cell))
        self.taken += 1
        if self.taken > len(self.streams):  # the first column, whose like the others are
            inner = {name: at for name, at in head.known().items() if name in self.found.inner}
            word = let.dtype.storage_bytes
            self.streams.append(Stream(read, inner, len(names) * word, word))

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


def _is_signed(kernel: Kernel, name: str) -> bool:
    """Whether an integer is a signed one of 8 bits, as it is read."""
    let = kernel.let(name)
    return let.dtype is SI8 and isinstance(let.expr, Read)


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
