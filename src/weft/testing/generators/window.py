"""Sliding windows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from weft.foundation.dtypes import ANY
from weft.ptir.literal import scalar_literal
from weft.ptir.ops.reduce_kind import DEFINED, ReduceKind
from weft.ptir.ops.window import ExtractPatches, ReduceWindow
from weft.testing.draft import Item
from weft.testing.facts import Want, default_accumulator, sum_facts, within
from weft.testing.generator import Generator
from weft.testing.generators.movement import pad_value
from weft.testing.generators.reduction import (
    accumulators,
    empty_extreme,
    summand_bound,
)
from weft.testing.generators.registry import generates


@dataclass(frozen=True)
class Window:
    """How windows lie along one axis."""

    size: int
    stride: int
    padding: tuple[int, int]
    base: int
    dilation: int


def _draw_window(g: Generator, extent: int, *, base: bool) -> Window:
    """A window that fits into the padded axis."""
    choices = g.choices
    if choices.chance(0.35):
        return Window(1, choices.choose((1, 1, 2)), (0, 0), 1, 1)
    padding = (choices.choose((0, 0, 1, 2)), choices.choose((0, 0, 1, 2)))
    between = choices.choose((1, 1, 1, 2)) if base else 1
    dilation = choices.choose((1, 1, 1, 2))
    places = sum(padding) + ((extent - 1) * between + 1 if extent else 0)
    most = (places - 1) // dilation + 1 if places else 1
    if choices.chance(0.2) and not sum(padding) % dilation:
        # As many windows as elements, which keeps a symbol's name.
        most = min(most, sum(padding) // dilation + 1)
        return Window(most, 1, padding, 1 if base else between, dilation)
    return Window(
        choices.integer(1, min(most, 4)), choices.integer(1, 2), padding, between, dilation
    )


@generates(ReduceWindow, weight=3)
def reduce_window(g: Generator) -> None:
    kind = g.choices.choose(list(ReduceKind))
    dtype = g.dtype(DEFINED[kind])
    adds = kind is ReduceKind.SUM
    x = g.pick({dtype}, Want() if adds else Want(special=True))
    windows = [_draw_window(g, n, base=True) for n in x.sizes]
    count = math.prod(w.size for w in windows)
    accum = None if not (dtype.is_integer or dtype.is_float) else accumulators(g, dtype)
    if adds:
        x = _summands(g, x, count)
        facts = sum_facts(dtype, accum or default_accumulator(dtype), x.facts, count)
    else:
        facts = empty_extreme(dtype, kind, replace(x.facts, zeros=False))
    op = ReduceWindow(
        tuple(w.size for w in windows), tuple(w.stride for w in windows),
        tuple(w.padding for w in windows), tuple(w.base for w in windows),
        tuple(w.dilation for w in windows), kind, accum,
    )  # fmt: skip
    g.emit(op, x, facts=facts)


def _summands(g: Generator, x: Item, count: int) -> Item:
    want = within(summand_bound(x.dtype, count))
    fitted = g.fit(x, want)
    return fitted if fitted is not None else g.like(x, want)


@generates(ExtractPatches, weight=3)
def extract_patches(g: Generator) -> None:
    x = g.pick(ANY, ok=lambda item: item.rank >= 2, shape=lambda: g.shape(2, 4))
    windows = [_draw_window(g, n, base=False) for n in x.sizes[1:-1]]
    value, facts = pad_value(g, x)
    op = ExtractPatches(
        tuple(w.size for w in windows), tuple(w.stride for w in windows),
        tuple(w.dilation for w in windows), tuple(w.padding for w in windows),
        scalar_literal(value, x.dtype),
    )  # fmt: skip
    g.emit(op, x, facts=facts)
