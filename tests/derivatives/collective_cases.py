"""Collectives on a mesh of one rank; `tests/unit/test_collectives.py` has several."""

from __future__ import annotations

from tests.derivatives.case import case, emitted, normal

ALONE = {"groups": [0], "size": 1}

case("all_reduce", emitted("all_reduce", **ALONE, fn="sum"), normal(2, 3), torch=lambda t, x: x * 1)
case("all_reduce", emitted("all_reduce", **ALONE, fn="max"), normal(2, 3), label="max",
     torch=lambda t, x: x * 1)  # fmt: skip
case("all_reduce", emitted("all_reduce", **ALONE, fn="prod"), normal(2, 3), label="prod",
     torch=lambda t, x: x * 1)  # fmt: skip
case("all_gather", emitted("all_gather", **ALONE, axis=0), normal(2, 3), torch=lambda t, x: x * 1)
case("reduce_scatter", emitted("reduce_scatter", **ALONE, axis=1, fn="sum"), normal(2, 3),
     torch=lambda t, x: x * 1)  # fmt: skip
case("all_to_all", emitted("all_to_all", **ALONE, split=0, concat=1), normal(2, 3),
     torch=lambda t, x: x * 1)  # fmt: skip
case("collective_permute", emitted("collective_permute", **ALONE, sources=[], targets=[]),
     normal(2, 3), torch=lambda t, x: x * 0)  # fmt: skip
case("collective_broadcast", emitted("collective_broadcast", **ALONE), normal(2, 3),
     torch=lambda t, x: x * 1)  # fmt: skip
case("mark_varying", emitted("mark_varying", classes=[0]), normal(3), torch=lambda t, x: x * 1)
case("assert_same", emitted("assert_same", classes=[0]), normal(3), torch=lambda t, x: x * 1)
