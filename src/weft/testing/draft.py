"""A program under construction as a tape of instructions on which parameters may be added at any
time. `build` replays it through `weft.ptir.Builder`, parameters first.

Every value is typed twice: as the program declares it, with symbols, and with the sizes that the
inputs will have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from weft.foundation.dtypes import DType
from weft.ptir.builder import BodyBuilder, Builder, RegionBody, Value
from weft.ptir.ir import ElementRef, Operand, Program, Ref
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.types import (
    UNKNOWN,
    Dim,
    Shape,
    Symbol,
    TensorType,
    TupleType,
    ValueType,
    substitute_dims,
    symbols_of,
)
from weft.ptir.verify import BodyScope
from weft.testing.facts import Facts

Array = NDArray[Any]
OpMaker = Callable[[BodyBuilder], Op]
FIRST_CANDIDATES, LAST_CANDIDATES = 64, 192


@dataclass(frozen=True, eq=False)
class Item:
    """A tensor of the draft."""

    operand: Operand
    type: TensorType
    sizes: tuple[int, ...]
    facts: Facts

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank


@dataclass(frozen=True, eq=False)
class Bundle:
    """A tuple of the draft."""

    operand: Ref
    type: TupleType
    elements: tuple[Item, ...]


@dataclass(frozen=True)
class Step:
    """One instruction; `make` builds its op when the draft is played back."""

    id: int
    make: OpMaker
    operands: tuple[Operand, ...]
    output: ValueType


@dataclass(frozen=True)
class Input:
    """A parameter of the entry function with its data; a tuple has several arrays."""

    id: int
    type: ValueType
    arrays: tuple[Array, ...]


@dataclass
class Symbols:
    """The symbols of one program and the sizes that its inputs give them."""

    sizes: dict[str, int] = field(default_factory=dict)

    def fresh(self, size: int, prefix: str = "d") -> Symbol:
        number = len(self.sizes)
        while f"{prefix}{number}" in self.sizes:
            number += 1
        self.sizes[f"{prefix}{number}"] = size
        return Symbol(f"{prefix}{number}")


@dataclass(frozen=True)
class Mark:
    """A state of a draft to which it can return: how much of everything there was."""

    steps: int
    inputs: int
    items: int
    bundles: int
    bindings: int
    values: int


class Draft:
    """One body: the entry function, or a region when it has parameters."""

    def __init__(self, symbols: Symbols, bound: set[Symbol]) -> None:
        self.symbols = symbols
        self.bound = bound
        self._bindings: list[Symbol] = []
        """What this draft has added to `bound`, in order."""
        self.steps: list[Step] = []
        self.inputs: list[Input] = []
        self.items: list[Item] = []
        """Every tensor that may be used further."""
        self.bundles: list[Bundle] = []
        self.uses: Counter[int] = Counter()
        self.values: dict[int, Value] = {}
        """After `build`: what each id of the draft has become."""
        self._count = 0

    # -- returning to an earlier state -----------------------------------------------------------

    def mark(self) -> Mark:
        return Mark(
            len(self.steps), len(self.inputs), len(self.items), len(self.bundles),
            len(self._bindings), self._count,
        )  # fmt: skip

    def back_to(self, mark: Mark) -> None:
        """Forget everything since the mark; it costs as much as there is to forget."""
        for step in self.steps[mark.steps :]:
            for used in _ids_of_operands(step.operands):
                self.uses[used] -= 1
                if not self.uses[used]:
                    del self.uses[used]
        self.bound.difference_update(self._bindings[mark.bindings :])
        del self.steps[mark.steps :], self.inputs[mark.inputs :], self.items[mark.items :]
        del self.bundles[mark.bundles :], self._bindings[mark.bindings :]
        self._count = mark.values

    def _bind(self, kind: ValueType) -> None:
        for symbol in symbols_of(kind):
            if symbol not in self.bound:
                self.bound.add(symbol)
                self._bindings.append(symbol)

    # -- values ----------------------------------------------------------------------------------

    @property
    def candidates(self) -> list[Item]:
        """The values among which operands are looked for: all of a short program, and of a long
        one the first and the last, so that the search does not grow with the program."""
        if len(self.items) <= FIRST_CANDIDATES + LAST_CANDIDATES:
            return self.items
        return self.items[:FIRST_CANDIDATES] + self.items[-LAST_CANDIDATES:]

    def size(self, dim: Dim) -> int:
        return self.symbols.sizes[dim.name] if isinstance(dim, Symbol) else dim

    def sizes(self, shape: Shape) -> tuple[int, ...]:
        return tuple(map(self.size, shape))

    def parameter(self, kind: ValueType, facts: Sequence[Facts]) -> Item | Bundle:
        """The next value that is defined from outside."""
        made = self._value(kind, facts)
        self._bind(kind)
        self._keep(made)
        return made

    def input(
        self, kind: ValueType, arrays: Sequence[Array], facts: Sequence[Facts]
    ) -> Item | Bundle:
        """A parameter of the entry function."""
        self.inputs.append(Input(self._count, kind, tuple(arrays)))
        return self.parameter(kind, facts)

    def literal(self, value: TensorLiteral, facts: Facts) -> Item:
        """A constant that is written where it is used."""
        return Item(value, value.type, value.type.static_shape, facts)

    def append(
        self, make: OpMaker, operands: Sequence[Item | Bundle], output: ValueType,
        facts: Sequence[Facts], *, hidden: bool = False,
    ) -> Item | Bundle:  # fmt: skip
        """One instruction of a known type. A hidden one is not used any further on its own."""
        uses = tuple(item.operand for item in operands)
        self.steps.append(Step(self._count, make, uses, output))
        self.uses.update(_ids_of_operands(uses))
        made = self._value(output, facts)
        self._bind(output)
        if not hidden:
            self._keep(made)
        return made

    def output_of(self, op: Op, operands: Sequence[Item]) -> ValueType:
        """The type of an op's result, dims that the type rule cannot name getting a symbol."""
        scope = BodyScope({}, self.bound)
        kind = op.result_type([item.type for item in operands], scope)
        if not any(True for _ in symbols_of(kind)):
            return kind
        static = op.with_dims(lambda dim: substitute_dims([dim], self.symbols.sizes)[0])
        kinds = [item.type.with_shape(item.sizes) for item in operands]
        return self._name_dims(kind, static.result_type(kinds, BodyScope({}, set())))

    def _name_dims(self, kind: ValueType, actual: ValueType) -> ValueType:
        if isinstance(kind, TupleType) and isinstance(actual, TupleType):
            pairs = zip(kind.elements, actual.elements, strict=True)
            return TupleType(tuple(self._name_dims(a, b) for a, b in pairs))
        if isinstance(kind, TensorType) and isinstance(actual, TensorType):
            dims = zip(kind.shape, actual.static_shape, strict=True)
            return kind.with_shape(
                self.symbols.fresh(size) if dim == UNKNOWN else dim for dim, size in dims
            )
        raise TypeError(f"{kind} and {actual} are not one type")

    def _value(self, kind: ValueType, facts: Sequence[Facts]) -> Item | Bundle:
        ref = Ref(self._count)
        self._count += 1
        if isinstance(kind, TensorType):
            return Item(ref, kind, self.sizes(kind.shape), facts[0])
        elements = []
        for index, (element, known) in enumerate(zip(kind.elements, facts, strict=True)):
            if not isinstance(element, TensorType):
                raise TypeError(f"random programs do not nest tuples: {kind}")
            operand = ElementRef(ref.id, index)
            elements.append(Item(operand, element, self.sizes(element.shape), known))
        return Bundle(ref, kind, tuple(elements))

    def _keep(self, made: Item | Bundle) -> None:
        if isinstance(made, Item):
            self.items.append(made)
        else:
            self.bundles.append(made)
            self.items.extend(made.elements)

    # -- playing back ----------------------------------------------------------------------------

    def build(self, name: str, results: Sequence[Item | Bundle]) -> Program:
        """The program that returns these values."""
        builder = Builder(name)
        self.values = {entry.id: builder.param_of(entry.type) for entry in self.inputs}
        return builder.build(*self._play(builder, self.values, results))

    def arrays(self) -> list[Array]:
        """The inputs of the program, flattened."""
        return [array for entry in self.inputs for array in entry.arrays]

    def region_body(self, results: Sequence[Item | Bundle]) -> RegionBody:
        """What `Builder.region` calls to make this draft a region."""

        def body(builder: BodyBuilder, *parameters: Value) -> list[Value]:
            return self._play(builder, dict(enumerate(parameters)), results)

        return body

    def _play(
        self, builder: BodyBuilder, values: dict[int, Value], results: Sequence[Item | Bundle]
    ) -> list[Value]:
        for step in self.steps:
            operands = [_find(builder, values, operand) for operand in step.operands]
            values[step.id] = builder.append(step.make(builder), operands, step.output)
        return [_find(builder, values, item.operand) for item in results]


def _ids_of_operands(operands: Sequence[Operand]) -> Iterator[int]:
    """The values that operands use."""
    return (operand.id for operand in operands if not isinstance(operand, TensorLiteral))


def _find(builder: BodyBuilder, values: Mapping[int, Value], operand: Operand) -> Value:
    if isinstance(operand, TensorLiteral):
        return builder.literal(operand)
    value = values[operand.id]
    return value[operand.index] if isinstance(operand, ElementRef) else value
