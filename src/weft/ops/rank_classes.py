"""Which traced values differ between the ranks of a mesh, for gradients and `spmd`.

A traced body is looked at as the program it would become. Arguments of the outermost trace are the
same on all ranks; those of a trace inside it are what its caller handed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.foundation.errors import Unimplemented
from weft.foundation.partitions import SAME, Classes
from weft.ops.graph.arena import Arena
from weft.ops.graph.node import Node
from weft.ops.graph.program import as_program, captured
from weft.ptir.ir import Program, Ref
from weft.ptir.sameness import Sameness, rank_counts


def classes_of_nodes(nodes: Sequence[Node]) -> list[Classes]:
    """The classes of nodes, each in the trace that it belongs to."""
    found: dict[Node, Classes] = {}
    arenas = {id(n.arena): n.arena for n in nodes if n.storage is None}
    for arena in (a for a in arenas.values() if isinstance(a, Arena)):
        own = [node for node in nodes if node.arena is arena and node.storage is None]
        found.update(zip(own, _in_arena(arena, own), strict=True))
    return [found.get(node, SAME) for node in nodes]


def _in_arena(arena: Arena, nodes: Sequence[Node]) -> list[Classes]:
    outside = captured(arena, nodes)
    program = as_program(arena.name, [*arena.parameters, *outside], nodes)
    given = [*_arguments(arena, program), *classes_of_nodes(outside)]
    found = Sameness(program, given)
    return [found.of(program.main, Ref(value_id)) for value_id in program.main.result_ids]


def _arguments(arena: Arena, program: Program) -> Sequence[Classes]:
    if arena.stands_for is not None:
        found = classes_of_nodes(arena.stands_for)
        return [*found, *[SAME] * (len(arena.parameters) - len(found))]
    if arena.parent is None or not arena.parameters or not rank_counts(program):
        return [SAME] * len(arena.parameters)
    raise Unimplemented(
        "a gradient in the body of a loop",
        "the function that is differentiated has collectives, and it is not known which arguments "
        "of the body differ between ranks; take the gradient around the loop",
    )
