"""Inlining of a PTIR program into an arena, as if its instructions had been captured there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.foundation.lines import Line, Place
from weft.ops.graph.arena import Arena
from weft.ops.graph.forms import element_form, form_of
from weft.ops.graph.node import Fragment, Node, canonical
from weft.ptir.ir import Operand, Program, Ref, Region
from weft.ptir.literal import TensorLiteral
from weft.ptir.op import Op


def inline(
    program: Program, arguments: Sequence[Node], arena: Arena, line: Line | None
) -> list[Node]:
    """The results of the program on these nodes. Instructions keep the user's lines that the
    program knows; others are of `line`."""
    main, lines = program.main, program.locations
    values: dict[int, Node] = dict(zip(main.parameter_ids, arguments, strict=True))

    def node(operand: Operand) -> Node:
        if isinstance(operand, TensorLiteral):
            return arena.constant(operand)
        found = values[operand.id]
        if isinstance(operand, Ref):
            return found
        made = element_form(canonical(found.type), operand.index)
        return arena.emit(made, (found,), line)

    for instruction in main.body:
        operands = tuple(node(operand) for operand in instruction.operands)
        op, fragments = own_fragments(instruction.op, program.regions_by_id)
        made = form_of(op, tuple(operand.type for operand in operands), fragments)
        known = lines.get((main.label, instruction.id))
        own = known if isinstance(known, Place) else line
        values[instruction.id] = arena.emit(made, operands, own)
    return [node(Ref(value_id)) for value_id in main.result_ids]


def own_fragments(op: Op, regions: Mapping[int, Region]) -> tuple[Op, tuple[Fragment, ...]]:
    """A control-flow op with its regions taken out of the program, named by position."""
    if not op.regions:
        return op, ()
    fragments = tuple(_fragment(region_id, regions) for region_id in op.regions)
    positions = {region_id: at for at, region_id in enumerate(op.regions)}
    return op.with_regions(positions), fragments


def _fragment(region_id: int, regions: Mapping[int, Region]) -> Fragment:
    """A region and all inside it, numbered from 0 in the order in which they are met."""
    order = [region_id]
    for current in order:
        order += [inner for i in regions[current].body for inner in i.op.regions]
    # A region that two ops share is written twice: every use has its own.
    numbers = iter(range(1, len(order)))
    made = []
    for at, current in enumerate(order):
        body = []
        for instruction in regions[current].body:
            rename = {inner: next(numbers) for inner in instruction.op.regions}
            body.append(replace(instruction, op=instruction.op.with_regions(rename)))
        made.append(replace(regions[current], id=at, body=tuple(body)))
    return Fragment(tuple(made))
