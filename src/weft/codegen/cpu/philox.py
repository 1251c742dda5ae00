"""Philox4x32-10 as LLVM code: the same bits as `foundation.philox`."""

from __future__ import annotations

from weft.codegen.cpu.code import Code, Val, multiples, number
from weft.foundation.philox import MULTIPLIERS, ROUNDS, WEYL

_MASK = 0xFFFFFFFF


def philox_blocks(
    code: Code, first: Val, lanes: int, seed: Val, offset: Val, features: frozenset[str]
) -> Val:
    """So many words of neighbouring blocks, in order, as a vector of i32; the arguments are single
    i64."""
    name, count = f"philox_blocks_{lanes}", lanes // 4
    if name not in code.functions:
        inner = Code()
        block, *state = (Val(f"%x{n}", "i64") for n in range(3))
        vector = (_in_vectors if "avx2" in features and count > 1 else _one_by_one)(
            inner, block, count, *state
        )
        head = f"define internal <{lanes} x i32> @{name}(i64 %x0, i64 %x1, i64 %x2) nounwind {{"
        code.functions[name] = f"{head}\nentry:\n{inner.text()}\n  ret {vector}\n}}"
    call = f"call <{lanes} x i32> @{name}({first}, {seed}, {offset})"
    return code.assign(call, "i32", lanes)


def _one_by_one(code: Code, first: Val, count: int, seed: Val, offset: Val) -> Val:
    words = [
        code.convert("trunc", word, "i32")
        for block in range(count)
        for word in _rounds(code, code.binary("add", first, number(block, "i64")), seed, offset)
    ]
    return code.gather_lanes(words)


def _in_vectors(code: Code, first: Val, count: int, seed: Val, offset: Val) -> Val:
    blocks = code.binary("add", first, multiples(1, "i64", count))
    state = (code.spread(part, count) for part in (seed, offset))
    words = [code.convert("trunc", word, "i32") for word in _rounds(code, blocks, *state)]
    every = code.joined(words)
    places = (word * count + block for block in range(count) for word in range(4))
    mask = ", ".join(f"i32 {place}" for place in places)
    text = f"shufflevector {every}, {every.type} poison, <{every.lanes} x i32> <{mask}>"
    return code.assign(text, "i32", every.lanes)


def philox_words(code: Code, element: Val, seed: Val, offset: Val) -> Val:
    """Word `element` of a stream, as i32; everything else is i64."""
    found = code.function("philox", _word, element, seed, offset)
    return code.convert("trunc", found, "i32")


def _word(code: Code, element: Val, seed: Val, offset: Val) -> Val:
    """A word in the lower half of an i64."""
    block = code.binary("lshr", element, number(2, "i64", element.lanes))
    words = _rounds(code, block, seed, offset)
    which = code.binary("and", element, number(3, "i64", element.lanes))
    result = words[3]
    # Each lane takes one of the four words of a block of its own: neighbours compute the same block
    # four times, which `philox_blocks` spares where they are known to be neighbours.
    for k in (2, 1, 0):
        here = code.compare("icmp eq", which, number(k, "i64", which.lanes))
        result = code.select(here, words[k], result)
    return result


def _rounds(code: Code, block: Val, seed: Val, offset: Val) -> list[Val]:
    """The four words of a block (or a vector of blocks), each in the lower half of an i64."""

    def op(name: str, x: Val, constant: int) -> Val:
        return code.binary(name, x, number(constant, "i64", x.lanes))

    def halves(x: Val) -> tuple[Val, Val]:
        return op("and", x, _MASK), op("lshr", x, 32)

    words = [*halves(block), *halves(offset)]
    keys = list(halves(seed))
    for turn in range(ROUNDS):
        # Words of 32 bits in 64: one product has both halves, where vectors of 32 bits would need
        # two.
        even, odd = (op("mul", words[2 * k], MULTIPLIERS[k]) for k in range(2))
        (even_low, even_high), (odd_low, odd_high) = halves(even), halves(odd)
        first = code.binary("xor", code.binary("xor", odd_high, words[1]), keys[0])
        third = code.binary("xor", code.binary("xor", even_high, words[3]), keys[1])
        words = [first, odd_low, third, even_low]
        if turn + 1 < ROUNDS:
            # Keys are counted modulo 2^32; the words of a round are halves, and need no mask.
            keys = [op("and", op("add", key, WEYL[k]), _MASK) for k, key in enumerate(keys)]
    return words
