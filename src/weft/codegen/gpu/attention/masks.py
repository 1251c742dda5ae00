"""Masks of a block of scores: columns outside the band (causal or windowed), and columns past the
end.
"""

from __future__ import annotations

import math

from weft.codegen.gpu import ir
from weft.codegen.gpu.attention.work import Work
from weft.codegen.gpu.ir.element_ops import ElementOp
from weft.codegen.gpu.ir.scalar import Lit
from weft.foundation.dtypes import F32, I1, SI32


def visible(work: Work, value: str) -> tuple[list[ir.ElementSource], list[ElementOp]]:
    """What is read and done for `visible`: a value, or -inf where its column is hidden; beside what
    the conditions of hulls read."""
    band = work.band
    ops = [ElementOp("hidden", F32, "const", (), -math.inf)]
    ops += [op for hull in work.hulls for op in hull.each.ops]
    conditions = [hull.each.result for hull in work.hulls]
    bounds = [("ahead", "le", band.high), ("ahead", "ge", band.low)]
    if work.columns % work.tile_columns:
        bounds.append(("key", "lt", work.columns))
    for what, fn, number in bounds:
        if number is None:
            continue
        name = f"{what}_{fn}"
        ops.append(ElementOp(f"{name}_bound", SI32, "const", (), number))
        ops.append(ElementOp(name, I1, fn, (what, f"{name}_bound")))
        conditions.append(name)
    while len(conditions) > 1:
        pair = (conditions.pop(), conditions.pop())
        ops.append(ElementOp("_and_".join(("both", *pair)), I1, "and", pair))
        conditions.append(ops[-1].name)
    ops.append(ElementOp("visible", F32, "select", (*conditions, value, "hidden")))
    factors = {"ahead": (-1, 1), "key": (0, 1)}
    used = {what for what, _, number in bounds if number is not None}
    return [ir.IndexElements(n, SI32, Lit(0), *factors[n]) for n in sorted(used)], ops
