"""From the variables of a kernel's GPU code back to its values.

The dialect counts its variables anew, and a plan decides how many of them one value becomes: some
for each element of a thread, more for the parts of a sum. Which are which follows from what they
do. What is read from a tensor's buffer is a Read of it; what does to such values what a Let does to
its operands is that Let; a copy, a shuffle or a place in shared memory is what was put there. What
is left, such as the steps of a power that a plan spells out, belongs to what is made of it. A
variable for which nothing fits has no value, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

from weft.codegen.gpu import ir as gpu
from weft.codegen.gpu.body.peephole import recognise
from weft.codegen.gpu.ir import values
from weft.codegen.gpu.ir.element_ops import ElementOp, Number
from weft.codegen.gpu.ir.module import GpuModule
from weft.region.ir import (
    AxisIndex,
    Binary,
    Cast,
    Check,
    Const,
    Fold,
    Kernel,
    Let,
    Read,
    Reduce,
    Select,
    Unary,
    Words,
    operands,
)
from weft.region.structure import buffers

_COMBINES: Final = {"sum": "add", "add": "add", "prod": "mul", "mul": "mul"}
"""The function of two elements by which a reduction goes on, where it is called otherwise."""
_EXPONENTIALS: Final = ("exp", "exp2")
_MOST_PASSES: Final = 8
"""Loops hand values on from turn to turn: after so many passes nothing changes in any kernel."""


Lets: TypeAlias = Mapping[str, Sequence[str]]
"""The Lets that the variables and register arrays of GPU code are, one of them as a rule."""


def variables_of(module: GpuModule, kernels: Iterable[Kernel]) -> dict[str, Lets]:
    """What the variables of the distinct kernels of a program are, by the symbols of these."""
    found: dict[str, Lets] = {}
    for kernel in kernels:
        launch = module.launches.get(kernel.name)
        if launch is not None and launch.symbol not in found and kernel.body:
            given = buffers(kernel)
            tensors = [given[at] for at in launch.tensors]
            found[launch.symbol] = variables_inside(module.kernels[launch.symbol], kernel, tensors)
    return found


def variables_inside(code: gpu.Kernel, kernel: Kernel, tensors: Sequence[str]) -> Lets:
    """What the variables of one are, of whose kernel `tensors` are what its buffers hold."""
    return _Matching(code, kernel, tensors).found()


@dataclass
class _Lets:
    """The Lets of a kernel by what they do."""

    owners: dict[str, str] = field(default_factory=dict)
    """The Let of the kernel that each belongs to: itself, or the fold whose step it is."""
    aliases: dict[str, list[str]] = field(default_factory=dict)
    """Names of a fold for what its carry is next."""
    reads: dict[str, list[str]] = field(default_factory=dict)
    ops: dict[str, list[tuple[str, tuple[str, ...]]]] = field(default_factory=dict)
    """By function: names and operands."""
    sums: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Reductions by the function that combines two elements: names and what is reduced."""
    numbers: dict[Number | None, list[str]] = field(default_factory=dict)
    indices: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    outputs: dict[str, list[str]] = field(default_factory=dict)
    bare: dict[str, str] = field(default_factory=dict)
    """What is cast, by the cast: it takes no code where values are held as they are stored."""

    @cached_property
    def read(self) -> set[str]:
        return {let for lets in self.reads.values() for let in lets}

    @classmethod
    def of(cls, kernel: Kernel) -> _Lets:
        made = cls()
        for part in kernel.parts:
            for let in recognise(part).body:
                made._add(let, let.name.partition(".")[0])
            for output in part.outputs:
                made.outputs.setdefault(output.tensor, []).append(output.value)
        return made

    def is_in(self, let: str, held: set[str]) -> bool:
        """Whether a place with these Lets has one, or what it is a cast of."""
        while let not in held and let in self.bare:
            let = self.bare[let]
        return let in held

    def _add(self, let: Let, owner: str) -> None:
        self.owners[let.name] = owner
        match let.expr:
            case Read(tensor=tensor):
                self.reads.setdefault(tensor, []).append(let.name)
            case Const(value=value):
                self.numbers.setdefault(value, []).append(let.name)
            case AxisIndex():
                self.indices.append(let.name)
            case Words():
                self.words.append(let.name)
            case Unary(fn=fn, x=x):
                self.ops.setdefault(fn, []).append((let.name, (x,)))
            case Cast(x=x) | Check(x=x):
                self.bare[let.name] = x
                self.ops.setdefault("cast", []).append((let.name, (x,)))
            case Binary(fn=fn, lhs=lhs, rhs=rhs):
                self.ops.setdefault(fn, []).append((let.name, (lhs, rhs)))
            case Select(pred=pred, x=x, y=y):
                self.ops.setdefault("select", []).append((let.name, (pred, x, y)))
            case Reduce(fn=fn, value=value):
                self.sums.setdefault(_COMBINES.get(fn, fn), []).append((let.name, value))
            case Fold(carries=carries, step=step, combine=combine):
                for inner in (*step, *combine):
                    self._add(inner, owner)
                for carry in carries:
                    others = [carry.name, f"{carry.name}.a", f"{carry.name}.b"]
                    self.owners.update(dict.fromkeys(others, owner))
                    for last in (carry.next, carry.merged):
                        self.aliases.setdefault(last, []).extend(others)


class _Matching:
    """One kernel and its code side by side. A place is a variable, a register array, or a tile of
    shared memory as `@name`; it has all the Lets that it may be."""

    def __init__(self, code: gpu.Kernel, kernel: Kernel, tensors: Sequence[str]) -> None:
        self.code, self.tensors, self.lets = code, tensors, _Lets.of(kernel)
        self.parts = kernel.parts
        self.contraction = kernel.roles.contraction if kernel.roles else ""
        self.at: dict[str, set[str]] = {}
        self.used: dict[str, dict[str, None]] = {}
        """The places that are made of each, by order."""
        self.changed = False

    def found(self) -> dict[str, list[str]]:
        statements = list(gpu.walk(self.code.body))
        for _ in range(_MOST_PASSES):
            self.changed = False
            for statement in statements:
                self.statement(statement)
            if not self.changed:
                break
        self.stores(statements)
        self.helpers()
        owners = self.lets.owners
        made = {
            name: list(dict.fromkeys(owners[each] for each in sorted(lets)))
            for name, lets in self.at.items()
            if lets and not name.startswith("@")
        }
        self.swallowed(made)
        return made

    # -- what places hold

    def of(self, *places: str) -> set[str]:
        return set().union(*(self.at.get(place, ()) for place in places))

    def put(self, place: str, lets: Iterable[str], made_of: Iterable[str] = ()) -> None:
        known = self.at.setdefault(place, set())
        for let in [*lets]:
            if let not in known:
                known.update((let, *self.lets.aliases.get(let, ())))
                self.changed = True
        for source in made_of:
            self.used.setdefault(source, {})[place] = None

    def moved(self, target: str, *sources: str) -> None:
        """A place with what others hold."""
        self.put(target, self.of(*sources), sources)

    def read(self, buffer: int) -> list[str]:
        """The Reads of what a buffer holds."""
        return self.lets.reads.get(self.tensors[buffer], [])

    # -- statements

    def statement(self, statement: gpu.Stmt) -> None:
        match statement:
            case values.Compute(op=op):
                self.compute(op)
            case gpu.LoadElement(name=name, buffer=buffer):
                self.put(name, self.read(buffer))
            case (
                values.LoadVector(names=names, buffer=buffer)
                | values.LoadAcross(names=names, buffer=buffer)
            ):
                for name in names:
                    self.put(name, self.read(buffer))
            case values.IndexValue(name=name):
                self.put(name, self.lets.indices)
            case values.Words(names=names, seed=seed, offset=offset):
                for name in names:
                    self.put(name, self.lets.words, (seed, offset))
            case values.Assign(name=name, source=source) | values.Shuffle(name=name, source=source):
                self.moved(name, source)
            case values.SortKey(name=name, source=source):
                self.moved(name, source)
            case values.Choose(name=name, x=x, y=y):
                chosen = self.matches("select", ("", x, y))
                self.put(name, chosen or self.of(x, y), (x, y))
            case gpu.Epilogue():
                self.epilogue(statement)
            case _:
                self.array(statement)

    def array(self, statement: gpu.Stmt) -> None:
        """Statements on shared memory and on arrays of registers."""
        match statement:
            case gpu.StShared(target=target, source=source):
                self.moved(f"@{target.tile}", source)
            case gpu.StCluster(target=target, source=source):
                self.moved(f"@{target.tile}", source)
            case gpu.SendCluster(target=target, source=source):
                self.moved(f"@{target.tile}", source)
            case gpu.StSharedVec(target=target, source=array):
                self.moved(f"@{target.tile}", array.array)
            case gpu.StMatrix(target=target, source=array):
                self.moved(f"@{target.tile}", array.array)
            case gpu.LoadShared(name=name, source=place):
                self.moved(name, f"@{place.tile}")
            case gpu.LoadSharedVector(names=names, source=place):
                for name in names:
                    self.moved(name, f"@{place.tile}")
            case gpu.LoadStaged(names=names, source=place):
                for name in names:
                    self.moved(name, f"@{place.tile}")
            case gpu.LdMatrix(target=array, source=place):
                self.moved(array.array, f"@{place.tile}")
            case gpu.LdRegister(target=array, source=place):
                self.moved(array.array, f"@{place.tile}")
            case (
                gpu.CpAsync(target=target, buffer=buffer) | gpu.Gather(target=target, buffer=buffer)
            ):
                self.put(f"@{target.tile}", self.read(buffer))
            case gpu.BulkLoad(target=target, buffer=buffer):
                self.put(f"@{target.tile}", self.read(buffer))
            case gpu.TmaLoad(target=target, map=name):
                self.put(f"@{target.tile}", self.read(self.code.map(name).buffer))
            case gpu.Descriptor(name=name, address=place):
                held = self.of(f"@{place.tile}")
                self.put(name, (held & self.lets.read) or held)
            case _:
                self.matrix(statement)

    def matrix(self, statement: gpu.Stmt) -> None:
        """Products, and what is done to their rows."""
        match statement:
            case gpu.Wgmma(acc=acc, a=a, b=b):
                first = a.array if isinstance(a, gpu.RegAt) else a.descriptor
                self.put(acc, self.product(first, b.descriptor), (first, b.descriptor))
            case (
                gpu.PackPair(target=target, low=low, high=high)
                | gpu.PackSmall(target=target, low=low, high=high)
                | gpu.PackSigned(target=target, low=low, high=high)
            ):
                self.moved(target.array, low)
                self.moved(target.array, high)
            case gpu.ScalePair(target=target, factor=factor):
                self.moved(target.array, factor)
            case gpu.DrawBits(out=out, seed=seed, offset=offset):
                self.moved(out.array, seed, offset)
            case gpu.MmaSync(acc=acc, a=a, b=b):
                self.put(acc.array, self.product(a.array, b.array), (a.array, b.array))
            case (
                gpu.AddRegisters(target=target, source=source)
                | gpu.AddShifted(target=target, source=source)
            ):
                self.moved(target, source)
            case gpu.PoolPairs(names=names, source=source):
                for name in names:
                    self.put(name, self.reduced("max", self.of(source)), (source,))
            case gpu.KeepSums(source=source):
                self.moved("@workspace", source)
            case gpu.AddSums(target=target) | gpu.GatherSums(target=target):
                self.moved(target, "@workspace")
            case gpu.RowMax(names=names, source=source):
                for name in names:
                    self.put(name, self.reduced("max", self.of(source)), (source,))
            case gpu.RowSum(names=names, source=source):
                for name in names:
                    self.put(name, self.reduced("add", self.of(source)), (source,))
            case gpu.RowExp(names=names, target=target, shifts=shifts):
                powers = [let for fn in _EXPONENTIALS for let, _ in self.lets.ops.get(fn, ())]
                self.put(target, powers, shifts)
                for name in names:
                    self.put(name, self.reduced("add", set(powers)), (target,))
            case gpu.RowScale(target=target, factors=factors):
                for factor in factors:
                    self.used.setdefault(factor, {})[target] = None

    def epilogue(self, statement: gpu.Epilogue) -> None:
        self.moved(statement.value, statement.acc.array)
        for source in statement.sources:
            match source:
                case gpu.GlobalElements(name=name, buffer=buffer):
                    self.put(name, self.read(buffer))
                case gpu.SharedColumns(name=name, source=place):
                    self.moved(name, f"@{place.tile}")
                case gpu.StagedElements(name=name, row=place):
                    self.moved(name, f"@{place.tile}")
                case gpu.RowValues(name=name, values=names):
                    self.moved(name, *names)
                case gpu.RegisterElements(name=name, source=array):
                    self.moved(name, array.array)
                case gpu.RandomElements(name=name, seed=seed, offset=offset):
                    self.moved(name, seed, offset)
                case gpu.BitElements(name=name, source=array):
                    self.moved(name, array.array)
                case gpu.IndexElements(name=name):
                    self.put(name, self.lets.indices)
        for op in statement.ops:
            self.compute(op)
        self.moved(statement.out.array, statement.result)

    # -- what an op computes

    def compute(self, op: ElementOp) -> None:
        if op.fn == "const":
            self.put(op.name, self.lets.numbers.get(op.value, ()))
            return
        found = set(self.matches(op.fn, op.args)) or self.goes_on(op.fn, op.args)
        if not found and op.fn == "cast":
            found = self.of(*op.args)
        self.put(op.name, found, op.args)

    def matches(self, fn: str, args: Sequence[str]) -> list[str]:
        """The Lets that do this to what these places hold; "" is anything."""
        held = [self.of(arg) if arg else None for arg in args]
        turned = held[::-1] if fn in ("add", "mul", "max", "min") else held
        return [
            let
            for let, given in self.lets.ops.get(fn, ())
            if self.fits(given, held) or self.fits(given, turned)
        ]

    def fits(self, given: Sequence[str], held: Sequence[set[str] | None]) -> bool:
        return len(given) == len(held) and all(
            places is None or self.lets.is_in(operand, places)
            for operand, places in zip(given, held, strict=True)
        )

    def goes_on(self, fn: str, args: Sequence[str]) -> set[str]:
        """The reductions of which this is a step: one more element, or two parts of it."""
        return self.reduced(fn, self.of(*args)) if len(args) == 2 else set()

    def reduced(self, fn: str, held: set[str]) -> set[str]:
        of = self.lets
        return {let for let, value in of.sums.get(fn, ()) if let in held or of.is_in(value, held)}

    def product(self, a: str, b: str) -> set[str]:
        """The sum of products of what two places hold; where a factor is only on its way to being
        one, as powers are that a softmax divides later, that of the other one."""
        for places in ((a, b), ("", b), ("", a)):
            found = self.reduced("add", set(self.matches("mul", places)))
            if found:
                return found
        return {self.contraction} if self.contraction else set()

    # -- what is left

    def stores(self, statements: Iterable[gpu.Stmt]) -> None:
        """What is stored as a result is that, where nothing better is known."""
        for statement in statements:
            match statement:
                case values.StoreElement(buffer=buffer, source=source):
                    self.is_result(buffer, (source,))
                case values.StoreVector(buffer=buffer, sources=sources):
                    self.is_result(buffer, sources)
                case gpu.StGlobalVec(buffer=buffer, source=array):
                    self.is_result(buffer, (array.array,))

    def is_result(self, buffer: int, sources: Iterable[str]) -> None:
        for source in sources:
            if not self.at.get(source):
                self.put(source, self.lets.outputs.get(self.tensors[buffer], ()))

    def helpers(self) -> None:
        """What is nothing by itself is part of what is made of it, where that is one thing."""
        owners = self.lets.owners
        for place in reversed([name for name in self.used if not self.at.get(name)]):
            made = self.of(*self.used[place])
            if len({owners[let] for let in made}) == 1:
                self.put(place, made)

    def swallowed(self, made: Mapping[str, list[str]]) -> None:
        """A Let that no variable is, such as a factor inside a product, is in what uses it."""
        carriers: dict[str, dict[str, None]] = {}
        for name, lets in made.items():
            for known in lets:
                carriers.setdefault(known, {})[name] = None
        for part in self.parts:
            users: dict[str, list[str]] = {}
            for let in reversed(part.body):
                if let.name not in carriers:
                    above = (carriers.get(user, {}) for user in users.get(let.name, ()))
                    carriers[let.name] = {name: None for names in above for name in names}
                    for name in carriers[let.name]:
                        made[name].append(let.name)
                for operand in operands(let):
                    users.setdefault(operand, []).append(let.name)
            for let in part.body:
                if not carriers.get(let.name) and isinstance(let.expr, Cast):
                    for name in carriers.get(let.expr.x, ()):
                        made[name].append(let.name)
