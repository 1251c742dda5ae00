"""Random comparisons that depend on the bits of a random word alone, as in dropout.

    u = f32(word >> k) * 2^-n        u >= p      is      word >= ceil(p * 2^n) << k

which is so to the last bit: nothing rounds on the left. Of such a word a bit is all that has to be
kept, and it can be drawn before what it decides on is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final

from weft.foundation.dtypes import F32, UI32
from weft.foundation.records import dataclass
from weft.region.ir import Binary, Cast, Const, Kernel, Let, Words, operands

_WORD: Final = 32
_TURNED: Final = {"ge": "le", "le": "ge", "gt": "lt", "lt": "gt"}
"""Comparisons with their sides exchanged."""


@dataclass(frozen=True)
class Chance:
    """Whether the word of a Let is at least `least`; with `inverted` whether it is not."""

    words: str
    least: int
    inverted: bool


def find_chance(lets: Mapping[str, Let], name: str) -> Chance | None:
    """What a Let asks of a random word, where it compares a uniform number with a constant."""
    expr = lets[name].expr
    if not isinstance(expr, Binary) or expr.fn not in _TURNED:
        return None
    fn, x, y = expr.fn, expr.lhs, expr.rhs
    if _known_number(lets, x) is not None:
        fn, x, y = _TURNED[fn], y, x
    bound, found = _known_number(lets, y), _find_scaled(lets, x)
    if bound is None or found is None or not math.isfinite(bound):
        return None
    words, shift, scale = found
    first = Fraction(bound) / Fraction(scale)
    least = math.floor(first) + 1 if fn in ("gt", "le") else math.ceil(first)
    if not 0 <= least << shift < 1 << _WORD:
        return None
    return Chance(words, least << shift, fn in ("lt", "le"))


def made_of(lets: Mapping[str, Let], values: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """The Lets that values are made of, without those that are known, in order. What chances and
    states of random streams are made of is not among them."""
    seen, wanted, stack = set(known), set[str](), [*values]
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            wanted.add(name)
            ends = isinstance(lets[name].expr, Words) or find_chance(lets, name) is not None
            stack.extend(() if ends else operands(lets[name]))
    return [name for name in lets if name in wanted]


def draws_words(kernel: Kernel) -> bool:
    """Whether a kernel computes with random words themselves."""
    lets = {let.name: let for let in kernel.body}
    needed = made_of(lets, (output.value for output in kernel.outputs))
    return any(isinstance(lets[name].expr, Words) for name in needed)


def _find_scaled(lets: Mapping[str, Let], name: str) -> tuple[str, int, float] | None:
    """Of the top bits of a word, as a number of f32 times a power of two: the word, how far it is
    shifted, and the power."""
    product = lets[name]
    if not isinstance(product.expr, Binary) or product.expr.fn != "mul" or product.dtype is not F32:
        return None
    lhs, rhs = product.expr.lhs, product.expr.rhs
    for x, y in ((lhs, rhs), (rhs, lhs)):
        scale, cast = _known_number(lets, y), lets[x]
        if scale is None or not isinstance(cast.expr, Cast) or cast.dtype is not F32:
            continue
        found = _find_shifted(lets, cast.expr.x)
        # A power of two changes no digit, and one in this range makes neither a subnormal number
        # nor an infinity of a 32-bit integer: so a comparison of products is one of words.
        exact = 2.0**-100 < scale < 2.0**60 and math.frexp(scale)[0] == 0.5
        if exact and found is not None:
            return *found, float(scale)
    return None


def _find_shifted(lets: Mapping[str, Let], name: str) -> tuple[str, int] | None:
    """A word and how far it is shifted, where f32 has every number that comes of it."""
    let = lets[name]
    if not isinstance(let.expr, Binary) or let.expr.fn != "shift_right" or let.dtype is not UI32:
        return None
    shift = _known_number(lets, let.expr.rhs)
    if not isinstance(lets[let.expr.lhs].expr, Words) or shift is None:
        return None
    return (let.expr.lhs, int(shift)) if _WORD - F32.precision <= shift < _WORD else None


def _known_number(lets: Mapping[str, Let], name: str) -> float | int | None:
    expr = lets[name].expr
    if not isinstance(expr, Const) or not isinstance(expr.value, int | float):
        return None
    return expr.value
