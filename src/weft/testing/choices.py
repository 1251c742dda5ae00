"""Random decisions. They are integer arithmetic alone, so a seed decides the same on every machine
and with every version of Python and NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")

_MASK = 2**64 - 1
_PARTS = 1000


GOLDEN = 0x9E3779B97F4A7C15
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""The constants of SplitMix64: its step, and the shifts and factors that mix a state."""


def mixed(state: int) -> int:
    """The 64 random bits that belong to a state."""
    for shift, factor in MIXING:
        state = ((state ^ (state >> shift)) * factor) & _MASK
    return state ^ (state >> 31)


class Choices:
    """Decisions from a seed: the SplitMix64 generator."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        self._state = (self._state + GOLDEN) & _MASK
        return low + mixed(self._state) % (high - low + 1)

    def chance(self, probability: float) -> bool:
        """True with this probability, in steps of a thousandth."""
        return self.integer(0, _PARTS - 1) < round(probability * _PARTS)

    def choose(self, items: Sequence[Item]) -> Item:
        """One of the items."""
        return items[self.integer(0, len(items) - 1)]

    def weighted(self, items: Sequence[Item], weights: Sequence[int]) -> Item:
        """One of the items, each as likely as its weight says."""
        at = self.integer(0, sum(weights) - 1)
        for item, weight in zip(items, weights, strict=True):
            at -= weight
            if at < 0:
                return item
        return items[-1]

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """`count` different items, in random order."""
        rest = list(items)
        return [rest.pop(self.integer(0, len(rest) - 1)) for _ in range(min(count, len(rest)))]

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        return self.sample(items, len(items))

    def subset(self, items: Sequence[Item], probability: float = 0.5) -> list[Item]:
        """Each item with this probability, in order."""
        return [item for item in items if self.chance(probability)]
