"""What the comparisons with oracles share."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest


@pytest.fixture
def quiet_arithmetic() -> Iterator[None]:
    """Overflow and NaN are what the tests of a module are about."""
    with np.errstate(all="ignore"):
        yield
