"""The verifier: every rule of the contract that can be checked without running the program.

It visits each body once, in order, and reports all it finds; after a violation an instruction's
declared type stands, so that one mistake is reported once. Where that type itself is out of bounds,
the instructions that use the value are not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from weft.foundation.calls import told_outside
from weft.foundation.errors import Finding, SpecViolation, UserError
from weft.foundation.limits import Limits
from weft.foundation.lines import shown, user_line
from weft.foundation.memo import memo
from weft.ptir.codecs.wire import check_call
from weft.ptir.ir import (
    Body,
    Function,
    HintKind,
    HintRegion,
    Instruction,
    Program,
    Region,
    operand_type,
)
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import BY_TARGET, Op
from weft.ptir.ops.collective import OfRanks
from weft.ptir.ops.constant import CustomCall
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.reduction import Reduce
from weft.ptir.sameness import differences
from weft.ptir.types import (
    Symbol,
    TensorType,
    TupleType,
    ValueType,
    agrees,
    listed,
    symbols_of,
)

MAX_ELEMENTS = 2**59 - 1
"""Then a tensor has fewer than 2^63 bytes in every dtype, also in those that ops compute in."""
MAX_REGION_DEPTH = 100
MAX_FINDINGS = 1_000
U32_MAX = 2**32 - 1
_SOUND: WeakValueDictionary[tuple[int, int], Program] = WeakValueDictionary()
"""Programs that verified, by identity and by how many ops there were to check custom calls
against: a program does not change, so it need not be checked again on every run."""


def check_program(name: str, program: object) -> None:
    """Say so, with the caller's line, where a function called `name` is given something else than
    a program."""
    if not isinstance(program, Program):
        advice = "; weft.jit(f).program(x) is that of a function" if callable(program) else ""
        raise UserError(
            f"{name} takes a program, not {type(program).__name__}{advice}",
            where=shown(user_line()),
        )


@told_outside
def verify(program: Program, *, collect: bool = False) -> list[Finding]:
    """Check a program. Raises `SpecViolation` with the first finding; with `collect`, returns them
    all, or after `MAX_FINDINGS` of them says that there are more."""
    check_program("verify", program)
    known = (id(program), len(BY_TARGET))
    if _SOUND.get(known) is program:
        return []
    found: list[Finding] = []
    for finding in _Verifier(program).findings():
        if len(found) == MAX_FINDINGS:
            found.append(
                Finding("TooManyFindings", "program", "there are more findings than these")
            )
            break
        found.append(finding)
        if not collect:
            raise SpecViolation.of(found)
    if not found:
        _SOUND[known] = program
    return found


@dataclass
class BodyScope:
    """The scope of one body: its regions, and the symbols that have a size so far."""

    regions: Mapping[int, Region]
    bound: set[Symbol] = field(default_factory=set)

    def region(self, region_id: int) -> Region:
        if region_id not in self.regions:
            raise SpecViolation("RegionUndefined", f"region ^{region_id} does not exist")
        return self.regions[region_id]

    def is_bound(self, symbol: Symbol) -> bool:
        return symbol in self.bound


def check_type(kind: ValueType) -> None:
    """A type is within bounds: rank, nesting, named symbols, and a countable number of elements."""
    stack: list[tuple[ValueType, int]] = [(kind, 0)]
    while stack:
        top, depth = stack.pop()
        if depth > Limits.nesting:
            raise SpecViolation("NestingTooDeep", f"a tuple nests deeper than {Limits.nesting}")
        if isinstance(top, TupleType):
            stack.extend((element, depth + 1) for element in top.elements)
        else:
            _check_tensor(top)


def _check_tensor(kind: TensorType) -> None:
    if kind.rank > Limits.rank:
        raise SpecViolation("RankTooLarge", f"a tensor has rank {kind.rank}; at most {Limits.rank}")
    elements = 1
    for dim in kind.shape:
        if isinstance(dim, Symbol):
            if not dim.name:
                raise SpecViolation("InvalidAttributeValue", "a dynamic dimension has no name")
        elif dim < 0:
            raise SpecViolation("NegativeDimension", f"{kind} has the negative dimension {dim}")
        else:
            elements *= max(dim, 1)
    if elements > MAX_ELEMENTS:
        raise SpecViolation("ElementCountOverflow", f"{kind} has more than 2^59 - 1 elements")


def check_instruction(
    instruction: Instruction, types: dict[int, ValueType], scope: BodyScope
) -> None:
    """One instruction, whose types are within bounds, against its type rule."""
    operands = []
    for operand in instruction.operands:
        if isinstance(operand, TensorLiteral):
            check_type(operand.type)
            operand.check()
        operands.append(operand_type(operand, types))
    op = instruction.op
    if isinstance(op, CustomCall):
        check_call(op, instruction.output)
        return
    _check_result(op, operands, instruction.output, scope)


def _check_result(
    op: Op, operands: Sequence[ValueType], output: ValueType, scope: BodyScope
) -> None:
    inferred = op.result_type(operands, scope)
    if inferred == output:
        return
    check_type(_name_dims(inferred))
    if not agrees(inferred, output):
        raise SpecViolation(
            "OutputTypeMismatch", f"the declared type is {output} but the op gives {inferred}"
        )


def _operand_types(
    instruction: Instruction, types: dict[int, ValueType], scope: BodyScope
) -> tuple[ValueType, ...] | None:
    """The types of an instruction's operands, where these and its op are all there is to know about
    it; None where literals, regions, symbols or other programs' ops have a say."""
    op, operands = instruction.op, instruction.operands
    if scope.bound or op.regions or op.foreign or isinstance(op, CustomCall) or not operands:
        return None
    if any(isinstance(operand, TensorLiteral) for operand in operands):
        return None
    return tuple([operand_type(operand, types) for operand in operands])


@memo(1 << 14)
def _obeys(op: Op, operands: tuple[ValueType, ...], output: ValueType) -> bool:
    """Whether an op has a type rule for operands that gives this output: the same for equal layers,
    and for what passes leave as it is."""
    try:
        check_type(output)
        _check_result(op, operands, output, BodyScope({}))
    except SpecViolation:
        return False
    return True


def _name_dims(kind: ValueType) -> ValueType:
    """The type with unknown dims named, so that only its sizes are judged."""
    if isinstance(kind, TupleType):
        return TupleType(tuple(_name_dims(element) for element in kind.elements))
    return kind.with_shape(Symbol("_") if d == Symbol("") else d for d in kind.shape)


class _Verifier:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.unusable: set[int] = set()
        """Values of the body at hand whose types are out of bounds."""

    def findings(self) -> Iterator[Finding]:
        yield from self._names()
        yield from self._region_nesting()
        sound = True
        for body in self.program.bodies:
            for finding in self._body(body):
                sound = False
                yield finding
        if sound and any(isinstance(i.op, OfRanks) for b in self.program.bodies for i in b.body):
            yield from differences(self.program)

    def _names(self) -> Iterator[Finding]:
        names = [function.name for function in self.program.functions]
        if self.program.entry not in names:
            yield Finding(
                "EntryUndefined",
                "program",
                f"the entry function @{self.program.entry} does not exist",
            )
        for name in _list_repeated(names):
            yield Finding("DuplicateName", "program", f"two functions are named @{name}")
        for region_id in _list_repeated(region.id for region in self.program.regions):
            yield Finding("DuplicateRegion", "program", f"two regions have the id ^{region_id}")

    def _region_nesting(self) -> Iterator[Finding]:
        try:
            check_region_nesting(self.program)
        except SpecViolation as error:
            yield from error.findings

    def _body(self, body: Body) -> Iterator[Finding]:
        own = {symbol for kind in body.parameters for symbol in symbols_of(kind)}
        outer = self.program.function_symbols if isinstance(body, Region) else set()
        scope = BodyScope(self.program.regions_by_id, own | outer)
        types: dict[int, ValueType] = {}
        self.unusable = set()
        if len(body.parameter_ids) != len(body.parameters):
            yield Finding(
                "SignatureMismatch",
                body.label,
                f"{len(body.parameters)} parameter types but {len(body.parameter_ids)} ids",
            )
        for value_id, kind in zip(body.parameter_ids, body.parameters, strict=False):
            yield from self._type(kind, value_id, lambda: body.label)
            yield from _id_findings(value_id, types, lambda: body.label)
            types[value_id] = kind
        for instruction in body.body:
            if not self._is_sound(instruction, types, scope):
                yield from self._instruction(body, instruction, types, scope)
            types[instruction.id] = instruction.output
            if symbols := symbols_of(instruction.output):
                scope.bound.update(symbols)
        yield from self._results(body, types)
        if isinstance(body, Function):
            for hint in body.hints:
                where = partial("hint {} in {}".format, hint.id, body.label)
                yield from _catch_findings(partial(check_hint, hint, body), where)

    def _type(self, kind: ValueType, value_id: int, where: Callable[[], str]) -> Iterator[Finding]:
        for finding in _catch_findings(partial(check_type, kind), where):
            self.unusable.add(value_id)
            yield finding

    def _is_sound(
        self, instruction: Instruction, types: dict[int, ValueType], scope: BodyScope
    ) -> bool:
        """Whether there is surely nothing to say about an instruction."""
        if self.unusable or instruction.id in types or not 0 <= instruction.id <= U32_MAX:
            return False
        try:
            if (known := _operand_types(instruction, types, scope)) is not None:
                return _obeys(instruction.op, known, instruction.output)
            check_type(instruction.output)
            check_instruction(instruction, types, scope)
        except SpecViolation:
            return False
        return True

    def _instruction(
        self,
        body: Body,
        instruction: Instruction,
        types: dict[int, ValueType],
        scope: BodyScope,
    ) -> Iterator[Finding]:
        where = partial(self.program.place, body, instruction)
        yield from _id_findings(instruction.id, types, where)
        yield from self._type(instruction.output, instruction.id, where)
        if not self.unusable or self.unusable.isdisjoint((instruction.id, *instruction.uses)):
            yield from _catch_findings(partial(check_instruction, instruction, types, scope), where)

    def _results(self, body: Body, types: dict[int, ValueType]) -> Iterator[Finding]:
        if len(body.result_ids) != len(body.results):
            yield Finding(
                "SignatureMismatch",
                body.label,
                f"{len(body.results)} result types but {len(body.result_ids)} result ids",
            )
        for value_id, kind in zip(body.result_ids, body.results, strict=False):
            if value_id not in types:
                yield Finding(
                    "UseBeforeDefinition", body.label, f"the result %{value_id} is not defined"
                )
            elif types[value_id] != kind:
                yield Finding(
                    "OutputTypeMismatch",
                    body.label,
                    f"the result %{value_id} has type {types[value_id]}, declared as {kind}",
                )


def check_region_nesting(program: Program) -> None:
    """No region contains itself, and regions do not nest too deep."""
    children = {region.id: _children(region) for region in program.regions}
    depth: dict[int, int] = {}
    open_regions: set[int] = set()
    for root in children:
        stack = [(root, False)]
        while stack:
            region_id, leaving = stack.pop()
            inside = children.get(region_id, ())
            if leaving:
                open_regions.discard(region_id)
                depth[region_id] = 1 + max((depth.get(c, 0) for c in inside), default=0)
                if depth[region_id] > MAX_REGION_DEPTH:
                    raise SpecViolation(
                        "NestingTooDeep",
                        f"regions nest more than {MAX_REGION_DEPTH} deep",
                        where=f"region ^{region_id}",
                    )
            elif region_id in open_regions:
                raise SpecViolation(
                    "RegionCycle", "the region contains itself", where=f"region ^{region_id}"
                )
            elif region_id not in depth:
                open_regions.add(region_id)
                stack.append((region_id, True))
                stack.extend((child, False) for child in inside)


def _children(region: Region) -> tuple[int, ...]:
    """The regions that a region runs, each once."""
    return tuple(dict.fromkeys(c for instruction in region.body for c in instruction.op.regions))


def check_hint(hint: HintRegion, function: Function) -> None:
    """A hint copies instructions of the body, and names exactly what crosses its border."""
    body = function.instructions_by_id
    inside = {instruction.id for instruction in hint.body}
    if not hint.body:
        raise SpecViolation("HintInvalid", "the hint has no instructions")
    for instruction in hint.body:
        if body.get(instruction.id) != instruction:
            raise SpecViolation(
                "HintInvalid", f"{instruction.summary} is not an instruction of the function"
            )
        if not _allowed_in(hint.kind, instruction.op):
            raise SpecViolation(
                "HintInvalid", f"{instruction.op.mnemonic} does not belong in {hint.kind}"
            )
    if hint.kind in _HEARTS and not any(isinstance(i.op, _HEARTS[hint.kind]) for i in hint.body):
        wanted = _HEARTS[hint.kind].name
        raise SpecViolation(
            "HintInvalid", f"a {hint.kind} without a {wanted}", "an elementwise_dag needs none"
        )
    used = {use for instruction in hint.body for use in instruction.uses} - inside
    if used != set(hint.inputs):
        raise SpecViolation(
            "HintInvalid", f"inputs are {_ids(hint.inputs)} but the body reads {_ids(used)}"
        )
    if not set(hint.exports) <= inside:
        raise SpecViolation(
            "HintInvalid", f"exports {_ids(hint.exports)} are not all defined in the hint"
        )


_HEARTS: Final[dict[HintKind, type[Op]]] = {
    HintKind.DOT_EPILOGUE: DotGeneral,
    HintKind.REDUCTION_CHAIN: Reduce,
}
"""What a kind of hint is about: it has at least one of these."""


def _allowed_in(kind: HintKind, op: Op) -> bool:
    if op.regions or op.random:
        return False
    if op.elementwise or op.family == "movement":
        return True
    return kind in _HEARTS and isinstance(op, _HEARTS[kind])


def _ids(ids: Iterable[int]) -> str:
    return f"[{listed([f'%{i}' for i in sorted(ids)])}]"


def _list_repeated(values: Iterable[Hashable]) -> list[Hashable]:
    return [value for value, count in Counter(values).items() if count > 1]


def _id_findings(
    value_id: int, types: dict[int, ValueType], where: Callable[[], str]
) -> Iterator[Finding]:
    if value_id in types:
        yield Finding("DoubleDefinition", where(), f"%{value_id} is defined twice")
    elif not 0 <= value_id <= U32_MAX:
        yield Finding("InvalidAttributeValue", where(), f"the id {value_id} is not a 32-bit number")


def _catch_findings(check: Callable[[], None], where: Callable[[], str]) -> Iterator[Finding]:
    try:
        check()
    except SpecViolation as error:
        yield from error.at(where()).findings
