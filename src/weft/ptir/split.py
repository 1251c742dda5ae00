"""SPMD partitioning: a program for whole tensors as the program of one rank of a mesh.

    f: (x: f32[8, 4], w: f32[4, 6]) -> f32[8, 6]
    split_program(f, mesh(data=2), [{0: "data"}, {}]): (x: f32[4, 4], w: f32[4, 6]) -> f32[4, 6]

How parameters are split is given, and how everything else is split follows, instruction by
instruction, by the rule of its family (`weft.ptir.splitting`). A sum over an axis that is split is
made by an `all_reduce`, and that is the only exchange that nobody asked for: what does not fit
together otherwise is an error, and `reshard` in the program says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from weft.foundation.errors import Unimplemented, UserError
from weft.foundation.mesh import Mesh, Split
from weft.ptir.decompose import decompose
from weft.ptir.ir import HintPolicy, Program
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.splitting import rules
from weft.ptir.splitting.resharding import Part, layout_of
from weft.ptir.splitting.walk import SplitWalk
from weft.ptir.streams import assign_streams, drop_default_streams
from weft.ptir.tape import Workshop
from weft.ptir.types import TensorType
from weft.ptir.verify import verify


@dataclass(frozen=True)
class SplitProgram:
    """One rank's program, and how its results are split."""

    program: Program
    results: tuple[dict[int, tuple[str, ...]], ...]


def split_program(program: Program, mesh: Mesh, splits: Sequence[Split]) -> SplitProgram:
    """The program of one rank, for parameters that are split so."""
    verify(program)
    source = assign_streams(decompose(program, rules.splits))
    main = source.main
    if any(hint.policy is HintPolicy.REQUIRED for hint in main.hints):
        raise Unimplemented("a Required hint", "the program of a rank has other instructions")
    if len(splits) != len(main.parameters):
        raise UserError(f"{len(splits)} splits are given for {len(main.parameters)} parameters")
    shop = Workshop(source)
    tape = shop.function_tape(main)
    walk = SplitWalk(shop, tape, main, mesh)
    for value_id, kind, split in zip(main.parameter_ids, main.parameters, splits, strict=True):
        if not isinstance(kind, TensorType) or not kind.is_static:
            if split:
                raise Unimplemented(f"a split of {kind}", "only sizes that are known are split")
            walk.environment.define(value_id, tape.parameter(kind, value_id))
            continue
        checked = mesh.checked(split, kind.static_shape, f"parameter {value_id}")
        layout = layout_of(mesh, checked, kind.rank)
        own = kind.with_shape(walk.at.local(kind.static_shape, layout))
        walk.define(value_id, Part(tape.parameter(own, value_id), layout))
    found = walk.run()
    made = shop.finished(tape, [part.term for part in found])
    plain = made.with_main(replace(made.main, hints=()))
    rank = drop_default_streams(cse(dce(plain)))
    results = ({d: a for d, a in enumerate(part.layout) if a} for part in found)
    return SplitProgram(rank, tuple(results))
