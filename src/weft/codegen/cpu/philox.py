"""Philox4x32-10 as LLVM code: the same bits as `foundation.philox`."""

from __future__ import annotations

from weft.codegen.cpu.code import Code, Val, number
from weft.foundation.philox import MULTIPLIERS, ROUNDS, WEYL

_MASK = 0xFFFFFFFF


def philox_word(code: Code, element: Val, seed: Val, offset: Val) -> Val:
    """Word `element` of a stream; everything is i64, of which words use the lower half."""

    def op(name: str, x: Val, constant: int) -> Val:
        return code.binary(name, x, number(constant, "i64", x.lanes))

    def halves(x: Val) -> tuple[Val, Val]:
        return op("and", x, _MASK), op("lshr", x, 32)

    words = [*halves(op("lshr", element, 2)), *halves(offset)]
    keys = list(halves(seed))
    for turn in range(ROUNDS):
        even, odd = (op("mul", words[2 * k], MULTIPLIERS[k]) for k in range(2))
        (even_low, even_high), (odd_low, odd_high) = halves(even), halves(odd)
        first = code.binary("xor", code.binary("xor", odd_high, words[1]), keys[0])
        third = code.binary("xor", code.binary("xor", even_high, words[3]), keys[1])
        words = [first, odd_low, third, even_low]
        if turn + 1 < ROUNDS:
            keys = [op("and", op("add", key, WEYL[k]), _MASK) for k, key in enumerate(keys)]
    which = op("and", element, 3)
    result = words[3]
    for k in (2, 1, 0):
        here = code.compare("icmp eq", which, number(k, "i64", which.lanes))
        result = code.select(here, words[k], result)
    return result
