"""Collectives on a mesh of one rank; `tests/unit/ptir/ops/test_collective.py` has several."""

from __future__ import annotations

from tests.derivatives.case import case, emitted, normal

ALONE = {"groups": [0], "size": 1}

case("all_reduce", emitted("all_reduce", **ALONE, fn="sum"), normal(2, 3), torch=lambda t, x: x * 1)
case("all_reduce", emitted("all_reduce", **ALONE, fn="max"), normal(2, 3), label="max",
     torch=lambda t, x: x * 1)  # fmt: skip
case("all_reduce", emitted("all_reduce", **ALONE, fn="prod"), normal(2, 3), label="prod",
     torch=lambda t, x: x * 1)  # fmt: skip
for shape in ((2, 3), (4,), (1, 2, 5)):
    last = len(shape) - 1
    for op, attributes, kept in (
        ("all_gather", {**ALONE, "axis": 0}, 1),
        ("reduce_scatter", {**ALONE, "axis": last, "fn": "sum"}, 1),
        ("all_to_all", {**ALONE, "split": 0, "concat": last}, 1),
        ("collective_permute", {**ALONE, "sources": [], "targets": []}, 0),
        ("collective_broadcast", ALONE, 1),
        ("mark_varying", {"classes": [0]}, 1),
        ("assert_same", {"classes": [0]}, 1),
        ("reshard", {"axes": ["data"] * len(shape)}, 1),
    ):
        case(
            op,
            emitted(op, **attributes),
            normal(*shape),
            label=f"rank {len(shape)}",
            torch=lambda t, x, kept=kept: x * kept,
        )
