"""Resource limits of fusion: document 2's thresholds (section 4.2), before tiling is known.

A fusion stops where it would push a kernel over a limit that its parts keep: on-chip memory for
rows, registers for live values, whole vectors, and the layouts that matrix engines write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from weft.foundation.dtypes import F32, I1
from weft.foundation.index_expr import coefficient, linear
from weft.region.cost import operations_of
from weft.region.forms.multiplied import multiplies_numbers, usual_atom
from weft.region.forms.widths import access_bytes
from weft.region.ir import (
    Const,
    Kernel,
    Pattern,
    Read,
    Reduce,
    Tensor,
    operands,
    row_major,
)
from weft.region.row_reads import longest_row, passes_over_rows, reduced_axes
from weft.target import roofline
from weft.target.target import Kind, Target

SHARED_SHARE: Final = 0.8
"""Of the on-chip memory of a block, what rows may take."""
_THREADS: Final = 256
"""Of a block, where none is planned yet."""
_LONGEST_EPILOGUE: Final = 240
"""Operations on each result of a contraction. A thread holds up to 128 results, in registers, and
its code has those of every one of them, once for each tensor they are stored to: a compiler takes
10 to 20 s for as many as these, and minutes for 300."""
_BRANCHES: Final = {"sin": 60, "cos": 60, "tan": 60, "div": 20, "sqrt": 20}
"""What code that hardly ever runs adds: for angles of any size, for quotients and roots of numbers
near the ends of their range. With it, AdamW behind a product took the compiler 80 s, and twice the
time of the product and the optimiser by themselves."""


def stop_reason(
    before: Kernel,
    after: Kernel,
    tensors: Mapping[str, Tensor],
    target: Target,
    *,
    in_stages: bool = False,
    weighed: bool = False,
) -> str | None:
    """Why a kernel should not become another one; None where nothing speaks against it. Those that
    are meant to be stages read what lies between whole vectors from other lanes, not from memory.
    Where all choices are `weighed` against one another, a contraction that no matrix unit takes may
    store its results across its columns: the estimate knows what that takes.
    """
    if target.kind is not Kind.GPU:
        return None
    if after.pattern is Pattern.ROW and passes_over_rows(after) > 1:
        limit, rows = _row_limit(after, target), longest_row(after, tensors)
        if rows > limit >= longest_row(before, tensors):
            return f"its rows would take {rows:,} bytes of on-chip memory, over {limit:,.0f}"
    # A unit hides waiting by changing to another block: with one alone it has none.
    if _blocks_per_unit(after, target) <= 1 < _blocks_per_unit(before, target):
        return f"{live_values(after)} live values would leave room for one block per SM"
    across = weighed and multiplies_numbers(after, target)
    if not (in_stages or across):
        was, now = access_bytes(before, tensors), access_bytes(after, tensors)
        for name, width in was.items():
            # All that lies along the innermost axis is accessed in vectors of as many elements: one
            # tensor that begins inside of a vector narrows those of all others.
            if (narrow := now.get(name, width)) * 2 <= width:
                return f"accesses would narrow from {width} to {narrow} bytes"
    by_columns = after.roles is None or _stores_columns(after, tensors)
    if target.has("wgmma") and not (by_columns or across):
        return "the result would not be stored along its columns"
    if _stores_unlike(after, tensors, target):
        return "matrix kernels do not store results whose elements have different sizes"
    ends = epilogue_operations(after)
    if ends > _LONGEST_EPILOGUE >= epilogue_operations(before):
        return f"its results would take {ends} operations each, over {_LONGEST_EPILOGUE}"
    if _ends_with_padding(after, target) and not _ends_with_padding(before, target):
        return "the epilogue of a matrix kernel would read a padded tensor"
    if _contracts_and_gathers(after) and not _contracts_and_gathers(before):
        return "a contraction would gather its operands"
    return None


def epilogue_operations(kernel: Kernel) -> int:
    """The operations between a contraction and the results of its kernel, for one element: the
    code of each result has all of its own."""
    if kernel.roles is None:
        return 0
    after, total = {kernel.roles.contraction}, 0
    for let in kernel.body:
        if not isinstance(let.expr, Reduce) and after.intersection(operands(let)):
            after.add(let.name)
            fn = getattr(let.expr, "fn", "")
            total += operations_of(fn) + _BRANCHES.get(fn, 0)
    return total * len(kernel.outputs)


def _row_limit(kernel: Kernel, target: Target) -> float:
    """Bytes of a row that a block keeps, or a cluster of them where rows are enough for all."""
    axes = reduced_axes(kernel)
    rows = math.prod(axis.size for axis in kernel.axes if axis.name not in axes)
    blocks = target.blocks_per_row if rows * target.blocks_per_row >= target.limits.units else 1
    return SHARED_SHARE * blocks * target.limits.shared_bytes_per_block


def _ends_with_padding(kernel: Kernel, target: Target) -> bool:
    """Whether the results of matrix units meet a padded tensor, which only slower kernels read."""
    roles = kernel.roles
    if roles is None or target.matrix_rate(kernel.let(roles.lhs).dtype) <= target.matrix_rate(F32):
        return False
    beside = (let.expr for let in kernel.body if not {*let.axes} & {*roles.k})
    return any(isinstance(expr, Read) and kernel.open_guards(expr) for expr in beside)


def _contracts_and_gathers(kernel: Kernel) -> bool:
    """Matrix units' copies know their addresses before they start."""
    gathers = any(isinstance(let.expr, Read) and let.expr.places for let in kernel.body)
    return kernel.roles is not None and gathers


def _blocks_per_unit(kernel: Kernel, target: Target) -> int:
    registers = roofline.registers_per_thread(0, 4 * live_values(kernel))
    return roofline.blocks_per_unit(target.limits, 0, registers, _THREADS)


def live_values(kernel: Kernel) -> int:
    """The most values that are needed at one moment, in the order of the body."""
    last: dict[str, int] = {}
    for number, let in enumerate(kernel.body):
        for name in operands(let):
            last[name] = number
    for output in kernel.outputs:
        last[output.value] = len(kernel.body)
    ending: dict[int, list[str]] = {}
    for name, number in last.items():
        ending.setdefault(number, []).append(name)
    most = 0
    alive: set[str] = set()
    for number, let in enumerate(kernel.body):
        if not isinstance(let.expr, Const):
            alive.add(let.name)
        most = max(most, len(alive))
        alive.difference_update(ending.get(number, ()))
        if last.get(let.name, -1) <= number:
            alive.discard(let.name)
    return most


def _stores_unlike(kernel: Kernel, tensors: Mapping[str, Tensor], target: Target) -> bool:
    """Whether results of matrix instructions have elements of several sizes: staged in turn they
    have one, and stored without they are never truth values."""
    dtypes = {tensors[output.tensor].dtype for output in kernel.outputs}
    if kernel.roles is None or len({dtype.storage_bytes for dtype in dtypes}) < 2:
        return False
    if target.has("wgmma"):
        return usual_atom(kernel, "sm90") is not None
    return I1 in dtypes and usual_atom(kernel, "sm80") is not None


def _stores_columns(kernel: Kernel, tensors: Mapping[str, Tensor]) -> bool:
    """Whether neighbouring columns of every result are neighbours in memory."""
    columns = kernel.roles.n[-1] if kernel.roles else ""
    return all(
        coefficient(linear(output.index, row_major(tensors[output.tensor].shape)), columns) == 1
        for output in kernel.outputs
    )
