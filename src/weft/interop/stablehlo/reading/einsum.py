"""Einstein's sums: `ab,bc->ac`, one letter for each axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from weft.interop.stablehlo.reading.contractions import product
from weft.interop.stablehlo.reading.site import Lowering, Site
from weft.ptir.builder import Value


def _einsum(at: Site) -> Value:
    """Axes that only one operand has are summed or kept there; shared ones are contracted, or are
    a batch where the result has them."""
    inputs, result = _parse_config(at)
    values, kept = [], []
    for number, (x, letters) in enumerate(zip(at.x, inputs, strict=True)):
        others = set(result).union(*(other for n, other in enumerate(inputs) if n != number))
        value, left = _sum_letters_away(at, *_diagonal(at, x, letters), others)
        values.append(value)
        kept.append(left)
    if len(values) == 1:
        return values[0].transpose([kept[0].index(letter) for letter in result])
    left, right = kept
    shared = [letter for letter in left if letter in right]
    batch = [letter for letter in shared if letter in result]
    summed = [letter for letter in shared if letter not in result]
    found = product(
        at, values[0], values[1],
        ([left.index(n) for n in summed], [right.index(n) for n in summed]),
        ([left.index(n) for n in batch], [right.index(n) for n in batch]),
    )  # fmt: skip
    rest = [n for n in left if n not in shared] + [n for n in right if n not in shared]
    order = [*batch, *rest]
    return found.transpose([order.index(letter) for letter in result])


def _parse_config(at: Site) -> tuple[list[str], str]:
    config = str(at.attr("einsum_config")).replace(" ", "")
    left, arrow, result = config.partition("->")
    inputs = left.split(",")
    letters = "".join((*inputs, result))
    if not arrow or not letters.isalpha() or len(inputs) != len(at.x):
        at.refuse(f"its einsum_config is {config[:60]!r}")
    fits = all(len(part) == x.rank for part, x in zip(inputs, at.x, strict=True))
    if not fits or len(set(result)) != len(result) or set(result) - set("".join(inputs)):
        raise at.violation(f"the einsum_config {config[:60]!r} does not fit the operands")
    return inputs, result


def _diagonal(at: Site, x: Value, letters: str) -> tuple[Value, str]:
    """One axis for each letter: where a letter occurs twice, only elements on the diagonal count,
    and all others become zero and are summed away."""
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            rows, columns = (at.b.iota("si64", x.shape, axis) for axis in (first, second))
            on = at.b.compare(rows, columns, "equal")
            x = at.b.reduce_sum(at.b.emit("select", on, x, at.full(0, x)), [second])
            letters = letters[:second] + letters[second + 1 :]
    return x, letters


def _sum_letters_away(at: Site, x: Value, letters: str, others: set[str]) -> tuple[Value, str]:
    """Without the axes that nothing else mentions."""
    alone = [axis for axis, letter in enumerate(letters) if letter not in others]
    kept = "".join(letter for letter in letters if letter in others)
    return (at.b.reduce_sum(x, alone) if alone else x), kept


EINSUM: Final[Mapping[str, Lowering]] = {"einsum": _einsum, "unary_einsum": _einsum}
