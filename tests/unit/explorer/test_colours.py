"""Text can be read on everything that is behind it, in the light and in the dark."""

from __future__ import annotations

import re

import pytest

from weft.explorer.page import STYLE, asset

LEAST = 4.5
"""What the guidelines for accessibility ask of text of this size."""
INKS = ("text", "soft", "accent", "mark", "str", "num", "ref", "key", "typ")
BEHIND = {
    "text": ("page", "panel", "glow", "lit", "near"),
    "soft": ("page", "panel", "lit", "near"),
}
CODE = ("page", "panel", "lit", "near")


def schemes() -> list[dict[str, str]]:
    blocks = re.findall(r"\{([^{}]*--page:[^{}]*)\}", asset(STYLE))
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]


def brightness(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(weight * x for weight, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", schemes(), ids=["light", "dark", "dark, asked for"])
@pytest.mark.parametrize("ink", INKS)
def test_text_stands_out(ink: str, scheme: dict[str, str]) -> None:
    for behind in BEHIND.get(ink, ("page", "panel") if ink in ("accent", "mark") else CODE):
        one, other = sorted(brightness(scheme[name]) for name in (ink, behind))
        assert (other + 0.05) / (one + 0.05) >= LEAST, (ink, behind)


def test_both_ways_to_the_dark_are_the_same() -> None:
    _, wished, asked = schemes()
    assert wished == asked
