"""Collectives on a mesh of one rank: what a rank is given by itself alone. Several ranks need a
runner of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from weft.foundation.dtypes import SI64, DType
from weft.testing.conformance.case import Case, Trial, exactly
from weft.testing.conformance.cases.common import SHAPES, Shape, case, defined, program, trial
from weft.testing.conformance.data import sample

_ALONE = {"groups": [0], "size": 1}
_OPS: Mapping[str, Mapping[str, Any]] = {
    "all_reduce": {**_ALONE, "fn": "sum"},
    "all_gather": {**_ALONE, "axis": 0},
    "reduce_scatter": {**_ALONE, "axis": 0, "fn": "sum"},
    "all_to_all": {**_ALONE, "split": 0, "concat": -1},
    "collective_permute": {**_ALONE, "sources": [0], "targets": [0]},
    "collective_broadcast": _ALONE,
    "mark_varying": {"classes": [0]},
    "assert_same": {"classes": [0]},
    "reshard": {},
}
_CUT = ("reduce_scatter", "all_to_all")
"""They cut an axis into parts, whose size is known."""


def cases() -> Iterator[Case]:
    """Every dtype and shape; the rank is the first."""
    for op in _OPS:
        for dtype in defined(op):
            for name, shape in SHAPES.items():
                if shape or ("axis" not in _OPS[op] and op != "all_to_all"):
                    yield case(op, dtype, name, trial=partial(_one_rank_trial, op, dtype, shape))
            yield case(
                op, dtype, "dynamic", trial=partial(_one_rank_trial, op, dtype, (3, 5), True)
            )
    for name in ("dynamic", "none"):
        yield case("mesh_rank", SI64, name, trial=_rank)


def _one_rank_trial(op: str, dtype: DType, shape: Shape, dynamic: bool = False) -> Trial:
    x = sample(dtype, shape, "x")
    dims = [[3 if op in _CUT else "?A", "?B"]] if dynamic else None
    more = {"axes": [""] * len(shape)} if op == "reshard" else {}
    build = program([x], lambda b, value: b.emit(op, value, **_OPS[op], **more), dims=dims)
    return trial(build, [x], exactly(x))


def _rank() -> Trial:
    return trial(program([], lambda b: b.emit("mesh_rank", numbers=[7])), [], exactly(np.array(7)))
