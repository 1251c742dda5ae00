"""vmap: a program over a batch of values.

    f: (x: f32[3], w: f32[3, 3]) -> f32[3]
    vmap(f, 8, [0, None]): (x: f32[8, 3], w: f32[3, 3]) -> f32[8, 3]

Each op takes the further axis by the rule of its family (`weft.ptir.batching`); ops that have only
a decomposition are decomposed first. What does not depend on a batched parameter is computed once
for all, random numbers included: every value of the batch sees the same ones. Where a predicate of
`cond` differs within the batch, both branches run and each value takes its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.foundation.axes import normalise_axis
from weft.foundation.calls import told_outside
from weft.foundation.errors import Unimplemented, UserError
from weft.ptir.batching.rules import batches
from weft.ptir.batching.walk import BatchMaker, BatchWalk, batched_type
from weft.ptir.decompose import decompose
from weft.ptir.ir import Function, HintPolicy, Program
from weft.ptir.passes.redundant import cse, dce
from weft.ptir.streams import assign_streams, drop_default_streams
from weft.ptir.tape import Workshop
from weft.ptir.types import Symbol, TensorType, shape_of
from weft.ptir.verify import verify


@told_outside
def vmap(
    program: Program, size: int | str | Symbol, axes: int | Sequence[int | None] = 0
) -> Program:
    """The program for a batch of `size` values. `axes` says for each parameter where its batch axis
    is, or None for one that is the same for all; a single number goes for every parameter. All
    results have the batch axis first."""
    verify(program)
    (dim,) = shape_of([size])
    source = assign_streams(decompose(program, batches))
    main = source.main
    required = next((h for h in main.hints if h.policy is HintPolicy.REQUIRED), None)
    if required is not None:
        why = "it is Required, and the program over a batch has other instructions"
        raise Unimplemented(f"hint {required.id}", why)
    given = _parameter_axes(main, axes)
    shop = Workshop(source)
    if isinstance(dim, Symbol):
        shop.symbols.add(dim)
    tape = shop.function_tape(main)
    walk = BatchWalk(BatchMaker(shop, dim, vmap), tape, main)
    for value_id, kind, axis in zip(main.parameter_ids, main.parameters, given, strict=True):
        if axis is None:
            walk.define(value_id, tape.parameter(kind, value_id), False)
        else:
            term = tape.parameter(batched_type(kind, dim, axis), value_id)
            turned = term.move_axis(axis, 0) if isinstance(term.type, TensorType) else term
            walk.define(value_id, turned, True)
    if isinstance(dim, Symbol) and dim not in tape.scope.bound:
        raise UserError(f"the size {dim} is not that of any parameter; name an axis, or a number")
    made = shop.finished(tape, walk.run([True] * len(main.results)))
    plain = made.with_main(replace(made.main, hints=()))
    return drop_default_streams(cse(dce(plain)))


def _parameter_axes(main: Function, axes: int | Sequence[int | None]) -> list[int | None]:
    count = len(main.parameters)
    given = [axes] * count if isinstance(axes, int) else list(axes)
    if len(given) != count:
        raise UserError(f"{len(given)} axes are given for the {count} parameters of @{main.name}")
    found: list[int | None] = []
    for number, (axis, kind) in enumerate(zip(given, main.parameters, strict=True)):
        rank = kind.rank if isinstance(kind, TensorType) else 0
        if axis is not None and not isinstance(axis, int):
            raise UserError(f"the axis of parameter {number} is {axis!r}, not a number or None")
        found.append(None if axis is None else normalise_axis(axis, rank + 1))
    return found
