"""Packing: blocks that meet never overlap, and the arena is close to the least there can be."""

from __future__ import annotations

import random
from itertools import combinations

from tests.support.cases import each
from weft.foundation.packing import Block, Packing, pack, peak


def overlapping(blocks: list[Block], packing: Packing) -> list[tuple[Block, Block]]:
    """Every pair that lives at the same moment and shares a byte, byte by byte."""
    found = []
    for a, b in combinations(blocks, 2):
        bytes_a = set(range(packing.offsets[a.name], packing.offsets[a.name] + a.size))
        bytes_b = set(range(packing.offsets[b.name], packing.offsets[b.name] + b.size))
        moments = set(range(a.first, a.last + 1)) & set(range(b.first, b.last + 1))
        if moments and bytes_a & bytes_b:
            found.append((a, b))
    return found


def random_blocks(seed: int) -> list[Block]:
    rng = random.Random(seed)
    blocks = []
    for name in range(rng.randint(1, 25)):
        first = rng.randint(0, 12)
        blocks.append(
            Block(name, rng.choice([0, 1, 7, 16, 40, 64]), first, first + rng.randint(0, 5))
        )
    return blocks


@each("alignment", [1, 16])
@each("seed", range(40))
def test_blocks_that_meet_do_not_overlap(seed: int, alignment: int) -> None:
    blocks = random_blocks(seed)
    packing = pack(blocks, alignment)
    assert not overlapping(blocks, packing)
    assert all(offset % alignment == 0 for offset in packing.offsets.values())
    assert all(packing.offsets[b.name] + b.size <= packing.size for b in blocks)
    assert packing.size >= peak(blocks)


def test_the_arena_is_near_its_lower_bound() -> None:
    spent = least = 0
    for seed in range(100):
        blocks = random_blocks(seed)
        spent += pack(blocks).size
        least += peak(blocks)
    assert spent <= 1.1 * least


def test_a_chain_needs_two_blocks() -> None:
    chain = [Block(f"t{n}", 100, n, n + 1) for n in range(10)]
    assert pack(chain).size == 200
    assert peak(chain) == 200


def test_nothing_takes_nothing() -> None:
    assert pack([]) == Packing({}, 0)
    assert peak([]) == 0
    assert pack([Block("empty", 0, 0, 3)]).size == 0


def test_the_check_finds_an_overlap() -> None:
    blocks = [Block("a", 4, 0, 2), Block("b", 4, 2, 3)]
    assert overlapping(blocks, Packing({"a": 0, "b": 3}, 7))
    assert not overlapping(blocks, Packing({"a": 0, "b": 4}, 8))
