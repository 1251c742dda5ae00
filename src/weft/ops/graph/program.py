"""From a set of nodes to a PTIR program: leaves become parameters, the rest instructions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, TypeAlias

from weft.foundation.errors import InternalError
from weft.foundation.lines import shown
from weft.ops.graph.node import Form, Fragment, Home, Node
from weft.ptir.ir import ElementRef, Function, Instruction, Operand, Program, Ref, Region, ValueKey
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op
from weft.ptir.ops.constant import Constant
from weft.ptir.ops.movement import BroadcastTo

Made: TypeAlias = tuple[Node, tuple[Node, ...], Form | None, Any]
"""A node with its operands, form and storage as they were at one moment: a thread that computes the
node changes them."""


def reachable(roots: Sequence[Node], given: Collection[Node] = ()) -> list[Node]:
    """Every node that the roots depend on, operands before users. Nodes that are given are taken as
    they are: what they depend on does not matter."""
    seen = set(roots)
    found = list(seen)
    for node in found:  # which grows meanwhile
        operands = node.operands
        if node.storage is None and node not in given:
            for operand in operands:
                if operand not in seen:
                    seen.add(operand)
                    found.append(operand)
    found.sort(key=created)
    return found


def taken(nodes: Sequence[Node]) -> list[Made]:
    """The nodes as they are now."""
    # In this order: a node that is settled meanwhile has its storage first.
    return [(node, node.operands, node.form, node.storage) for node in nodes]


def captured(arena: Home, roots: Sequence[Node]) -> list[Node]:
    """What the roots, traced in an arena, use of the outside: data, and nodes of other arenas."""
    return captured_and_constants(arena, roots)[0]


def captured_and_constants(arena: Home, roots: Sequence[Node]) -> tuple[list[Node], list[Node]]:
    """The same, and the constants of the outside that the user holds as tensors."""
    seen, stack, found = set(roots), list(roots), list[Node]()
    constants = []
    while stack:
        node = stack.pop()
        if node.arena is not arena or node.storage is not None:
            if not isinstance(node.storage, TensorLiteral):
                found.append(node)
            elif node.arena is not arena and node.is_owned:
                constants.append(node)
            continue
        for operand in node.operands:
            if operand not in seen:
                seen.add(operand)
                stack.append(operand)
    return sorted(found, key=created), constants


created = attrgetter("id")
"""Nodes in the order in which they were made."""


@dataclass
class BodyWriter:
    """Writes nodes as instructions of one body. Parameters come first and count from 0."""

    label: str
    parameters: Sequence[Node]
    first_region: int = 0
    regions: list[Region] = field(default_factory=list)
    locations: dict[ValueKey, str] = field(default_factory=dict)
    body: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._operands: dict[Node, Operand] = {
            node: Ref(index) for index, node in enumerate(self.parameters)
        }
        self._count = len(self.parameters)

    def write(self, nodes: Iterable[Made]) -> None:
        """Instructions for the nodes that are not parameters, in order."""
        for made in nodes:
            if made[0] not in self._operands:
                self._operands[made[0]] = self._operand(made)

    def result(self, node: Node) -> int:
        """The id of a value to return; what is no value of its own is copied into one."""
        operand = self._operands[node]
        if isinstance(operand, Ref) and operand.id >= len(self.parameters):
            return operand.id
        if isinstance(operand, TensorLiteral):
            return self._append(Constant(operand), (), node).id
        return self._append(BroadcastTo(node.tensor.shape), (operand,), node).id

    def instructions(self, nodes: Iterable[Node]) -> frozenset[int]:
        """The ids of the instructions that make these nodes."""
        found = (self._operands.get(node) for node in nodes)
        return frozenset(operand.id for operand in found if isinstance(operand, Ref))

    def _operand(self, made: Made) -> Operand:
        node, operands, form, storage = made
        if isinstance(storage, TensorLiteral):
            return storage
        if form is None:
            raise InternalError("a leaf of the graph is not a parameter of the program")
        if form.op is None:
            whole = self._operands[operands[0]]
            assert isinstance(whole, Ref)
            return ElementRef(whole.id, form.element)
        uses = tuple(self._operands[operand] for operand in operands)
        return self._append(self._own_regions(form), uses, node)

    def _own_regions(self, form: Form) -> Op:
        """The op on regions of this program: every use has copies of its own."""
        assert form.op is not None
        if not form.fragments:
            return form.op
        rename = {at: self._add(fragment) for at, fragment in enumerate(form.fragments)}
        return form.op.with_regions(rename)

    def _add(self, fragment: Fragment) -> int:
        base = self.first_region + len(self.regions)
        rename = {region.id: base + region.id for region in fragment.regions}
        for region in fragment.regions:
            body = tuple(replace(i, op=i.op.with_regions(rename)) for i in region.body)
            self.regions.append(replace(region, id=rename[region.id], body=body))
        return base

    def _append(self, op: Op, operands: tuple[Operand, ...], node: Node) -> Ref:
        number = self._count
        self._count += 1
        self.body.append(Instruction(number, op, operands, node.type))
        if node.line is not None:
            self.locations[self.label, number] = shown(node.line)
        return Ref(number)


def as_program(name: str, parameters: Sequence[Node], roots: Sequence[Node]) -> Program:
    """The program that computes the roots from the parameters."""
    return program_with_parts(name, parameters, roots, ())[0]


def program_with_parts(
    name: str, parameters: Sequence[Node], roots: Sequence[Node], parts: Iterable[Iterable[Node]]
) -> tuple[Program, tuple[frozenset[int], ...]]:
    """The program that computes the roots from the parameters, and which of its instructions make
    the nodes of each part."""
    return program_of(name, parameters, roots, taken(reachable(roots, set(parameters))), parts)


def program_of(
    name: str,
    parameters: Sequence[Node],
    roots: Sequence[Node],
    nodes: Iterable[Made],
    parts: Iterable[Iterable[Node]] = (),
) -> tuple[Program, tuple[frozenset[int], ...]]:
    """The same from nodes that hold all that the roots depend on."""
    writer = BodyWriter(f"function @{name}", parameters)
    writer.write(nodes)
    results = tuple(writer.result(node) for node in roots)
    function = Function(
        name,
        tuple(node.type for node in parameters),
        tuple(range(len(parameters))),
        tuple(node.type for node in roots),
        tuple(writer.body),
        (),
        results,
    )
    program = Program(name, (function,), tuple(writer.regions), writer.locations)
    return program, tuple(writer.instructions(part) for part in parts)


def as_fragment(
    parameters: Sequence[Node], roots: Sequence[Node], parts: Iterable[Iterable[Node]] = ()
) -> Fragment:
    """The region that computes the roots from the parameters, with the regions inside it; `parts`
    are the nodes of which a gradient keeps only what leaves each."""
    writer = BodyWriter("region ^0", parameters, first_region=1)
    writer.write(taken(reachable(roots, set(parameters))))
    results = tuple(writer.result(node) for node in roots)
    region = Region(
        0,
        tuple(node.type for node in parameters),
        tuple(writer.body),
        tuple(node.type for node in roots),
        results,
        tuple(writer.instructions(part) for part in parts),
    )
    return Fragment((region, *writer.regions))
