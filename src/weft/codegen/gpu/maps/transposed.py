"""Elementwise kernels with transposed operands: blocks of two axes go through shared memory.

    block   `block` points of the axis that results lie along, by as many of the one that some
            operands do
    load    every such operand's block, in vectors along its own axis, into shared memory: what is
            made of several of them, and of numbers, in their place
    store   in vectors along the results' axis; what was loaded comes from shared memory

So both sides touch memory in whole lines. In shared memory rows of a block are an odd number of
words apart, and beyond each 32 points, along either axis, half a vector is left out: lanes whose
vectors begin a multiple of 32 words apart, several lines of them, find their words in 32 banks.
Axes that lie like one with the operands' axis are counted on along it; all others are numbered by
blocks of the grid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Final

from weft.codegen.gpu import ir
from weft.codegen.gpu.body.accept import kernel_refusals, refuse, too_many
from weft.codegen.gpu.body.index import unflatten
from weft.codegen.gpu.body.scopes import Group, Scope, group_at
from weft.codegen.gpu.body.thread import Refs
from weft.codegen.gpu.ir.formats import ACCESS_BYTES
from weft.codegen.gpu.ir.scalar import BLOCK, THREAD, Lit, Name, Scalar, both
from weft.codegen.gpu.maps import runs
from weft.codegen.gpu.maps.staged import Staged
from weft.codegen.gpu.template import Job
from weft.foundation.dtypes import DType
from weft.foundation.errors import Finding
from weft.foundation.records import dataclass
from weft.plan.ir import MapPlan, Plan
from weft.plan.transposes import crossing_of, row_axes, turned_reads
from weft.region.form import Crossing
from weft.region.ir import Binary, Cast, Const, Kernel, Let, Select, Tensor, Unary, operands
from weft.target.target import Target

_BANKS = 32
"""Of shared memory, a word each: threads that read one bank wait for each other."""


def accepts(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MapPlan, target: Target
) -> list[Finding]:
    """Why this template cannot carry out the kernel with the plan; empty if it can."""
    return [*kernel_refusals(kernel, tensors), *_transposed_refusals(kernel, tensors, plan, target)]


def _transposed_refusals(
    kernel: Kernel, tensors: Mapping[str, Tensor], plan: MapPlan, target: Target
) -> Iterator[Finding]:
    crossing = crossing_of(kernel)
    if crossing is None:
        yield refuse("Block", "no operand is transposed")
        return
    rows, turned = kernel.sizes[crossing.rows], _staged_lets(kernel, tensors, crossing)
    for vector in (plan.vector, *(_access_elements(let.dtype, rows) for let in turned)):
        if plan.block % vector or (plan.block * plan.block) % (plan.threads * vector):
            yield refuse(
                "Block",
                f"blocks of {plan.block}x{plan.block} are not made of {plan.threads} threads with "
                f"vectors of {vector}",
            )
            return
    if plan.grain != plan.block * plan.block or plan.unroll != 1:
        yield refuse("Block", f"a piece of work is a block: {plan.block * plan.block} points")
    size = kernel.sizes[crossing.columns]
    if size % plan.vector:
        yield refuse("Vector", f"a vector of {plan.vector} does not divide an axis of {size}")
    blocks = _blocks_along(kernel, crossing, row_axes(kernel, tensors, crossing), plan.block)
    yield from too_many(*kernel.sizes.values(), blocks=prod(blocks.values()))
    held = sum(_Layout(let.dtype, rows, plan).bytes for let in turned)
    if held > target.limits.shared_bytes_per_block:
        yield refuse("SharedMemory", f"the blocks of all operands take {held} bytes")


def _blocks_along(
    kernel: Kernel, crossing: Crossing, rows: Sequence[str], block: int
) -> dict[str, int]:
    """How many blocks there are along each axis; those that rows go on along count with them."""
    found = {name: size for name, size in kernel.sizes.items() if name not in rows}
    found[crossing.columns] = -(-found[crossing.columns] // block)
    found[crossing.rows] = -(-prod(kernel.sizes[name] for name in rows) // block)
    return found


def _staged_lets(kernel: Kernel, tensors: Mapping[str, Tensor], crossing: Crossing) -> list[Let]:
    """What goes through shared memory: reads that lie across the results, or what is made of these
    alone where that is less."""
    reads = [let for let, _ in turned_reads(kernel, tensors, crossing)]
    lets, across = kernel.lets, {let.name for let in reads}
    for let in kernel.body:
        used = [name for name in operands(let) if not isinstance(lets[name].expr, Const)]
        plain = isinstance(let.expr, Unary | Binary | Cast | Select)
        if plain and used and across.issuperset(used):
            across.add(let.name)
    wanted = {output.value for output in kernel.outputs}
    wanted.update(n for let in kernel.body if let.name not in across for n in operands(let))
    made = [let for let in kernel.body if let.name in across & wanted]
    # Less shared memory, and less to wait for: what is made of two reads is one value.
    return made if _bytes(made) < _bytes(reads) else reads


def _bytes(lets: Sequence[Let]) -> int:
    """Of a point, in whole words."""
    return sum(_word(let.dtype) for let in lets)


def _word(dtype: DType) -> int:
    """Bytes of a value in shared memory: they wait in whole words."""
    return 8 if dtype.bits == 64 else 4


def _access_elements(dtype: DType, rows: int) -> int:
    """Elements of one access along the rows of an operand."""
    vector = ACCESS_BYTES // dtype.storage_bytes
    while vector > 1 and rows % vector:
        vector //= 2
    return vector


class _Layout:
    """How the block of an operand lies in shared memory."""

    def __init__(self, dtype: DType, rows: int, plan: MapPlan) -> None:
        wraps = (plan.block - 1) // _BANKS
        self.word = _word(dtype)
        self.down, self.on = (
            _skew(vector) for vector in (_access_elements(dtype, rows), plan.vector)
        )
        # An odd pitch is prime to 32 banks: 32 neighbouring rows at one place meet each bank once.
        self.pitch = (plan.block + wraps * self.down) | 1
        self.bytes = (plan.block * self.pitch + wraps * self.on) * self.word

    def offset(self, at: _Inside) -> Scalar:
        """No vector reaches beyond a multiple of the banks, so that its points are not skewed
        against one another."""
        skew = at.row // _BANKS * self.down + at.column // _BANKS * self.on
        first = at.column * self.pitch + at.row + skew
        return (first + at.steps_on * self.pitch + at.steps_down) * self.word


def _skew(vector: int) -> int:
    """Words that are left out beyond every 32 points of an axis that vectors run along: half of
    one."""
    return 0 if _BANKS % vector else vector // 2


@dataclass(frozen=True)
class _Inside:
    """Where in the block a point stands: some steps on from the first of its vector."""

    row: Scalar
    column: Scalar
    steps_down: int = 0
    steps_on: int = 0


class Blocks(Staged[_Layout]):
    """A block of a transpose to a block of threads."""

    def __init__(
        self,
        kernel: Kernel,
        refs: Refs,
        plan: MapPlan,
        tensors: Mapping[str, Tensor],
        target: Target,
    ) -> None:
        crossing = crossing_of(kernel)
        assert crossing is not None
        self.crossing, self.rows = crossing, row_axes(kernel, tensors, crossing)
        rows = kernel.sizes[crossing.rows]
        staged = [
            (t, _Layout(t.dtype, rows, plan)) for t in _staged_lets(kernel, tensors, crossing)
        ]
        sizes = _blocks_along(kernel, crossing, self.rows, plan.block)
        super().__init__(kernel, refs, plan, staged, sizes, target)
        self.inside: dict[int, _Inside] = {}
        """By group of points that results are stored of."""

    def work(self) -> list[ir.Stmt]:
        root = Scope(None, {}, [])
        order = [a for a in self.sizes if a not in self.crossing]
        order += [self.crossing.rows, self.crossing.columns]
        starts: dict[str, Scalar] = {}
        for number, (name, place) in enumerate(unflatten(BLOCK, order, self.sizes).items()):
            root.body.append(ir.Let(f"start{number}", place * self.step(name)))
            starts[name] = Name(f"start{number}")
        root.axes = {name: starts[name] for name in order if name not in self.crossing}
        for let in self.staged.values():
            self.load_block(root, let, starts)
        root.body.append(ir.SyncThreads())
        self.loading = False
        for turn in range(self.plan.grain // (self.plan.threads * self.plan.vector)):
            self.store_turn(root, turn, starts)
        return root.body

    def step(self, name: str) -> int:
        return self.plan.block if name in self.crossing else 1

    def group(
        self, root: Scope, along: str, vector: int, turn: int, starts: Mapping[str, Scalar]
    ) -> tuple[Group, Scalar, Scalar]:
        """The thread's points of a turn, and where they stand: along the axis, and across it."""
        across = next(name for name in self.crossing if name != along)
        per_line = self.plan.block // vector
        number = self.fresh("p")
        root.body.append(ir.Let(number, THREAD + turn * self.plan.threads))
        inner, outer = Name(number) % per_line * vector, Name(number) // per_line
        axes: dict[str, Scalar] = {}
        inside: Scalar = Lit(1)
        for name, place in ((along, inner), (across, outer)):
            variable = self.fresh("at")
            root.body.append(ir.Let(variable, starts[name] + place))
            parts = self.rows if name == self.crossing.rows else (name,)
            size = prod(self.kernel.sizes[part] for part in parts)
            if size % self.plan.block:
                inside = both(inside, Name(variable) < size)
            axes |= (
                self.places(root, Name(variable), parts)
                if len(parts) > 1
                else {name: Name(variable)}
            )
        return group_at(root, axes, along, vector, inside), inner, outer

    def load_block(self, root: Scope, let: Let, starts: Mapping[str, Scalar]) -> None:
        """All loads, then all stores into shared memory."""
        vector = _access_elements(let.dtype, self.kernel.sizes[self.crossing.rows])
        turns = self.plan.block**2 // (self.plan.threads * vector)
        found = [self.group(root, self.crossing.rows, vector, t, starts) for t in range(turns)]
        # All loads are on their way before the first value is needed.
        for group, _, _ in found:
            for instance in group.instances:
                self.value(let.name, instance)
        for group, inner, outer in found:
            for step, instance in enumerate(group.instances):
                place = self.slot_of(let, _Inside(inner, outer, steps_down=step))
                root.body.append(ir.StShared(place, instance.made[let.name], let.dtype))

    def store_turn(self, root: Scope, turn: int, starts: Mapping[str, Scalar]) -> None:
        columns = self.crossing.columns
        group, inner, outer = self.group(root, columns, self.plan.vector, turn, starts)
        for step, instance in enumerate(group.instances):
            self.inside[id(instance)] = _Inside(outer, inner, steps_on=step)
        kept = (a for a in self.sizes if a not in self.crossing)
        self.store_points(group, columns, {name: starts[name] for name in kept})

    def slot_of(self, let: Let, at: _Inside) -> ir.Address:
        return ir.Address(self.tile_of[let.name], self.layouts[let.name].offset(at))

    def taken(self, name: str, let: Let, home: Scope) -> ir.Stmt:
        return ir.LoadShared(name, let.dtype, self.slot_of(let, self.inside[id(home)]))


class TransposedTemplate:
    """Blocks of two axes through shared memory, or of runs where operands have them."""

    name: Final = "transposed"

    def takes(self, plan: Plan) -> bool:
        return isinstance(plan, MapPlan) and plan.block > 1

    def accepts(self, job: Job[MapPlan]) -> list[Finding]:
        found = runs.found_runs(job.short, job.tensors, job.refs, job.plan)
        if found is not None:
            return runs.accepts(job.short, job.tensors, found, job.plan, job.target)
        return accepts(job.short, job.tensors, job.plan, job.target)

    def build(self, job: Job[MapPlan], name: str) -> ir.Kernel:
        given = job.short, job.refs, job.plan, job.tensors
        found = runs.found_runs(job.short, job.tensors, job.refs, job.plan)
        blocks = (
            Blocks(*given, job.target)
            if found is None
            else runs.RunBlocks(*given, found, job.target)
        )
        return blocks.kernel_called(name, job.tensors)


TEMPLATE: Final = TransposedTemplate()
