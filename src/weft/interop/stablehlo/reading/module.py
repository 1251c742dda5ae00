"""A StableHLO module as a PTIR program.

The entry is `@main`, or else the only public function. Calls are expanded where they stand, since
PTIR has none. A size that the text leaves open (`?`) gets a name of its own, `n` for one of a
parameter and `d` for one that an operation makes; where an operation needs two sizes to be one,
they get one name and the reading starts over. What an operation makes is checked against its name
when the program runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from weft.foundation.errors import ResourceExceeded, SpecViolation, Unimplemented, UserError
from weft.interop.stablehlo.reading.calls import CALLS
from weft.interop.stablehlo.reading.collectives import COLLECTIVES
from weft.interop.stablehlo.reading.contractions import CONTRACTIONS
from weft.interop.stablehlo.reading.control import CONTROL
from weft.interop.stablehlo.reading.einsum import EINSUM
from weft.interop.stablehlo.reading.elementwise import ELEMENTWISE
from weft.interop.stablehlo.reading.indexing import INDEXING
from weft.interop.stablehlo.reading.normalisation import NORMALISATION
from weft.interop.stablehlo.reading.quantisation import QUANTISATION, check_quantised
from weft.interop.stablehlo.reading.random_bits import RANDOM_BITS
from weft.interop.stablehlo.reading.reductions import REDUCTIONS
from weft.interop.stablehlo.reading.refused import REFUSED
from weft.interop.stablehlo.reading.scattering import SCATTERING
from weft.interop.stablehlo.reading.shapes import SHAPES
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.interop.stablehlo.reading.sizes import Held, direction, held
from weft.interop.stablehlo.reading.sorting import SORTING
from weft.interop.stablehlo.reading.special import SPECIAL
from weft.interop.stablehlo.reading.transforms import TRANSFORMS
from weft.interop.stablehlo.reading.windows import WINDOWS
from weft.interop.stablehlo.records import (
    HloBlock,
    HloFunction,
    HloOp,
    HloTensor,
    HloTuple,
    HloType,
    tensors,
)
from weft.ptir.builder import BodyBuilder, Builder, Value
from weft.ptir.builder.body import Shared
from weft.ptir.ir import Program, Ref, ValueKey
from weft.ptir.streams import drop_default_streams
from weft.ptir.types import UNKNOWN, Dim, Symbol, TensorType, TupleType, ValueType

LOWERINGS: Final[Mapping[str, Lowering]] = {
    **ELEMENTWISE,
    **SPECIAL,
    **SHAPES,
    **REDUCTIONS,
    **WINDOWS,
    **NORMALISATION,
    **CONTRACTIONS,
    **EINSUM,
    **TRANSFORMS,
    **INDEXING,
    **SCATTERING,
    **SORTING,
    **CONTROL,
    **CALLS,
    **RANDOM_BITS,
    **QUANTISATION,
    **COLLECTIVES,
}
"""Every operation that can be read, by its name without the dialect."""
MOST_INSTRUCTIONS: Final = 1_000_000
"""How large a program may grow while calls are expanded."""


_ABOUT_OPEN_SIZES: Final = ("DynamicDimensionMismatch", "RegionSignatureMismatch")
"""What a module that MLIR has verified breaks only where it leaves sizes open."""


_CALLING: Final = ("func.call", "composite")
"""Operations whose results hold what those of a function hold."""


class _SameSize(Exception):
    """Two sizes turned out to be one."""

    def __init__(self, dims: tuple[Dim, Dim]) -> None:
        super().__init__()
        self.dims = dims
        self.op: HloOp | None = None


def to_program(
    functions: Mapping[str, HloFunction], shapes: Sequence[Sequence[int] | int] | None = None
) -> Program:
    """The program whose entry is the module's. `shapes` are those of its inputs, where the sizes
    that the text leaves open shall be numbers; a whole number stands for an input that is one, and
    that the program then does not take."""
    entry = _entry_function(functions)
    given = _Given(entry.block.types, shapes) if shapes is not None else _Given((), ())
    names = _Names(given.sizes)
    while True:
        walk = _Walk(functions, names)
        try:
            return walk.program(entry, given.numbers)
        except _SameSize as found:
            names.unify(found)


class _Given:
    """What is known of the inputs besides their types."""

    def __init__(self, kinds: Sequence[HloType], shapes: Sequence[Sequence[int] | int]) -> None:
        self.sizes: list[int] = []
        """Those in the place of open sizes, in their order."""
        self.numbers: dict[int, int] = {}
        """The inputs that are whole numbers, by position."""
        if len(kinds) != len(shapes):
            raise UserError(
                f"the module takes {len(kinds)} inputs, and {len(shapes)} are described"
            )
        for at, (kind, shape) in enumerate(zip(kinds, shapes, strict=True)):
            self._note(at, kind, shape)

    def _note(self, at: int, kind: HloType, shape: Sequence[int] | int) -> None:
        if isinstance(kind, HloTuple):
            raise UserError(f"input {at} is a tuple; shapes are given for tensors only")
        if isinstance(shape, int):
            if kind.dims or not kind.dtype.is_integer:
                raise UserError(
                    f"input {at} is {kind}, not a whole number, and is given as {shape}"
                )
            self.numbers[at] = shape
            return
        fits = zip(kind.dims, shape, strict=False)
        if len(kind.dims) != len(shape) or any(dim not in (None, size) for dim, size in fits):
            raise UserError(f"input {at} is {kind}, and its shape is given as {list(shape)}")
        self.sizes += [n for dim, n in zip(kind.dims, shape, strict=True) if dim is None]


def _entry_function(functions: Mapping[str, HloFunction]) -> HloFunction:
    if "main" in functions:
        return functions["main"]
    public = [function for function in functions.values() if not function.private]
    if len(public) != 1:
        found = ", ".join(f"@{f.name}" for f in public[:8]) or "none"
        raise UserError(
            f"the module has no function @main, and its public functions are {found}; "
            "name the one that runs main, or make the others private"
        )
    return public[0]


def _open_size(name: str, why: str, place: str) -> Unimplemented:
    full = f"a size that the text leaves open would have to be known: {why}"
    return Unimplemented(f"stablehlo.{name}", f"{full}; {place}")


class _Names:
    """The names of sizes, kept while the reading starts over."""

    def __init__(self, numbers: Sequence[int] = ()) -> None:
        self._known: dict[Symbol, Dim] = {Symbol(f"n{at}"): n for at, n in enumerate(numbers)}
        self._made: dict[tuple[object, ...], Symbol] = {}

    def of_parameter(self, number: int) -> Dim:
        return self._resolve_dim(Symbol(f"n{number}"))

    def of_value(self, number: int) -> Dim:
        """The name of the size that a parameter holds as its value."""
        return self._resolve_dim(Symbol(f"v{number}"))

    def made_by(self, *place: object) -> Dim:
        """The name of a size that an operation makes, the same for the same place every time."""
        return self._resolve_dim(self._made.setdefault(place, Symbol(f"d{len(self._made)}")))

    def _resolve_dim(self, name: Dim) -> Dim:
        while isinstance(name, Symbol) and name in self._known:
            name = self._known[name]
        return name

    def unify(self, found: _SameSize) -> None:
        """One of two names goes: it becomes the number, or the name that came first."""
        left, right = sorted(found.dims, key=_age)
        if not isinstance(right, Symbol) or right in self._known:
            why = f"sizes that must be one are {left} and {right}"
            name, place = (found.op.name, found.op.place) if found.op else ("module", "")
            if isinstance(left, int) and isinstance(right, int):
                raise SpecViolation("ShapeMismatch", why, where=f"{name}, {place}")
            raise _open_size(name, why, place)
        self._known[right] = left


_MADE: Final = 2
_AGES: Final = {"n": 1, "d": _MADE, "v": _MADE + 1}


def _age(size: Dim) -> tuple[int, int]:
    """Numbers before the sizes of parameters before those that operations make before those that
    parameters hold as values, in their order."""
    if isinstance(size, int):
        return 0, size
    return _AGES[size.name[0]], int(size.name[1:])


@dataclass
class _Supply(Shared):
    """Names derived sizes after the operation that is being read."""

    walk: _Walk | None = None

    def fresh_symbol(self) -> Dim:
        assert self.walk is not None
        return self.walk.derived()


class _Walk:
    """Reads one module, given which sizes are known to be one."""

    def __init__(self, functions: Mapping[str, HloFunction], names: _Names) -> None:
        self.functions = functions
        self.names = names
        self.locations: dict[ValueKey, str] = {}
        self.call_fields: dict[ValueKey, Mapping[str, Any]] = {}
        self.calls: list[str] = []
        self.kinds: dict[int, HloType] = {}
        self.unknown = 0
        self.shapes: dict[int, Held] = {}
        """The sizes that values hold, for those that hold sizes."""
        self.equalities: dict[int, tuple[tuple[Dim, Dim], ...]] = {}
        """What comparisons find equal, where that is sizes."""
        self.count = 0
        self.reading: list[HloOp] = []
        """The operations that are being read, each inside the one before."""
        self.derivations: Counter[tuple[int, ...]] = Counter()

    def program(self, entry: HloFunction, numbers: Mapping[int, int]) -> Program:
        b = Builder(entry.name, _Supply(walk=self))
        params = [
            b.literal(numbers[at], tensors(kind)[0].dtype)
            if at in numbers
            else b.param_of(self._type(kind))
            for at, kind in enumerate(entry.block.types)
        ]
        self._note_values(entry.block, numbers)
        results = self.inline(b, entry.block, params, {})
        made = b.build(*results)
        noted = replace(made, locations=self.locations, call_fields=self.call_fields)
        return drop_default_streams(noted)

    def _note_values(self, block: HloBlock, numbers: Mapping[int, int]) -> None:
        """Whole numbers that come as parameters may be used as sizes."""
        for at, (number, kind) in enumerate(zip(block.arguments, block.types, strict=True)):
            if isinstance(kind, HloTensor) and not kind.dims and kind.dtype.is_integer:
                self.shapes[number] = (numbers.get(at, self.names.of_value(number)),)

    def _type(self, kind: HloType) -> ValueType:
        if isinstance(kind, HloTuple):
            return TupleType(tuple(self._tensor(leaf) for leaf in tensors(kind)))
        return self._tensor(kind)

    def _tensor(self, kind: HloTensor) -> TensorType:
        return TensorType(kind.dtype, tuple(self._dim(dim) for dim in kind.dims))

    def _dim(self, dim: int | None) -> Dim:
        if dim is not None:
            return dim
        self.unknown += 1
        return self.names.of_parameter(self.unknown - 1)

    def derived(self) -> Dim:
        """The name of a size that the operation being read makes."""
        place = tuple(id(op) for op in self.reading)
        self.derivations[place] += 1
        return self.names.made_by(*place, self.derivations[place])

    # -- what operations ask for (`site.Reader`) -------------------------------------------------

    def same(self, dims: tuple[Dim, Dim]) -> NoReturn:
        raise _SameSize(dims)

    def declared(self, number: int) -> HloType:
        return self.kinds[number]

    def is_made(self, size: Dim) -> bool:
        return _age(size)[0] == _MADE

    def is_false(self, number: int) -> bool:
        for dims in self.equalities.get(number, ()):
            if dims[0] != dims[1] and any(isinstance(dim, Symbol) for dim in dims):
                raise _SameSize(dims)
        return self.shapes.get(number) == (0,)

    def _note_equality(self, op: HloOp) -> None:
        left, right = (self.shapes.get(number, ()) for number in op.operands)
        pairs = tuple(pair for pair in zip(left, right, strict=False) if UNKNOWN not in pair)
        self.equalities[op.results[0]] = pairs

    def inline(
        self, b: BodyBuilder, block: HloBlock, args: Sequence[Value], env: Mapping[int, Value]
    ) -> list[Value]:
        inside = {**env, **dict(zip(block.arguments, args, strict=True))}
        self.kinds.update(zip(block.arguments, block.types, strict=True))
        for op in block.ops:
            self._read_operation(b, op, inside)
        return [inside[number] for number in block.returned]

    def keep_fields(self, b: BodyBuilder, value: Value, fields: Mapping[str, Any]) -> None:
        if isinstance(value.operand, Ref):
            self.call_fields[b.label, value.operand.id] = fields

    def sizes(self, number: int) -> Held | None:
        return self.shapes.get(number)

    def _note_sizes(self, op: HloOp, x: Sequence[Value]) -> None:
        """What the results hold; a function that is called again may compute with other sizes."""
        if op.name not in _CALLING:
            for number in op.results:
                self.shapes.pop(number, None)
            if op.results and (entries := held(op, x, self.shapes.get)) is not None:
                self.shapes[op.results[0]] = entries
        if op.name == "compare" and direction(op) == "EQ":
            self._note_equality(op)

    def _hand_over(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Values that stand for others hold what they hold."""
        for old, new in zip(source, target, strict=False):
            self.shapes.pop(new, None)
            if old in self.shapes:
                self.shapes[new] = self.shapes[old]

    def function(self, name: str) -> HloBlock:
        if name not in self.functions:
            raise SpecViolation("UndefinedFunction", f"the function @{name} does not exist")
        return self.functions[name].block

    def call(self, b: BodyBuilder, name: str, args: Sequence[Value]) -> list[Value]:
        if name in self.calls:
            cycle = " -> ".join(f"@{n}" for n in (*self.calls, name))
            raise SpecViolation("RecursiveCall", f"functions call each other in a circle: {cycle}")
        block = self.function(name)
        self.calls.append(name)
        self._hand_over(self.reading[-1].operands, block.arguments)
        found = self.inline(b, block, args, {})
        self._hand_over(block.returned, self.reading[-1].results)
        self.calls.pop()
        return found

    def _read_operation(self, b: BodyBuilder, op: HloOp, env: dict[int, Value]) -> None:
        lower = LOWERINGS.get(op.name)
        if lower is None:
            reason = REFUSED.get(op.name, "it is none of the operations that Weft knows")
            raise Unimplemented(f"stablehlo.{op.name}", f"{reason}; {op.place}")
        site = Site(self, b, op, [env[number] for number in op.operands], env)
        check_quantised(site, [self.kinds[number] for number in op.operands])
        first = len(b._types)
        self.reading.append(op)
        found = self._lower_at(lower, site)
        self.reading.pop()
        values = [found] if isinstance(found, Value) else list(found)
        env.update(zip(op.results, values, strict=True))
        self.kinds.update(zip(op.results, op.types, strict=True))
        self._note_sizes(op, site.x)
        for number in range(first, len(b._types)):
            self.locations.setdefault((b.label, number), op.place)
        self.count += len(b._types) - first
        if self.count > MOST_INSTRUCTIONS:
            raise ResourceExceeded(
                f"the module needs more than {MOST_INSTRUCTIONS} instructions with every call "
                f"expanded; {op.place}"
            )

    def _lower_at(self, lower: Lowering, site: Site) -> Value | Sequence[Value]:
        try:
            return lower(site)
        except _SameSize as found:
            found.op = found.op or site.op
            raise
        except SpecViolation as error:
            first = error.findings[0]
            if first.code in _ABOUT_OPEN_SIZES:
                raise _open_size(site.op.name, first.why, site.op.place) from None
            at = first.where if first.where.startswith("line") else site.op.place
            raise SpecViolation(
                first.code, first.why, first.hint, f"{site.op.name}, {at}"
            ) from None
        except UserError as error:
            raise Unimplemented(f"stablehlo.{site.op.name}", f"{error}; {site.op.place}") from None
