"""The Lets of a kernel as scalar statements of one thread.

A value is made once, in the outermost scope in which all its axes are known, when somebody first
asks for it. Reads of a group's points that are neighbours in memory become one vector access.

How reductions run over their axes is the template's business (`sweep`): in registers, in loops,
shared among threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.index import Indexer, unflatten
from weft.codegen.gpu.body.neighbours import aligned, all_or_none, same_for
from weft.codegen.gpu.body.reductions import Reduction, reductions_of
from weft.codegen.gpu.body.scopes import ALWAYS, Group, Scope, Sweep
from weft.codegen.gpu.body.unaligned_reads import Run, fills_a_line, run_along
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, loose_functions
from weft.codegen.gpu.ir.formats import ACCESS_BYTES, NARROW
from weft.codegen.gpu.ir.scalar import Lit, Name, Scalar, both, least, wide
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import Expr, axes_of, linear
from weft.memory.ir import MemRef
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Output,
    Place,
    Read,
    Reduce,
    Select,
    Tensor,
    Unary,
    Words,
    operands,
    walk,
)
from weft.region.structure import buffers

Refs = Mapping[str, MemRef]
Resolve = Callable[[str], str]
_WORD = 4
BLOCK_WORDS = 4
"""Words that one turn of the random generator makes."""


class Emitter(ABC):
    """Makes the statements of one kernel."""

    def __init__(self, kernel: Kernel, refs: Refs) -> None:
        self.kernel = kernel
        self.refs = refs
        self.lets = {let.name: let for let in kernel.body}
        self.names = buffers(kernel)
        self.numbers = {tensor: i for i, tensor in enumerate(self.names)}
        self.params = {p.name: Name(f"p{i}") for i, p in enumerate(kernel.params)}
        self.indexer = Indexer({**kernel.ranges, **_place_ranges(kernel)}, self.params)
        self.reductions = reductions_of(kernel)
        used = {name for let in walk(kernel.body) for name in operands(let)}
        self.only_stored = {output.value for output in kernel.outputs} - used
        """Values whose rounding storing does."""
        self.checks = [let.expr for let in kernel.body if isinstance(let.expr, Check)]
        self.numbered: dict[tuple[str, int], Name] = {}
        """Values that are places, as numbers."""
        self.loose = loose_functions(self.lets[o.value].dtype for o in kernel.outputs)
        self.written = {refs[o.tensor].buffer for o in kernel.outputs}
        self.count = 0
        self.reports = False
        self.tiles: list[ir.SharedTile] = []
        self.barriers: list[ir.Barriers] = []
        self.tables: tuple[ir.Table, ...] = ()

    # -- the kernel ------------------------------------------------------------------------------

    def kernel_called(self, name: str, tensors: Mapping[str, Tensor]) -> ir.Kernel:
        """The dialect kernel, `name` in the generated source; one of no blocks does nothing."""
        body: list[ir.Stmt] = []
        if self.grid:
            body += self.read_params(tensors)
            body += self.work()
        return ir.Kernel(
            name,
            grid=self.grid,
            threads=self.threads,
            buffers=self.names,
            maps=(),
            tiles=tuple(self.tiles),
            barriers=tuple(self.barriers),
            tables=self.tables,
            body=tuple(body),
            reports=self.reports,
            cluster=self.cluster,
            resident=self.resident,
        )

    @property
    @abstractmethod
    def grid(self) -> int:
        """How many blocks there are."""

    @property
    @abstractmethod
    def threads(self) -> int:
        """Threads of a block."""

    @property
    def cluster(self) -> int:
        """Blocks that run side by side."""
        return 1

    @property
    def resident(self) -> int:
        """Blocks at least that a unit has registers for at a time."""
        return 1

    @abstractmethod
    def work(self) -> Iterable[ir.Stmt]:
        """What every thread does, once the run-time parameters are known."""

    @abstractmethod
    def sweep(self, scope: Scope, axes: Sequence[str], body: Sweep) -> None:
        """Do something with every point of `axes`."""

    @abstractmethod
    def finish(self, scope: Scope, reduction: Reduction, carries: Sequence[str]) -> list[str]:
        """The carries of all threads that share a reduction, merged."""

    def fresh(self, stem: str = "v") -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def read_params(self, tensors: Mapping[str, Tensor]) -> list[ir.Stmt]:
        """The statements that make the run-time parameters known."""
        return [
            values.ReadParam(
                self.params[p.name].name,
                self.numbers[p.tensor],
                tensors[p.tensor].dtype,
                p.element,
                p.low,
                p.high,
            )
            for p in self.kernel.params
        ]

    def places(
        self,
        scope: Scope,
        number: Scalar,
        names: Sequence[str],
        sizes: Mapping[str, int] | None = None,
    ) -> dict[str, Scalar]:
        """The axes of a point, each in a variable, from its number; `sizes` where they are not
        those of the kernel."""
        sizes = self.kernel.sizes if sizes is None else sizes
        found: dict[str, Scalar] = {}
        for name, place in unflatten(number, names, sizes).items():
            if sizes[name] == 1:
                found[name] = Lit(0)
                continue
            variable = self.fresh("at")
            scope.body.append(ir.Let(variable, place))
            found[name] = Name(variable)
        return found

    # -- values ----------------------------------------------------------------------------------

    def home(self, axes: Sequence[str], scope: Scope) -> Scope:
        """The outermost scope in which all these axes are known."""
        missing = set(axes)
        for candidate in scope.chain():
            missing.difference_update(candidate.axes)
            if not missing:
                return candidate
        raise InternalError(f"the axes {axes} of a value are not all known")

    def value(self, name: str, scope: Scope) -> str:
        """The variable that holds a value of the kernel at the scope's point."""
        let = self.lets[name]
        home = self.home(let.axes, scope)
        if name not in home.made:
            if isinstance(let.expr, Reduce | Fold):
                self.reduce(self.reductions[name], home)
            elif isinstance(let.expr, Check):
                home.made[name] = self.checked(let, let.expr, home)
            elif isinstance(let.expr, Read):
                self.read(let, let.expr, home)
            elif isinstance(let.expr, Words) and self.in_blocks(let.expr, home.group):
                self.random_blocks(let, let.expr, home)
            else:
                made = self.compute(let, home, lambda operand: self.value(operand, home))
                home.made[name] = made
        return home.made[name]

    def compute(self, let: Let, scope: Scope, resolve: Resolve) -> str:
        """A Let that is neither read nor reduced, in a scope."""
        name = self.fresh()
        args = tuple(map(resolve, operands(let)))
        match let.expr:
            case AxisIndex(expr=expr):
                value = self.indexer.scalar(expr, scope.known())
                scope.body.append(values.IndexValue(name, let.dtype, value))
                return name
            case Words(element=element):
                place = wide(self.indexer.scalar(element, scope.known()))
                seed, offset = args
                scope.body.append(values.Words((name,), seed, offset, place))
                return name
            case Const(value=number):
                made = ElementOp(name, let.dtype, "const", (), number)
            case Unary(fn=fn):
                made = ElementOp(name, let.dtype, fn, args, loose=self.is_loose(let, fn))
            case Binary(fn=fn):
                loose, shared = self.is_loose(let, fn), self.shares_divisor(let)
                made = ElementOp(name, let.dtype, fn, args, loose=loose, shared=shared)
            case Cast():
                made = ElementOp(name, let.dtype, "cast", args)
            case Select():
                made = ElementOp(name, let.dtype, "select", args)
            case _:
                raise InternalError(f"{let.name} is not a function of elements")
        if let.name in self.only_stored and let.dtype in NARROW:
            made = replace(made, deferred_rounding=True)
        scope.body.append(values.Compute(made))
        return name

    def checked(self, let: Let, check: Check, home: Scope) -> str:
        """The value that is checked. Points of a vector that share it share the report of the
        first of them, whose element comes first."""
        value = self.value(check.x, home)
        first = home.group.instances[0] if home.group is not None else home
        if first is not home and first.made.get(let.name) == value:
            return value
        self.reports = True
        element = wide(self.indexer.scalar(check.element, home.known()))
        number = self.checks.index(check)
        home.body.append(
            values.Report(value, check.rule, check.size, number, element, home.exists())
        )
        return value

    def in_blocks(self, words: Words, group: Group | None) -> bool:
        """Whether the points of a group take whole blocks of one random stream: where some of them
        are padding, they have read no state."""
        if group is None or group.axis is None or len(group.instances) % BLOCK_WORDS:
            return False
        if any(group.axis in self.lets[state].axes for state in (words.seed, words.offset)):
            return False
        return aligned(words.element, group.axis, BLOCK_WORDS, self.kernel.sizes)

    def random_blocks(self, let: Let, words: Words, home: Scope) -> None:
        """The words of all points of a group, a block at a time."""
        assert home.group is not None
        points = home.group.instances
        for first in range(0, len(points), BLOCK_WORDS):
            part = points[first : first + BLOCK_WORDS]
            head = part[0]
            seed, offset = (self.value(name, head) for name in (words.seed, words.offset))
            names = tuple(self.fresh() for _ in part)
            place = wide(self.indexer.scalar(words.element, head.known()))
            head.body.append(values.Words(names, seed, offset, place))
            for point, name in zip(part, names, strict=True):
                point.made[let.name] = name

    def is_loose(self, let: Let, fn: str) -> bool:
        """Whether a function need not be right in its last digits."""
        return let.dtype is F32 and fn in self.loose

    def shares_divisor(self, let: Let) -> bool:
        """Whether a Let is a quotient whose divisor is that of many others."""
        return False

    # -- memory ----------------------------------------------------------------------------------

    def read(self, let: Let, read: Read, home: Scope) -> None:
        """An element, or with it those of the other instances of its group."""
        group = home.group
        if (
            group is not None
            and len(group.instances) > 1
            and self.is_vector(let.dtype, read, group)
        ):
            self.read_vectors(let, read, group)
            return
        run = None if group is None else self.run(let.dtype, read, group)
        if group is not None and run is not None:
            self.read_across(let, read, run, group)
            return
        first = self.first_alike(read, home)
        if first is not home:
            home.made[let.name] = self.value(let.name, first)
            return
        name = self.fresh()
        home.made[let.name] = name
        home.body.append(self.load(name, let, read, home))

    def first_alike(self, read: Read, home: Scope) -> Scope:
        """The first instance of a group that surely reads the same element: a number of each of
        some short rows, which vectors go across."""
        group = home.group
        if group is None or group.axis is None or read.places:
            return home
        if any(group.axis in axes_of(guard.expr) for guard in self.kernel.open_guards(read)):
            return home
        address = linear(read.index, self.refs[read.tensor].strides)
        place = group.instances.index(home)
        return group.instances[place - place % same_for(address, group.axis, len(group.instances))]

    def place(self, place: Place, scope: Scope) -> Name:
        """Where a read goes, as a number that is known where its value is."""
        value = self.value(place.value, scope)
        key = (value, place.size)
        if key not in self.numbered:
            name = self.fresh("place")
            home = self.home(self.lets[self.unchecked(place.value)].axes, scope)
            home.body.append(values.PlaceOf(name, value, place.size))
            self.numbered[key] = Name(name)
        return self.numbered[key]

    def unchecked(self, name: str) -> str:
        """The value behind checks."""
        expr = self.lets[name].expr
        while isinstance(expr, Check):
            name = expr.x
            expr = self.lets[name].expr
        return name

    def guard(self, read: Read, scope: Scope) -> Scalar:
        """Whether the element that is read at a point is there."""
        kept = self.kernel.open_guards(read)
        return both(scope.exists(), self.indexer.holds(kept, self.known(read, scope)))

    def load(self, name: str, let: Let, read: Read, scope: Scope) -> ir.Stmt:
        fill = 0 if read.fill is None else read.fill
        return ir.LoadElement(
            name,
            self.numbers[read.tensor],
            let.dtype,
            self.source(read, scope),
            self.guard(read, scope),
            fill,
            self.is_constant(read.tensor),
        )

    def read_vectors(self, let: Let, read: Read, group: Group) -> None:
        most = ACCESS_BYTES // let.dtype.storage_bytes
        for first in range(0, len(group.instances), most):
            part = group.instances[first : first + most]
            names = tuple(self.fresh() for _ in part)
            for instance, name in zip(part, names, strict=True):
                instance.made[let.name] = name
            head = part[0]
            head.body.append(
                values.LoadVector(
                    names,
                    self.numbers[read.tensor],
                    let.dtype,
                    self.source(read, head),
                    self.guard(read, head),
                    self.is_constant(read.tensor),
                    self.is_read_once(let),
                    self.is_lasting(let),
                )
            )

    def is_read_once(self, let: Let) -> bool:
        """Whether vectors of a tensor are read once by a unit, and its own cache need not take
        them."""
        return False

    def is_lasting(self, let: Let) -> bool:
        """Whether the shared cache should give up other lines before those of a tensor."""
        return False

    def is_passing(self, output: Output) -> bool:
        """Whether the shared cache should give up an output before other lines."""
        return False

    def run(self, dtype: DType, read: Read, group: Group) -> Run | None:
        """What a read of a group is, if its instances read a line that begins anywhere."""
        if not fills_a_line(dtype, len(group.instances)):
            return None
        return run_along(read, group.axis, self.kernel, self.refs[read.tensor])

    def read_across(self, let: Let, read: Read, run: Run, group: Group) -> None:
        names = tuple(self.fresh() for _ in group.instances)
        for instance, name in zip(group.instances, names, strict=True):
            instance.made[let.name] = name
        head = group.instances[0]
        known = head.known()
        count: Scalar = Lit(len(names))
        for guard in run.beginning:
            count = least(self.indexer.scalar(-1 * guard.expr + guard.size, known), count)
        exists = both(head.exists(), self.indexer.holds(run.whole, known))
        head.body.append(
            values.LoadAcross(
                names,
                self.numbers[read.tensor],
                let.dtype,
                self.source(read, head),
                count if exists == ALWAYS else count * exists,
                self.is_constant(read.tensor),
            )
        )

    def store(self, output: Output, group: Group, guard: Scalar) -> None:
        """An output at every point of a group."""
        names = [self.value(output.value, instance) for instance in group.instances]
        dtype = self.lets[output.value].dtype
        address = linear(output.index, self.refs[output.tensor].strides)
        number, passing = self.numbers[output.tensor], self.is_passing(output)
        width = 1
        if len(names) > 1 and self.in_vectors(address, output.tensor, dtype, group):
            width = min(len(names), ACCESS_BYTES // dtype.storage_bytes)
        for first in range(0, len(names), width):
            head = group.instances[first]
            place = self.offset(address, head)
            allowed = both(head.exists(), guard)
            head.body.append(
                values.StoreVector(
                    number, dtype, place, allowed, tuple(names[first : first + width]), passing
                )
                if width > 1
                else values.StoreElement(number, dtype, place, allowed, names[first])
            )

    def stored_once(self, output: Output, axes: Mapping[str, Scalar]) -> Scalar:
        """Whether a point stores a result: along axes that the result does not live over, only the
        first does."""
        live, sizes = self.lets[output.value].axes, self.kernel.sizes
        first: Scalar = ALWAYS
        for name, place in axes.items():
            if name not in live and sizes[name] > 1:
                first = both(first, place.equals(0))
        return first

    def source(self, read: Read, scope: Scope) -> Scalar:
        """The offset of an element that is read."""
        if not read.places:
            return self.offset(self.address(read), scope)
        return wide(self.indexer.scalar(self.address(read), self.known(read, scope)))

    def known(self, read: Read, scope: Scope) -> dict[str, Scalar]:
        """What the index and the guards of a read may name, as it stands at a point."""
        return scope.known() | {place.param: self.place(place, scope) for place in read.places}

    def address(self, read: Read) -> Expr:
        return linear(read.index, self.refs[read.tensor].strides)

    def offset(self, address: Expr, scope: Scope) -> Scalar:
        return wide(self.indexer.scalar(address, scope.known()))

    def is_constant(self, tensor: str) -> bool:
        """Whether no output of the kernel lies in the tensor's buffer."""
        return self.refs[tensor].buffer not in self.written

    def is_vector(self, dtype: DType, read: Read, group: Group) -> bool:
        """Whether the instances of a group read neighbours that one access may take, or are all
        of them zeros that are not read."""
        guards = self.kernel.open_guards(read)
        count = self.span(dtype, group) // dtype.storage_bytes
        together = all(all_or_none(guard, group.axis, count, self.kernel.sizes) for guard in guards)
        if guards and (read.fill or not together):
            return False
        if any(group.axis in self.lets[self.unchecked(p.value)].axes for p in read.places):
            return False
        return self.in_vectors(self.address(read), read.tensor, dtype, group)

    def span(self, dtype: DType, group: Group) -> int:
        """Bytes of one access to a group's elements."""
        return min(len(group.instances) * dtype.storage_bytes, ACCESS_BYTES)

    def in_vectors(self, address: Expr, tensor: str, dtype: DType, group: Group) -> bool:
        size, span = dtype.storage_bytes, self.span(dtype, group)
        if group.axis is None or span % _WORD or self.refs[tensor].alignment % span:
            return False
        return aligned(address, group.axis, span // size, self.extents)

    @property
    def extents(self) -> Mapping[str, int]:
        """How far each axis goes in vectors."""
        return self.kernel.sizes

    # -- reductions ------------------------------------------------------------------------------

    def reduce(self, reduction: Reduction, home: Scope) -> None:
        """Make the results of a reduction known: partial results over the sweep, then merged."""
        slots: dict[int, list[str]] = {}
        marker = len(home.body)

        def step(group: Group, before: int) -> None:
            for number, instance in enumerate(group.instances):
                slot = (before + number) % self.partials
                names = slots.setdefault(slot, [self.fresh("acc") for _ in reduction.carries])
                following = reduction.step(self, instance, names)
                for name, new in zip(names, following, strict=True):
                    instance.body.append(values.Assign(name, new, instance.exists()))

        self.sweep(home, reduction.axes, step)
        if not slots:
            slots[0] = [self.fresh("acc") for _ in reduction.carries]
        starts = [
            values.Variable(name, carry.dtype, carry.start)
            for names in slots.values()
            for name, carry in zip(names, reduction.carries, strict=True)
        ]
        home.body[marker:marker] = starts
        merged, *others = slots.values()
        for other in others:
            merged = reduction.combine(self, home, merged, other)
        merged = self.finish(home, reduction, merged)
        for name, carry in reduction.results.items():
            home.made[name] = merged[carry]

    @property
    @abstractmethod
    def partials(self) -> int:
        """Independent partial results of one thread."""


def _place_ranges(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """The ranges of the places of all reads; of a value that is a place in several, the widest."""
    reads = [let.expr for let in walk(kernel.body) if isinstance(let.expr, Read)]
    places = sorted((p for read in reads for p in read.places), key=lambda place: place.size)
    return {place.param: (0, place.size - 1) for place in places}
