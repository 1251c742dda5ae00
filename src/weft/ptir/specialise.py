"""Specialisation: from a program with dynamic dims to one for given sizes; and values that would
then exceed the limits, named before they are made.

PTIR has no shapes that depend on data: once the inputs are known, every dim is. Specialising walks
the program with concrete types, binds each derived symbol where it is first declared, and checks
everything the verifier had to leave open. The result is an ordinary static program, so no backend
needs to know about symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from weft.foundation import limits
from weft.foundation.errors import ResourceExceeded, SpecViolation
from weft.foundation.limits import Limits
from weft.ptir.ir import Body, Instruction, Program, Region, ValueKey, operand_type
from weft.ptir.ops.constant import CustomCall
from weft.ptir.streams import assign_streams
from weft.ptir.types import (
    Dim,
    Symbol,
    TensorType,
    TupleType,
    ValueType,
    leaves,
    substitute,
    symbols_of,
)
from weft.ptir.verify import check_type

Sizes = dict[str, int]


def is_static(program: Program) -> bool:
    """Whether no type or attribute of the program mentions a symbol."""
    for body in program.bodies:
        kinds = (*body.parameters, *body.results, *(i.output for i in body.body))
        if any(True for kind in kinds for _ in symbols_of(kind)):
            return False
    return True


def bind_shapes(kinds: Sequence[ValueType], shapes: Sequence[tuple[int, ...]]) -> Sizes:
    """The size of every symbol of the parameters, from the shapes of the (flattened) inputs."""
    sizes: Sizes = {}
    tensors = [leaf for kind in kinds for leaf in leaves(kind)]
    for index, (kind, shape) in enumerate(zip(tensors, shapes, strict=True)):
        if kind.rank != len(shape):
            raise SpecViolation(
                "RankMismatch", f"input {index} has rank {len(shape)}, not {kind.rank} as in {kind}"
            )
        for axis, (dim, size) in enumerate(zip(kind.shape, shape, strict=True)):
            _bind(dim, size, sizes, f"axis {axis} of input {index}")
    return sizes


def _bind(dim: Dim, size: int, sizes: Sizes, what: str) -> None:
    wanted = sizes.setdefault(dim.name, size) if isinstance(dim, Symbol) else dim
    if wanted != size:
        name = f"{dim} = {wanted}" if isinstance(dim, Symbol) else str(dim)
        raise SpecViolation("DynamicDimensionMismatch", f"{what} has size {size}, not {name}")


def specialise(program: Program, sizes: Mapping[str, int]) -> Program:
    """The program with every symbol replaced by its size. A static program is returned as it is."""
    if is_static(program):
        return program
    # A region used with different sizes becomes several: random streams are settled before that.
    return _Specialiser(assign_streams(program)).run(dict(sizes))


def settled_sizes(program: Program, concrete: Program) -> Sizes:
    """The size of every symbol of the entry function, those that follow from others included, in a
    program that was specialised."""
    sizes: Sizes = {}
    old, new = program.main, concrete.main
    kinds = zip(
        (*old.parameters, *(i.output for i in old.body)),
        (*new.parameters, *(i.output for i in new.body)),
        strict=True,
    )
    for declared, actual in kinds:
        _bind_output(declared, actual, sizes)
    return sizes


MAX_COPIES = 50_000
"""How many instructions the further copies of regions may have, in all: their number can double
with every level of nesting."""


@dataclass
class _Specialiser:
    program: Program
    regions: dict[tuple[int, tuple[tuple[str, int], ...]], Region] = field(default_factory=dict)
    locations: dict[ValueKey, str] = field(default_factory=dict)
    made: dict[int, Region] = field(default_factory=dict)
    """What `regions` holds, by the new id."""
    mentioned: dict[int, frozenset[str]] = field(default_factory=dict)
    """The symbols that matter to a region: those that it mentions, and those that it runs."""
    sources: set[int] = field(default_factory=set)
    copies: int = 0

    def run(self, sizes: Sizes) -> Program:
        main = self.program.main
        parameters = tuple(substitute(kind, sizes) for kind in main.parameters)
        body, types = self._body(main, parameters, sizes)
        results = tuple(types[value_id] for value_id in main.result_ids)
        made = {instruction.id: instruction for instruction in body}
        hints = tuple(
            replace(hint, body=tuple(made[copied.id] for copied in hint.body))
            for hint in main.hints
        )
        function = replace(main, parameters=parameters, body=body, results=results, hints=hints)
        self._note_lines(main, main.label)
        regions = tuple(self.regions.values())
        return replace(
            self.program,
            entry=main.name,
            functions=(function,),
            regions=regions,
            locations=self.locations,
            call_fields={},
        )

    def region(self, region_id: int) -> Region:
        return self.made[region_id]

    def is_bound(self, symbol: Symbol) -> bool:
        return False

    def _note_lines(self, body: Body, label: str) -> None:
        for instruction in body.body:
            line = self.program.locations.get((body.label, instruction.id))
            if line:
                self.locations[label, instruction.id] = line

    def _region(self, region_id: int, sizes: Sizes) -> int:
        relevant = {name: sizes[name] for name in self._dims_in(region_id) if name in sizes}
        key = (region_id, tuple(sorted(relevant.items())))
        if key not in self.regions:
            source = self.program.regions_by_id[region_id]
            self._count(source)
            parameters = tuple(substitute(kind, relevant) for kind in source.parameters)
            body, types = self._body(source, parameters, relevant)
            results = tuple(types[value_id] for value_id in source.result_ids)
            made = Region(len(self.regions), parameters, body, results, source.result_ids)
            self._note_lines(source, made.label)
            self.regions[key] = self.made[made.id] = made
        return self.regions[key].id

    def _count(self, source: Region) -> None:
        if source.id in self.sources:
            self.copies += len(source.body)
        self.sources.add(source.id)
        if self.copies > MAX_COPIES:
            raise ResourceExceeded(
                f"regions run with so many different sizes that their copies have more than "
                f"{MAX_COPIES:,} instructions"
            )

    def _dims_in(self, region_id: int) -> frozenset[str]:
        if region_id not in self.mentioned:
            region = self.program.regions_by_id[region_id]
            found = {dim.name for dim in region_symbols(region)}
            for instruction in region.body:
                found.update(*map(self._dims_in, instruction.op.regions))
            self.mentioned[region_id] = frozenset(found)
        return self.mentioned[region_id]

    def _body(
        self, body: Body, parameters: tuple[ValueType, ...], sizes: Sizes
    ) -> tuple[tuple[Instruction, ...], dict[int, ValueType]]:
        types = dict(zip(body.parameter_ids, parameters, strict=True))
        made = []
        for instruction in body.body:
            try:
                new = self._instruction(instruction, types, sizes)
            except SpecViolation as error:
                raise error.at(self.program.place(body, instruction)) from None
            types[new.id] = new.output
            made.append(new)
        return tuple(made), types

    def _instruction(
        self, instruction: Instruction, types: dict[int, ValueType], sizes: Sizes
    ) -> Instruction:
        op = instruction.op.with_dims(
            lambda dim: sizes.get(dim.name, dim) if isinstance(dim, Symbol) else dim
        )
        if op.regions:
            op = op.with_regions({r: self._region(r, sizes) for r in op.regions})
        operands = [operand_type(operand, types) for operand in instruction.operands]
        if isinstance(op, CustomCall):
            output = substitute(instruction.output, sizes)
        else:
            output = op.result_type(operands, self)
            _bind_output(instruction.output, output, sizes)
        check_type(output)
        return replace(instruction, op=op, output=output)


def region_symbols(region: Region) -> list[Symbol]:
    """Every symbol in the types and attributes of a region."""
    found: list[Dim] = []

    def note(dim: Dim) -> Dim:
        found.append(dim)
        return dim

    for kind in (*region.parameters, *(instruction.output for instruction in region.body)):
        found.extend(symbols_of(kind))
    for instruction in region.body:
        instruction.op.with_dims(note)
    return [dim for dim in found if isinstance(dim, Symbol)]


def _bind_output(declared: ValueType, actual: ValueType, sizes: Sizes) -> None:
    if isinstance(declared, TupleType) and isinstance(actual, TupleType):
        for wanted, found in zip(declared.elements, actual.elements, strict=True):
            _bind_output(wanted, found, sizes)
    elif isinstance(declared, TensorType) and isinstance(actual, TensorType):
        for axis, (dim, size) in enumerate(zip(declared.shape, actual.static_shape, strict=True)):
            _bind(dim, size, sizes, f"axis {axis} of the result")


def check_values(program: Program, bounds: Limits) -> None:
    """Refuse a program without dynamic dims that makes a tensor over the limit."""
    for size, what in _list_oversized(program, bounds):
        limits.check_bytes(size, what, bounds)


def check_results(program: Program, bounds: Limits) -> None:
    """Refuse one that returns a tensor over the limit: it may be larger inside, where no such
    tensor need ever be made."""
    main = program.main
    returned = set(main.result_ids)
    for instruction in main.body:
        if instruction.id in returned:
            size = _largest_result(instruction)
            if size > bounds.tensor_bytes:
                limits.check_bytes(size, _name_value(program, main, instruction), bounds)


def check_memory(size: int, program: Program, bounds: Limits) -> None:
    """Refuse a piece of memory over the limit that something in the program needs."""
    if size > bounds.tensor_bytes:
        named = [what for _, what in _list_oversized(program, bounds)]
        limits.check_bytes(size, named[0] if named else f"a buffer of @{program.entry}", bounds)


def _list_oversized(program: Program, bounds: Limits) -> Iterator[tuple[int, str]]:
    """The values over the limit, in order: bytes, and a name for a message."""
    for body in program.bodies:
        for instruction in body.body:
            size = _largest_result(instruction)
            if size > bounds.tensor_bytes:
                yield size, _name_value(program, body, instruction)


def _largest_result(instruction: Instruction) -> int:
    return max((kind.bytes for kind in leaves(instruction.output)), default=0)


def _name_value(program: Program, body: Body, instruction: Instruction) -> str:
    return f"the result of {program.place(body, instruction)}"
