"""Range checks of sizes, offsets and counts: whole numbers that fit 64 bits."""

from __future__ import annotations

from typing import Final

_MOST_DIGITS: Final = 40
"""A text with more is not looked at: Python takes long over long numbers, and refuses some."""


def as_whole(value: object) -> int | None:
    """What counts as a whole number to Python, as an int; None for anything else, truth values
    included. Arrays say that they count, and raise where they have several elements."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except TypeError:
        return None


def in_64_bits(number: int) -> bool:
    """Whether a signed integer of 64 bits holds the number."""
    return -(1 << 63) <= number < 1 << 63


def read_whole(text: str) -> int | None:
    """The number that digits write; None where it is beyond 64 bits."""
    if len(text) > _MOST_DIGITS:
        return None
    found = int(text)
    return found if in_64_bits(found) else None


def round_up(size: int, step: int) -> int:
    """The size filled up to whole steps."""
    return -(-size // step) * step
