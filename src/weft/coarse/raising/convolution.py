"""Raising of convolutions: patches times a matrix, of one group or of several, with a bias or
without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from weft.coarse.raising.matched import Matched
from weft.coarse.raising.search import Search, View
from weft.foundation.numeric import dot_accumulator_dtype
from weft.ptir.ir import Instruction, Operand
from weft.ptir.ops.contraction import DotGeneral
from weft.ptir.ops.movement import Transpose
from weft.ptir.ops.window import ExtractPatches
from weft.ptir.term import Term, known_size
from weft.ptir.types import TensorType

_LAYOUTS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
_GROUPED = 4
"""The axes of a matrix that has groups."""
Product = tuple[ExtractPatches, Operand, Operand, int]
"""The patches, what they are taken of, the matrix, and how many groups it has."""


def convolution(view: View, root: Instruction) -> Matched | None:
    """`extract_patches(x)` times a matrix, and a bias for each column."""
    sides = root.operands if root.op.mnemonic == "add" else ()
    for product, bias in (sides, sides[::-1]) if sides else ():
        search = Search(view)
        search.inside.append(root.id)
        shape = view.shape(product)
        found = _match_product(search, view.definition(product))
        laid = (
            None if found is None or shape is None else search.laid(bias, shape, [len(shape) - 1])
        )
        if found is not None and laid is not None:
            return _match_convolution(search, found, [laid])
    search = Search(view)
    found = _match_product(search, root)
    return None if found is None else _match_convolution(search, found, [])


def _match_convolution(search: Search, found: Product, bias: Sequence[Operand]) -> Matched:
    patches, x, matrix, groups = found
    write = partial(_write_convolution, patches, groups)
    return Matched((x, matrix, *bias), frozenset(search.inside), write)


def _write_convolution(patches: ExtractPatches, groups: int, values: Sequence[Term]) -> Term:
    x, matrix, *bias = values
    share = known_size(x.shape[-1]) // groups
    outputs = matrix.tensor.size // (math.prod(patches.window) * share)
    weight = matrix.reshape((*patches.window, share, outputs))
    flat = [each.reshape((outputs,)) for each in bias]
    lows, highs = zip(*patches.padding, strict=True)
    return x.emitter.emit(
        "weft.conv", x, weight, *flat, layout=_LAYOUTS[len(patches.window)],
        stride=patches.strides, pad=(*lows, *highs), dilation=patches.dilation, groups=groups,
    )  # fmt: skip


def _match_product(search: Search, root: Instruction | None) -> Product | None:
    if root is None:
        return None
    search.inside.append(root.id)
    if isinstance(root.op, DotGeneral):
        return _one_group(search, root)
    return _match_groups(search, root) if root.op.mnemonic == "reshape" else None


def _match_patches(
    search: Search, operand: Operand | None
) -> tuple[ExtractPatches, Operand] | None:
    made = search.take(operand, "extract_patches")
    if made is None or not isinstance(made.op, ExtractPatches) or made.op.pad_value.value != 0:
        return None
    kind = search.view.tensor(made.operands[0])
    known = kind is not None and isinstance(kind.shape[-1], int)
    return (made.op, made.operands[0]) if known and len(made.op.window) in _LAYOUTS else None


def _has_usual_dtypes(dot: DotGeneral, kind: TensorType | None) -> bool:
    """Whether it adds up as convolutions do, and gives the dtype of its operands."""
    if kind is None:
        return False
    usual = dot.accum_dtype in (None, dot_accumulator_dtype(kind.dtype))
    return usual and dot.out_dtype in (None, kind.dtype)


def _one_group(search: Search, root: Instruction) -> Product | None:
    dot, (rows, matrix) = root.op, root.operands
    found, kind = _match_patches(search, rows), search.view.tensor(matrix)
    if found is None or not isinstance(dot, DotGeneral) or not _has_usual_dtypes(dot, kind):
        return None
    last = len(found[0].window) + 1
    axes = dot.batch_lhs, dot.contract_lhs, dot.contract_rhs, kind is not None and kind.rank
    return (*found, matrix, 1) if axes == ((), (last,), (0,), 2) else None


def _match_groups(search: Search, root: Instruction) -> Product | None:
    """Patches `[places..., window, groups, inputs]` times `[window, inputs, groups, outputs]`, for
    each group; the groups are put beside their outputs again."""
    turned = search.take(root.operands[0], "transpose")
    made = None if turned is None else search.take(turned.operands[0], "dot_general")
    if turned is None or made is None or not isinstance(made.op, DotGeneral):
        return None
    rows, matrix = made.operands
    parted, kind = search.take(rows, "reshape"), search.view.tensor(matrix)
    found = None if parted is None else _match_patches(search, parted.operands[0])
    if found is None or kind is None or not kind.is_static or kind.rank != _GROUPED:
        return None
    size, share, groups, _ = kind.static_shape
    rank = len(found[0].window) + 1
    shape, order = search.view.shape(rows) or (), (*range(1, rank + 1), 0, rank + 1)
    fits = shape[rank:] == (size, groups, share) and size == math.prod(found[0].window)
    fits = fits and isinstance(turned.op, Transpose) and tuple(turned.op.perm) == order
    dot = made.op
    axes = dot.batch_lhs, dot.batch_rhs, dot.contract_lhs, dot.contract_rhs
    fits = (
        fits
        and axes == ((rank + 1,), (2,), (rank, rank + 2), (0, 1))
        and _has_usual_dtypes(dot, kind)
    )
    return (*found, matrix, groups) if fits else None
