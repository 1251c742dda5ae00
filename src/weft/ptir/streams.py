"""Random streams. Every random instruction draws from a stream of its own; by default the stream is
the instruction's ordinal in program order, descending into regions where they are used.

Passes move and delete instructions, so streams are made explicit before the first one
(`assign_streams`), and those that equal the default again are dropped after the last
(`drop_default_streams`): what is written is then the plain op wherever that means the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from weft.ptir.ir import Body, Instruction, Program, Region, ValueKey
from weft.ptir.ops.random import Drawing


def default_streams(program: Program) -> dict[ValueKey, int]:
    """The ordinal of every random instruction."""
    ordinals: dict[ValueKey, int] = {}
    visited: set[int] = set()
    for function in sorted(program.functions, key=lambda found: found.name != program.entry):
        stack: list[tuple[Body, Iterator[Instruction]]] = [(function, iter(function.body))]
        while stack:
            body, rest = stack[-1]
            for instruction in rest:
                if instruction.op.random:
                    ordinals[body.label, instruction.id] = len(ordinals)
                if regions := instruction.op.regions:
                    # They come before what is left of the body.
                    for region_id in reversed(dict.fromkeys(regions)):
                        region = program.regions_by_id.get(region_id)
                        if region is not None and region_id not in visited:
                            stack.append((region, iter(region.body)))
                    visited.update(regions)
                    break
            else:
                stack.pop()
    return ordinals


def assign_streams(program: Program) -> Program:
    """Give every random instruction an explicit stream."""
    ordinals = default_streams(program)

    def explicit(op: Drawing, ordinal: int) -> Drawing:
        return op if op.stream is not None else op.with_stream(ordinal)

    return _rewrite(program, ordinals, explicit) if ordinals else program


def drop_default_streams(program: Program) -> Program:
    """Forget the streams that equal the default."""
    ordinals = default_streams(program)

    def plain(op: Drawing, ordinal: int) -> Drawing:
        return op.with_stream(None) if op.stream == ordinal else op

    return _rewrite(program, ordinals, plain) if ordinals else program


def _rewrite(
    program: Program,
    ordinals: dict[ValueKey, int],
    change: Callable[[Drawing, int], Drawing],
) -> Program:
    def body_of(body: Body) -> tuple[Instruction, ...]:
        return tuple(
            replace(i, op=change(i.op, ordinals[body.label, i.id]))
            if isinstance(i.op, Drawing) and (body.label, i.id) in ordinals
            else i
            for i in body.body
        )

    functions = tuple(replace(f, body=body_of(f)) for f in program.functions)
    regions: tuple[Region, ...] = tuple(replace(r, body=body_of(r)) for r in program.regions)
    return replace(program, functions=functions, regions=regions)
