"""Random numbers for tests that draw from one generator of their module.

Every test starts such a generator anew from its own name (`tests/conftest.py`), and so the one
that first values of layers come from: what a test draws does not depend on which tests ran before
it on the same worker.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

from weft.ops.random import default

_GENERATORS: list[np.random.Generator] = []


def generator() -> np.random.Generator:
    """A module's generator, for tests and for its constants."""
    _GENERATORS.append(np.random.default_rng(0))
    return _GENERATORS[-1]


def restart(name: str) -> None:
    """All generators as the test of that name finds them."""
    seed = crc32(name.encode())
    default.start(seed)
    state = np.random.PCG64(seed).state
    for each in _GENERATORS:
        each.bit_generator.state = state
