"""Mergeable axes: the step of the outer one is the extent of the inner one, in every tensor that
they index.

    y[b, h, s, d], rows (b, s) and columns (h, d) of a product

There d is a run of its own, since h steps over all of s and d: columns are those of one h, and each
h, like each b, is a matrix of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.foundation.index_expr import Expr, coefficient


def longest_run(
    group: Sequence[str], exprs: Sequence[Expr], sizes: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The axes of a group, outermost first, split into (those that stand apart, those that act as
    one)."""
    for first in range(len(group)):
        run = group[first:]
        if all(_is_run(run, expr, sizes) for expr in exprs):
            return tuple(group[:first]), tuple(run)
    return tuple(group), ()


def _is_run(run: Sequence[str], expr: Expr, sizes: Mapping[str, int]) -> bool:
    present = [name for name in run if sizes[name] != 1]
    strides = [coefficient(expr, name) for name in present]
    return all(
        strides[i] == strides[i + 1] * sizes[present[i + 1]] for i in range(len(present) - 1)
    )
