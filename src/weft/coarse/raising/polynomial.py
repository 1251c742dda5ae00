"""Polynomials of a few values, recognised in sums and products in any order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from weft.coarse.raising.search import MOST_STEPS, Search, is_close
from weft.ptir.ir import Operand

Polynomial: TypeAlias = Mapping[tuple[int, ...], float]
"""Coefficients by the powers of the atoms."""
MOST_TERMS = 8


def polynomial(search: Search, operand: Operand, atoms: Sequence[Operand]) -> Polynomial | None:
    """An operand as a polynomial of atoms, whatever the order in which it is written."""
    if operand in atoms:
        return {tuple(int(operand == atom) for atom in atoms): 1.0}
    number = search.view.number(operand)
    if number is not None:
        return {(0,) * len(atoms): number}
    definition = search.take(operand, "add", "sub", "mul", "div", "neg", "pow")
    if definition is None or len(search.inside) > MOST_STEPS:
        return None
    parts = [polynomial(search, part, atoms) for part in definition.operands]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    made = _combine_polynomials(definition.op.mnemonic, known)
    return made if made is not None and len(made) <= MOST_TERMS else None


def _combine_polynomials(name: str, parts: Sequence[Polynomial]) -> Polynomial | None:
    first = parts[0]
    if name == "neg":
        return {powers: -factor for powers, factor in first.items()}
    second = parts[1]
    if name in ("add", "sub"):
        sign = 1.0 if name == "add" else -1.0
        powers = {**first, **second}
        return {p: first.get(p, 0.0) + sign * second.get(p, 0.0) for p in powers}
    if name == "mul":
        return _multiply_polynomials(first, second)
    constant = _as_number(second)
    if constant is None:
        return None
    if name == "div":
        return {p: factor / constant for p, factor in first.items()} if constant else None
    # Squares and the cube of the approximate gelu; what has higher powers is none of these
    # formulas.
    if constant not in (2.0, 3.0):
        return None
    square = _multiply_polynomials(first, first)
    return square if constant == 2.0 else _multiply_polynomials(square, first)


def _multiply_polynomials(first: Polynomial, second: Polynomial) -> dict[tuple[int, ...], float]:
    result: dict[tuple[int, ...], float] = {}
    for left, a in first.items():
        for right, b in second.items():
            powers = tuple(i + j for i, j in zip(left, right, strict=True))
            result[powers] = result.get(powers, 0.0) + a * b
    return result


def _as_number(value: Polynomial) -> float | None:
    if len(value) != 1:
        return None
    ((powers, factor),) = value.items()
    return None if any(powers) else factor


def is_polynomial(found: Polynomial | None, wanted: Polynomial) -> bool:
    """Whether coefficients are the wanted ones, but for rounding."""
    if found is None:
        return False
    terms = {powers for powers, factor in found.items() if factor} | set(wanted)
    return all(is_close(found.get(p, 0.0), wanted.get(p, 0.0)) for p in terms)
