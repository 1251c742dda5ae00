"""Raising of gelu, in either form and whatever the order of its products and sums."""

from __future__ import annotations

import math
from functools import partial

from weft.coarse.activations import CUBIC, Approximation
from weft.coarse.raising.matched import Matched, one_op
from weft.coarse.raising.polynomial import Polynomial, is_polynomial, polynomial
from weft.coarse.raising.search import Search, View, is_close
from weft.ptir.ir import Instruction, Operand, Ref

DEEPEST = 5
HALVES: Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
"""x / 2 + x y / 2, where y is erf or tanh."""


def gelu(view: View, root: Instruction) -> Matched | None:
    """`x / 2 * (1 + erf(x / sqrt 2))` or `x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`."""
    if root.op.mnemonic != "mul":
        return None
    for bent in _find_erf_and_tanh(view, root):
        search = Search(view)
        x = _argument(search, bent)
        if x is None:
            continue
        result = Ref(root.id)
        if is_polynomial(polynomial(search, result, [x, Ref(bent.id)]), HALVES):
            form = Approximation.NONE if bent.op.mnemonic == "erf" else Approximation.TANH
            return one_op(search, "byteir.gelu", (x,), approximate=form)
    return None


def _find_erf_and_tanh(view: View, root: Instruction) -> list[Instruction]:
    """The erf and tanh a few sums and products below an instruction."""
    found, level = [], [root]
    for _ in range(DEEPEST):
        below = [view.definition(o) for i in level for o in i.operands]
        level = [i for i in below if i is not None]
        found += [i for i in level if i.op.mnemonic in ("erf", "tanh")]
        level = [i for i in level if i.op.mnemonic in ("add", "sub", "mul", "div")]
    return list({i.id: i for i in found}.values())


def _argument(search: Search, bent: Instruction) -> Operand | None:
    """What gelu is taken of, from what erf or tanh is taken of."""
    search.inside.append(bent.id)
    (inner,) = bent.operands
    if bent.op.mnemonic == "erf":
        factor, x = search.scaled(inner)
        return x if is_close(factor, math.sqrt(0.5)) else None
    root = math.sqrt(2.0 / math.pi)
    wanted: Polynomial = {(1,): root, (3,): root * CUBIC}
    attempts = [
        partial(_if_polynomial, search, inner, x, wanted) for x in _atoms(search.view, inner)
    ]
    return search.first(*attempts)


def _if_polynomial(
    search: Search, operand: Operand, x: Operand, wanted: Polynomial
) -> Operand | None:
    return x if is_polynomial(polynomial(search, operand, [x]), wanted) else None


def _atoms(view: View, operand: Operand) -> list[Operand]:
    """The operands that a polynomial may be one of, from the outside in."""
    found: list[Operand] = []
    level = [operand]
    for _ in range(DEEPEST):
        below = [d for o in level if (d := view.definition(o)) is not None]
        level = [o for d in below for o in d.operands if view.number(o) is None]
        found += [o for o in level if o not in found]
    return found
