"""Random numbers for tests that draw from one generator of their module.

Every test starts such a generator anew from its own name (`tests/conftest.py`), so that what it
draws does not depend on which tests ran before it on the same worker.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np

_GENERATORS: list[np.random.Generator] = []


def generator() -> np.random.Generator:
    """A module's generator, for tests and for its constants."""
    _GENERATORS.append(np.random.default_rng(0))
    return _GENERATORS[-1]


def restart(name: str) -> None:
    """All generators as the test of that name finds them."""
    state = np.random.PCG64(crc32(name.encode())).state
    for each in _GENERATORS:
        each.bit_generator.state = state
