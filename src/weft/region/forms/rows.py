"""Rows of a kernel: which axes its reductions remove, and whether all of them remove the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.region.form import Rows
from weft.region.forms.columns import summed_columns
from weft.region.ir import Fold, Kernel, Reduce
from weft.region.row_reads import walked_axis


def find_rows(kernel: Kernel, strides: Mapping[str, Sequence[int]]) -> Rows:
    """The rows of a kernel whose tensors lie so."""
    every = [set(let.expr.axes) for let in kernel.body if isinstance(let.expr, Reduce | Fold)]
    removed = set[str]().union(*every)
    reduced = tuple(axis.name for axis in kernel.axes if axis.name in removed)
    stored = [removed & set(kernel.let(output.value).axes) for output in kernel.outputs]
    alike = all(axes == removed for axes in every)
    regular = alike and all(axes in (set(), removed) for axes in stored)
    return Rows(reduced, regular, summed_columns(kernel, strides), walked_axis(kernel))
