"""What one thread computes: the Lets of a kernel as statements on single values.

A `Scope` is a place in the code where some axes stand at known scalars. A value is made once, in
the outermost scope in which all its axes are known, when somebody first asks for it. Points that a
thread takes together (a vector) are scopes that write into one body: the *instances* of a group.
Reads that are neighbours in memory along the group's axis become one vector access.

How reductions run over their axes is the template's business (`sweep`): in registers, in loops,
shared among threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.codegen.gpu import ir, values
from weft.codegen.gpu.across import Run, fills_a_line, run_along
from weft.codegen.gpu.element import ElementOp, loose_functions
from weft.codegen.gpu.formats import NARROW
from weft.codegen.gpu.index import Indexer, unflatten
from weft.codegen.gpu.reductions import Reduction, reductions_of
from weft.codegen.gpu.scalar import Lit, Name, Scalar, both, least, wide
from weft.foundation.dtypes import F32, DType
from weft.foundation.errors import InternalError
from weft.foundation.index_expr import (
    Axis,
    Expr,
    FloorDiv,
    Guard,
    always,
    axes_of,
    coefficient,
    linear,
)
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
_VECTOR_BYTES = 16
_WORD = 4
BLOCK_WORDS = 4
"""Words that one turn of the random generator makes."""
ALWAYS = Lit(1)


@dataclass(eq=False)
class Scope:
    """A place in the code: axes that are known, statements so far, values made here."""

    parent: Scope | None
    axes: dict[str, Scalar]
    body: list[ir.Stmt]
    inside: Scalar = ALWAYS
    """Whether the point exists; where it does not, nothing is read, stored or accumulated."""
    group: Group | None = None
    made: dict[str, str] = field(default_factory=dict)

    def chain(self) -> list[Scope]:
        """The scopes from the outermost to this one."""
        found: list[Scope] = []
        scope: Scope | None = self
        while scope is not None:
            found.append(scope)
            scope = scope.parent
        return found[::-1]

    def known(self) -> dict[str, Scalar]:
        merged: dict[str, Scalar] = {}
        for scope in self.chain():
            merged.update(scope.axes)
        return merged

    def exists(self) -> Scalar:
        result: Scalar = Lit(1)
        for scope in self.chain():
            result = both(result, scope.inside)
        return result


@dataclass(eq=False)
class Group:
    """Points that follow one another along an axis, taken together."""

    axis: str | None
    instances: list[Scope] = field(default_factory=list)


def group_at(
    parent: Scope, axes: Mapping[str, Scalar], axis: str | None, count: int, inside: Scalar
) -> Group:
    """`count` points from the one at `axes` on, along `axis`. What does not change along it is
    made once for all of them."""
    others = {name: place for name, place in axes.items() if name != axis}
    base = Scope(parent, others, parent.body, inside)
    group = Group(axis)
    if axis is None:
        base.group = group
        group.instances.append(base)
        return group
    for step in range(count):
        group.instances.append(Scope(base, {axis: axes[axis] + step}, base.body, group=group))
    return group


Sweep = Callable[[Group, int], None]
"""What is done with every group of points, and how many points came before it in the body."""


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
            body += self.read_params({found.name: found.dtype for found in tensors.values()})
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

    def read_params(self, dtypes: Mapping[str, DType]) -> list[ir.Stmt]:
        """The statements that make the run-time parameters known."""
        return [
            values.ReadParam(
                self.params[p.name].name,
                self.numbers[p.tensor],
                dtypes[p.tensor],
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
            missing -= set(candidate.axes)
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
                made = ElementOp(name, let.dtype, fn, args, loose=self.is_loose(let, fn))
            case Cast():
                made = ElementOp(name, let.dtype, "cast", args)
            case Select():
                made = ElementOp(name, let.dtype, "select", args)
            case _:
                raise InternalError(f"{let.name} is no function of elements")
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
        """Whether the points of a group take whole blocks of a random stream."""
        if group is None or group.axis is None or len(group.instances) % BLOCK_WORDS:
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
        name = self.fresh()
        home.made[let.name] = name
        home.body.append(self.load(name, let, read, home))

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
        kept = [g for g in read.guards if not always(g, self.kernel.ranges)]
        return both(scope.exists(), self.indexer.holds(kept, scope.known()))

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
        most = _VECTOR_BYTES // let.dtype.storage_bytes
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

    def run(self, dtype: DType, read: Read, group: Group) -> Run | None:
        """What a read of a group is, if its instances read a line that begins anywhere."""
        if not fills_a_line(dtype, len(group.instances)):
            return None
        return run_along(read, group.axis, self.kernel.ranges, self.refs[read.tensor])

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
        number = self.numbers[output.tensor]
        width = 1
        if len(names) > 1 and self.in_vectors(address, output.tensor, dtype, group):
            width = min(len(names), _VECTOR_BYTES // dtype.storage_bytes)
        for first in range(0, len(names), width):
            head = group.instances[first]
            place = self.offset(address, head)
            allowed = both(head.exists(), guard)
            head.body.append(
                values.StoreVector(
                    number, dtype, place, allowed, tuple(names[first : first + width])
                )
                if width > 1
                else values.StoreElement(number, dtype, place, allowed, names[first])
            )

    def source(self, read: Read, scope: Scope) -> Scalar:
        """The offset of an element that is read."""
        known = scope.known()
        known |= {place.param: self.place(place, scope) for place in read.places}
        return wide(self.indexer.scalar(self.address(read), known))

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
        guards = [g for g in read.guards if not always(g, self.kernel.ranges)]
        count = self.span(dtype, group) // dtype.storage_bytes
        together = all(_together(guard, group.axis, count, self.kernel.sizes) for guard in guards)
        if guards and (read.fill or not together):
            return False
        if any(group.axis in self.lets[self.unchecked(p.value)].axes for p in read.places):
            return False
        return self.in_vectors(self.address(read), read.tensor, dtype, group)

    def span(self, dtype: DType, group: Group) -> int:
        """Bytes of one access to a group's elements."""
        return min(len(group.instances) * dtype.storage_bytes, _VECTOR_BYTES)

    def in_vectors(self, address: Expr, tensor: str, dtype: DType, group: Group) -> bool:
        size, span = dtype.storage_bytes, self.span(dtype, group)
        if group.axis is None or span % _WORD or self.refs[tensor].alignment % span:
            return False
        return aligned(address, group.axis, span // size, self.kernel.sizes)

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
    reads = [let.expr for let in kernel.body if isinstance(let.expr, Read)]
    return {place.param: (0, place.size - 1) for read in reads for place in read.places}


def _together(guard: Guard, axis: str | None, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether a guard holds for all or for none of the elements of a vector along an axis."""
    if axis is None or axis not in axes_of(guard.expr):
        return True
    return guard.size % count == 0 and aligned(guard.expr, axis, count, sizes)


def aligned(address: Expr, axis: str, count: int, sizes: Mapping[str, int]) -> bool:
    """Whether the `count` elements from a multiple of `count` on along an axis are neighbours that
    begin at a multiple of `count` elements."""
    if coefficient(address, axis) != 1 or address.constant % count or sizes[axis] % count:
        return False
    for term, factor in address.terms:
        if isinstance(term, Axis) and (term.name == axis or sizes[term.name] == 1):
            continue
        if isinstance(term, FloorDiv) and axis in axes_of(Expr(0, ((term, 1),))):
            return False
        if factor % count:
            return False
    return True
