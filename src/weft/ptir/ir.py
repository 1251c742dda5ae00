"""PTIR: what a program is.

    Program     = entry, functions, regions
    Function    = name (%id: type, ...) -> results { body } hints
    Region      = id (type, ...) -> results { body }           parameters are %0 .. %n-1
    Instruction = %id = op(operands) : type
    Operand     = %id | %id[index] | literal
    HintRegion  = a named subset of a body with a fusion wish

Meaning. A body is a list of instructions in SSA form: each defines one value, uses only values
defined before it in the same body, and has no effect. A function returns the values `result_ids`. A
region is the body of a control-flow op and sees nothing outside itself; symbols in its types are
those of the function that runs it. Symbols in parameter types are bound by the inputs of a run, and
other symbols by the instruction whose declared output mentions them first.

Everything here is immutable. `locations` maps a value to the line of the user's code that made it;
it is a side table, outside equality and outside every wire form. `call_fields` is another: what the
custom call that a value was read from said besides its meaning, for those who write it again. And
`input_names` and `result_names` are what the model that a program was read from calls its tensors;
they are empty where nothing has named them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from weft.foundation.errors import SpecViolation, clipped
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.schema import AttrMap, WireEnum
from weft.ptir.types import Symbol, ValueType, symbols_of

SPEC_VERSION = "ptir.v0.4"
LONGEST_NAME = 200
"""How much of a function's name a message repeats."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of a value."""

    id: int

    def __str__(self) -> str:
        return f"%{self.id}"


@dataclass(frozen=True, slots=True)
class ElementRef:
    """A use of one element of a tuple value."""

    id: int
    index: int

    def __str__(self) -> str:
        return f"%{self.id}[{self.index}]"


Operand: TypeAlias = Ref | ElementRef | TensorLiteral


@dataclass(frozen=True, slots=True)
class Instruction:
    """One SSA value: `%id = op(operands) : output`. The declared output type is authoritative."""

    id: int
    op: Op
    operands: tuple[Operand, ...]
    output: ValueType

    @property
    def uses(self) -> list[int]:
        """Ids of the values it reads."""
        return [o.id for o in self.operands if not isinstance(o, TensorLiteral)]

    @property
    def summary(self) -> str:
        """`%3 = add(%1, literal)`, for messages."""
        operands = ", ".join(
            f"literal {o.type}" if isinstance(o, TensorLiteral) else str(o)
            for o in self.operands[:8]
        )
        more = ", ..." if len(self.operands) > 8 else ""
        return f"%{self.id} = {self.op.mnemonic}({operands}{more})"


class HintKind(WireEnum):
    """What shape of computation a hint marks."""

    ELEMENTWISE_DAG = "ElementwiseDag"
    DOT_EPILOGUE = "DotEpilogue"
    REDUCTION_CHAIN = "ReductionChain"


class HintPolicy(WireEnum):
    """How strongly fusion is wished for; an unmet `Required` is Unimplemented."""

    OPTIONAL = "Optional"
    PREFERRED = "Preferred"
    REQUIRED = "Required"


@dataclass(frozen=True)
class HintRegion:
    """A wish that the listed instructions, copied from the function's body, run as one kernel."""

    id: int
    kind: HintKind
    policy: HintPolicy
    inputs: tuple[int, ...]
    exports: tuple[int, ...]
    body: tuple[Instruction, ...]
    attrs: AttrMap = ()


@dataclass(frozen=True)
class Function:
    """A named body with typed parameters and results."""

    name: str
    parameters: tuple[ValueType, ...]
    parameter_ids: tuple[int, ...]
    results: tuple[ValueType, ...]
    body: tuple[Instruction, ...]
    hints: tuple[HintRegion, ...] = ()
    result_ids: tuple[int, ...] = ()

    @cached_property
    def label(self) -> str:
        return f"function @{self.name}"

    @cached_property
    def instructions_by_id(self) -> dict[int, Instruction]:
        return {instruction.id: instruction for instruction in self.body}


@dataclass(frozen=True)
class Region:
    """The body of a control-flow op. Its parameters are the values 0 .. n-1."""

    id: int
    parameters: tuple[ValueType, ...]
    body: tuple[Instruction, ...]
    results: tuple[ValueType, ...]
    result_ids: tuple[int, ...]
    parts: tuple[frozenset[int], ...] = ()
    """Sets of instructions of which a gradient keeps only what leaves the set; not on the wire."""

    @property
    def parameter_ids(self) -> tuple[int, ...]:
        return tuple(range(len(self.parameters)))

    @cached_property
    def label(self) -> str:
        return f"region ^{self.id}"


Body: TypeAlias = Function | Region
ValueKey: TypeAlias = tuple[str, int]
"""A value of a program: the label of its body and its id there."""


@dataclass(frozen=True)
class Program:
    """Functions, the regions they use, and the name of the function that runs."""

    entry: str
    functions: tuple[Function, ...]
    regions: tuple[Region, ...] = ()
    locations: Mapping[ValueKey, str] = field(default_factory=dict, compare=False, repr=False)
    call_fields: Mapping[ValueKey, Mapping[str, Any]] = field(
        default_factory=dict, compare=False, repr=False
    )
    input_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    result_names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def function_symbols(self) -> frozenset[Symbol]:
        """The symbols of all functions, which the regions they run may use."""
        kinds = (
            kind
            for function in self.functions
            for kind in (*function.parameters, *(i.output for i in function.body))
        )
        return frozenset(symbol for kind in kinds for symbol in symbols_of(kind))

    @cached_property
    def regions_by_id(self) -> dict[int, Region]:
        return {region.id: region for region in self.regions}

    @property
    def main(self) -> Function:
        """The entry function."""
        for function in self.functions:
            if function.name == self.entry:
                return function
        raise SpecViolation("EntryUndefined", f"the entry function @{self.entry} does not exist")

    @property
    def bodies(self) -> tuple[Body, ...]:
        """Every function, then every region."""
        return (*self.functions, *self.regions)

    def with_main(self, function: Function) -> Program:
        """The program with its entry function replaced."""
        functions = tuple(function if f.name == self.entry else f for f in self.functions)
        return replace(self, functions=functions)

    def place(self, body: Body, instruction: Instruction) -> str:
        """Where an instruction stands, with the user's line when it is known."""
        line = self.line(body, instruction)
        suffix = f" ({line})" if line else ""
        return self.named(body, instruction) + suffix

    def named(self, body: Body, instruction: Instruction) -> str:
        """An instruction and the body it stands in."""
        return f"{instruction.summary} in {clipped(body.label, LONGEST_NAME)}"

    def line(self, body: Body, instruction: Instruction) -> str:
        """The user's line that wrote an instruction; nothing where it is not known."""
        return self.locations.get((body.label, instruction.id), "")


def operand_type(operand: Operand, types: Mapping[int, ValueType]) -> ValueType:
    """The type of an operand, given those of the values before it."""
    if isinstance(operand, TensorLiteral):
        return operand.type
    if operand.id not in types:
        raise SpecViolation("UseBeforeDefinition", f"%{operand.id} is used but not defined before")
    kind = types[operand.id]
    if isinstance(operand, Ref):
        return kind
    elements = getattr(kind, "elements", None)
    if elements is None or not 0 <= operand.index < len(elements):
        raise SpecViolation(
            "TupleElementInvalid", f"{operand} does not exist: %{operand.id} has type {kind}"
        )
    found: ValueType = elements[operand.index]
    return found
