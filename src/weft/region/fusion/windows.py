"""Windows for exact fusion: blocks that are decided together, because their kernels depend on one
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from weft.region.fusion.greedy import Fusion

MOST_BLOCKS: Final = 20
"""Blocks that are chosen about at once."""
TIME_LIMIT: Final = 1.0
"""Seconds for one window."""


def windows_of(fusion: Fusion) -> Iterator[list[str]]:
    """The blocks that can be chosen about, those together whose kernels depend on one another, the
    last first; where they are too many, in windows that overlap by half."""
    free = {name for name in fusion.order if _is_free(fusion, name)}
    homes = {name: name for name in fusion.order}

    def home(name: str) -> str:
        while homes[name] != name:
            homes[name] = name = homes[homes[name]]
        return name

    for name in fusion.order:
        for reader in fusion.readers[name] if name in free else ():
            homes[home(reader)] = home(name)
    together: dict[str, list[str]] = {}
    for name in reversed(fusion.order):
        if name in free:
            together.setdefault(home(name), []).append(name)
    for blocks in together.values():
        for first in range(0, max(1, len(blocks) - MOST_BLOCKS // 2), MOST_BLOCKS // 2):
            yield blocks[first : first + MOST_BLOCKS]


def _is_free(fusion: Fusion, name: str) -> bool:
    if name in fusion.must or name in fusion.settled:
        return False
    return fusion.view.blocks[name].fn != "const"
